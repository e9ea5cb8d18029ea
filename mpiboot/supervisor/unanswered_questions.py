"""What workers answer of connections that nobody answers, as lines for the parent. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpiboot.supervisor.request import FarEnd
from mpiboot.system.tcp_table import address_of

if TYPE_CHECKING:
    from mpiboot.hosts.host_shell import Connecting, HostAnswer
    from mpiboot.supervisor.evidence import Baseline


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


def line(kind: FarEnd, item: Waiting, said: str = "") -> str:
    """Write a line for the parent."""
    return f"{kind.value} {item.key} {said}".rstrip()


def judge(item: Waiting, far: Baseline | None, answer: HostAnswer | None) -> str:
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
        return line(FarEnd.ELSEWHERE, item, text)
    if answer is None:
        return line(
            FarEnd.DROPPED, item, f"{text}; that host did not tell whether it listens there"
        )
    if answer.to_accept or (answer.overflows and answer.listener is not None):
        text += f"; the process that listens there is slow to accept: {answer.to_accept} wait for "
        text += f"it, and {answer.overflows} found a full backlog. The network is not to blame"
        return line(FarEnd.SLOW, item, text)
    listens = "nobody listens" if answer.listener is None else "a process listens"
    return line(FarEnd.DROPPED, item, f"{text}; {listens} there, and nothing reaches it")
