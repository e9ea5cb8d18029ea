"""What a worker knows of its launchers, and whom it notifies when its pod ends."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpiboot.ssh.openssh import WorkerSetup
from mpiboot.system.keys import JobKey
from mpiboot.worker import role
from mpiboot.worker.role import Launchers, launcher, notify_launchers
from tests.fakes import plans

AWAY, WAITS = 30.0, 600.0
CAME, STAYS = b"launcher a@1@x 0", b"launcher a@1@x 1"
FAILED, HELD = b"ended a@1@x 0 host-lost%3A%20w-1", b"ended a@1@x 120 host-lost"

WENT_ON, OTHER = b"ended a@1@x - names-unresolved", b"launcher b@2@y 0"


def after(path: Path, *lines: bytes) -> Launchers:
    """What is known after these lines."""
    seen = Launchers(path, AWAY, WAITS)
    for line in lines:
        seen.read_line(line, 1000.0)
    return seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "attempts"


@pytest.mark.parametrize(
    ("lines", "due"),
    [
        ((), None),  # its launcher may still be pulling its image
        ((CAME,), WAITS),  # it may wait for other hosts, without a word to this one
        ((CAME, FAILED), AWAY),
        ((CAME, HELD), AWAY + 120),
        ((CAME, FAILED, OTHER), WAITS),
        ((STAYS,), math.inf),  # a script between two launches
        ((STAYS, FAILED), AWAY),
        ((STAYS, WENT_ON), math.inf),  # a script whose launch failed may go on
        ((STAYS, WENT_ON, FAILED), AWAY),
        ((CAME, FAILED, WENT_ON), WAITS),
        ((FAILED, STAYS), math.inf),
    ],
)
def test_how_long_the_next_launcher_is_waited_for(
    path: Path, lines: tuple[bytes, ...], due: float | None
) -> None:
    assert after(path, *lines).due == (None if due is None else 1000 + due)


def test_the_time_begins_when_the_last_connection_ends(path: Path) -> None:
    seen = Launchers(path, AWAY, WAITS)
    seen.connected(500.0)
    assert seen.due is None
    seen.read_line(CAME, 1000.0)
    seen.read_line(FAILED, 2000.0)
    seen.connected(2001.0)
    assert seen.due == 2001 + AWAY
    seen.forget()  # after a good end the next launcher is a first one
    assert (path.read_text(), seen.due) == ("", None)
    seen = Launchers(path, 9000.0, WAITS)  # longer than it may wait for hosts
    seen.read_line(CAME, 0.0)
    assert seen.due == 9000


@pytest.mark.parametrize(
    "line", [b"launcher a", b"launcher \xff 0", b"ended a@1@x 1e9 x", b"ended a@1@x 0 a b"]
)
def test_a_line_that_is_none_changes_nothing(path: Path, line: bytes) -> None:
    assert after(path, line).due is None
    assert not path.exists()


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ((CAME, FAILED, OTHER), "a@1@x host-lost%3A%20w-1\nb@2@y \n"),
        ((CAME, CAME, FAILED), "a@1@x host-lost%3A%20w-1\n"),  # one launcher is one attempt
        ((STAYS, WENT_ON), "a@1@x names-unresolved\n"),
        ((STAYS, WENT_ON, STAYS), "a@1@x \n"),  # a script that went on did not end by that
        ((CAME, OTHER, STAYS), "b@2@y \na@1@x \n"),
    ],
)
def test_a_container_that_starts_again_remembers(
    path: Path, lines: tuple[bytes, ...], kept: str
) -> None:
    after(path, *lines)
    assert path.read_text() == kept
    assert path.stat().st_mode & 0o777 == 0o600
    assert Launchers(path, AWAY, WAITS).due is None
    after(path, b"launcher c@3@z 0")
    assert path.read_text() == f"{kept}c@3@z \n"


# -- the end of the pod ----------------------------------------------------------------------------

OWN = {
    "MPIBOOT_SESSION": "abc-1-2",
    "MPIBOOT_LAUNCH_ID": "the-mark",
    "MPIBOOT_NOTICE": "4711/w-1.job",
    "SSH_CONNECTION": "127.0.0.1 5000 10.0.0.2 2222",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", ""),
        ("MPIBOOT_SESSION", ""),
        ("MPIBOOT_SESSION", "abcd-1-2"),  # of another worker: pods may share their processes
        ("SSH_CONNECTION", ""),
        *(("MPIBOOT_NOTICE", word) for word in ("", "4711", "4711/", "/w-1", "port/w-1")),
    ],
)
def test_the_launcher_is_where_the_connection_came_from(name: str, value: str) -> None:
    found = ("127.0.0.1", 4711, "ending the-mark w-1.job\n")
    assert launcher(OWN | {name: value}, "abc") == (None if name else found)


@contextmanager
def daemons(*ports: int) -> Iterator[str]:
    """Processes of sessions whose launchers listen on these ports; the token of the sessions."""
    token = f"abc{os.getpid()}"
    running = []
    for port in ports:
        environ = OWN | {"MPIBOOT_NOTICE": f"{port}/w-1", "MPIBOOT_SESSION": f"{token}-1-2"}
        running.append(subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env=environ))
    try:
        yield token
    finally:
        for one in running:
            one.communicate()


def test_each_launcher_is_notified_once_and_its_answer_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is gone does no harm; one that is there has to hold its mpirun first."""
    monkeypatch.setattr(role, "_PATIENCE", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))
        here, nobody = server.getsockname()[1], gone.getsockname()[1]
        with daemons(here, here, nobody) as token:
            notifying = threading.Thread(target=notify_launchers, args=(token,))
            notifying.start()
            with server.accept()[0] as connection:
                assert connection.recv(100) == b"ending the-mark w-1\n"
                notifying.join(0.1)
                assert notifying.is_alive()
            notifying.join()
            monkeypatch.setattr(role, "_PATIENCE", 0.01)
            notify_launchers(token)  # which nobody answers: not waited for forever
        server.accept()[0].close()
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_ranks_of_another_worker_are_left_alone(tmp_path: Path) -> None:
    """As in pods that share their processes, and in all tests that run beside this one."""
    ranks = []
    for token in ("abc", "abcd"):
        mark = {"MPIBOOT_SESSION": f"{token}{os.getpid()}-1-2", "PMIX_RANK": "0"}
        argv = ["sh", "-c", "echo ready; exec sleep 1000"]
        ranks.append(subprocess.Popen(argv, env={**os.environ, **mark}, stdout=subprocess.PIPE))
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"ready\n"
            rank.stdout.close()
        key = JobKey(Path("/key"), "x")
        setup = WorkerSetup(
            *(plans.ROOT, tmp_path, key, "127.0.0.1", 22, f"abc{os.getpid()}", 30.0, os.environ)
        )
        role.save_ranks(setup, signal.SIGTERM, 60)
        assert ranks[0].wait(60) == -signal.SIGTERM
        assert ranks[1].poll() is None
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
