"""Whether the kernel lets the ranks of a pod read each other's memory."""

from __future__ import annotations

import subprocess
import sys

from mpiboot.worker import facts

# Refuses process_vm_readv (310 on x86-64, 270 elsewhere) with EPERM, as a seccomp profile does.
SECCOMP = """
import ctypes, platform, struct, sys
from mpiboot.worker import facts
number = 310 if platform.machine() == "x86_64" else 270
rows = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x00050001), (6, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
filter = ctypes.create_string_buffer(struct.pack("H6xP", len(rows), ctypes.addressof(program)))
c = ctypes.CDLL(None)
assert c.prctl(38, 1, 0, 0, 0) == 0 and c.prctl(22, 2, filter, 0, 0) == 0
print(facts.memory_refused())
"""


def test_an_own_child_may_be_read_here() -> None:
    assert facts.memory_refused() == ""


def test_a_filter_of_system_calls_is_told_by_its_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SECCOMP], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "Operation not permitted\n"
