from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from mpiboot.cli import main
from tests.fakes.cli import environment, message, mpiboot

SHOW = (
    "import json, os, signal, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getpid()]))"
)


def test_without_a_role_the_arguments_reach_the_program_as_they_are(tmp_path: Path) -> None:
    words = ["-n", "--help", "--", "a b", "", "-h", "--timeout", "é", "$(x)", "*", "--", "-c"]
    no_mpi = {"PATH": "/nowhere"}
    done = mpiboot(tmp_path, sys.executable, "-c", SHOW, *words, env=no_mpi)
    assert done.returncode == 0, done.stderr
    argv, env, _ = json.loads(done.stdout)
    assert argv == words
    assert env.items() >= environment(tmp_path, no_mpi).items()
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ("mpiboot mpirun ./train -n 2", "mpirun ./train -n 2"),
        ("/mpiboot/bin/mpiboot mpirun ./train", "mpirun ./train"),
        ("mpiboot worker", "worker"),
        ("mpiboot rank -- ./train", "mpiboot rank -- ./train"),
        ("mpiboot exec torchrun", "mpiboot exec torchrun"),
        ("mpiboot", "mpiboot"),
        ("./train mpiboot worker", "./train mpiboot worker"),
        ("", ""),
    ],
)
def test_a_second_mpiboot_is_the_same_one_but_where_ranks_run_its_commands(
    words: str, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(main, "_run", called.extend)
    main.run(words.split())
    assert called == runs.split()


def test_without_a_role_the_program_takes_mpiboots_place_with_the_signals_that_it_expects(
    tmp_path: Path,
) -> None:
    script = "echo $PPID; grep SigIgn /proc/$$/status; exit 255"
    done = mpiboot(tmp_path, "/bin/sh", "-c", script)
    parent, ignored = done.stdout.splitlines()
    assert (int(parent), done.returncode, done.stderr) == (os.getpid(), 255, "")
    assert int(ignored.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


def test_a_program_that_is_not_there_is_127_with_a_line(tmp_path: Path) -> None:
    done = mpiboot(tmp_path, "no-such-program")
    assert done.returncode == 127
    first, second, *_ = done.stderr.splitlines()
    assert first == "mpiboot: error: [program-missing] no-such-program is not on PATH"
    assert second.startswith("mpiboot:   PATH=")
    assert message(tmp_path).startswith("program-missing: ")


def test_a_hostfile_without_a_role_is_exit_2_and_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("w-0 slots=1\n")
    env = {"MPI_HOSTFILE": str(tmp_path / "hostfile")}
    done = mpiboot(tmp_path, "/bin/true", env=env)
    assert done.returncode == 2
    assert env["MPI_HOSTFILE"] in done.stderr
    assert "MPIBOOT_ROLE" in done.stderr
    assert "MPIBOOT_ROLE" in message(tmp_path)
    env["MPIBOOT_ROLE"] = "none"
    assert mpiboot(tmp_path, "/bin/sh", "-c", "exit 5", env=env).returncode == 5


@pytest.mark.parametrize("env", [{"K_MPI_JOB_ROLE": "launcher"}, {"MPIBOOT_ROLE": "launcher"}])
def test_a_launcher_goes_through_its_gates(tmp_path: Path, env: dict[str, str]) -> None:
    more = {**env, "MPIBOOT_TIMEOUT": "0", "MPIBOOT_SSH_KEY": str(tmp_path / "none")}
    done = mpiboot(tmp_path, "mpirun", "/bin/sh", "-c", "exit 5", env=more)
    assert done.returncode == 66
    assert f"role launcher ({next(iter(env))}" in done.stderr
    assert "[hostfile-missing]" in done.stderr
    nothing = mpiboot(tmp_path, env=env)
    assert (nothing.returncode, "args: [mpirun, ./train]" in nothing.stderr) == (2, True)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"K_MPI_JOB_ROLE": "worker"}, []),
        ({"START_SSHD": "true"}, ["shell"]),
        ({"START_SSHD": "true"}, ["/bin/sh", "-c", "exit 5"]),
        ({"K_MPI_JOB_ROLE": "worker"}, ["/usr/sbin/sshd", "-De"]),
        ({}, ["/usr/sbin/sshd", "-De"]),
    ],
)
def test_a_worker_is_started_by_each_of_its_marks(
    tmp_path: Path, env: dict[str, str], words: list[str]
) -> None:
    # A key that is no key ends it before it serves.
    (tmp_path / "key").write_text("no key\n")
    done = mpiboot(tmp_path, *words, env={**env, "MPIBOOT_SSH_KEY": str(tmp_path / "key")})
    assert done.returncode == 77, done.stderr
    assert "role worker" in done.stderr
    assert message(tmp_path).startswith("ssh-key: ")


BASH = "0000000000010002"  # SIGINT and SIGCHLD
START = "bash /start.sh --password secret"


@pytest.mark.parametrize(
    ("line", "parent", "caught", "named"),
    [
        (START, 1, BASH, "bash"),
        (START, 1, "0000000000004002", ""),
        (START, 1, None, ""),
        (START, 6, BASH, ""),
    ],
)
def test_the_first_process_is_named_where_it_blocks_sigterm(
    line: str,
    parent: int,
    caught: str | None,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getppid", lambda: parent)
    (tmp_path / "1").mkdir()
    (tmp_path / "1/cmdline").write_text("".join(f"{word}\0" for word in line.split()))
    if caught is not None:
        (tmp_path / "1/status").write_text(f"Name:\tbash\nSigCgt:\t{caught}\nCapInh:\t0\n")
    assert main.sigterm_blocker(str(tmp_path)) == named
