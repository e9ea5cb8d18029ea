from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpiboot.ssh import sessions
from mpiboot.ssh.sessions import Session, session_processes
from mpiboot.system.process import SignalLoop
from mpiboot.system.processes import RunningProcess as Process
from tests.fakes.worker import SHELLS
from tests.waiting import until


def wrapper(
    folder: Path, command: str, *arguments: str, shell: Sequence[str] = ("sh",)
) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SHELL": "/bin/sh"}
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
@pytest.mark.parametrize("fifo", [False, True])
def test_the_wrapper_runs_the_command_without_a_worker(
    folder: Path, shell: list[str], *, fifo: bool
) -> None:
    if fifo:  # of a worker that is gone
        os.mkfifo(folder / sessions.FIFO)
    done = wrapper(folder, 'echo "it is $PWD"; exit 4', shell=shell)
    assert (done.returncode, done.stdout, done.stderr) == (4, f"it is {folder}\n", "")


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_the_wrapper_sets_the_environment_it_finds_whatever_its_names_are(
    folder: Path, shell: list[str]
) -> None:
    environ = dict.fromkeys(("folder", "token", "mark", "command", "shell"), "the pod's")
    text, left = sessions.environment(environ)
    (folder / sessions.ENVIRONMENT).write_text(text)
    done = wrapper(folder, "env", shell=shell)
    assert left == ()
    lines = done.stdout.splitlines()
    assert {f"{name}=the pod's" for name in environ} <= set(lines)
    assert f"MPIBOOT_WORKER_DIR={folder}" in lines


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("launch", ["", "export MPIBOOT_LAUNCH_ID=x; "], ids=["user's", "MPI's"])
def test_only_a_login_with_a_launch_id_marks_what_it_starts(
    folder: Path, shell: list[str], launch: str
) -> None:
    os.mkfifo(folder / sessions.FIFO)
    heard = os.open(folder / sessions.FIFO, os.O_RDWR | os.O_NONBLOCK)
    command = f"{launch}echo $MPIBOOT_SESSION"
    try:
        done = wrapper(folder, command, shell=shell)
        _, mark, _, _ = os.read(heard, 100).decode().split(" ")
        assert done.stdout == (f"{mark}\n" if launch else "token-\n")
        # The embedded server has reported the session to the worker itself.
        done = wrapper(folder, command, "given", shell=shell)
        assert done.stdout == ("given\n" if launch else "token-\n")
        with pytest.raises(BlockingIOError):
            os.read(heard, 100)
    finally:
        os.close(heard)


def test_names_of_the_session_itself_are_not_the_pods_and_those_no_shell_sets_are_told() -> None:
    names = ("HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "SHLVL", "_", "TERM")
    environ = dict.fromkeys((*names, "SSH_CONNECTION", "SSH_AUTH_SOCK", "MPIBOOT_SESSION"), "x")
    refused = ("a.b", "BASH_FUNC_x%%", "1A", "UID")
    assert sessions.environment(environ | dict.fromkeys(refused, "0")) == ("", refused)


def test_what_ends_with_a_session_is_the_marked_and_its_posix_session() -> None:
    rows = (
        Process(1, 0, 1, 1),
        Process(50, 1, 50, 10),  # the connection's own process
        Process(100, 50, 100, 20),  # the leader
        Process(101, 100, 100, 21),
        Process(102, 1, 102, 22),  # left the session, marked
        Process(103, 100, 103, 23),  # left it without a mark
        Process(200, 50, 200, 24),  # another session
    )
    running, marks = {row.pid: row for row in rows}, {102: "m", 103: "t-", 200: "n"}
    assert session_processes(Session("m", 100, 20), running, marks) == {100, 101, 102}
    # A later process of the leader's number is another one's.
    assert session_processes(Session("m", 100, 19), running, marks) == {102}


def test_what_is_about_to_call_setsid_has_time_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its login has ended while it was still in the login's session, as on a busy node."""
    now = 100.0
    monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=lambda: now))
    script = "exec 3<&0; (read -r go <&3; exec setsid sleep 1000) >&- & echo $!"
    pipe, argv = subprocess.PIPE, ("sh", "-c", script)
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, start_new_session=True) as login:
        assert login.stdin is not None
        assert login.stdout is not None
        daemon = int(login.stdout.read())
        login.wait()
        loop = SignalLoop(())
        ending = sessions.Sessions(folder, loop, 0.0, lambda _: None)
        try:
            assert os.getsid(daemon) == login.pid
            (folder / sessions.FIFO).write_text(f"begin m {login.pid} {login.pid}\n")
            loop.wait(0.0)
            assert len(ending) == 1
            ending.step()
            login.stdin.write(b"now\n")
            login.stdin.close()
            until(lambda: os.getsid(daemon) == daemon)
            while len(ending):
                assert ending.due is not None
                now = ending.due
                ending.step()
            assert os.getsid(daemon) == daemon
        finally:
            ending.close()
            loop.close()
            with suppress(ProcessLookupError):
                os.kill(daemon, signal.SIGKILL)


@pytest.mark.parametrize(
    "lines",
    [
        (b"one", b"two"),
        (b"begin x", b"begin x y z", b"begin x 12 13 0", b"begin x -1 -1"),
        (b" begin x 12 13", b"", b"end x y", b"over", b"\xff\0"),
    ],
)
def test_lines_of_no_session_are_read_on_behind_one_that_could_not_be_dealt_with(
    folder: Path, capfd: pytest.CaptureFixture[str], lines: tuple[bytes, ...]
) -> None:
    """Unread, the FIFO would fill, and then every new session would wait for it."""
    seen: list[bytes] = []

    def read(line: bytes) -> None:
        seen.append(line)
        raise OSError(28, os.strerror(28))

    loop = SignalLoop(())
    heard = sessions.Sessions(folder, loop, 0.0, read)
    try:
        for line in lines:
            (folder / sessions.FIFO).write_bytes(line + b"\n")
            loop.wait(0.0)
        assert (tuple(seen), len(heard)) == (lines, 0)
        assert "No space left on device" in capfd.readouterr().err
    finally:
        heard.close()
        loop.close()
