"""`mpiboot doctor` as it is called: its role, what is selected, how it is shown and ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpiboot.core.checks import ShownError
from mpiboot.core.model import Finding, Level, Role
from mpiboot.core.settings import Resolved, resolve
from mpiboot.doctor import checks, role
from tests.fakes.cli import GUARD, environment, mpiboot
from tests.fakes.programs import program
from tests.fakes.worker import HAVE_SSH, make_key

FOUND = (
    Finding("ssh-key", Level.FAIL, "no key", hint="mount it"),
    Finding("slots", Level.FAIL, "too few", "w-1.job.ns.svc"),
    Finding("shm", Level.WARN, "small", hosts=("w-1.job.ns.svc", "w-2.job.ns.svc"), hint="more"),
    Finding("gpus", Level.OK, "8", "w-2.job.ns.svc"),
    Finding("memory-limit", Level.UNKNOWN, "not known"),
)


@pytest.fixture
def settled(tmp_path: Path) -> Resolved:
    return resolve({"runtime_dir": str(tmp_path / "run"), "ssh_key": str(tmp_path / "none")}, {})


@pytest.fixture
def doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settled: Resolved
) -> Callable[..., tuple[str, BaseException | None]]:
    """Runs it with these findings: what it prints, and how it ends."""

    def run(*found: Finding, **given: Any) -> tuple[str, BaseException | None]:  # noqa: ANN401
        def look(*_: object, **__: object) -> Iterator[Finding]:
            yield from found

        monkeypatch.setattr(role, "_findings", look)
        end: BaseException | None = None
        try:
            role.run(settled, {}, **given)
        except ShownError as wrong:
            end = wrong
        return capsys.readouterr().out, end

    return run


@pytest.mark.parametrize(
    ("flags", "mounted", "name", "which"),
    [
        ({"role": "worker"}, False, "pod", Role.WORKER),
        ({"role": "launcher"}, False, "pod", Role.LAUNCHER),
        ({}, True, "pod", Role.LAUNCHER),
        ({}, False, "pod", Role.NONE),
        ({"role": "by-index"}, False, "train-0", Role.LAUNCHER),
        ({"role": "by-index"}, False, "train-1", Role.WORKER),
    ],
)
def test_the_role_is_that_of_its_settings_hostfile_or_number(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, str],
    name: str,
    which: Role,
    *,
    mounted: bool,
) -> None:
    uname = os.uname_result(("Linux", name, "", "", ""))
    monkeypatch.setattr(os, "uname", lambda: uname)
    hostfile = tmp_path / "hostfile"
    if mounted:
        hostfile.touch()
    assert role.role_of(resolve({**flags, "hostfile": str(hostfile)}, {}), {}) is which


def test_a_worker_has_a_server_and_a_launcher_queries_its_hosts(
    monkeypatch: pytest.MonkeyPatch, settled: Resolved
) -> None:
    monkeypatch.setattr(checks, "chosen", lambda *_, **__: ())
    monkeypatch.setattr(role, "of_job", lambda *_, **__: iter([Finding("slots", Level.OK, "")]))

    def listed(which: Role, *, image: bool = False) -> list[str]:
        return [item.check for item in role._findings(settled, {}, which, (), image=image)]

    found = {which: listed(which) for which in Role}
    assert found == {Role.LAUNCHER: ["slots"], Role.WORKER: ["workers-unreachable"], Role.NONE: []}
    assert [listed(which, image=True) for which in Role] == [[], [], []]


def test_something_that_fails_is_its_end_and_all_are_counted(doctor: Any) -> None:  # noqa: ANN401
    out, end = doctor(*FOUND)
    assert (end.finding, end.code) == (FOUND[0], 1)
    assert out.endswith("\n\n5 checks: 2 failed, 1 warning, 1 not known\n")


def test_json_has_a_version_and_the_findings_that_are_wanted_once(doctor: Any) -> None:  # noqa: ANN401
    only = ("shm", "gpus", "memory-limit")
    out, end = doctor(*FOUND, FOUND[3], only=only, as_json=True)
    report = json.loads(out)
    here = os.uname().nodename
    assert end is None
    assert (report["version"], report["host"]) == (3, here)
    assert [item["check"] for item in report["findings"]] == [*only]
    assert [item["host"] for item in report["findings"]] == ["", "w-2.job.ns.svc", here]
    assert report["findings"][0] == {
        "group": "limits",
        "check": "shm",
        "level": "warn",
        "message": "small",
        "host": "",
        "hosts": ["w-1.job.ns.svc", "w-2.job.ns.svc"],
        "evidence": [],
        "hint": "more",
    }


@pytest.mark.skipif(not HAVE_SSH, reason="no ssh-keygen")
def test_ctrl_c_while_hosts_are_queried_ends_it(tmp_path: Path) -> None:
    """A host that takes connections and never greets."""
    key = tmp_path / "id_ed25519"
    program(tmp_path, "mpirun", "echo 'mpirun (Open MPI) 4.1.6'")
    make_key(key, "-t", "ed25519")
    with socket.create_server(("127.0.0.7", 0)) as silent:
        (tmp_path / "hosts").write_text("127.0.0.7 slots=1\n")
        env = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "MPIBOOT_ROLE": "launcher",
            "MPIBOOT_SSH_KEY": str(key),
            "MPIBOOT_SSH_PORT": str(silent.getsockname()[1]),
            "MPIBOOT_HOSTFILE": str(tmp_path / "hosts"),
        }
        silent.settimeout(GUARD)
        words = [sys.executable, "-m", "mpiboot", "doctor", "--timeout", str(GUARD)]
        with subprocess.Popen(
            words, env=environment(tmp_path, env), cwd=tmp_path, stdout=-1, stderr=-1, text=True
        ) as child:
            connection, _ = silent.accept()
            with connection:
                child.send_signal(signal.SIGINT)
                out, err = child.communicate(timeout=GUARD)
    assert child.returncode == 130, out + err
    assert "Traceback" not in err


def test_a_cell_has_the_worst_level_of_its_checks() -> None:
    ok, warn, fail, unknown = Level.OK, Level.WARN, Level.FAIL, Level.UNKNOWN
    rows: tuple[tuple[Level, ...], ...] = (
        (),
        (ok, ok),
        (ok, warn),
        (warn, fail, fail),
        (unknown, ok),
    )
    assert [role.cell(levels) for levels in rows] == ["", "ok", "warn", "FAIL 2", "?"]


def test_on_a_terminal_hosts_are_rows_and_groups_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    alike = [Finding("slots", Level.OK, "", f"w-{number}.job.ns.svc") for number in range(3, 9)]
    role.write([*FOUND, *alike])
    drawn, _, below = capsys.readouterr().out.partition("\n\n")
    assert [" ".join(line.split()) for line in drawn.splitlines()] == [
        *("job ssh limits gpus", "this pod FAIL ?", "w-1 FAIL warn", "w-2 warn ok"),
        "w-3, w-4, w-5 and 3 more ok",
    ]
    assert all(len(line) <= 72 for line in drawn.splitlines())
    assert "FAIL  this pod        ssh-key" in below
    assert "ok  " not in below


def test_two_that_run_at_once_leave_each_other_their_folder(tmp_path: Path) -> None:
    env = {"MPIBOOT_ROLE": "worker", "MPIBOOT_RUNTIME_DIR": str(tmp_path / "run")}
    given = resolve({"runtime_dir": env["MPIBOOT_RUNTIME_DIR"]}, {})
    list(checks.folder(checks.Pod(given, {})))
    (made,) = tmp_path.rglob(checks.role_name())
    done = mpiboot(tmp_path, "doctor", "--json", env=env)
    assert "Traceback" not in done.stderr
    assert made.is_dir(), "another run has removed it"
    checks.remove_folder(given.settings, {})
    assert not list((tmp_path / "run").iterdir())
