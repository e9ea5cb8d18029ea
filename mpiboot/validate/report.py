"""A run as people and programs read it: rows as they come, a picture, the verdict. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from mpiboot import __version__
from mpiboot.core.model import Finding
from mpiboot.core.wording import counted, first_few, size_of
from mpiboot.job import render
from mpiboot.validate.tools import Sample
from mpiboot.validate.verdict import JSON_VERSION, NetworkVerdict, Run, networks, with_busbw

_SIZE: Final = 10
HEAD: Final = f"{'size':>{_SIZE}}  {'time us':>10}  {'GB/s':>8}  {'busbw GB/s':>10}  {'wrong':>6}\n"
# A picture's bars without a terminal, and the least that one has.
_WIDTH: Final = 72
_BAR: Final = 20


def row(item: Sample) -> str:
    """Write one size as a line below ``HEAD``."""
    values = (item.time, item.algbw, item.busbw, item.wrong)
    cells = (
        f"{'-' if value is None else format(value, form):>{wide}}"
        for value, wide, form in zip(values, (10, 8, 10, 6), (".1f", ".2f", ".2f", ""), strict=True)
    )
    return "  ".join((f"{size_of(item.size):>{_SIZE}}", *cells)) + "\n"


def picture(samples: Sequence[Sample], limit: float, width: int | None) -> str:
    """Draw bus bandwidth by message size, as a part of what the ports carry where that is known."""
    most = max([limit, *(item.busbw or 0.0 for item in samples)])
    room = max((width or _WIDTH) - _SIZE - 14, _BAR)
    if not most:
        return ""
    lines = []
    for item in samples:
        bar = "#" * round((item.busbw or 0.0) / most * room)
        lines.append(f"{size_of(item.size):>{_SIZE}}  |{bar:<{room}}| {item.busbw or 0.0:.4g}\n")
    ports = f"| {limit:.4g} GB/s, what the ports of a host carry" if limit else "| GB/s"
    return "\nbus bandwidth by message size\n" + "".join(lines) + f"{'':>{_SIZE}}  {ports}\n"


def as_text(run: Run, verdict: NetworkVerdict, width: int | None, ended: str = "") -> str:
    """Write what comes below the rows: the picture, the tool, notes, and last the verdict.

    ``ended`` says in place of a verdict why there is none.
    """
    text = picture(with_busbw(run), verdict.limit, width) + "\n"
    if run.hosts:
        program = first_few(sorted(set(run.output.started.values())))
        where = "this pod" if run.inside else counted(run.hosts, "host")
        ranks = run.record.get("ranks")
        where += f", {counted(ranks, 'rank')}" if ranks else ""
        what = "the data network, by NCCL or RCCL" if run.by_nccl else "MPI's own network"
        text += render.indented("", f"{program} on {where}: measures {what}", width)
    text += "".join(render.indented("- ", line, width) for line in verdict.notes)
    if ended:
        return text + f"{ended}\n"
    item = verdict.finding
    text += render.indented("verdict: ", "fit: " * verdict.fit + item.message, width)
    text += "".join(render.indented("  ", line, width) for line in item.evidence)
    return text + (render.indented("  -> ", item.hint, width) if item.hint else "")


def as_json(run: Run, verdict: NetworkVerdict, code: int, *, complete: bool) -> str:
    """Write all as JSON.

    Args:
        run: what was measured.
        verdict: what that says.
        code: the exit code.
        complete: false where it was interrupted.
    """
    item: Finding = verdict.finding
    return render.as_json(
        {
            "version": JSON_VERSION,
            "mpiboot": __version__,
            "host": os.uname().nodename,
            "complete": complete,
            "tool": run.tool.name if run.tool else "",
            "programs": run.output.started,
            "samples": with_busbw(run),
            "busbw": verdict.busbw,
            "limit": verdict.limit,
            "fraction": round(verdict.busbw / verdict.limit, 4) if verdict.limit else None,
            "networks": networks(run.output),
            "nccl": {host: sorted(lines) for host, lines in run.output.nccl.items()},
            "transport": run.transport,
            "ranks": run.record.get("ranks"),
            "verdict": item,
            "notes": verdict.notes,
            "exit": code,
        }
    )
