"""Whom a worker tells that its pod is ending, of what its daemons have in their environment."""

from __future__ import annotations

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
from mpiboot.worker.role import launcher, notify_launchers
from tests.fakes import plans

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
        pid = role.stop_ranks(setup, "TERM", 60)
        assert os.waitpid(pid, 0)[1] == 0
        assert ranks[0].wait(60) == -signal.SIGTERM
        assert ranks[1].poll() is None
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
