"""Asks the ranks of every host to save and end, and tells how many are there until all ended.

``python -I -S stop_ranks.py FOLDER SIGNAL SECONDS``: a child of the launcher's process, while
mpirun runs. It runs ``host_shell.stop_ranks`` on each host by the job's own launch agent, and
here, for ranks on the launcher. Then it asks all of them again and again how many ranks are left,
and writes ``ranks LEFT ALL ASKED`` when all have answered; it ends when none is left. A host that
can't be asked has none. Each empty line on stdin wants a look that begins after it: ASKED is how
many such lines had come when these answers were asked for. Any other line names a host that is not
waited for any more, for its agent has ended: one whose pod is gone answers no login.
"""

# Run by its path, it must find its package first.
from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from signal import Signals
from typing import Final

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from mpiboot.hosts import host_shell
from mpiboot.supervisor import evidence

_AT_ONCE: Final = 24
_PAUSE: Final = 0.25  # seconds between two looks that nobody wants at once
_AGENT: Final = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "libexec", "agent"
)
_LAUNCHER: Final = ""  # no host's name


class StopScript:
    """The script on one host, and how many ranks it has told of."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.left = 0

    @classmethod
    async def ask(cls, name: str, command: str, free: asyncio.Semaphore) -> StopScript:
        """Start the script there, and wait for its first number, of all ranks that there are."""
        argv = ("-c", command) if name == _LAUNCHER else (_AGENT, name, command)
        async with free:
            host = cls(
                await asyncio.create_subprocess_exec(
                    "/bin/sh",
                    *argv,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                )
            )
            await host._answer()
        return host

    async def again(self) -> None:
        """Ask how many are left now."""
        if self.left:
            await self._answer(b"\n")

    async def _answer(self, text: bytes = b"") -> None:
        assert self._process.stdin is not None  # noqa: S101 - both were asked for
        assert self._process.stdout is not None  # noqa: S101
        self.left = 0
        with suppress(ConnectionError):  # nobody reads there any more: its stdout has ended too
            self._process.stdin.write(text)
            await self._process.stdin.drain()
        # A login shell may say more.
        while line := await self._process.stdout.readline():
            words = line.split()
            if len(words) == 2 and words[0] == b"ranks" and words[1].isdigit():  # noqa: PLR2004
                self.left = int(words[1])
                break
        if not self.left:
            await self._process.wait()


class LookRequests:
    """The lines that came on stdin: looks that are wanted, and hosts to give up."""

    def __init__(self, file: int, give_up: Callable[[str], None]) -> None:
        self.number = 0
        self._file = file
        self._give_up = give_up
        self._rest = b""
        self._came = asyncio.Event()
        asyncio.get_running_loop().add_reader(file, self._read)

    def _read(self) -> None:
        data = os.read(self._file, 1 << 16)
        if not data:
            asyncio.get_running_loop().remove_reader(self._file)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line:
                self._give_up(line.decode())
            else:
                self.number += 1
                self._came.set()

    async def pause(self) -> None:
        """Wait for the next one, or until it is time to look anyway."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._came.wait(), _PAUSE)
        self._came.clear()


async def stop(hosts: Iterable[str], signal: str, seconds: int, mark: str, file: int = 0) -> None:
    """Ask every host, and this one, until no rank is left or the time is over.

    ``file`` is where lines come from.
    """
    end = time.monotonic() + seconds
    free = asyncio.Semaphore(_AT_ONCE)
    command = host_shell.stop_ranks(Signals[f"SIG{signal}"], seconds, mark)
    asking = {
        # A subprocess that is given up as it starts is waited for: nobody waits for that.
        name: asyncio.shield(StopScript.ask(name, command, free))
        for name in (_LAUNCHER, *hosts)
    }

    def give_up(name: str) -> None:
        if name in asking:
            asking[name].cancel()

    wanted = LookRequests(file, give_up)
    await asyncio.wait(asking.values())
    # One that fails is one that can't be asked: the others' ranks save all the same.
    asked = [
        task.result()
        for task in asking.values()
        if not task.cancelled() and task.exception() is None
    ]
    # They were counted at different times, and told to end at once: the first number is no look.
    ranks, number = sum(host.left for host in asked), 0
    left = ranks
    while True:
        print("ranks", left, ranks, number, flush=True)  # noqa: T201 - this is its purpose
        if not left or time.monotonic() > end:
            break
        await wanted.pause()
        number = wanted.number
        await asyncio.gather(*(host.again() for host in asked), return_exceptions=True)
        left = sum(host.left for host in asked)


def main(folder: str, signal: str, seconds: str) -> None:
    """Do what the launcher's process asks for."""
    with open(f"{folder}/{evidence.FILE}", encoding="utf-8") as file:
        hosts = evidence.from_json(file.read())
    mark = f"MPIBOOT_LAUNCH_ID={os.environ['MPIBOOT_LAUNCH_ID']}"
    names = [host.name for host in hosts if not host.here]

    async def run() -> None:
        await stop(names, signal, int(seconds), mark)
        # Agents that still ask a host are ended by the parent, and waited for by nobody.
        os._exit(0)

    asyncio.run(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
