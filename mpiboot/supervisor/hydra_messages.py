"""What Hydra's mpirun says of its ranks: on stdout, among what the ranks write there.

Measured with MPICH 4.0.2 and 5.0.2, and Intel MPI 2021.18.1. On the launcher's own stdout stand a
block for the first host that tells of a rank that a signal ended, and, by ``-print-all-exitcodes``,
at the end every rank's wait status, a line a host. Those lines are for the parent, which takes them
out where it was mpiboot that asked for them; everything else goes on as it comes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Final

from mpiboot.supervisor.events import RankEnd, RankEnded
from mpiboot.supervisor.mpirun_pipes import MpirunPipe
from mpiboot.supervisor.state import SIGKILL, SIGTERM

# "EXIT CODE" is MPICH's name for the wait status; the number of Intel MPI is the signal's.
_BLOCK: Final = re.compile(
    rb"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    rb"=   (?:RANK (\d+) )?PID \d+ RUNNING AT (\S+)\n"
    rb"=   (?:EXIT CODE|KILLED BY SIGNAL): (\d+)[ \n]"
)
_BLOCK_SIZE: Final = 512
# A host, behind whose name Intel MPI writes its number, and what became of its ranks.
_STATUSES: Final = re.compile(rb"\[([^\]\s]+?)(?::\d+)?\] (\d+(?:,\d+)*)")
# A wait status: the signal, and whether there is a core file; above them the exit code.
_SIGNAL: Final = 0x7F
# By these mpirun itself ends the ranks beside one that failed: they explain nothing where there is
# another end, and SIGTERM explains less.
_MPIRUNS_OWN: Final = (0, SIGKILL, SIGTERM)


def _ended(status: int, host: str, rank: int | None) -> RankEnded:
    signal = status & _SIGNAL
    how = RankEnd.SIGNAL if signal else RankEnd.STATUS
    return RankEnded(rank, how, host, signal, 0 if signal else status >> 8, last=True)


def first_failure(
    statuses: Mapping[str, tuple[int, ...]], hosts: tuple[str, ...]
) -> list[RankEnded]:
    """Find the rank that explains the others' ends: none, or one.

    Args:
        statuses: the ranks' wait statuses, by host.
        hosts: the job's hosts in order, where each has exactly one rank.
    """
    ends = [
        _ended(status, host, hosts.index(host) if host in hosts else None)
        for host, many in statuses.items()
        for status in many
        if status
    ]
    own = _MPIRUNS_OWN
    return sorted(ends, key=lambda end: own.index(end.signal) if end.signal in own else 0)[:1]


class HydraMessages(MpirunPipe):
    """Reads mpirun's stdout as it comes, and passes it on."""

    def __init__(
        self,
        reader: int,
        write: Callable[[bytes], None],
        hosts: tuple[str, ...],
        *,
        take_out: bool,
    ) -> None:
        """Read from a pipe.

        Args:
            reader: its end.
            write: passes on.
            hosts: the job's hosts in order, where each has exactly one rank.
            take_out: the lines with statuses are nobody's but this process's.
        """
        super().__init__(reader, write, ends_with_stream=True)
        self._hosts = hosts
        self._take_out = take_out
        self._title = f"[mpiexec@{os.uname().nodename}] Exit codes: ".encode()
        self._recent = b""  # where a block may have begun
        self._listing = False
        self._statuses: dict[str, tuple[int, ...]] = {}

    def _parse(self, text: bytes, *, last: bool) -> tuple[bytes, bytes, list[RankEnded]]:
        shown, held = self._without_statuses(text)
        ends = self._killed(shown)
        if last:
            if not (self._listing and self._is_listed(held)) or not self._take_out:
                shown += held
            held = b""
            ends += first_failure(self._statuses, self._hosts)
        return shown, held, ends

    def _killed(self, shown: bytes) -> list[RankEnded]:
        """Find the rank of a block that is whole now."""
        self._recent += shown
        found = _BLOCK.search(self._recent)
        self._recent = self._recent[found.end() if found else 0 :][-_BLOCK_SIZE:]
        if not found:
            return []
        host = found[2].decode("utf-8", "replace")
        rank = int(found[1]) if found[1] else None
        if rank is None and host in self._hosts:
            rank = self._hosts.index(host)
        return [RankEnded(rank, RankEnd.SIGNAL, host, int(found[3]) & _SIGNAL)]

    def _without_statuses(self, text: bytes) -> tuple[bytes, bytes]:
        """Give what goes on, and what may be a part of the title, or of a line below it."""
        shown: list[bytes] = []
        while text:
            if self._listing:
                line, newline, rest = text.partition(b"\n")
                if not newline:
                    return b"".join(shown), text
                self._listing = self._is_listed(line)
                if not self._listing or not self._take_out:
                    shown.append(line + newline)
                text = rest
                continue
            before, title, rest = text.partition(self._title)
            if not title:
                cut = len(before) - self._begun(before)
                return b"".join((*shown, before[:cut])), before[cut:]
            self._listing = True
            shown.append(before if self._take_out else before + title)
            text = rest
        return b"".join(shown), b""

    def _is_listed(self, line: bytes) -> bool:
        found = _STATUSES.fullmatch(line)
        if found:
            host = found[1].decode("utf-8", "replace")
            self._statuses[host] = tuple(map(int, found[2].split(b",")))
        return found is not None

    def _begun(self, text: bytes) -> int:
        """Say how many bytes at the end may be the title's first ones."""
        for size in range(min(len(self._title) - 1, len(text)), 0, -1):
            if text.endswith(self._title[:size]):
                return size
        return 0
