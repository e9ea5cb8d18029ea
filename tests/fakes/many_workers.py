"""Many workers on loopback behind a few SSH servers, each host an address of 127/8 of its own.

A server answers what mpiboot asks of hosts as a worker with mpiboot would, without a process for
it, and stands in for the daemon that an agent starts (or runs it, where that is wanted): what is
measured or shown with them is the launcher's part. It is one process for many hosts; run as a
program, ``many_workers.py CONFIG``, it is told on stdin at which addresses to listen, and tells on
stdout, ``WHAT ADDRESS SECONDS`` by the monotonic clock, what has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import asyncssh

from mpiboot.core.model import Mpi

PATIENCE: Final = 240.0  # a guard, never a measure
_BACKLOG: Final = 1024
# The last line of mpiboot's own scripts (host_shell) calls their functions.
_CALLS: Final = re.compile(r"\{ (.*); exit 0; \}\n")
# Where a daemon finds its mpirun: ORTE's and PRRTE's URI, Hydra's control port.
_MPIRUN: Final = re.compile(r"(?:tcp://|--control-port )([^\s;:\"]+):(\d+)")


def addresses(count: int) -> list[str]:
    """Give so many addresses, from 127.1.0.1 on."""
    return [f"127.1.{number // 250}.{number % 250 + 1}" for number in range(count)]


@dataclass(frozen=True)
class Config:
    """What a server process is told.

    ``facts`` is a worker's facts as JSON, its own address written ADDRESS; empty: hosts without
    mpiboot. With ``real`` daemons are run, each with a TMPDIR of its own below ``folder``.
    """

    key: str
    port: int
    facts: str
    folder: str
    real: bool


class Server:
    def __init__(self, config: Config) -> None:
        self.config = config
        key = asyncssh.read_private_key(config.key)
        public = key.export_public_key().decode("ascii").strip()
        self._options = asyncssh.SSHServerConnectionOptions(
            server_version="AsyncSSH mpiboot",
            server_host_keys=[key],
            process_factory=self._serve,
            authorized_client_keys=asyncssh.import_authorized_keys(public),
            encoding=None,
            password_auth=False,
            kbdint_auth=False,
            compression_algs=None,
        )
        self._count = 0

    async def listen(self, address: str) -> None:
        """Become the host of one more address."""
        await asyncssh.listen(
            address, self.config.port, options=self._options, backlog=_BACKLOG, reuse_address=True
        )

    async def _serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        address = str(process.get_extra_info("sockname")[0])
        command = process.command or ""
        try:
            if command == "sh -s":
                while not (calls := _CALLS.fullmatch((await process.stdin.readline()).decode())):
                    pass
                status = await self._answer(process, address, calls[1].split("; "))
            else:
                _tell("daemon", address)
                work = self._run if self.config.real else self._stand_in
                status = await work(process, address, command)
            process.exit(status)
        except (OSError, asyncssh.Error):
            process.close()

    async def _answer(
        self, process: asyncssh.SSHServerProcess[bytes], address: str, calls: Sequence[str]
    ) -> int:
        for call in calls:
            name, *words = shlex.split(call)
            if name == "memory":
                process.stdout.write(b"mpiboot-oom 0\n")
            elif name == "facts" and self.config.facts:
                facts = self.config.facts.replace("ADDRESS", address)
                process.stdout.write(f"mpiboot-facts\n{facts}\n".encode())
            elif name == "facts":
                process.stdout.write(b"mpiboot-plain\n")
            elif (name, *words[:1]) == ("run_script", "probe") and self.config.facts:
                await self._probe(process, address)
            elif name in ("job_is_over", "job_failed"):
                _tell(name, address)
        await process.stdout.drain()
        return 0

    async def _probe(self, process: asyncssh.SSHServerProcess[bytes], address: str) -> None:
        """Answer as worker/probe.py does where everybody is reached."""
        self._count += 1
        process.stdout.write(f"mpiboot-probe {1024 + self._count % 60000}\n".encode())
        while await process.stdin.readline():
            process.stdout.write(f"answered {address} {address} -\n".encode())

    async def _stand_in(
        self, process: asyncssh.SSHServerProcess[bytes], address: str, command: str
    ) -> int:
        """Connect to mpirun as a daemon does, and end when that connection ends."""
        found = _MPIRUN.search(command)
        if found is None:
            process.stderr.write(f"what daemon is this? {command[:200]}\n".encode())
            return 127
        where = "127.0.0.1", int(found[2])
        reader, writer = await asyncio.open_connection(*where, local_addr=(address, 0))
        writer.write(f"{address}\n".encode())
        ended = asyncio.ensure_future(reader.read())
        gone = asyncio.ensure_future(process.wait_closed())
        await asyncio.wait((ended, gone), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        ended.cancel()
        writer.close()
        return 0

    async def _run(
        self, process: asyncssh.SSHServerProcess[bytes], address: str, command: str
    ) -> int:
        folder = f"{self.config.folder}/{address}"
        Path(folder).mkdir(exist_ok=True)  # noqa: ASYNC240 - a local folder
        child = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", command),
            env={**os.environ, "TMPDIR": folder, "HOME": folder},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            await asyncio.gather(
                _copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr)
            )
            return await child.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


async def _copy(source: asyncio.StreamReader | None, target: asyncssh.SSHWriter[bytes]) -> None:
    while source is not None and (part := await source.read(1 << 16)):
        target.write(part)


def _tell(what: str, address: str) -> None:
    os.write(1, f"{what} {address} {time.monotonic():.6f}\n".encode())


async def serve(server: Server) -> None:
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        for address in line.decode().split():
            await server.listen(address)
        _tell("listening", "all")
    os._exit(0)


@dataclass
class Told:
    """What was told of one host: what, where, and when (monotonic seconds)."""

    what: str
    address: str
    at: float


@dataclass
class ManyWorkers:
    """The hosts of a job: ``count`` addresses of which each is listened at when told so."""

    folder: Path
    key: Path
    count: int
    port: int
    facts: str = ""
    servers: int = 4
    real: bool = False
    told: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.addresses = addresses(self.count)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._heard = threading.Condition()

    def start(self) -> ManyWorkers:
        config = Config(str(self.key), self.port, self.facts, str(self.folder), self.real)
        path = self.folder / "workers.json"
        path.write_text(json.dumps(asdict(config)))
        for _ in range(self.servers):
            process = subprocess.Popen(
                [sys.executable, __file__, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._processes.append(process)
            thread = threading.Thread(target=self._hear, args=(process,))
            thread.start()
            self._threads.append(thread)
        return self

    def stop(self) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process, thread in zip(self._processes, self._threads, strict=True):
            process.wait(PATIENCE)
            thread.join()
            if process.stdout is not None:
                process.stdout.close()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def listen(self, wanted: Sequence[str]) -> None:
        """Let these hosts come up; returns when they listen."""
        before = len(self.all_of("listening"))
        used = 0
        for number, process in enumerate(self._processes):
            mine = [item for item in wanted if self.addresses.index(item) % self.servers == number]
            if mine and process.stdin is not None:
                used += 1
                process.stdin.write(f"{' '.join(mine)}\n".encode())
                process.stdin.flush()
        self.wait_for("listening", before + used)

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        for line in process.stdout or ():
            what, address, at = line.decode().split()
            with self._heard:
                self.told.append(Told(what, address, float(at)))
                self._heard.notify_all()

    def all_of(self, what: str) -> list[Told]:
        return [item for item in list(self.told) if item.what == what]

    def wait_for(self, what: str, count: int, seconds: float = PATIENCE) -> list[Told]:
        with self._heard:
            came = self._heard.wait_for(lambda: len(self.all_of(what)) >= count, seconds)
        found = self.all_of(what)
        assert came, f"{len(found)} of {count} {what}"
        return found

    def forget(self) -> None:
        with self._heard:
            self.told.clear()


def facts_of_a_worker(mpi: Mpi | None) -> str:
    """Give the facts of a worker that this machine would be, with ADDRESS for its address."""
    # What a server process, which is this file too, needs none of.
    from mpiboot.core.facts import facts_to_json  # noqa: PLC0415
    from mpiboot.core.settings import resolve  # noqa: PLC0415
    from mpiboot.worker import facts  # noqa: PLC0415

    seen = facts.gather(resolve({}, {}), {}, mpi=mpi, pid=os.getpid())
    return facts_to_json(
        replace(seen, sshd="embedded", control_address="ADDRESS", hostname="host-ADDRESS")
    )


@contextlib.contextmanager
def running(workers: ManyWorkers) -> Iterator[ManyWorkers]:
    try:
        yield workers.start()
    finally:
        workers.stop()


if __name__ == "__main__":
    asyncio.run(serve(Server(Config(**json.loads(Path(sys.argv[1]).read_text())))))
