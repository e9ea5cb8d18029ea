"""`mpiboot doctor` as it is called: which role, what is selected, how it is told and ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, ShownError
from mpiboot.core.model import Finding, Level, Role
from mpiboot.core.settings import Resolved, resolve
from mpiboot.doctor import job, observe, role
from tests.fakes.cli import GUARD, environment, mpiboot

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


@pytest.mark.parametrize(
    ("flags", "mounted", "which"),
    [
        ({"role": "worker"}, False, Role.WORKER),
        ({"role": "launcher"}, False, Role.LAUNCHER),
        ({}, True, Role.LAUNCHER),
        ({}, False, Role.NONE),
    ],
)
def test_a_hostfile_is_reason_enough_to_look_at_its_hosts(
    tmp_path: Path,
    flags: dict[str, str],
    mounted: bool,  # noqa: FBT001 - a row of the table
    which: Role,
) -> None:
    hostfile = tmp_path / "hostfile"
    if mounted:
        hostfile.touch()
    assert role.role_of(resolve({**flags, "hostfile": str(hostfile)}, {}), {}) is which


@pytest.mark.parametrize(("name", "which"), [("train-0", Role.LAUNCHER), ("train-1", Role.WORKER)])
def test_a_pod_whose_role_goes_by_its_number_is_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, which: Role
) -> None:
    uname = os.uname_result(("Linux", name, "", "", ""))
    monkeypatch.setattr(os, "uname", lambda: uname)
    flags = {"role": "by-index", "hostfile": str(tmp_path / "none")}
    assert role.role_of(resolve(flags, {}), {}) is which


@pytest.mark.parametrize(
    ("which", "says"),
    [(Role.WORKER, {"workers-unreachable"}), (Role.LAUNCHER, {"slots"}), (Role.NONE, set())],
)
def test_a_worker_has_a_server_and_a_launcher_asks_its_hosts(
    monkeypatch: pytest.MonkeyPatch, settled: Resolved, which: Role, says: set[str]
) -> None:
    monkeypatch.setattr(job, "chosen", lambda *_, **__: ())
    monkeypatch.setattr(job, "of_job", lambda *_, **__: iter([Finding("slots", Level.OK, "")]))
    assert {item.check for item in role._findings(settled, {}, which, (), image=False)} == says
    assert list(role._findings(settled, {}, which, (), image=True)) == []


# -- what is asked for -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("only", "left"), [((), [0, 1, 2, 3, 4]), (("slots", "gpus"), [1, 3])], ids=["all", "two"]
)
def test_checks_that_are_asked_for_are_left(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settled: Resolved,
    only: tuple[str, ...],
    left: list[int],
) -> None:
    finds(monkeypatch, *FOUND)
    with pytest.raises(ShownError):
        role.run(settled, {}, only=only, as_json=True)
    shown = [item["check"] for item in json.loads(capsys.readouterr().out)["findings"]]
    assert shown == [FOUND[place].check for place in left]


def test_a_check_that_is_not_there_is_a_wrong_call(settled: Resolved) -> None:
    with pytest.raises(MpibootError) as caught:
        role.run(settled, {}, only=("no-such",))
    assert (caught.value.code, caught.value.finding.message) == (2, "there is no check 'no-such'")


# -- how it ends -----------------------------------------------------------------------------------


def finds(monkeypatch: pytest.MonkeyPatch, *found: Finding, ends: bool = True) -> None:
    def look(*_: object, **__: object) -> Iterator[Finding]:
        yield from found
        if not ends:
            raise KeyboardInterrupt

    monkeypatch.setattr(role, "_findings", look)


def test_something_that_fails_is_its_end_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settled: Resolved
) -> None:
    finds(monkeypatch, *FOUND)
    with pytest.raises(ShownError) as caught:
        role.run(settled, {})
    assert (caught.value.finding, caught.value.code) == (FOUND[0], 1)
    message = capsys.readouterr().out
    assert message.endswith("\n\n5 checks: 2 failed, 1 warning, 1 not known\n")


def test_json_has_a_version_and_names_the_host_of_each_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settled: Resolved
) -> None:
    finds(monkeypatch, *FOUND[2:], FOUND[3])
    role.run(settled, {}, as_json=True)
    told = json.loads(capsys.readouterr().out)
    here = os.uname().nodename
    assert (told["version"], told["host"], told["complete"]) == (2, here, True)
    assert [item["check"] for item in told["findings"]] == ["shm", "gpus", "memory-limit"]
    assert [item["host"] for item in told["findings"]] == ["", "w-2.job.ns.svc", here]
    assert told["findings"][0] == {
        "group": "limits",
        "check": "shm",
        "level": "warn",
        "message": "small",
        "host": "",
        "hosts": ["w-1.job.ns.svc", "w-2.job.ns.svc"],
        "evidence": [],
        "hint": "more",
    }


def test_after_ctrl_c_what_was_found_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settled: Resolved
) -> None:
    finds(monkeypatch, FOUND[0], ends=False)
    with pytest.raises(KeyboardInterrupt):
        role.run(settled, {})
    message = capsys.readouterr().out
    assert "FAIL  this pod  ssh-key  no key\n" in message
    assert message.endswith("1 failed, 0 warnings; interrupted: the rest was not checked\n")
    with pytest.raises(KeyboardInterrupt):
        role.run(settled, {}, as_json=True)
    assert json.loads(capsys.readouterr().out)["complete"] is False


# -- looks that hang or fail -----------------------------------------------------------------------


def test_a_look_that_hangs_or_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, settled: Resolved
) -> None:
    never = threading.Event()
    nothing: dict[str, str] = {}
    broken = {
        "shm": lambda _: never.wait(),
        "limits": lambda _: nothing["bug"],
        "memory": lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied")),
    }
    monkeypatch.setattr(role, "PARTS", {**role.PARTS, **broken})
    one = role.Subject(settled, {})
    parts, unseen = role.gather(one, {"shm", "limits", "memory", "identity"}, 2.0)
    never.set()
    assert "identity" in parts
    assert unseen == {
        "shm": "no answer within 2s",
        "limits": "observing it failed: KeyError: 'bug'",
        "memory": "Permission denied",
    }


def test_a_pod_that_may_start_no_thread_is_looked_at_all_the_same(
    monkeypatch: pytest.MonkeyPatch, settled: Resolved
) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    one = role.Subject(settled, {})
    parts, unseen = role.gather(one, {"shm", "memory"}, 2.0)
    assert {"shm", "memory"} <= set(parts)
    assert unseen == {}


# -- in a plain container --------------------------------------------------------------------------


def test_without_anything_each_thing_that_is_missing_is_told(tmp_path: Path) -> None:
    """No key, no hostfile, no MPI, no ssh, as in a plain container outside Kubernetes."""
    empty = tmp_path / "bin"
    empty.mkdir()
    env = {
        "PATH": str(empty),
        "MPIBOOT_ROLE": "launcher",
        "MPIBOOT_SSH_KEY": str(tmp_path / "none"),
        "MPIBOOT_HOSTFILE": str(tmp_path / "no-hostfile"),
    }
    done = mpiboot(tmp_path, "doctor", "--json", env=env)
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    told = json.loads(done.stdout)["findings"]
    failed = [item["check"] for item in told if item["level"] == "fail"]
    assert sorted(failed) == ["program-missing", "ssh-key"]


def test_ctrl_c_while_hosts_are_asked_tells_what_was_found(tmp_path: Path) -> None:
    """A host that takes connections and never greets: the look waits for it."""
    key = tmp_path / "id_ed25519"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen")
    subprocess.run(command, check=True)
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.6'\n")
    mpirun.chmod(0o755)
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
        ) as doctor:
            connection, _ = silent.accept()
            with connection:
                doctor.send_signal(signal.SIGINT)
                out, err = doctor.communicate(timeout=GUARD)
    assert doctor.returncode == 130, out + err
    assert "Traceback" not in err
    assert f"the key is {key}, ssh-ed25519 SHA256:" in out
    assert out.endswith("interrupted: the rest was not checked\n")


def test_an_image_without_an_mpi_ends_its_build(tmp_path: Path) -> None:
    done = mpiboot(tmp_path, "doctor", "--image", env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "FAIL  this pod  program-missing " in done.stdout
    assert "ssh-key" not in done.stdout
    assert not (tmp_path / "run").exists()


# -- the table of a terminal -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "written"),
    [
        ((), ""),
        ((Level.OK, Level.OK), "ok"),
        ((Level.OK, Level.WARN), "warn"),
        ((Level.WARN, Level.FAIL, Level.FAIL), "FAIL 2"),
        ((Level.UNKNOWN, Level.OK), "?"),
    ],
)
def test_a_cell_has_the_worst_level_of_its_checks(levels: tuple[Level, ...], written: str) -> None:
    assert role.cell(levels) == written


def test_on_a_terminal_hosts_are_rows_and_groups_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "width", lambda _: 72)
    alike = [Finding("slots", Level.OK, "", f"w-{number}.job.ns.svc") for number in range(3, 9)]
    role.write([*FOUND, *alike], whole=True)
    drawn, _, below = capsys.readouterr().out.partition("\n\n")
    rows = [line.split() for line in drawn.splitlines()]
    assert rows == [
        ["job", "ssh", "limits", "gpus"],
        ["this", "pod", "FAIL", "?"],
        ["w-1", "FAIL", "warn"],
        ["w-2", "warn", "ok"],
        ["w-3,", "w-4,", "w-5", "and", "3", "more", "ok"],
    ]
    assert all(len(line) <= 72 for line in drawn.splitlines())
    assert "FAIL  this pod  ssh-key" in below
    assert "ok  " not in below


def test_two_that_ask_at_once_leave_each_other_their_folder(tmp_path: Path) -> None:
    given = {"MPIBOOT_ROLE": "worker", "MPIBOOT_RUNTIME_DIR": str(tmp_path / "run")}
    settings = resolve({"runtime_dir": given["MPIBOOT_RUNTIME_DIR"]}, {}).settings
    observe.folder(settings, {})
    (made,) = tmp_path.rglob(observe.role())
    done = mpiboot(tmp_path, "doctor", "--json", env=given)
    assert "Traceback" not in done.stderr
    assert made.is_dir(), "another run has taken it away"
    observe.remove_folder(settings, {})
    assert not list((tmp_path / "run").iterdir())
