"""The hand-written pages as tests read them: their fenced blocks, each with a language and a name.

A test asks for a block by its name, the word behind the language: commands are run, manifests are
played in pods, output is compared with what a run prints (`[...]` stands for lines left out). What
no test runs is called `untried`, where a forge doesn't show it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "examples/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Who gives out mpiboot; scripts/pages writes it into the pages.
OWNER = dict(
    re.findall(
        r'^(\w+) = "(.*)"$',
        (ROOT / "docs/owner.toml").read_text().partition("[written]")[0],
        re.MULTILINE,
    )
)
UNTRIED = "untried"


@dataclass(frozen=True)
class Block:
    """One fenced block: where it stands, its language, what follows the language, its text."""

    page: Path
    kind: str
    name: str
    text: str

    @property
    def message(self) -> str:
        """The page and the block's first line, for a test's name and for messages."""
        first = self.text.partition("\n")[0]
        return f"{self.page.name}: {self.name or first}"


def blocks(*kinds: str, page: Path | None = None) -> list[Block]:
    """The fenced blocks of these languages, of all pages or of one."""
    return [
        Block(path, kind, name, textwrap.dedent(text))
        for path in (PAGES if page is None else [page])
        for _, kind, name, text in re.findall(
            r"^( *)```(\w*) *([\w.-]*)\n(.*?)^ *```", path.read_text(), re.MULTILINE | re.DOTALL
        )
        if not kinds or kind in kinds
    ]


def named(name: str) -> str:
    (found,) = (block for block in blocks() if block.name == name)
    return found.text


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(named(name)))


def copied(folder: Path) -> Path:
    """Copy the repository as a fresh clone of it is: what git keeps, with what is not committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return folder


# What differs from run to run: times, versions, keys, the name of a container's private folder, and
# how many checks there are, which depends on what the pod has.
_DIFFERS = (
    (re.compile(r"key SHA256:\S+"), "key SHA256:KEY"),
    (re.compile(r"\d+(\.\d+)? s\b"), "SECONDS s"),
    (re.compile(r"gives up in [\dhms]+"), "gives up in TIME"),
    (re.compile(r"(mpiboot|Open MPI) \d+\.\d+\.\d+(\.dev\d+)?"), r"\1 VERSION"),
    (re.compile(r"(pi-(?:launcher|worker-\d))-[0-9a-f]{8}/"), r"\1-ID/"),
    (re.compile(r"^\d+ checks: "), "COUNT checks: "),
)


def masked(line: str) -> str:
    """A line of a log without what differs from run to run."""
    for pattern, word in _DIFFERS:
        line = pattern.sub(word, line)
    return line.rstrip()


def not_printed(shown: str, printed: str) -> list[str]:
    """The lines that a page shows and a run did not print, in that order; none where all is well.

    Where the page says `[...]`, or before its first line, the run may have more lines.
    """
    rest = [masked(line) for line in printed.splitlines()]
    gap = True
    missing = []
    for line in map(masked, shown.splitlines()):
        if line == "[...]":
            gap = True
        elif line in (rest if gap else rest[:1]):
            del rest[: rest.index(line) + 1]
            gap = False
        else:
            missing.append(line)
    return missing
