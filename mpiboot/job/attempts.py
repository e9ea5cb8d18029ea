"""Which attempt of its job a launcher is, and how the last one ended, as its workers tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mpiboot.core.model import Worker


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """The attempts before this one: how many, the last one's name, and how it ended if it told."""

    number: int
    name: str
    ended: str

    @property
    def said(self) -> str:
        """Say it in one sentence."""
        host, _, rest = self.name.partition("@")
        since = rest.partition("@")[0]
        who = " ".join(part for part in (host, since and f"of {since}") if part)
        how = f"ended: {self.ended}" if self.ended else "told nothing of its end (killed, or lost)"
        return f"attempt {self.number + 1}; the last one ({who}) {how}"


def earlier(workers: Iterable[Worker], own: str) -> EarlierAttempt | None:
    """Find out what was before this attempt; None where it is the first one, or a part of a job.

    A worker that was made anew remembers less than the others, and one that was out of reach at the
    end of a launcher does not know why it ended.

    Args:
        workers: who passed the gate.
        own: this launcher's name; a script's launches share it.
    """
    seen = [[item for item in worker.attempts if item[0] != own] for worker in workers]
    longest = max(seen, key=len, default=[])
    if not own or not longest:
        return None
    name = longest[-1][0]
    ended = (why for items in seen for other, why in items if other == name and why)
    return EarlierAttempt(len(longest), name, next(ended, ""))
