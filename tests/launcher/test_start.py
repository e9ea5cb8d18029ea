"""How a launcher becomes the small process that stays, and what it is called by workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

import mpiboot
from mpiboot.core.launch_spec import ParentOptions
from mpiboot.core.setting_types import LogFormat, LogLevel
from mpiboot.core.settings import resolve
from mpiboot.launcher import role
from mpiboot.system import process

# A launcher whose child only tells what it was given, and how it was started.
PROGRAM = """
import json, os, signal, sys
from mpiboot.system import control_groups
from mpiboot.launcher import child, role
from mpiboot.supervisor import signals
from mpiboot.core.launch_names import PARENT
from mpiboot.core.settings import resolve

def main(resolved, program, attempt):
    masks = [line for line in open("/proc/self/status") if line.startswith("SigBlk")]
    told = {"flags": resolved.flags, "program": program, "attempt": attempt}
    told |= {"environ": dict(os.environ), "mask": int(masks[0].split()[1], 16)}
    told |= {"ids": [os.getpid(), os.getppid(), os.getpgrp()], "open": os.listdir("/proc/self/fd")}
    os.write(PARENT, json.dumps(told).encode())
    signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
    os.write(PARENT, b"\\n")
    signal.pause()

child.main = main
control_groups.kills = lambda: 3
given = json.loads(sys.argv[1])
signals.block()
role._launch(resolve(given["flags"], os.environ), ("mpirun", "-x"), given["environ"])
"""
# What stands in the parent's place: it tells what it was given, and what its child says.
PARENT = """#!/bin/sh
exec {python} -IS - "$@" << 'END'
import json, os, signal, sys
options, child, result = sys.argv[sys.argv.index("launch") + 1:]
told = {{"options": options, "child": int(child), "own": os.getpid(), "environ": [*os.environ]}}
told["mask"] = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
print(json.dumps(told))
print(open(int(result)).readline())
END
"""


def test_the_parent_has_its_options_its_child_and_the_signals_that_wait(tmp_path: Path) -> None:
    flags = {
        "hold_on_failure": "60",
        "log_level": "debug",
        "log_format": "json",
        "termination_log": "/t",
    }
    given = {"A": "1", "PATH": os.environ["PATH"], "MPIBOOT_WORKER_EXIT": "after-job"}
    parent = tmp_path / "python"
    parent.write_text(PARENT.format(python=sys.executable))
    parent.chmod(0o755)
    program = f"import sys; sys.executable = {str(parent)!r}\n{PROGRAM}"
    words = [sys.executable, "-c", program, json.dumps({"flags": flags, "environ": given})]
    env = given | {"B": "not given", "PYTHONPATH": str(Path(mpiboot.__file__).parents[1])}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        became = json.loads(process.stdout.readline())
        try:
            told = json.loads(process.stdout.readline())
        finally:
            os.kill(became["child"], signal.SIGTERM)
    own, child = became["own"], became["child"]
    assert own == process.pid
    wanted = ParentOptions(LogLevel.DEBUG, LogFormat.JSON, "/t", 60.0, oom_kills=3)
    assert ParentOptions.from_json(became["options"]) == wanted
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD} <= {*became["mask"]}
    assert "B" not in became["environ"]

    assert told["ids"] == [child, own, child]
    assert told["mask"] == 0
    assert (told["flags"], told["program"]) == (flags, ["mpirun", "-x"])
    assert told["attempt"].count("@") == 2
    assert told["environ"] == given
    assert sorted(map(int, told["open"]))[:4] == [0, 1, 2, 3]
    assert (
        len(told["open"]) == 5
    )  # and the folder that lists them: no end of the sockets but its own


@pytest.mark.parametrize(
    ("wanted", "environ", "own", "named"),
    [
        ("after-job", {}, False, True),
        ("auto", {}, True, True),
        ("auto", {}, False, False),  # as by kubectl exec
        ("never", {}, True, False),
        ("after-job", {"MPIBOOT_LAUNCH_ID": "x"}, True, False),
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
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(nodename="a-launcher.ns 'x'"))
    setting = resolve({"worker_exit": wanted}, {}).settings.worker_exit
    found, again = (role.new_attempt(setting, environ) for _ in range(2))
    if not named:
        assert found == ""
        return
    host, since, number = found.split("@")
    assert host == "a-launcher.nsx"
    assert (len(since), since[-1]) == (len("2026-01-02T00:00:00Z"), "Z")
    assert len(number) == 8
    assert found != again
