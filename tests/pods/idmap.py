"""Clones mounts with the owners that a user namespace maps: `idmap.py NAMESPACE SOURCE TARGET...`.

Its own program, because it runs inside the cluster's mount namespace. The calls are newer than the
C library's names for them; their numbers are the same on x86-64 and arm64.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_LIBRARY = ctypes.CDLL(None, use_errno=True)
_CLONE, _FROM_DESCRIPTOR, _ATTR_IDMAP = 1, 4, 0x100000


class _Attributes(ctypes.Structure):
    """struct mount_attr."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "namespace")]


def _call(number: int, *arguments: object) -> int:
    done = int(_LIBRARY.syscall(number, *arguments))
    if done < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return done


def clone(namespace: int, source: str, target: str) -> None:
    """Mount a file or folder a second time, with mapped owners."""
    place = Path(target)
    if Path(source).is_dir():
        place.mkdir()
    else:
        place.touch()
    flags = _CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    tree = _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), flags)
    wanted = _Attributes(_ATTR_IDMAP, 0, 0, namespace)
    size = ctypes.sizeof(wanted)
    _call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(wanted), size)
    _call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _FROM_DESCRIPTOR)
    os.close(tree)


if __name__ == "__main__":
    users = os.open(sys.argv[1], os.O_RDONLY)
    for one, other in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        clone(users, one, other)
