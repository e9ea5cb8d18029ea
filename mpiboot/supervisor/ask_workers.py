"""Asks every worker, after a job failed, for what explains it; or tells them how it has ended.

``python -I -S ask_workers.py FOLDER REQUEST WORD...``, as ``request`` has them: a child of mpirun's
parent, which gives it a few seconds. It writes one line for each finding on stdout, changes nothing
on a worker beyond telling it of the job's end, and never fails.
"""

# Run by its path, it must find its package first.
# ruff: noqa: PTH100, PTH118, PTH120, PTH123
from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from mpiboot.hosts import host_shell
from mpiboot.supervisor import by_client, evidence, silent_hosts
from mpiboot.supervisor import unanswered_questions as unanswered_connections
from mpiboot.supervisor.request import FarEnd, Found, Request
from mpiboot.supervisor.unanswered_questions import Waiting

_SECONDS: Final = 4.0
_SECONDS_BESIDE_THE_JOB: Final = 20.0  # its hosts are busy, and nobody waits
_END: Final = 0.5  # what an agent has that is told to end; then the parent kills it
T = TypeVar("T")

# A login is 10 ms of the launcher's own CPU and many times as long of a worker's.
_AT_ONCE: Final = 64
# Of a job's hosts so many are asked while it runs for connections that nobody answers: one that is
# missing is missed by many.
_HOSTS: Final = 96
_FAR_ENDS: Final = 8
_MEMORY: Final = ("memory", "memory_sizes")
_QUESTIONS: Final = (*_MEMORY, "began", "disks", "ports")
# The launch folder, as the agents know it.
_MARK: Final = "MPIBOOT_LAUNCH_DIR"
_AGENT: Final = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "libexec", "agent"
)


class Turns(asyncio.Semaphore):
    """Lets so many hosts be asked at once, in their order; ``waiting`` have not had their turn."""

    def __init__(self, hosts: int) -> None:
        super().__init__(_AT_ONCE)
        self.waiting = hosts


async def _run(words: Sequence[str], turns: Turns) -> str | None:
    """Run words by this pod's shell; None where they fail, as where a host can't be reached."""
    async with turns:
        turns.waiting -= 1
        agent = await asyncio.create_subprocess_exec(
            "/bin/sh",
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            output, _ = await agent.communicate()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                agent.terminate()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(agent.communicate(), _END)
            raise
    return output.decode("utf-8", "replace") if agent.returncode == 0 else None


async def _ask(host: evidence.Baseline, command: str, turns: Turns) -> str | None:
    """Run a command on a host, as the launch's agents do."""
    folder = os.environ.get(_MARK, "")
    if host.here:
        return await _run(("-c", command), turns)
    if not by_client.is_there(folder):
        return await _run((_AGENT, host.name, command), turns)
    async with turns:
        turns.waiting -= 1
        return await by_client.run(folder, host.name, command)


async def _addresses(baseline: evidence.Baseline) -> tuple[str, ...] | None:
    """Resolve a host's name: no address where there is none, None where nobody can tell.

    A nameserver that fails for the world outside says nothing of the cluster's own names.
    """
    if not baseline.dns:  # no nameserver tells what became of an address
        return None
    found = await _resolved(baseline.dns)
    if found is not None or not baseline.in_cluster:
        return found
    own = await asyncio.gather(*map(_resolved, baseline.in_cluster))
    known = tuple(address for addresses in own for address in addresses or ())
    return None if None in own and not known else known


async def _resolved(name: str) -> tuple[str, ...] | None:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as why:
        return () if why.errno in (socket.EAI_NONAME, socket.EAI_NODATA) else None
    return tuple(str(item[4][0]) for item in found)


async def _evidence(
    baseline: evidence.Baseline, command: str, turns: Turns, signal: str | None
) -> tuple[evidence.Explanation, ...]:
    if baseline.here:
        answer = await _ask(baseline, host_shell.ask(*_MEMORY), turns)
        return (
            evidence.judge_here(baseline, host_shell.read(answer), signal or "") if answer else ()
        )
    resolving = asyncio.ensure_future(_addresses(baseline))
    asking = asyncio.ensure_future(_ask(baseline, command, turns))
    # A host whose name has gone, or leads elsewhere, needs no further patience.
    found = evidence.unreachable(baseline, await resolving)
    if found:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait((asking,))
        return found
    answer = await asking
    if answer:
        return evidence.judge(baseline, host_shell.read(answer), signal or "")
    return evidence.silent(baseline) if signal is not None else ()


async def _in_time(
    asked: Mapping[asyncio.Task[T], evidence.Baseline], seconds: float
) -> list[tuple[evidence.Baseline, T | None]]:
    """Give what each host has answered, None where nothing came in time, or it failed."""
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
    hosts: tuple[evidence.Baseline, ...], program: str = "", killed: tuple[str, str] = ("", "")
) -> list[str]:
    """Ask hosts, the first ones first; what has not answered in time is left out.

    Args:
        hosts: whom to ask, in this order.
        program: what they are asked for, whether they can run it.
        killed: the host whose rank was ended first, and by which signal.
    """
    where, signal = killed
    path, here = os.environ.get("PATH", ""), os.getcwd()  # noqa: PTH109
    wanted = host_shell.lacks(program, path, here) if program else ()
    command = host_shell.ask(*_QUESTIONS, *wanted)
    turns = Turns(len(hosts))
    asked = {
        asyncio.ensure_future(
            _evidence(host, command, turns, signal if _is(host, where) else None)
        ): host
        for host in hosts
    }
    rows = []
    for host, said in await _in_time(asked, _SECONDS):
        found = evidence.silent(host) if said is None and host.name == where else said or ()
        rows += [(item.order, item.line(host.name)) for item in found]
    lines = [line for _, line in sorted(rows, key=lambda row: row[0])]
    if turns.waiting:
        lines.append(f"{turns.waiting} of {len(hosts)} hosts could not be asked in time")
    return lines


async def _beside_the_job(
    hosts: tuple[evidence.Baseline, ...], question: str
) -> list[tuple[evidence.Baseline, host_shell.HostAnswer]]:
    """Ask hosts while the job runs; who has not answered in time is left out."""
    command = host_shell.ask(question)
    turns = Turns(len(hosts))
    asked = {asyncio.ensure_future(_ask(host, command, turns)): host for host in hosts}
    answers = await _in_time(asked, _SECONDS_BESIDE_THE_JOB)
    return [(host, host_shell.read(output)) for host, output in answers if output]


async def unanswered(hosts: tuple[evidence.Baseline, ...], known: frozenset[str]) -> list[str]:
    """Ask hosts for connections that nobody answers, and the far ends of those that are known."""
    by_address = {host.address: host for host in hosts if host.address}
    found = {
        item.key: item
        for host, answer in await _beside_the_job(hosts[:_HOSTS], "connecting")
        for item in (Waiting(host.name, each) for each in answer.connecting)
    }
    lines = [
        unanswered_connections.line(FarEnd.NEW, item)
        for key, item in found.items()
        if key not in known
    ]
    # Many ranks may wait for one: each far end is asked once, and told of once.
    ends = {(item.address, item.port): item for key, item in found.items() if key in known}
    for (address, port), item in list(ends.items())[:_FAR_ENDS]:
        far = by_address.get(address)
        asked = await _beside_the_job((far,), f"listener {port}") if far else []
        answer = asked[0][1] if asked else None
        lines.append(unanswered_connections.judge(item, far, answer))
    return lines


async def in_mpi(hosts: tuple[evidence.Baseline, ...]) -> list[str]:
    """Ask hosts for ranks that have not left MPI: a line for each host that has some."""
    found = await _beside_the_job(hosts, "in_mpi")
    return [f"{host.name} {answer.in_mpi}" for host, answer in found if answer.in_mpi]


async def look_for(hosts: Sequence[evidence.Baseline]) -> list[str]:
    """Look for hosts that are silent: a line for each."""
    turns, errors = Turns(len(hosts)), f"{os.environ.get(_MARK, '')}/stderr"

    def log_in(host: evidence.Baseline) -> Awaitable[str | None]:
        return _ask(host, "exit 0", turns)

    asked = {
        asyncio.ensure_future(silent_hosts.look_for(host, _addresses, log_in, errors)): host
        for host in hosts
    }
    found = await _in_time(asked, _SECONDS_BESIDE_THE_JOB)
    # Only a login takes longer than that, after the host's port has answered.
    answers = (Found.ANSWERS, "its SSH port answers, but a new login does not end")
    return [" ".join((host.name, *(said or answers))) for host, said in found]


def _is(host: evidence.Baseline, where: str) -> bool:
    """Whether mpirun's name for a host is that host: its own it may have long or short."""
    return host.name in (where, where.partition(".")[0] if host.here else where)


async def tell(hosts: tuple[evidence.Baseline, ...], order: str) -> None:
    """Tell the workers that run mpiboot how the job has ended."""
    turns = Turns(len(hosts))
    asked = {
        asyncio.ensure_future(_ask(host, order, turns)): host for host in hosts if host.mpiboot
    }
    await _in_time(asked, _SECONDS)


def main(folder: str, wanted: str, *words: str) -> None:
    """Do what the parent asks for."""
    request = Request(wanted)
    with open(f"{folder}/{evidence.FILE}", encoding="utf-8") as file:
        hosts = evidence.from_json(file.read())
    if request is Request.OVER:
        asyncio.run(tell(hosts, host_shell.order("job_is_over")))
        return
    if request is Request.FAILED:
        name, hold, why = words
        asyncio.run(tell(hosts, host_shell.job_failed(name, float(hold), why)))
        return
    if request is Request.LOOK_FOR:
        asyncio.run(_write_and_leave(look_for([host for host in hosts if host.name in words])))
        return
    first, program, signal, *named = (*words, *("", "", "")[len(words) :])
    pointed_at = frozenset(named)
    hosts = tuple(
        sorted(
            hosts,
            key=lambda host: (not host.here, host.name != first, host.name not in pointed_at),
        )
    )
    if request is Request.CONNECTING:
        asyncio.run(_write(unanswered(hosts, frozenset(words))))
    elif request is Request.IN_MPI:
        asyncio.run(_write(in_mpi(hosts)))
    else:
        asyncio.run(_write(gather(hosts, program, (first, signal))))


async def _write(asks: Awaitable[list[str]]) -> None:
    """Write what is found at once: the end of the loop waits for names that don't resolve."""
    for line in await asks:
        print(line, flush=True)  # noqa: T201 - this is its purpose


async def _write_and_leave(asks: Awaitable[list[str]]) -> None:
    """Write what is found, and wait for no name: a nameserver that is silent holds for a minute."""
    await _write(asks)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
