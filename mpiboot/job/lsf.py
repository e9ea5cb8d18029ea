"""The hosts that LSF gives a job, as a hostfile. Pure.

``LSB_DJOB_HOSTFILE`` names a file with a line for each slot; ``LSB_MCPU_HOSTS`` has each host once,
followed by its slots: "Using Platform LSF HPC" 7.3, "Automatic generation of the job host file".
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from mpiboot.core.errors import error

JOB: Final = "LSB_JOBID"
FILE: Final = "LSB_DJOB_HOSTFILE"
PAIRS: Final = "LSB_MCPU_HOSTS"


def of_file(text: str) -> str:
    """Count the lines of each host; the order is LSF's."""
    return _lines(Counter(line.strip() for line in text.splitlines() if line.strip()))


def of_pairs(text: str) -> str:
    """Read hosts and slots in turn.

    Raises:
        MpibootError: ``hostfile-invalid``; they are no such pairs.
    """
    words = text.split()
    hosts, counts = words[::2], words[1::2]
    if len(hosts) != len(counts) or not all(item.isdecimal() and int(item) for item in counts):
        raise error(
            "hostfile-invalid",
            f"{PAIRS} is {text[:80]!r}, expected each host followed by its number of slots",
        )
    slots: Counter[str] = Counter()
    for host, count in zip(hosts, counts, strict=True):
        slots[host] += int(count)
    return _lines(slots)


def _lines(slots: Counter[str]) -> str:
    return "".join(f"{host} slots={count}\n" for host, count in slots.items())
