"""What workers answer of connections that nobody answers, as lines for the parent. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpiboot.tcp_table import address_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpiboot.after_job.evidence import Baseline


def lines(
    names: Mapping[str, str], answers: Sequence[tuple[str, int, str]], asked: Baseline
) -> list[str]:
    """Say for each far end once, who waits for it.

    Args:
        names: the job's hosts by address.
        answers: those of the host ``asked``.
        asked: who answered.

    Returns:
        How often it was tried again, the far host's name (``-``: none of the job's) and a sentence.
    """
    said: dict[str, str] = {}
    for far, again, rank in sorted(answers, key=lambda answer: -answer[1]):
        address, _, port = far.partition(":")
        there = address_of(address)
        where = f"{there} port {int(port, 16)}"
        where = f"{names[there]} ({where})" if there in names else where
        who = f"rank {rank}" if rank else "a process of the job"
        text = f"{who} on {asked.name} gets no answer from {where}: tried {again + 1} times by TCP"
        said.setdefault(there, f"{again} {names.get(there, '-')} {text}")
    return list(said.values())
