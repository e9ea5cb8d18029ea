"""Ranks to text: the odd ones first, then a line each; JSON with a version."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from mpiboot import __version__
from mpiboot.core.addresses import short_names
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import counted, first_few, size_of
from mpiboot.doctor.ranks.ask import Answers
from mpiboot.doctor.ranks.records import Activity, HostRanks, LinkRates, MpiStage, Rank
from mpiboot.job import render

# Raised when a field changes its meaning; new fields need no new version.
JSON_VERSION: Final = 1
_RANKS: Final = 64  # that a terminal shows; a pipe gets all
_HEAD: Final = ("rank", "host", "pid", "does", "MPI", "CPU", "ever", "memory", "threads", "in")
_STAGES: Final = {
    MpiStage.BEFORE: "before",
    MpiStage.INSIDE: "in",
    MpiStage.LEFT: "left",
    MpiStage.UNKNOWN: "?",
}


def as_json(answers: Answers, found: Sequence[Finding]) -> str:
    """Write the ranks as docs/how-to/job-hangs.md has it."""
    return render.as_json(
        {
            "version": JSON_VERSION,
            "mpiboot": __version__,
            "host": os.uname().nodename,
            "all_hosts": answers.all_hosts,
            "not_asked": answers.unasked,
            "findings": found,
            "hosts": [
                {
                    "host": host.host,
                    "seconds": round(host.seconds, 2),
                    "not_readable": sorted(host.closed),
                    "other_users_processes": host.others,
                    "links": host.links,
                    "ranks": host.ranks,
                }
                for host in answers.hosts
            ],
        }
    )


def as_text(answers: Answers, found: Sequence[Finding], width: int | None) -> str:
    """Write what is odd, one line each with its hint, then all ranks, then what the links moved.

    Args:
        answers: what the hosts said.
        found: what is odd.
        width: a terminal's; without one nothing is broken or left out.
    """
    ranks = [rank for host in answers.hosts for rank in host.ranks]
    text = "".join(_finding(item, width) for item in found)
    text += "\n" if text else ""
    if ranks:
        text += _ranks(ranks, width) + "\n"
        text += _links(answers.hosts) + "\n"
    return text + summary(ranks, answers, found) + "\n"


def summary(ranks: Sequence[Rank], answers: Answers, found: Sequence[Finding]) -> str:
    """Count the ranks by what they do, in one line."""
    if not ranks:
        return "no rank runs on these hosts" if answers.all_hosts else "no rank runs in this pod"
    does = Counter(item.activity for item in ranks)
    said = ", ".join(f"{count} {_word(kind)}" for kind, count in does.most_common())
    hosts = counted(len({item.host for item in ranks}), "host")
    odd = sum(item.level in (Level.FAIL, Level.WARN) for item in found)
    end = f"{odd} odd" if odd else "none stands out; look again a minute later"
    return f"{counted(len(ranks), 'rank')} on {hosts}: {said}; {end}"


def _word(kind: Activity) -> str:
    return "waiting" if kind is Activity.WAITS else kind.value


def _finding(item: Finding, width: int | None) -> str:
    head = f"{render.MARKS[item.level].ljust(4)}  "
    where = f"{item.host}: " if item.host and item.host not in item.said else ""
    text = render.indented(head, f"{where}{item.said}", width)
    text += "".join(f"{' ' * len(head)}  {line}\n" for line in item.evidence)
    return text + (render.indented(f"{' ' * len(head)}-> ", item.hint, width) if item.hint else "")


def _ranks(ranks: Sequence[Rank], width: int | None) -> str:
    ordered = sorted(ranks, key=lambda item: (item.job, item.number))
    shown = ordered
    if width is not None and len(ordered) > _RANKS:
        # What is busy in MPI is the rule: others are shown before those.
        first = [item for item in ordered if item.activity is not Activity.BUSY]
        rest = [item for item in ordered if item.activity is Activity.BUSY]
        shown = [*first, *rest][:_RANKS]
    short = short_names(list(dict.fromkeys(item.host for item in ordered)))
    text = render.table((*_HEAD, "program"), (_row(item, short[item.host]) for item in shown))
    left = len(ordered) - len(shown)
    return text + (f"and {left} more; all of them: mpiboot doctor ranks | cat\n" if left else "")


def _row(rank: Rank, host: str) -> tuple[str, ...]:
    waits = " ".join(filter(None, (rank.call, rank.file))) or rank.place
    held = f"; holds {first_few(rank.devices)}" if rank.devices else ""
    return (
        str(rank.number),
        host,
        str(rank.pid),
        _word(rank.activity),
        _STAGES[rank.stage],
        _share(rank.cpu),
        _share(rank.cpu_since),
        size_of(rank.memory),
        f"{rank.running}/{rank.threads}",
        waits or "-",
        f"{rank.program}{held}",
    )


def _share(of: float | None) -> str:
    return "?" if of is None else f"{of:.0%}"


def _links(hosts: Iterable[HostRanks]) -> str:
    listed = list(hosts)
    short = short_names([host.host for host in listed])
    rows = [
        (short[host.host], link.name, _rate(link.sent), _rate(link.received), link.state or "-")
        for host in listed
        for link in sorted(host.links, key=_by_name)
    ]
    return render.table(("host", "link or port", "sent", "received", "state"), rows)


def _by_name(link: LinkRates) -> str:
    return link.name


def _rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate / 1e6:.3f} MB/s"
