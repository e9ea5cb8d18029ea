"""The gate's one command on a worker, and what its output means.

The command only reads. Where mpiboot runs on the worker, it waits for that worker's facts; else
it brings back what plain programs tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mpiboot.aftermath.words import MEMORY
from mpiboot.model import Mpi, PodFacts
from mpiboot.observe import pod, programs

_FACTS: Final = "mpiboot-facts"
_PLAIN: Final = "mpiboot-plain"

# One line without single quotes inside: the login shell may be any, and sh gets it as one word.
# The facts are written by a child of the worker after its sshd listens (renamed into place), so
# they may be a moment late: ten seconds at most, in steps of 30 ms, or of a second where this
# sleep knows no fractions (POSIX). Not every image has `hostname`; uname is POSIX.
_NOTES: Final = (
    f"{MEMORY}"
    'if [ -r $e ]; then while read k v; do if [ "$k" = oom_kill ]; then echo mpiboot-oom $v; fi; '
    "done <$e; fi; "
    "for p in $(grep -l MPIBOOT_JOB_MARK= /proc/[0-9]*/environ 2>/dev/null); do "
    'tr "\\0" "\\n" <$p 2>/dev/null | grep ^MPIBOOT_JOB_MARK=; done; '
    'if [ -e "$MPIBOOT_WORKER_DIR/ends" ]; then echo mpiboot-ends; fi; '
)
_SCRIPT: Final = (
    'd=$MPIBOOT_WORKER_DIR; if [ -n "$d" ]; then i=0; '
    'while [ ! -s "$d/facts.json" ] && [ $i -lt 300 ]; do '
    "if sleep 0.03 2>/dev/null; then i=$((i+1)); else sleep 1; i=$((i+30)); fi; done; "
    f'if [ -s "$d/facts.json" ]; then echo {_FACTS}; exec cat "$d/facts.json"; fi; fi; '
    f"echo {_PLAIN}; uname -n; "
    'if p=$(command -v mpirun); then echo "$p"; "$p" --version 2>&1 | head -n 3; fi; exit 0'
)
COMMAND: Final = f"exec /bin/sh -c '{_NOTES}{_SCRIPT}'"
# The same after the worker has looked again: its own script writes the facts anew.
AGAIN: Final = (
    "exec /bin/sh -c 'd=$MPIBOOT_WORKER_DIR; "
    'if [ -n "$d" ] && [ -r "$d/look" ]; then /bin/sh "$d/look" >/dev/null 2>&1; fi; '
    f"{_SCRIPT}'"
)


@dataclass(frozen=True, slots=True)
class Notes:
    """What the command saw of a worker's present state.

    ``ooms`` counts its out-of-memory kills; ``marks`` are those of launches whose processes are
    there; ``ends`` tells that it wants to end with the job.
    """

    ooms: int | None
    marks: tuple[str, ...]
    ends: bool


def notes(output: str) -> Notes:
    """Read what comes before the facts."""
    lines = [line.strip() for line in output.splitlines()]
    ooms = [line.split()[1:] for line in lines if line.startswith("mpiboot-oom ")]
    marks = {line.partition("=")[2] for line in lines if line.startswith("MPIBOOT_JOB_MARK=")}
    count = int(ooms[0][0]) if ooms and ooms[0][0].isdigit() else None
    return Notes(count, tuple(sorted(marks)), "mpiboot-ends" in lines)


def read(output: str) -> tuple[PodFacts | None, Mpi | None]:
    """Read what the command brought back; lines of the login shell's own come before the mark."""
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if line.strip() == _FACTS:
            facts = pod.from_json("\n".join(lines[number + 1 :]))
            return facts, facts.mpi if facts is not None else None
        if line.strip() == _PLAIN:
            path = lines[number + 2].strip() if len(lines) > number + 2 else ""
            said = "\n".join(lines[number + 3 :])
            return None, programs.recognise(path, said) if path.startswith("/") else None
    return None, None
