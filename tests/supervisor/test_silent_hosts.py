"""What proves that a silent host isn't there any more, with real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mpiboot.supervisor import ask_workers
from mpiboot.supervisor.asking import Found
from mpiboot.supervisor.evidence import HostSnapshot

NAME = "w-1.job"


def host(port: int, dns: str = NAME) -> HostSnapshot:
    return HostSnapshot(NAME, dns, "127.0.0.1", "w-1", port=port)


async def looked(
    there: HostSnapshot,
    addresses: Sequence[str] | None = ("127.0.0.1",),
    login: str | None = "",
    errors: Path = Path("/nowhere"),
    words: str = "",
) -> tuple[Found, str]:
    async def resolve(_: HostSnapshot) -> tuple[str, ...] | None:
        return None if addresses is None else tuple(addresses)

    async def log_in(_: HostSnapshot) -> str | None:
        if words:
            with (errors / NAME).open("a") as file:
                file.write(words)
        return login

    return await ask_workers.look_for_one(there, resolve, log_in, str(errors))


@asynccontextmanager
async def server(greeting: bytes | None) -> AsyncIterator[int]:
    """A port that greets, closes at once (b""), or says nothing (None)."""
    done = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if greeting is None:
            await done.wait()
        else:
            writer.write(greeting)
        writer.close()

    serving = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield serving.sockets[0].getsockname()[1]
    finally:
        done.set()
        serving.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask_workers, "_STEP", 0.5)


async def test_a_name_that_is_gone_or_leads_elsewhere_is_a_proof() -> None:
    assert await looked(host(1), ()) == (Found.GONE, f"its name {NAME} does not resolve any more")
    found, message = await looked(host(1), ("10.0.0.7",))
    assert (found, message) == (Found.GONE, f"its name {NAME} now has the address 10.0.0.7")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("addresses", [(), ("10.0.0.7",)])
async def test_a_host_that_greets_is_there_whatever_its_name_says(
    addresses: tuple[str, ...],
) -> None:
    """A Service may leave out a pod that isn't ready; a proxy, or a stopped sshd, only accepts."""
    async with server(b"SSH-2.0-x\r\n") as port:
        found, message = await looked(host(port), addresses)
    assert found is Found.ANSWERS
    assert message.startswith(f"its name {NAME} ")
    assert message.endswith(", and sshd there answers, and a new login works")
    async with server(None) as port:
        found, message = await looked(host(port), addresses)
    assert found is Found.NOTHING
    assert "accepts connections, but sshd says nothing" in message
    async with server(b"") as port:
        assert (await looked(host(port), addresses))[0] is Found.GONE


async def test_a_refused_connection_is_a_proof() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        found, message = await looked(host(port), None)
    assert found is Found.GONE
    assert message == f"its name gives no answer, and 127.0.0.1 port {port} refuses connections"


@pytest.mark.parametrize("addresses", [("127.0.0.1",), None])
async def test_where_nothing_answers_that_is_said_with_what_the_name_told(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...] | None, quick: None
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", never)
    found, message = await looked(host(22), addresses)
    assert found is Found.NOTHING
    named = "still has the address 127.0.0.1" if addresses else "gives no answer"
    assert message == f"its name {named}, and 127.0.0.1 port 22 does not answer"
    assert (await looked(host(22, dns=""), None))[1].startswith("the hostfile has its address, and")


@pytest.mark.usefixtures("quick")
async def test_a_server_that_accepts_and_says_nothing_answers() -> None:
    async with server(None) as port:
        found, message = await looked(host(port))
    assert found is Found.ANSWERS
    assert "accepts connections, but sshd says nothing" in message
    async with server(b"") as port:
        found, message = await looked(host(port))
    assert (found, message.endswith(f"port {port} closes the connection")) == (Found.ANSWERS, True)


@pytest.mark.parametrize(
    "words",
    [
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\n",
        "mpiboot's SSH client: w-1.job: Host key is not trusted for host 127.0.0.1\n",
    ],
)
async def test_another_host_key_is_a_proof(tmp_path: Path, words: str) -> None:
    (tmp_path / NAME).write_text("Host key verification failed.\n")  # of another time
    async with server(b"SSH-2.0-x\r\n") as port:
        found, message = await looked(host(port), login=None, errors=tmp_path)
        assert (found, "sshd there answers" in message) == (Found.ANSWERS, True)
        found, message = await looked(host(port), login=None, errors=tmp_path, words=words)
        assert found is Found.GONE
        assert message == "a server with another host key answers at 127.0.0.1"
        found, message = await looked(host(port), errors=tmp_path)
        assert (found, "and a new login works" in message) == (Found.ANSWERS, True)
