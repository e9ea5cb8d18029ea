"""Whether a process here may read another's memory, as ranks of one host do for large messages.

Open MPI's shared memory (vader, sm) calls process_vm_readv without having tried it: where a
container's seccomp profile refuses it, every large message ends with `Read -1, expected N,
errno = 1` (open-mpi/ompi issue 4948). Nothing but a byte of an own child is read here.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from typing import Final

# Waits for its standard input, which is closed when it was looked at.
_CHILD: Final = ("/bin/sh", "-c", "read _")
_READABLE: Final = re.compile(rb"^([0-9a-f]+)-[0-9a-f]+ r", re.MULTILINE)


class _Piece(ctypes.Structure):
    """``struct iovec`` of process_vm_readv(2)."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def refused() -> str:
    """Say with which error the kernel refuses it; empty where it may, or where nothing tells."""
    try:
        read = ctypes.CDLL(None, use_errno=True).process_vm_readv
        with subprocess.Popen(
            _CHILD, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as child:
            with open(f"/proc/{child.pid}/maps", "rb") as maps:  # noqa: PTH123 - light
                place = _READABLE.search(maps.read())
            if place is None:
                return ""
            mine, theirs = ctypes.create_string_buffer(1), int(place[1], 16)
            here, there = _Piece(ctypes.addressof(mine), 1), _Piece(theirs, 1)
            one = ctypes.c_ulong(1)
            got = read(
                child.pid, ctypes.byref(here), one, ctypes.byref(there), one, ctypes.c_ulong()
            )
            return "" if got == 1 else os.strerror(ctypes.get_errno())
    except (OSError, AttributeError):  # no such call in this C library, no /proc, no shell
        return ""
