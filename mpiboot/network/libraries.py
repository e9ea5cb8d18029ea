"""Which shared libraries the loader finds in this image, and what libibverbs reports of devices.

Only that library knows whether there is a driver for a device. This module is also the program that
queries it: ``python -I -S libraries.py loads NAME...`` and ``verbs DEVICE...`` write JSON. A
library that is loaded runs code, and a vendor's driver may print, hang or crash.
"""

# Run by its path, it must get along without its package.
from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Collection, Iterable
from typing import Final

LIBRARY: Final = "libibverbs.so.1"
_TIMEOUT_S: Final = 5.0
_PLUGIN_VERSIONS: Final = 20  # NCCL 2.30 knows 11


def find(
    names: Iterable[str], seconds: float = _TIMEOUT_S, program: str = __file__
) -> dict[str, str] | None:
    """Find libraries as a program would load them, by their file names.

    Args:
        names: the file names.
        seconds: how long the child may take.
        program: what is run in its place, for tests.

    Returns:
        Those that are there, each with its name as a network plugin of NCCL's, empty where it has
        none; None where that isn't known.
    """
    return _query(program, ("loads", *names), seconds)[0]


def devices(
    names: Collection[str], seconds: float = _TIMEOUT_S, program: str = __file__
) -> tuple[dict[str, str], str]:
    """Query libibverbs about this pod's RDMA devices.

    Args:
        names: the devices.
        seconds: how long the child may take.
        program: what is run in its place, for tests.

    Returns:
        Why it can't use a device, by device (empty: it can), and what went wrong; nothing is known
        of a device that isn't there.
    """
    errors, wrong = _query(program, ("verbs", *names), seconds)
    return errors or {}, wrong


def _query(program: str, words: Iterable[str], seconds: float) -> tuple[dict[str, str] | None, str]:
    """Run the program; give its answer, or None and what went wrong."""
    from mpiboot.system import programs  # noqa: PLC0415 - the program itself has no package

    try:
        done = programs.run((sys.executable, "-I", "-S", program, *words), seconds)
    except OSError as error:
        return None, f"{LIBRARY} could not be queried: {error.strerror}"
    if done is None:
        return None, f"{LIBRARY} took longer than {seconds:g} s"
    try:
        return {str(name): str(value) for name, value in json.loads(done.stdout).items()}, ""
    except (ValueError, AttributeError):
        how = f"signal {-done.status}" if done.status < 0 else f"{done.status}"
        why = f"or one of its drivers fails: the program that queries it ended with {how}"
        return None, f"{LIBRARY} {why}"


def _main(what: str, words: list[str]) -> None:
    # A library or driver may write to stdout, which is for the answer.
    answer = os.dup(1)
    os.dup2(2, 1)
    if what == "verbs":
        found = _verbs(words)
    else:
        found = {name: own for name in words if (own := _load(name)) is not None}
    with os.fdopen(answer, "w") as out:
        json.dump(found, out)
    os._exit(0)  # past the libraries' and drivers' own ends


def _load(name: str) -> str | None:
    """Give a library's name as a plugin of NCCL's; None where the loader does not find it."""
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        # The loader names the file that it did not find. One that the library itself needs (CUDA's,
        # of a Python package) may be there already in the program that will load it.
        gone = str(error).startswith(f"{name}: cannot open shared object file")
        return None if gone else ""
    for version in range(_PLUGIN_VERSIONS, 1, -1):
        try:
            # struct ncclNet_v*_t begins with a pointer to its name.
            own = ctypes.c_char_p.in_dll(library, f"ncclNetPlugin_v{version}").value
        except ValueError:
            continue
        return (own or b"").decode("utf-8", "replace")
    return ""


def _verbs(wanted: Iterable[str]) -> dict[str, str]:
    try:
        library = ctypes.CDLL(LIBRARY, use_errno=True)
    except OSError as error:
        return dict.fromkeys(wanted, f"{LIBRARY} does not load ({error})")
    return _read(library, wanted)


def _read(library: ctypes.CDLL, wanted: Iterable[str]) -> dict[str, str]:
    library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    library.ibv_get_device_name.argtypes = (ctypes.c_void_p,)
    library.ibv_get_device_name.restype = ctypes.c_char_p
    library.ibv_open_device.argtypes = (ctypes.c_void_p,)
    library.ibv_open_device.restype = ctypes.c_void_p
    count = ctypes.c_int()
    listed = library.ibv_get_device_list(ctypes.byref(count))
    known = {}
    for place in range(count.value if listed else 0):
        known[library.ibv_get_device_name(listed[place]).decode("utf-8", "replace")] = listed[place]
    found = {}
    for name in wanted:
        if name not in known:
            found[name] = f"{LIBRARY} has no driver for it"
        elif library.ibv_open_device(known[name]):
            found[name] = ""
        else:
            found[name] = f"{LIBRARY} can't open it ({os.strerror(ctypes.get_errno())})"
    return found


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
