from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mpiboot.core.model import Level
from mpiboot.launcher import role as launcher_script
from mpiboot.system import files
from tests.fakes.worker import HAVE_SSH, make_key

GUARD = 60


def start(tmp_path: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    mpiboot = Path(sys.executable).with_name("mpiboot")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "MPIBOOT_RUNTIME_DIR": str(tmp_path / "run"),
        "MPIBOOT_TERMINATION_LOG": str(tmp_path / "termination-log"),
        **more,
    }
    return subprocess.Popen(
        [str(mpiboot), "launcher", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


def run(tmp_path: Path, *words: str, **more: str) -> tuple[int, str, str]:
    process = start(tmp_path, *words, **more)
    out, err = process.communicate(timeout=GUARD)
    return process.returncode, out, err


def test_calls_below_get_the_flags_the_role_and_mpiboot_in_front_of_mpirun(tmp_path: Path) -> None:
    flags = ("--script", "on", "--timeout", "7", "--forward", "A,B*")
    code, out, err = run(tmp_path, *flags, "--", "sh", "-c", "env; command -v mpirun")
    lines = out.splitlines()
    assert code == 0
    assert {"MPIBOOT_ROLE=launcher", "MPIBOOT_TIMEOUT=7", "MPIBOOT_FORWARD=A,B*"} <= set(lines)
    assert lines[-1] == str(tmp_path / "run" / files.container_name() / "script/mpirun")
    assert Path(lines[-1]).resolve().name == "mpiboot"
    assert "--script: mpiboot checks the hosts and plans for each of its calls" in err


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137), ("no-such-program", 127)],
)
def test_the_scripts_own_status_is_the_containers(tmp_path: Path, script: str, code: int) -> None:
    ended, _, err = run(tmp_path, "--script", "on", "--", "sh", "-c", script)
    mark = "error: [program] " if code else ""
    assert (ended, err.splitlines()[-1]) == (code, f"mpiboot: {mark}sh ended with {code}")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("echo ready; sleep 1000", 143),
        # What it makes of a signal is its own, but a success it is not.
        ("trap 'exit 0' TERM; (echo ready; exec sleep 1000) & wait", 143),
        ("trap 'exit 5' TERM; (echo ready; exec sleep 1000) & wait", 5),
        # The whole group is told: sleep ends, and so does the script that ignores the signal.
        ("trap '' TERM; (trap - TERM; echo ready; exec sleep 1000) & wait; exit 7", 7),
    ],
)
def test_a_signal_is_passed_on_and_never_a_success(tmp_path: Path, script: str, code: int) -> None:
    flags = ("--script", "on", "--grace", "1")
    process = start(tmp_path, *flags, "--", "sh", "-c", script)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=GUARD)
    assert process.returncode == code
    assert "is killed" not in err  # it ended by the signal


@pytest.mark.full  # ten seconds more than the grace
def test_a_script_that_does_not_end_is_killed(tmp_path: Path) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.2; done"
    flags = ("--script", "on", "--grace", "0.1")
    process = start(tmp_path, *flags, "--", "sh", "-c", script)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=GUARD)
    assert process.returncode == 143
    assert "did not end in time and is killed" in err


def test_a_missing_script_is_127_in_a_line(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "--script", "on", "--", "./no-such-script")
    assert code == 127
    assert "./no-such-script doesn't exist" in err


def test_the_plan_says_that_each_call_has_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/sh\nmpirun -n 2 ./a\n")
    path.chmod(0o755)
    mpiboot = Path(sys.executable).with_name("mpiboot")
    done = subprocess.run(
        [mpiboot, "plan", "--", path], capture_output=True, text=True, check=False, timeout=GUARD
    )
    assert done.returncode == 0
    assert (
        f"the script {path} calls mpirun: it runs once, and each mpirun in it has a plan"
        in " ".join(done.stdout.split())
    )


@pytest.mark.parametrize(
    ("text", "path"),
    [("/opt/mpi/bin/mpirun -n 2 ./a", "/opt/mpi/bin/"), ("mpirun -n 2 ./a", ""), ("./a", "")],
)
def test_a_call_by_a_path_goes_past_mpiboot_and_is_warned_of(text: str, path: str) -> None:
    found = launcher_script.calls_by_path(text)
    if not path:
        assert found is None
        return
    assert found is not None
    assert (found.check, found.level) == ("shims", Level.WARN)
    assert found.message == f"the script calls mpirun by its path ({path}), bypassing mpiboot"
    assert "put a link to mpiboot in its place" in found.hint


LATE = {"MPIBOOT_HOSTFILE": "/no/such/hostfile", "MPIBOOT_TIMEOUT": "0"}


@pytest.mark.skipif(not HAVE_SSH, reason="no ssh-keygen")
@pytest.mark.parametrize(
    "script", ["echo started; ssh w-0 hostname", "mpirun ./a; ssh w-0 true", "/usr/bin/mpirun ./a"]
)
def test_what_reaches_for_hosts_is_not_started_before_its_gates(
    tmp_path: Path, script: str
) -> None:
    key = {"MPIBOOT_SSH_KEY": str(make_key(tmp_path / "id"))}
    (tmp_path / "termination-log").touch()  # as the kubelet does
    code, out, err = run(tmp_path, "--", "sh", "-c", script, **LATE, **key)
    assert (code, out) == (66, "")
    assert ": it runs once, here, when all hosts are ready" in err
    assert "/no/such/hostfile (named by MPIBOOT_HOSTFILE) does not exist" in err
    assert (tmp_path / "termination-log").read_text().startswith("hostfile-missing")


@pytest.mark.parametrize(
    ("line", "settings", "why"),
    [
        (("sh", "-c", "ssh -V"), {"MPIBOOT_SCRIPT_GATE": "off"}, "MPIBOOT_SCRIPT_GATE: it starts"),
        (("sh", "-c", "mpirun --version || :"), {}, "calls mpirun: "),
        (("sh", "-l"), {}, "sh -l is for a look around: "),
        (("true",), {"MPIBOOT_SCRIPT": "on", "MPIBOOT_SCRIPT_GATE": "off"}, "MPIBOOT_SCRIPT: "),
    ],
)
def test_what_waits_for_no_host_says_so(
    tmp_path: Path, line: tuple[str, ...], settings: dict[str, str], why: str
) -> None:
    code, _, err = run(tmp_path, "--", *line, **LATE | settings)
    assert code == 0
    assert why in err
    assert "it starts at once" in err


def test_without_a_hostfile_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "--script", "on", "--", "echo", "started")
    assert (code, out) == (0, "started\n")
    assert "there is no hostfile (/etc/mpi/hostfile), so it starts at once" in err


def test_a_python_program_that_starts_one_is_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "start.py"
    path.write_text("import subprocess\nsubprocess.run(['ssh', 'w-0', 'hostname'])\n")
    asked = f"{path} calls ssh, and runs as every rank"
    assert asked in run(tmp_path, "--", "python3", str(path), **LATE)[2]
    answered = run(tmp_path, "--", "python3", str(path), **LATE, MPIBOOT_SCRIPT="off")
    assert asked not in answered[2]
