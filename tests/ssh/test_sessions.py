from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mpiboot.ssh import sessions
from mpiboot.ssh.sessions import Session, family
from mpiboot.system import executables
from mpiboot.system.processes import RunningProcess as Process

SHELLS = [
    shell
    for shell in (("sh",), ("bash", "--posix"), ("busybox", "sh"))
    if executables.find(shell[0], os.environ["PATH"])
]


def wrapper(
    folder: Path, command: str | None, *arguments: str, shell: tuple[str, ...] = ("sh",)
) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SHELL": "/bin/sh"}
    if command is not None:
        environ["SSH_ORIGINAL_COMMAND"] = command
    return subprocess.run(
        [*shell, str(sessions.WRAPPER), str(folder), "token", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "with blank"
    made.mkdir()
    return made


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_the_wrapper_runs_the_command_without_a_worker(
    folder: Path, shell: tuple[str, ...]
) -> None:
    done = wrapper(folder, 'echo "it is $PWD"; exit 4', shell=shell)
    assert (done.returncode, done.stdout, done.stderr) == (4, f"it is {folder}\n", "")


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_the_wrapper_does_not_wait_for_a_worker_that_is_gone(
    folder: Path, shell: tuple[str, ...]
) -> None:
    os.mkfifo(folder / sessions.FIFO)
    assert wrapper(folder, "exit 5", shell=shell).returncode == 5


def test_the_wrapper_refuses_a_login_shell(folder: Path) -> None:
    done = wrapper(folder, None)
    assert done.returncode == 2
    assert done.stderr == "mpiboot: this worker runs commands only; there is no login shell\n"


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_the_wrapper_sets_the_environment_it_finds_whatever_its_names_are(
    folder: Path, shell: tuple[str, ...]
) -> None:
    environ = dict.fromkeys(("folder", "token", "mark", "command", "shell"), "the pod's")
    text, left = sessions.environment(environ)
    (folder / sessions.ENVIRONMENT).write_text(text)
    done = wrapper(folder, "env", shell=shell)
    assert left == ()
    lines = done.stdout.splitlines()
    assert {f"{name}=the pod's" for name in environ} <= set(lines)
    assert f"MPIBOOT_WORKER_DIR={folder}" in lines


def test_a_session_that_the_caller_has_told_of_keeps_its_mark(folder: Path) -> None:
    os.mkfifo(folder / sessions.FIFO)
    heard = os.open(folder / sessions.FIFO, os.O_RDWR | os.O_NONBLOCK)
    try:
        assert wrapper(folder, "echo $MPIBOOT_SESSION", "given").stdout == "given\n"
        with pytest.raises(BlockingIOError):
            os.read(heard, 100)
        wrapper(folder, "true")
        assert os.read(heard, 100).startswith(b"begin token-")
    finally:
        os.close(heard)


@pytest.mark.parametrize(
    ("command", "detach"),
    [
        ("orted --daemonize -mca a b", "1"),
        ("MPIBOOT_LAUNCH_ID=x; export MPIBOOT_LAUNCH_ID; orted --daemonize -mca a b", "0"),
        ("orted -mca a b", "0"),
        ("run --daemonized", "0"),
    ],
)
def test_a_launcher_that_is_not_ours_may_ask_for_a_daemon(
    folder: Path, command: str, detach: str
) -> None:
    os.mkfifo(folder / sessions.FIFO)
    heard = os.open(folder / sessions.FIFO, os.O_RDWR | os.O_NONBLOCK)
    try:
        wrapper(folder, command)
        assert os.read(heard, 100).decode().split()[4] == detach
    finally:
        os.close(heard)


def test_names_of_the_session_itself_are_not_the_pods() -> None:
    names = ("HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "SHLVL", "_", "TERM")
    environ = dict.fromkeys((*names, "SSH_CONNECTION", "SSH_AUTH_SOCK", "MPIBOOT_SESSION"), "x")
    assert sessions.environment(environ) == ("", ())


def test_names_that_a_shell_cannot_set_are_told() -> None:
    text, left = sessions.environment({"a.b": "1", "BASH_FUNC_x%%": "()", "1A": "", "UID": "0"})
    assert text == ""
    assert left == ("a.b", "BASH_FUNC_x%%", "1A", "UID")


def table(*rows: Process) -> dict[int, Process]:
    return {row.pid: row for row in rows}


def test_a_family_is_the_marked_the_leaders_session_and_all_that_descend_from_them() -> None:
    running = table(
        Process(1, 0, 1, 1),
        Process(50, 1, 50, 10),  # the connection's own process
        Process(100, 50, 100, 20),  # the leader
        Process(101, 100, 100, 21),
        Process(102, 1, 102, 22),  # left the session, marked
        Process(103, 102, 103, 23),  # its child, without the mark
        Process(200, 50, 200, 24),  # another session
    )
    assert family(Session("m", 100, 20), running, {102: "m", 200: "n"}) == {100, 101, 102, 103}


def test_a_later_process_of_the_leaders_number_is_another_ones() -> None:
    running = table(Process(1, 0, 1, 1), Process(100, 1, 100, 99), Process(101, 100, 100, 99))
    assert family(Session("m", 100, 20), running, {100: "other"}) == set()


@pytest.mark.parametrize(
    "line",
    [
        b"begin", b"begin x", b"begin x y z 0", b"begin x 12 13", b"begin x 12 13 0 4",
        b"begin x -1 -1 0", b"begin x 0 0 0", b"begin x 12 13 2", b"begin x 99999999999 13 0",
        b"begin x 12 99999999999 0", b" begin x 12 13 0", "begin x \u00b2 13 0".encode(), b"",
        b"end x", b"over", b"\xff\0",
    ],
)  # fmt: skip
def test_only_a_whole_line_begins_a_session(line: bytes) -> None:
    assert sessions.read_begin(line) is None


def test_a_session_is_told_with_its_processes() -> None:
    assert sessions.read_begin(b"begin tok-1-2 12 4194304 1") == ("tok-1-2", 12, 4194304, True)
