"""The gate's one command on a worker, and what its output means.

The command only reads. Where mpiboot runs on the worker, it waits for that worker's facts; else
it brings back what plain programs tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mpiboot.after_job.evidence import MEMORY
from mpiboot.model import Host, Mpi, PodFacts, Worker
from mpiboot.observe import pod, programs
from mpiboot.observe.attempt import Probe

# A line of /proc/net/tcp with its two ports; 01 is ESTABLISHED (the kernel's tcp_states.h).
_ESTABLISHED: Final = re.compile(
    r"\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:([0-9A-F]{4}) 01 ", re.ASCII
)
_OWN: Final = re.compile(r"mpiboot-own \d{1,5} \d{1,5}", re.ASCII)
_ENDS: Final = 4  # words of SSH_CONNECTION: the client's address and port, the server's
_FACTS: Final = "mpiboot-facts"
_PLAIN: Final = "mpiboot-plain"

# Each part is one line without single quotes inside: the login shell may be any, and sh gets it as
# one word.
#
# Processes of launches, the SSH connection that each came by, and which connections to this SSH
# server there are now. /proc/net/tcp is POSIX text tools' only source; nothing of it is printed
# where no launch has left a process.
_LAUNCHES: Final = (
    "p=; for p in $(grep -l MPIBOOT_JOB_MARK= /proc/[0-9]*/environ 2>/dev/null); do "
    'echo mpiboot-process; tr "\\0" "\\n" <$p 2>/dev/null | '
    "grep -e ^MPIBOOT_JOB_MARK= -e ^SSH_CONNECTION=; done; "
    'set -- $SSH_CONNECTION; if [ -n "$p" ] && [ -n "$4" ]; then echo mpiboot-own $2 $4; '
    'grep -h " 01 " /proc/net/tcp /proc/net/tcp6 2>/dev/null | '
    'grep ":$(printf %04X "$4") "; fi; '
)
_NOTES: Final = (
    f"{MEMORY}"
    'if [ -r $e ]; then while read k v; do if [ "$k" = oom_kill ]; then echo mpiboot-oom $v; fi; '
    "done <$e; fi; "
    f"{_LAUNCHES}"
    'if [ -e "$MPIBOOT_WORKER_DIR/ends" ]; then echo mpiboot-ends; fi; '
)
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
COMMAND: Final = f"exec /bin/sh -c '{_NOTES}{_SCRIPT}'"
# Who is there now, and nothing else.
LAUNCHES: Final = f"exec /bin/sh -c '{_LAUNCHES}exit 0'"
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
    there; ``held`` those of them whose launcher is still connected, each with its address;
    ``ends`` tells that it wants to end with the job.
    """

    ooms: int | None
    marks: tuple[str, ...]
    ends: bool
    held: tuple[tuple[str, str], ...] = ()


def notes(output: str) -> Notes:
    """Read what comes before the facts."""
    lines = [line.strip() for line in output.splitlines()]
    ooms = [line.split()[1:] for line in lines if line.startswith("mpiboot-oom ")]
    count = int(ooms[0][0]) if ooms and ooms[0][0].isdigit() else None
    marks: set[str] = set()
    came: set[tuple[str, str, tuple[int, int]]] = set()
    for text in "\n".join(lines).split("mpiboot-process\n")[1:]:
        own = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        mark, ends = own.get("MPIBOOT_JOB_MARK", ""), own.get("SSH_CONNECTION", "").split()
        marks.add(mark)
        if len(ends) == _ENDS and ends[1].isdigit() and ends[3].isdigit():
            came.add((mark, ends[0], (int(ends[3]), int(ends[1]))))
    found = (_ESTABLISHED.match(line) for line in lines)
    there = {(int(item[1], 16), int(item[2], 16)) for item in found if item}
    this = next((line.split() for line in lines if _OWN.fullmatch(line)), None)
    # A table without this very connection tells nothing: then nobody counts as gone.
    blind = this is None or (int(this[2]), int(this[1])) not in there
    held = {(mark, address) for mark, address, ports in came if blind or ports in there}
    return Notes(count, tuple(sorted(marks - {""})), "mpiboot-ends" in lines, tuple(sorted(held)))


def worker(host: Host, probe: Probe) -> Worker:
    """Give what a successful attempt has brought back of a host."""
    facts, mpi = read(probe.output)
    seen, target = notes(probe.output), probe.target
    return Worker(
        host=host,
        address=target.address,
        port=target.port,
        user=target.user,
        local_address=probe.local_address,
        facts=facts,
        mpi=mpi,
        ooms=seen.ooms,
        marks=seen.marks,
        ends=seen.ends,
        held=seen.held,
    )


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
