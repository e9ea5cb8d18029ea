"""Two launchers for one set of workers: who holds them, and what a worker tells of it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mpiboot.core.facts import Host, Worker
from mpiboot.core.launch_names import LAUNCH_ID
from mpiboot.hosts import host_shell, launches
from mpiboot.hosts.launches import job_id, new_launch_id

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of this process alone: workers here see all of this machine, and so the marks of other tests.
KEY = f"ssh-ed25519 {os.getpid()}"
MARK = f"{job_id(KEY)}-0123456789abcdef@pi-launcher-x@2026-01-02T03:04:05Z"


def worker(name: str = "w-0", *held: tuple[str, str]) -> Worker:
    return Worker(Host(name), "10.0.0.2", 22, "root", "10.0.0.1", None, launches=(MARK,), held=held)


def test_the_id_of_a_launch_has_its_job_its_launcher_and_its_start() -> None:
    first, second = new_launch_id(KEY), new_launch_id(KEY)
    assert first != second
    job, _, rest = first.partition("-")
    assert (job, rest.split("@")[1]) == (job_id(KEY), socket.gethostname())
    assert not first.startswith(job_id("another key"))
    assert all(char.isalnum() or char in "-@.:" for char in first)


def test_only_launches_of_this_job_that_are_not_of_this_pod_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, other = new_launch_id(KEY), new_launch_id("another key")
    monkeypatch.setattr(launches, "running_here", lambda: {here})
    odd = ("$(reboot)", f"{job_id(KEY)}-'; reboot")
    assert launches.of_earlier(replace(worker(), launches=(here, MARK, other, *odd)), KEY) == (
        MARK,
    )


def test_without_a_launch_this_pods_processes_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "running_here", None)
    assert launches.of_earlier(replace(worker(), launches=()), KEY) == ()


SINCE = " since 2026-01-02T03:04:05Z"
BARE = MARK.partition("@")[0]


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ((), ""),
        (((MARK, "10.0.0.9"),), f"in use by launcher pi-launcher-x (10.0.0.9){SINCE}"),
        (((MARK, ""),), f"in use by launcher pi-launcher-x{SINCE}"),  # it came by kubectl
        (((BARE, "10.0.0.9"),), "in use by 10.0.0.9"),  # as older versions wrote it
        (((new_launch_id("another key"), "10.0.0.9"),), ""),
    ],
)
def test_who_is_connected_to_a_worker_is_named(
    held: tuple[tuple[str, str], ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "running_here", set[str])
    seen = replace(worker("w-0", *held), launches=tuple(launch for launch, _ in held))
    assert launches.holder(seen, KEY) == message
    monkeypatch.setattr(launches, "running_here", lambda: {launch for launch, _ in held})
    assert launches.holder(seen, KEY) == ""


@pytest.fixture
def sessions() -> Iterator[tuple[int, int]]:
    """Two launches, the second one's connection closed; the server's port, and that of a third."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        clients = []
        ends = []
        for _ in range(3):
            clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            ends.append(stack.enter_context(server.accept()[0]))
        kept, closed, own = clients
        for mark, client in ((MARK, kept), ("b", closed), ("", kept)):
            env = {
                "PATH": os.environ["PATH"],
                "SSH_CONNECTION": f"127.0.0.1 {client.getsockname()[1]} 127.0.0.1 {port}",
            } | ({LAUNCH_ID: mark} if mark else {})
            # It stays a shell: while a program is exchanged for another its environment is empty.
            words = ["sh", "-c", "echo; read -r _"]
            process = subprocess.Popen(words, env=env, stdin=-1, stdout=-1)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        closed.close()
        ends[1].close()
        yield port, own.getsockname()[1]


def told(port: int, own: int) -> host_shell.HostAnswer:
    env = {"PATH": os.environ["PATH"], "SSH_CONNECTION": f"127.0.0.1 {own} 127.0.0.1 {port}"}
    done = subprocess.run(
        host_shell.ask("launches"), shell=True, env=env, capture_output=True, text=True, check=True
    )
    return host_shell.read(done.stdout)


def test_the_command_tells_connected_launches_from_others(sessions: tuple[int, int]) -> None:
    seen = told(*sessions)
    assert {MARK, "b"} <= set(seen.launches)
    assert (MARK, "127.0.0.1") in seen.held
    assert "b" not in {mark for mark, _ in seen.held}


def test_where_connections_can_not_be_seen_nobody_counts_as_gone(
    sessions: tuple[int, int],
) -> None:
    """Its own connection is not in the table, as in a sandbox that shows none."""
    port, _ = sessions
    assert {(MARK, "127.0.0.1"), ("b", "127.0.0.1")} <= set(told(port, own=1).held)
