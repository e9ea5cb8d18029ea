"""Answers the parent's queries, in the process that holds the hosts' connections."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from mpiboot.core import log
from mpiboot.core.launch_names import LAUNCH_ID, PARENT, POOL, TRANSPORT
from mpiboot.core.records_json import write_records
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import READ, WHEN_READ
from mpiboot.network import counters
from mpiboot.network.counters import QUESTION
from mpiboot.ssh.connections import Connections, PoolConfig
from mpiboot.supervisor import ask_workers, evidence, stop_ranks, transport
from mpiboot.supervisor.ask_workers import LOGIN, SECONDS
from mpiboot.supervisor.asking import Request
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.host_commands import HostCommands, in_time
from mpiboot.supervisor.stop_ranks import LookRequests

# The job's exit code depends on the answer.
SECONDS_FOR_PROOF: Final = 60.0


class Workers:
    """The workers of a launch whose mpirun has ended."""

    def __init__(self, commands: HostCommands, folder: str, hosts: Iterable[HostSnapshot]) -> None:
        self._commands, self._folder, self._hosts = commands, folder, tuple(hosts)
        self._untold = [host for host in self._hosts if host.mpiboot]

    async def notify(self, attempt: str, hold: float, why: str) -> None:
        """Tell those that run mpiboot, and don't know yet, how the job has ended.

        Args:
            attempt: the launcher's name for workers.
            hold: seconds that the launcher's pod stays up for inspection.
            why: the reason; empty after a good end.
        """
        over = host_shell.order("job_is_over")
        order = host_shell.job_failed(attempt, hold, why) if why else over
        await in_time((self._commands.run(host, order, LOGIN) for host in self._untold), SECONDS)

    async def count(self, *, strict: bool, over: bool) -> None:
        """Read the counters of ports and links after a job that ended well; judge and write them.

        Args:
            strict: whether the job's exit code depends on them.
            over: whether the same commands tell of that end.
        """
        asked = [host for host in self._hosts if host.counted or (over and host.mpiboot)]
        measured = [host for host in asked if host.counted]
        answers: dict[str, list[str]] = {}

        async def ask(host: HostSnapshot) -> None:
            counted = (QUESTION,) if host.counted else ()
            last = ("job_is_over",) if over and host.mpiboot else ()
            command = host_shell.order(*counted, WHEN_READ, *last)
            lines: list[str] = []
            async with self._commands.turn():
                started = await self._commands.start(host, command, LOGIN)
                try:
                    while (line := await started.line()) != READ:
                        if line is None:
                            return
                        lines.append(line)
                    answers[host.name] = lines
                    started.write("")  # what is behind READ waits for it
                    await started.wait()
                finally:
                    started.end()

        await in_time(map(ask, asked), SECONDS_FOR_PROOF if strict else SECONDS)
        if over:  # the others again: one that was told may be gone, and its address silent
            self._untold = [host for host in self._untold if host.name not in answers]
        found = {host: counters.read(lines) for host, lines in answers.items()}
        if measured:
            write_transport(self._folder, transport.judge(measured, found, strict=strict))


def write_transport(folder: str, report: Mapping[str, Any]) -> None:
    """Write what carried the job's data: whole, as this process may be killed at any time."""
    path = f"{folder}/{TRANSPORT}"
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(json.dumps(report))
    os.replace(f"{path}.part", path)


_PIECE: Final = 1 << 16


class Answers:
    """The other end of ``asking.Queries``."""

    def __init__(
        self, commands: HostCommands, folder: str, environ: Mapping[str, str], handle: int
    ) -> None:
        """Begin without a query.

        Args:
            commands: runs commands on hosts.
            folder: the launch folder, with what the gate saw of the hosts.
            environ: mpirun's environment.
            handle: the parent's socket.
        """
        self._commands, self._folder, self._environ = commands, folder, environ
        self._handle = handle
        self._running: dict[int, asyncio.Task[None]] = {}
        self._looks: dict[int, LookRequests] = {}
        self._rest = b""
        self._idle: dict[str, bool] = {}  # whether a host has no rank, as far as that is known

    @cached_property
    def _hosts(self) -> tuple[HostSnapshot, ...]:
        """What the gate saw of the hosts; none where it has left nothing."""
        try:
            with open(f"{self._folder}/{evidence.FILE}", encoding="utf-8") as file:
                return evidence.from_json(file.read())
        except FileNotFoundError:
            return ()

    @cached_property
    def _workers(self) -> Workers:
        hosts = self._hosts
        if self._idle:
            hosts = tuple(replace(host, may_idle=self._idle.get(host.name, True)) for host in hosts)
        return Workers(self._commands, self._folder, hosts)

    async def serve(self) -> None:
        """Answer until the socket is closed; what runs then is cancelled."""
        # It warns of a command that ended by itself as it was to be killed.
        logging.getLogger("asyncio").setLevel("ERROR")
        over = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._handle, self._read, over)
        await over.wait()
        for task in self._running.values():
            task.cancel()

    def _read(self, over: asyncio.Event) -> None:
        data, loop = b"", asyncio.get_running_loop()
        with suppress(ConnectionError):  # the parent has left some answer unread
            data = os.read(self._handle, _PIECE)
        if not data:
            loop.remove_reader(self._handle)
            over.set()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            match json.loads(line):
                case [number] if number in self._running:
                    self._running[number].cancel()
                case [number, str(text)] if number in self._running:
                    # The query may have come with it, and begins before.
                    loop.call_soon(self._take, number, text)
                case [number, request, *words] if number not in self._running:
                    work = self._answer(number, Request(request), words)
                    self._running[number] = asyncio.ensure_future(work)

    def _take(self, number: int, line: str) -> None:
        if number in self._looks:
            self._looks[number].take(line)

    async def _answer(self, number: int, request: Request, words: list[str]) -> None:
        lines: list[str] = []
        try:
            lines = await self._lines(number, request, words)
        except Exception as wrong:  # noqa: BLE001 - the job goes on, or how it ended is known
            log.failed(f"what answers the query {request.value}", wrong)
        self._write(number, True, *lines)

    async def _lines(self, number: int, request: Request, words: list[str]) -> list[str]:
        commands, hosts = self._commands, self._hosts
        match request:
            case Request.EVIDENCE:
                await self._evidence(number, words)
            case Request.RANKS:
                found = await ask_workers.ranks(commands, hosts, self._environ[LAUNCH_ID])
                self._idle = {name: not number for name, number, _ in found}
                return [
                    f"{name} {'-' if number is None else number} {','.join(libraries)}"
                    for name, number, libraries in found
                ]
            case Request.COUNT:
                strict, over = (word == "1" for word in words)
                await self._workers.count(strict=strict, over=over)
            case Request.NOTIFY:
                attempt, hold, why = words
                await self._workers.notify(attempt, float(hold), why)
            case Request.STOP_RANKS:
                looks = self._looks[number] = LookRequests()
                signal, seconds = words
                command = stop_ranks.command(signal, seconds, self._environ[LAUNCH_ID])
                await stop_ranks.stop(
                    commands, hosts, command, looks, lambda line: self._write(number, False, line)
                )
        return []

    async def _evidence(self, number: int, words: list[str]) -> None:
        after = await ask_workers.after_job(
            self._commands,
            self._hosts,
            self._environ,
            words,
            lambda facts: self._write(number, False, write_records(facts)),
        )
        measured = [host for host in self._hosts if host.counted]
        if measured:
            now = {name: answer.counters for name, answer in after.items()}
            write_transport(self._folder, transport.judge(measured, now, strict=False))

    def _write(self, *message: Any) -> None:  # noqa: ANN401 - what JSON takes
        text = json.dumps(message).encode() + b"\n"
        while text:  # few and short; the parent reads them at once
            text = text[os.write(self._handle, text) :]


def main(folder: str) -> None:
    """Answer queries about a launch that is over, with connections of its own."""
    from mpiboot.ssh.pool import Pool  # noqa: PLC0415 - the process of a launch has it already

    config = PoolConfig.from_json(Path(folder, POOL).read_text("utf-8"))

    async def serve() -> None:
        commands = HostCommands(Pool(config, Connections(config.patience)), None, os.environ)
        await Answers(commands, folder, os.environ, PARENT).serve()

    asyncio.run(serve())
