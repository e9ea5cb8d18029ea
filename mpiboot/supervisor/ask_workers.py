"""Asks the workers why a job failed and what carried its data, and who waits while it runs.

``python -I -S ask_workers.py FOLDER REQUEST WORD...``, as ``asking.Request`` has them: a child of
mpirun's parent, which gives it a few seconds. It writes one line for each finding on stdout,
changes nothing on a worker, and never fails.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

# Run by its path, it must find its package first. Nothing here is TLS, which asyncio loads where it
# can: 9 of 70 ms.
if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    sys.modules["ssl"] = None  # type: ignore[assignment]

import asyncio
from dataclasses import dataclass

from mpiboot.core.addresses import address_of
from mpiboot.core.launch_names import LAUNCH_DIR
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import Connecting, HostAnswer
from mpiboot.network.counters import QUESTION
from mpiboot.supervisor import evidence
from mpiboot.supervisor.asking import FarEnd, Found, Request
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.workers import AT_ONCE, HostSession, hosts_of, write_transport

# Seconds for each step; a resolver tries each nameserver for five.
_STEP: Final = 5.0
# What ssh, and mpiboot's own client, write of a host key that is not the pinned one.
_OTHER_KEY: Final = ("host key verification failed", "host key is not trusted")
_TAIL: Final = 2048
_SILENT: Final = "accepts connections, but sshd says nothing: is that process stopped or starved?"


async def look_for_one(
    host: HostSnapshot,
    resolve: Callable[[HostSnapshot], Awaitable[tuple[str, ...] | None]],
    log_in: Callable[[HostSnapshot], Awaitable[str | None]],
    errors: str,
) -> tuple[Found, str]:
    """Say what is found where a host was: by name, at its SSH port, by host key.

    Only what can't be undone is a proof: a name that is gone or leads elsewhere while no SSH server
    greets at its old address, a refused connection, another host key. A network that drops packets,
    a nameserver that doesn't answer and a server that is stopped are none.

    Args:
        host: where the gate found it.
        resolve: gives the addresses of its name; None where nobody can tell.
        log_in: runs a command there; None where it fails.
        errors: the folder of the files to which ssh writes, by host.
    """
    resolving = asyncio.ensure_future(resolve(host))
    found, message = await _at_its_port(host)
    done, _ = await asyncio.wait((resolving,), timeout=_STEP)
    known = resolving.result() if done else None
    if known is None:
        name = "its name gives no answer" if host.dns else "the hostfile has its address"
    elif host.address in known:
        name = f"its name still has the address {host.address}"
    else:
        now = f"now has the address {known[0]}" if known else "does not resolve any more"
        name = f"its name {host.dns} {now}"
        if message.endswith(_SILENT):
            # A Service leaves a pod out that isn't ready, as on a node under pressure; a proxy in
            # front of this pod accepts what it can't pass on. Time tells.
            return Found.NOTHING, f"{name}, and {message}"
        if message:
            return Found.GONE, name
    if not message:
        before = _size(errors, host.name)
        login = await log_in(host)
        if login is None and _other_key(errors, host.name, before):
            return Found.GONE, f"a server with another host key answers at {host.address}"
        message = "sshd there answers" + ("" if login is None else ", and a new login works")
    return found, f"{name}, and {message}"


async def _at_its_port(host: HostSnapshot) -> tuple[Found, str]:
    """Connect as a new client would; nothing is said where a greeting comes."""
    where = f"{host.address} port {host.port}"
    try:
        opening = asyncio.open_connection(host.address, host.port)
        reader, writer = await asyncio.wait_for(opening, _STEP)
    except ConnectionRefusedError:
        return Found.GONE, f"{where} refuses connections"
    except asyncio.TimeoutError:
        return Found.NOTHING, f"{where} does not answer"
    except OSError as why:
        return Found.NOTHING, f"{where} can't be reached ({why.strerror or why})"
    try:
        if await asyncio.wait_for(reader.readline(), _STEP):
            return Found.ANSWERS, ""
        message = "closes the connection"
    except asyncio.TimeoutError:
        message = _SILENT
    except (OSError, ValueError):
        message = "resets the connection"
    finally:
        writer.close()
    return Found.ANSWERS, f"{where} {message}"


def _size(errors: str, name: str) -> int:
    try:
        return os.stat(f"{errors}/{name}").st_size
    except OSError:
        return 0


def _other_key(errors: str, name: str, begin: int) -> bool:
    try:
        with open(f"{errors}/{name}", "rb") as file:
            file.seek(begin)
            text = file.read(_TAIL).decode("utf-8", "replace").lower()
    except OSError:
        return False
    return any(words in text for words in _OTHER_KEY)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank on ``host`` that waits for an answer from a port; ``key`` is its connection's name."""

    host: str
    found: Connecting

    @property
    def key(self) -> str:
        """Give what tells this connection from others of the job, later ones too."""
        return f"{self.host}/{self.found.inode}"

    @property
    def address(self) -> str:
        """Give the far address."""
        return address_of(self.found.far.partition(":")[0])

    @property
    def port(self) -> int:
        """Give the far port."""
        return int(self.found.far.partition(":")[2], 16)


def connection_line(kind: FarEnd, item: Waiting, message: str = "") -> str:
    """Write a line for the parent."""
    return f"{kind.value} {item.key} {message}".rstrip()


def judge_connection(item: Waiting, far: HostSnapshot | None, answer: HostAnswer | None) -> str:
    """Say who waits for whom, and whether the far end is slow or gets nothing.

    Args:
        item: a connection that has waited for long.
        far: the job's host that it is for; None where it is for none of them.
        answer: what that host says of its port; None where it said nothing.
    """
    who = f"rank {item.found.rank}" if item.found.rank else "a process of the job"
    where = f"{item.address} port {item.port}"
    text = f"{who} on {item.host} gets no answer from "
    text += f"{far.name} ({where})" if far else where
    text += f": tried {item.found.again + 1} times by TCP"
    if far is None:
        return connection_line(FarEnd.ELSEWHERE, item, text)
    if answer is None:
        return connection_line(
            FarEnd.DROPPED, item, f"{text}; that host did not tell whether it listens there"
        )
    if answer.to_accept or (answer.overflows and answer.listener is not None):
        text += f"; the process that listens there is slow to accept: {answer.to_accept} wait for "
        text += f"it, and {answer.overflows} found a full backlog. The network is not to blame"
        return connection_line(FarEnd.SLOW, item, text)
    listens = "nobody listens" if answer.listener is None else "a process listens"
    return connection_line(FarEnd.DROPPED, item, f"{text}; {listens} there, and nothing reaches it")


_SECONDS: Final = 4.0
_SECONDS_BESIDE_THE_JOB: Final = 20.0  # its hosts are busy, and nobody waits
_LOOK: Final = 0.005  # between two looks for the end of what has closed its output
T = TypeVar("T")

# Of a job's hosts so many are asked while it runs for connections that nobody answers: one that is
# missing is missed by many.
_HOSTS: Final = 96
_FAR_ENDS: Final = 8
_MEMORY: Final = ("memory", "memory_sizes")
_QUESTIONS: Final = (*_MEMORY, "began", "disks", "ports")
Answers: TypeAlias = "dict[str, HostAnswer]"  # by host


class Throttle(asyncio.Semaphore):
    """Lets so many hosts be asked at once, in their order; ``waiting`` have not had their turn."""

    def __init__(self, hosts: int) -> None:
        super().__init__(AT_ONCE)
        self.waiting = hosts


async def _ask(host: HostSnapshot, command: str, throttle: Throttle) -> str | None:
    """Run a command on a host; None where it fails, as where the host can't be reached."""
    async with throttle:
        throttle.waiting -= 1
        try:
            session = HostSession(os.environ.get(LAUNCH_DIR, ""), os.environ, host, command)
        except OSError:
            return None
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def read() -> None:
            if session.read():
                loop.remove_reader(session.handle)
                over.set()

        loop.add_reader(session.handle, read)
        try:
            await over.wait()
            while (status := session.status()) is None:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(_LOOK)
        finally:
            loop.remove_reader(session.handle)
            session.end()
    return None if status else session.output.decode("utf-8", "replace")


async def _addresses(before: HostSnapshot) -> tuple[str, ...] | None:
    """Resolve a host's name: no address where there is none, None where nobody can tell.

    A nameserver that fails for the world outside says nothing of the cluster's own names.
    """
    if not before.dns:  # no nameserver tells what became of an address
        return None
    found = await _resolved(before.dns)
    if found is not None or not before.in_cluster:
        return found
    own = await asyncio.gather(*map(_resolved, before.in_cluster))
    known = tuple(address for addresses in own for address in addresses or ())
    return None if None in own and not known else known


async def _resolved(name: str) -> tuple[str, ...] | None:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as why:
        return () if why.errno in (socket.EAI_NONAME, socket.EAI_NODATA) else None
    return tuple(str(item[4][0]) for item in found)


async def _evidence(
    before: HostSnapshot,
    wanted: Sequence[str],
    throttle: Throttle,
    signal: str | None,
    now: Answers,
) -> tuple[evidence.Explanation, ...]:
    counted = (QUESTION,) if before.counted else ()
    if before.here:  # of the launcher no more, and of its programs only where it has ranks
        wanted = (*_MEMORY, *(() if before.may_idle else wanted[len(_QUESTIONS) :]))
    command = host_shell.ask(*wanted, *counted)
    if before.here:
        answer = await _ask(before, command, throttle)
        if not answer:
            return ()
        now[before.name] = host_shell.read(answer)
        return evidence.judge_here(before, now[before.name], signal or "")
    resolving = asyncio.ensure_future(_addresses(before))
    asking = asyncio.ensure_future(_ask(before, command, throttle))
    # A host whose name has gone, or leads elsewhere, needs no further patience.
    found = evidence.unreachable(before, await resolving)
    if found:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait((asking,))
        return found
    answer = await asking
    if answer:
        now[before.name] = host_shell.read(answer)
        return evidence.judge(before, now[before.name], signal or "")
    return evidence.silent(before) if signal is not None else ()


async def _ask_all(
    hosts: Iterable[HostSnapshot],
    ask: Callable[[HostSnapshot], Coroutine[Any, Any, T]],
    seconds: float,
) -> list[tuple[HostSnapshot, T | None]]:
    """Give what each host has answered, None where nothing came in time, or it failed."""
    asked = {asyncio.create_task(ask(host)): host for host in hosts}
    if not asked:
        return []
    _, late = await asyncio.wait(asked, timeout=seconds)
    for task in late:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    return [
        (host, None if task.cancelled() or task.exception() else task.result())
        for task, host in asked.items()
    ]


async def gather(
    hosts: tuple[HostSnapshot, ...],
    program: str = "",
    killed: tuple[str, str] = ("", ""),
    now: Answers | None = None,
) -> list[str]:
    """Ask hosts, the first ones first; what has not answered in time is left out.

    Args:
        hosts: whom to ask, in this order.
        program: what they are asked for, whether they can run it.
        killed: the host whose rank was ended first, and by which signal.
        now: gets what they answered.
    """
    where, signal = killed
    path, here = os.environ.get("PATH", ""), os.getcwd()
    wanted = (*_QUESTIONS, *(host_shell.lacks(program, path, here) if program else ()))
    throttle = Throttle(len(hosts))
    answers = {} if now is None else now

    def explain(host: HostSnapshot) -> Coroutine[Any, Any, tuple[evidence.Explanation, ...]]:
        its = signal if _is(host, where) else None
        return _evidence(host, wanted, throttle, its, answers)

    rows = []
    for host, answer in await _ask_all(hosts, explain, _SECONDS):
        found = evidence.silent(host) if answer is None and host.name == where else answer or ()
        rows += [(item.order, item.line(host.name)) for item in found]
    lines = [line for _, line in sorted(rows, key=lambda row: row[0])]
    if throttle.waiting:
        lines.append(f"{throttle.waiting} of {len(hosts)} hosts could not be asked in time")
    return lines


async def _beside_the_job(
    hosts: tuple[HostSnapshot, ...], question: str
) -> list[tuple[HostSnapshot, host_shell.HostAnswer]]:
    """Ask hosts while the job runs; who has not answered in time is left out."""
    command = host_shell.ask(question)
    throttle = Throttle(len(hosts))
    answers = await _ask_all(
        hosts, lambda host: _ask(host, command, throttle), _SECONDS_BESIDE_THE_JOB
    )
    return [(host, host_shell.read(output)) for host, output in answers if output]


async def unanswered(hosts: tuple[HostSnapshot, ...], known: frozenset[str]) -> list[str]:
    """Ask hosts for connections that nobody answers, and the far ends of those that are known."""
    by_address = {host.address: host for host in hosts if host.address}
    found = {
        item.key: item
        for host, answer in await _beside_the_job(hosts[:_HOSTS], "connecting")
        for item in (Waiting(host.name, each) for each in answer.connecting)
    }
    lines = [connection_line(FarEnd.NEW, item) for key, item in found.items() if key not in known]
    # Many ranks may wait for one: each far end is asked once, and told of once.
    ends = {(item.address, item.port): item for key, item in found.items() if key in known}
    for (address, port), item in list(ends.items())[:_FAR_ENDS]:
        far = by_address.get(address)
        asked = await _beside_the_job((far,), f"listener {port}") if far else []
        answer = asked[0][1] if asked else None
        lines.append(judge_connection(item, far, answer))
    return lines


async def in_mpi(hosts: tuple[HostSnapshot, ...]) -> list[str]:
    """Ask hosts for ranks that have not left MPI: a line for each host that has some."""
    found = await _beside_the_job(hosts, "in_mpi")
    return [f"{host.name} {answer.in_mpi}" for host, answer in found if answer.in_mpi]


async def look_for(hosts: Sequence[HostSnapshot]) -> list[str]:
    """Look for hosts that are silent: a line for each."""
    throttle, errors = Throttle(len(hosts)), f"{os.environ.get(LAUNCH_DIR, '')}/stderr"

    def log_in(host: HostSnapshot) -> Awaitable[str | None]:
        return _ask(host, "exit 0", throttle)

    found = await _ask_all(
        hosts,
        lambda host: look_for_one(host, _addresses, log_in, errors),
        _SECONDS_BESIDE_THE_JOB,
    )
    # Only a login takes longer than that, after the host's port has answered.
    answers = (Found.ANSWERS, "its SSH port answers, but a new login does not end")
    return [" ".join((host.name, *(answer or answers))) for host, answer in found]


def _is(host: HostSnapshot, where: str) -> bool:
    """Whether mpirun's name for a host is that host: its own it may have long or short."""
    return host.name in (where, where.partition(".")[0] if host.here else where)


def main(folder: str, wanted: str, *words: str) -> None:
    """Do what the parent asks for."""
    request, hosts = Request(wanted), hosts_of(folder)
    first, program, signal, *named = (*words, *("", "", "")[len(words) :])
    pointed_at = frozenset(named)
    by_weight = tuple(
        sorted(
            hosts,
            key=lambda host: (not host.here, host.name != first, host.name not in pointed_at),
        )
    )
    now: Answers = {}
    measured = [host for host in hosts if host.counted]

    def told() -> None:
        from mpiboot.supervisor import transport  # noqa: PLC0415 - for one request of many

        if measured and request is Request.EVIDENCE:
            after = {name: answer.counters for name, answer in now.items()}
            write_transport(folder, transport.judge(measured, after, strict=False))

    match request:
        case Request.LOOK_FOR:
            answer = look_for([host for host in hosts if host.name in words])
        case Request.CONNECTING:
            answer = unanswered(by_weight, frozenset(words))
        case Request.IN_MPI:
            answer = in_mpi(by_weight)
        case _:  # Request.EVIDENCE
            answer = gather(by_weight, program, (first, signal), now)
    asyncio.run(_write(answer, told))


async def _write(asks: Awaitable[list[str]], told: Callable[[], None]) -> None:
    """Write what is found at once: the end of the loop waits for names that don't resolve.

    ``told`` is called when all is known. The program then ends without that wait, for which a
    nameserver that is silent takes a minute, and without tidying up, which takes 10 ms.
    """
    for line in await asks:
        print(line, flush=True)  # noqa: T201 - this is its purpose
    told()
    if __name__ == "__main__":
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
