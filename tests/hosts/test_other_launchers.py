"""Two launchers for one set of workers: who holds them, and what a worker tells of it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host, NoFacts, Worker
from mpiboot.core.launch_names import LAUNCH_ID
from mpiboot.core.settings import Settings
from mpiboot.hosts import host_shell, stale_processes
from mpiboot.hosts.access import SshAccess
from tests.fakes.sshd import Behaviour, Job, sshd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Of this process alone: workers here see all of this machine, and so the marks of other tests.
KEY = f"ssh-ed25519 {os.getpid()}"
MARK = f"{stale_processes.job_id(KEY)}-0123456789abcdef@pi-launcher-x@2026-01-02T03:04:05Z"


def worker(name: str = "w-0", *held: tuple[str, str]) -> Worker:
    return Worker(Host(name), "10.0.0.2", 22, "root", "10.0.0.1", None, launches=(MARK,), held=held)


def at(port: int, launcher: str = "127.0.0.1") -> Worker:
    """A worker on loopback that a launcher holds."""
    held = replace(worker("w-0", (MARK, launcher)), address="127.0.0.2", port=port)
    return replace(held, user="runner", local_address="127.0.0.1")


def test_a_new_mark_tells_its_job_its_launcher_and_since_when() -> None:
    mark = stale_processes.new_launch_id(KEY)
    told = stale_processes._ID.fullmatch(mark)
    assert told is not None
    assert told[1] == socket.gethostname()
    assert mark.startswith(stale_processes.job_id(KEY) + "-")
    assert all(char.isalnum() or char in "-@.:" for char in mark)


def test_a_holder_is_told_with_its_hosts() -> None:
    seen = [worker(f"w-{number}", (MARK, "10.0.0.9")) for number in range(5)]
    (found,) = stale_processes.connected(seen, {item.host.name: (MARK,) for item in seen}, 30)
    assert stale_processes.others_line([found]) == (
        "w-0, w-1, w-2, w-3 and 1 more are in use by launcher pi-launcher-x (10.0.0.9) "
        "since 2026-01-02T03:04:05Z"
    )


def test_what_is_not_connected_or_not_asked_for_holds_nothing() -> None:
    assert stale_processes.connected([worker("w-0")], {"w-0": (MARK,)}, 30) == ()
    assert (
        stale_processes.connected([worker("w-0", (MARK, "10.0.0.9"))], {"w-0": ("another",)}, 30)
        == ()
    )
    assert stale_processes.connected([worker("w-0", (MARK, "10.0.0.9"))], {}, 30) == ()


def test_a_mark_of_an_older_version_is_held_by_an_address() -> None:
    bare = MARK.partition("@")[0]
    seen = worker("w-0", (bare, "10.0.0.9"))
    assert (
        stale_processes.others_line(stale_processes.connected([seen], {"w-0": (bare,)}, 30))
        == "w-0 is in use by 10.0.0.9"
    )


def test_a_launcher_gets_its_grace_and_the_keep_alive() -> None:
    """A pod has 30 s to end; a moment more is for those that see it."""
    assert stale_processes.patience_for(0) == stale_processes.patience_for(20) == 35
    assert stale_processes.patience_for(300) == 405  # sshd's fourth probe


@pytest.mark.parametrize(
    ("no_facts", "keepalive", "monitored"),
    [(NoFacts.LATE, 30, True), (NoFacts.LATE, 0, False), (NoFacts.NO_MPIBOOT, 30, False)],
)
def test_only_a_server_with_keep_alives_tells_that_a_launcher_lives(
    no_facts: NoFacts,
    keepalive: float,
    monitored: bool,  # noqa: FBT001 - a row of the table
) -> None:
    seen = replace(worker("w-0", (MARK, "10.0.0.9")), no_facts=no_facts)
    (found,) = stale_processes.connected([seen], {"w-0": (MARK,)}, keepalive)
    assert found.monitored is monitored


@pytest.fixture
def launches() -> Iterator[tuple[int, int]]:
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


def test_the_command_tells_connected_launches_from_others(launches: tuple[int, int]) -> None:
    seen = told(*launches)
    assert {MARK, "b"} <= set(seen.launches)
    assert (MARK, "127.0.0.1") in seen.held
    assert "b" not in {mark for mark, _ in seen.held}


def test_where_connections_can_not_be_seen_nobody_counts_as_gone(
    launches: tuple[int, int],
) -> None:
    """Its own connection is not in the table, as in a sandbox that shows none."""
    port, _ = launches
    assert {(MARK, "127.0.0.1"), ("b", "127.0.0.1")} <= set(told(port, own=1).held)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale_processes, "_running", set[str])


@pytest.mark.usefixtures("quick")
async def test_workers_of_another_launcher_are_left_alone(tmp_path: Path) -> None:
    job = Job(tmp_path)
    async with sshd(Behaviour(job), "127.0.0.2") as port:
        seen = at(port)
        access = SshAccess("runner", job.path, "launcher")
        with pytest.raises(MpibootError) as caught:
            await stale_processes.end([seen], KEY, Settings(timeout=0.0), access)
    assert (caught.value.finding.check, caught.value.code) == ("workers-held", 75)
    assert "launcher pi-launcher-x (127.0.0.1) since 2026-01-02" in caught.value.finding.message


@pytest.mark.usefixtures("quick")
async def test_a_vanished_launcher_holds_nobody_where_keep_alives_are_off(tmp_path: Path) -> None:
    """Its connections stay for ever, and its address can't be reached any more."""
    job = Job(tmp_path)
    behaviour = Behaviour(job)
    async with sshd(behaviour, "127.0.0.2") as port:
        seen = replace(at(port, "255.255.255.255"), no_facts=NoFacts.LATE)
        settings = Settings(timeout=0.0, ssh_keepalive=0)
        await stale_processes.end([seen], KEY, settings, SshAccess("runner", job.path, "launcher"))
    assert behaviour.commands == [host_shell.end_processes((MARK,))]


@pytest.mark.usefixtures("quick")
async def test_a_launcher_that_lets_go_in_time_is_waited_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second answer of the worker names nobody."""
    log.configure()
    job = Job(tmp_path)
    behaviour = Behaviour(job)
    async with sshd(behaviour, "127.0.0.2") as port:
        seen = at(port)
        access = SshAccess("runner", job.path, "launcher")
        await stale_processes.end([seen], KEY, Settings(timeout=30.0), access)
    assert behaviour.commands == [host_shell.ask("launches")]  # asked again, and nothing ended
    assert "w-0 is in use by launcher pi-launcher-x" in capfd.readouterr().err


@pytest.mark.usefixtures("quick")
async def test_a_worker_that_has_ended_meanwhile_is_held_by_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure()
    job = Job(tmp_path)
    seen = at(1)  # tcpmux: nobody listens
    access = SshAccess("runner", job.path, "launcher")
    await stale_processes.end([seen], KEY, Settings(timeout=30.0), access)
    told = capfd.readouterr().err
    assert "w-0 is in use by launcher pi-launcher-x" in told
    assert "ended" not in told


@pytest.mark.parametrize(
    ("hosts", "others", "message"),
    [
        (1, 0, "w-0 is in use by launcher pi-launcher-x (10.0.0.9) since 2026-01-02T03:04:05Z"),
        (2, 0, "w-0, w-1 are in use by launcher pi-launcher-x (10.0.0.9) since"),
        (1, 2, "since 2026-01-02T03:04:05Z, and 2 more launchers use some of them"),
    ],
)
def test_who_has_the_workers_is_one_sentence(hosts: int, others: int, message: str) -> None:
    seen = [worker(f"w-{number}", (MARK, "10.0.0.9")) for number in range(hosts)]
    (found,) = stale_processes.connected(seen, {item.host.name: (MARK,) for item in seen}, 30)
    more = [replace(found, name=f"other-{number}") for number in range(others)]
    assert message in stale_processes.others_line([found, *more])
    wrong = stale_processes.error_of([found, *more], 35.4)
    assert wrong.finding.check == "workers-held"
    assert wrong.finding.message == (
        f"{stale_processes.others_line([found, *more])}, still after 35 s: nothing was started"
    )


def test_each_launcher_is_told_apart_by_its_mark_and_address() -> None:
    second = MARK.replace("pi-launcher-x", "pi-launcher-y")
    seen = [
        worker("w-0", (MARK, "10.0.0.9"), (second, "10.0.0.8")),
        worker("w-1", (MARK, "10.0.0.9")),
    ]
    found = stale_processes.connected(seen, {"w-0": (MARK, second), "w-1": (MARK,)}, 30)
    assert [(item.name, item.address, item.hosts) for item in found] == [
        ("pi-launcher-x", "10.0.0.9", ("w-0", "w-1")),
        ("pi-launcher-y", "10.0.0.8", ("w-0",)),
    ]
    assert {item.since for item in found} == {"2026-01-02T03:04:05Z"}
