"""What the benchmarks share: interleaved runs, ratios side by side, a table and JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

# One run of a case: milliseconds by what was measured (a run may tell more than one thing).
Case = Callable[[], Mapping[str, float]]


class Table(Protocol):
    """What can be printed."""

    title: str
    reference: str
    notes: list[str]

    def rows(self) -> list[dict[str, object]]:
        """One record for each thing that was measured."""

    def table(self) -> str:
        """The same for people."""


@dataclass
class Results:
    """What every run measured, by what was measured; milliseconds unless told."""

    title: str
    reference: str
    unit: str = "ms"
    runs: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, measured: Mapping[str, float]) -> None:
        """Note one run."""
        for name, value in measured.items():
            self.runs.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        """Middle of all runs."""
        return statistics.median(self.runs[name])

    def rows(self) -> list[dict[str, object]]:
        """One record for each thing that was measured."""
        base = self.median(self.reference)
        return [
            {
                "case": name,
                f"median_{self.unit}": round(self.median(name), 1),
                f"min_{self.unit}": round(min(values), 1),
                f"max_{self.unit}": round(max(values), 1),
                "runs": len(values),
                "ratio": round(self.median(name) / base, 2) if base else 1.0,
                f"more_{self.unit}": round(self.median(name) - base, 1),
            }
            for name, values in self.runs.items()
        ]

    def table(self) -> str:
        """The same for people."""
        head = ("case", "median", "min", "max", "runs", "ratio", "difference")
        lines: list[tuple[str, ...]] = [head]
        for row in self.rows():
            unit = self.unit
            times = [f"{row[f'{key}_{unit}']} {unit}" for key in ("median", "min", "max")]
            more = f"{row[f'more_{unit}']:+} {unit}"
            lines.append((str(row["case"]), *times, str(row["runs"]), f"{row['ratio']}x", more))
        text = aligned(lines)
        notes = "".join(f"  {note}\n" for note in self.notes)
        return f"{self.title} (ratios to: {self.reference})\n{text}{notes}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Put cells below each other: the first of a line to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        + "\n"
        for line in lines
    )


def arguments(
    description: str,
    *,
    runs: int,
    folders: bool = False,
    examples: str = "",
    more: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> argparse.Namespace:
    """Read what every benchmark takes, and options of its own.

    ``folders`` are those of other mpiboots to compare with; ``more`` are words of add_argument.
    """
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, epilog=examples, formatter_class=form)
    parser.add_argument("--runs", type=int, default=runs, help=f"runs of each case ({runs})")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    for name, words in more.items():
        parser.add_argument(name, **words)
    if folders:
        parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    return parser.parse_args()


def interleave(results: Results, cases: Mapping[str, Case], runs: int) -> None:
    """Run the cases in turn, so that what disturbs the machine disturbs all; the first don't count.

    The order turns with each round: no case always comes after the same other one.
    """
    names = list(cases)
    for number in range(runs + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            measured = cases[name]()
            if number:
                results.add(measured)
            shown = ", ".join(f"{what} {value:.0f} ms" for what, value in measured.items())
            print(f"# {number}/{runs} {shown}", file=sys.stderr, flush=True)


def show(results: Sequence[Table], *, as_json: bool) -> None:
    """Print everything."""
    if not as_json:
        print("\n".join(item.table() for item in results))
        return
    machine = {
        "cores": os.cpu_count(),
        "machine": platform.platform(),
        "python": platform.python_version(),
    }
    tables = [
        {"title": item.title, "reference": item.reference, "rows": item.rows(), "notes": item.notes}
        for item in results
    ]
    print(json.dumps({"machine": machine, "tables": tables}, indent=2))
