"""How a launcher becomes the small process that stays, and what it is called by workers."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

import mpiboot
from mpiboot.choices import LogFormat, LogLevel
from mpiboot.launcher import start
from mpiboot.parent.launch_spec import ParentOptions
from mpiboot.setting_sources import resolve
from mpiboot.system import process


class Replaced(Exception):  # noqa: N818 - it is none
    """This process would be another program now."""


def test_the_parent_has_its_options_its_child_and_the_signals_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[tuple[Sequence[str], Mapping[str, str], Sequence[int]]] = []

    def replace(
        argv: Sequence[str], environ: Mapping[str, str], *, blocked: Sequence[int]
    ) -> NoReturn:
        said.append((argv, environ, blocked))
        raise Replaced

    monkeypatch.setattr(process, "replace", replace)
    monkeypatch.setattr(process, "is_containers_own", lambda: True)
    flags = {
        "hold_on_failure": "60",
        "log_level": "debug",
        "log_format": "json",
        "termination_log": "/t",
    }
    environ = {"A": "1", "MPIBOOT_WORKER_EXIT": "after-job"}
    with pytest.raises(Replaced):
        start.launch(resolve(flags, environ), ("./train", "-x"), environ)

    ((argv, given, blocked),) = said
    folder = Path(mpiboot.__file__).parent
    head = [sys.executable, "-I", "-S", str(folder / "parent/__main__.py"), "launch"]
    assert list(argv[:5]) == head
    assert ParentOptions.from_json(argv[5]) == ParentOptions(
        LogLevel.DEBUG, LogFormat.JSON, "/t", 60.0
    )
    child = argv[6:]
    assert child[0] == sys.executable
    assert "launcher.child" in child[2]
    assert list(child[-2:]) == ["./train", "-x"]
    told = json.loads(child[-3])
    assert told["flags"] == flags
    assert told["attempt"].count("@") == 2
    assert given == environ
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD} <= set(blocked)


@pytest.mark.parametrize(
    ("wanted", "environ", "own", "named"),
    [
        ("after-job", {}, False, True),
        ("auto", {}, True, True),
        ("auto", {}, False, False),  # as by kubectl exec
        ("never", {}, True, False),
        ("after-job", {"MPIBOOT_JOB_MARK": "x"}, True, False),
        ("after-job", {"MPIBOOT_ATTEMPT": "x"}, True, False),
    ],
)
def test_workers_know_a_launcher_by_name_where_it_is_the_whole_job(
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    environ: Mapping[str, str],
    own: bool,  # noqa: FBT001 - a row of the table
    named: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr(process, "is_containers_own", lambda: own)
    monkeypatch.setattr("socket.gethostname", lambda: "a-launcher.ns 'x'")
    setting = resolve({"worker_exit": wanted}, {}).settings.worker_exit
    found, again = (start.new_attempt(setting, environ) for _ in range(2))
    if not named:
        assert found == ""
        return
    host, since, number = found.split("@")
    assert host == "a-launcher.nsx"
    assert (len(since), since[-1]) == (len("2026-01-02T00:00:00Z"), "Z")
    assert len(number) == 8
    assert found != again
