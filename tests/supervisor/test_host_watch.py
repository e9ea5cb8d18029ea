"""The port on which workers report their end, on loopback; and hosts without a rank."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator, Sequence

import pytest

from mpiboot.supervisor.mpirun import listen
from mpiboot.supervisor.workers import unused_hosts

MARK = "0123456789abcdef-0123456789abcdef@launcher@2026-01-01T00:00:00Z"
LOOPBACK = "127.0.0.1"
ENDING = f"ending {MARK} w-1\n".encode()


@contextlib.contextmanager
def listening(heard: Callable[[str], None], addresses: Sequence[str], *ports: int) -> Iterator[int]:
    """A launcher that listens: its port, 0 for none."""
    servers = listen(MARK, heard, addresses, ports)
    try:
        yield servers[0].getsockname()[1] if servers else 0
    finally:
        for server in servers:
            asyncio.get_running_loop().remove_reader(server)
            server.close()


@pytest.mark.parametrize(
    "message",
    [
        b"ending other w-1\n",
        b"ending\n",
        b"\x00\xff\n",
        f"begin {MARK} w-1\n".encode(),
        b"x" * 600,
        b"",
    ],
    ids=["other", "short", "binary", "begin", "long", "reset"],
)
async def test_a_worker_is_heard_and_strangers_and_noise_are_not(message: bytes) -> None:
    heard: list[str] = []
    with listening(heard.append, (LOOPBACK,), 0) as port:
        for data in (message, ENDING):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            if not data:
                reset = struct.pack("ii", 1, 0), socket.SO_LINGER
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, *reset[::-1])
            else:
                writer.write(data)
                with contextlib.suppress(ConnectionResetError):
                    # It closes the connection once it has read it.
                    assert await reader.read() == b""
            writer.close()
    assert heard == ["w-1"]


async def test_a_port_that_is_taken_makes_room_for_the_next() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with listening(print, (LOOPBACK,), port) as found:
            assert found == 0
        with listening(print, (LOOPBACK,), port, 0) as found:
            assert found not in (0, port)


async def test_only_the_addresses_by_which_workers_were_reached_are_listened_on() -> None:
    addresses = ("127.0.0.2", "127.0.0.3", "192.0.2.1", "::bad")
    with listening(print, addresses, 0) as port:
        for address in addresses[:2]:
            socket.create_connection((address, port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port))
    with listening(print, (), 0) as port:
        assert port == 0


ONE, TWO, THREE = HOSTS = ("w-0.job.ns.svc", "w-1.job.ns.svc", "w-2.job.ns.svc")


@pytest.mark.parametrize(
    ("ranks", "without_agent", "message"),
    [
        # At the end of a job whose hosts were not asked.
        ({}, [ONE], "mpirun started no daemon on 1 of 3 hosts: w-0.job.ns.svc"),
        ({}, [], ""),
        # None has started yet.
        ({ONE: 0, TWO: 0}, [], ""),
        # Of the third one nothing is known, but that mpirun has started an agent for it, or none.
        ({ONE: 2, TWO: 0}, [], "no rank runs on 1 of 3 hosts: w-1.job.ns.svc"),
        ({ONE: 2, TWO: 0}, [THREE], "no rank runs on 2 of 3 hosts: w-1.job.ns.svc, w-2.job.ns.svc"),
        # An MPI whose daemons another agent than mpiboot's has started.
        (dict.fromkeys(HOSTS, 1), HOSTS, ""),
    ],
)
def test_hosts_without_a_rank_are_named(
    ranks: dict[str, int], without_agent: list[str], message: str
) -> None:
    assert unused_hosts(HOSTS, ranks, without_agent) == message
