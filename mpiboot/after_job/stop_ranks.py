"""Asks the ranks of every host to save and end, and tells how many are there until all ended.

``python -I -S stop_ranks.py FOLDER SIGNAL SECONDS``: a child of the launcher's process, while
mpirun runs. It sends ``libexec/stop-ranks`` to each host by the job's own launch agent, and runs it
here, for ranks on the launcher. It writes ``ranks LEFT ALL`` on stdout whenever every host has told
its number once more, and ends when none is left; a host that can't be asked has none.
"""

# Run by its path, it must find its package first.
# ruff: noqa: PTH100, PTH118, PTH120, PTH123
from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from typing import BinaryIO, Final

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from mpiboot.after_job import evidence

_AT_ONCE: Final = 24
_LIBEXEC: Final = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "libexec"
)
SCRIPT: Final = os.path.join(_LIBEXEC, "stop-ranks")
_AGENT: Final = os.path.join(_LIBEXEC, "agent")
_LAUNCHER: Final = ""  # no host's name


class Count:
    """How many ranks each host has told of: those that are left, and all that there were. Pure."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._left: dict[str, int] = dict.fromkeys(hosts, 0)
        self._most = dict(self._left)
        self._waiting = set(self._left)

    def take(self, host: str, ranks: int) -> tuple[int, int] | None:
        """Take a host's number in; the sums where every host has told one since the last sums."""
        self._left[host] = ranks
        self._most[host] = max(ranks, self._most[host])
        self._waiting.discard(host)
        if self._waiting:
            return None
        # A host whose ranks have all ended tells no more.
        self._waiting = {name for name, left in self._left.items() if left}
        return sum(self._left.values()), sum(self._most.values())


def _script() -> BinaryIO:
    # Each host's own: a copy of the descriptor would share its place in the file.
    return open(SCRIPT, "rb")


async def _ask(host: str, words: list[str], free: asyncio.Semaphore, count: Count) -> None:
    argv = [SCRIPT, *words]
    if host:
        argv = [_AGENT, host, f"exec /bin/sh -s {' '.join(words)}"]
    async with free:
        with _script() as script:
            asked = await asyncio.create_subprocess_exec(
                "/bin/sh",
                *argv,
                stdin=script if host else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        assert asked.stdout is not None  # noqa: S101 - it was asked for
        # A login shell may say more; where many hosts are logged in to at once, some wait.
        _tell(count, host, await asked.stdout.readline())
    while line := await asked.stdout.readline():
        _tell(count, host, line)
    await asked.wait()
    _tell(count, host, b"ranks 0")


def _tell(count: Count, host: str, line: bytes) -> None:
    words = line.split()
    if len(words) != 2 or words[0] != b"ranks" or not words[1].isdigit():  # noqa: PLR2004
        return
    sums = count.take(host, int(words[1]))
    if sums is not None:
        print("ranks", *sums, flush=True)  # noqa: T201 - this is its purpose


async def stop(hosts: Iterable[str], signal: str, seconds: int, mark: str) -> None:
    """Ask every host, and this one, until no rank is left or the time is over."""
    names = [_LAUNCHER, *hosts]
    count, free = Count(names), asyncio.Semaphore(_AT_ONCE)
    words = [signal, str(seconds), mark]
    await asyncio.gather(*(_ask(host, words, free, count) for host in names))


def main(folder: str, signal: str, seconds: str) -> None:
    """Do what the launcher's process asks for."""
    with open(f"{folder}/{evidence.FILE}", encoding="utf-8") as file:
        hosts = evidence.from_json(file.read())
    mark = f"MPIBOOT_JOB_MARK={os.environ['MPIBOOT_JOB_MARK']}"
    asyncio.run(stop([host.name for host in hosts if not host.here], signal, int(seconds), mark))


if __name__ == "__main__":
    main(*sys.argv[1:])
