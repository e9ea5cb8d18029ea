"""The gate's one command on a worker, and what its output means.

The command only reads. Where mpiboot runs on the worker, it waits for that worker's facts; else
it brings back what plain programs tell.
"""

from __future__ import annotations

from typing import Final

from mpiboot.model import Mpi, PodFacts
from mpiboot.observe import pod, programs

_FACTS: Final = "mpiboot-facts"
_PLAIN: Final = "mpiboot-plain"

# One line without single quotes inside: the login shell may be any, and sh gets it as one word.
# The facts are written by a child of the worker after its sshd listens (renamed into place), so
# they may be a moment late: ten seconds at most, in steps of 30 ms, or of a second where this
# sleep knows no fractions (POSIX). Not every image has `hostname`; uname is POSIX.
_SCRIPT: Final = (
    'd=$MPIBOOT_WORKER_DIR; if [ -n "$d" ]; then i=0; '
    'while [ ! -s "$d/facts.json" ] && [ $i -lt 300 ]; do '
    "if sleep 0.03 2>/dev/null; then i=$((i+1)); else sleep 1; i=$((i+30)); fi; done; "
    f'if [ -s "$d/facts.json" ]; then echo {_FACTS}; exec cat "$d/facts.json"; fi; fi; '
    f"echo {_PLAIN}; uname -n; "
    'if p=$(command -v mpirun); then echo "$p"; "$p" --version 2>&1 | head -n 3; fi; exit 0'
)
COMMAND: Final = f"exec /bin/sh -c '{_SCRIPT}'"


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
