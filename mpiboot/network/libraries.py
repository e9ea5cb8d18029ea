"""Probe in a child process which libraries the loader finds, and which devices libibverbs opens.

A loaded library runs code, and a vendor's driver may print, hang or crash. The child runs this
file: ``python -I -S libraries.py loads NAME...`` and ``verbs DEVICE...`` write JSON. Only
libibverbs knows whether a device has a driver.
"""

# The child runs without its package: nothing of mpiboot is imported here.
from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Collection, Iterable
from typing import Final

LIBRARY: Final = "libibverbs.so.1"
PROGRAM: Final = __file__  # the child's
TIMEOUT_S: Final = 5.0
_MAX_PLUGIN_VERSION: Final = 20  # NCCL 2.30 has 11


def find(names: Iterable[str]) -> dict[str, str] | None:
    """Check which libraries the loader finds.

    Args:
        names: the file names.

    Returns:
        The libraries found, each with its name as an NCCL net plugin (empty: it is none); None:
        unknown.
    """
    return _query("loads", names)[0]


def devices(names: Collection[str]) -> tuple[dict[str, str], str]:
    """Query libibverbs about this pod's RDMA devices.

    Args:
        names: the devices.

    Returns:
        libibverbs' error for each device (empty: usable; a missing device is unknown), and why the
        query itself failed.
    """
    errors, failure = _query("verbs", names)
    return errors or {}, failure


def _query(what: str, names: Iterable[str]) -> tuple[dict[str, str] | None, str]:
    """Run the child; return its answer, or None and the error."""
    from mpiboot.system import programs  # noqa: PLC0415 - not in the child

    try:
        done = programs.run((sys.executable, "-I", "-S", PROGRAM, what, *names), TIMEOUT_S)
    except OSError as error:
        return None, f"{LIBRARY} could not be queried: {error.strerror}"
    if done is None:
        return None, f"{LIBRARY} took longer than {TIMEOUT_S:g} s"
    try:
        return {str(name): str(value) for name, value in json.loads(done.stdout).items()}, ""
    except (ValueError, AttributeError):
        how = f"signal {-done.status}" if done.status < 0 else f"{done.status}"
        why = f"or one of its drivers failed: the process that probes it ended with {how}"
        return None, f"{LIBRARY} {why}"


def _main(what: str, words: list[str]) -> None:
    # Keep stdout for the answer: a library or driver may print.
    answer = os.dup(1)
    os.dup2(2, 1)
    if what == "verbs":
        found = _verbs(words)
    else:
        found = {name: plugin for name in words if (plugin := _load(name)) is not None}
    with os.fdopen(answer, "w") as out:
        json.dump(found, out)
    os._exit(0)  # skip the destructors of libraries and drivers


def _load(name: str) -> str | None:
    """Return the NCCL net plugin's name (empty: no plugin); None: the loader finds no library."""
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        # The error names the file not found. A dependency that is missing here (CUDA of a Python
        # package) may be loaded already in the program that will use the library.
        missing = str(error).startswith(f"{name}: cannot open shared object file")
        return None if missing else ""
    for version in range(_MAX_PLUGIN_VERSION, 1, -1):
        try:
            # struct ncclNet_v*_t begins with a pointer to its name.
            plugin = ctypes.c_char_p.in_dll(library, f"ncclNetPlugin_v{version}").value
        except ValueError:
            continue
        return (plugin or b"").decode("utf-8", "replace")
    return ""


def _verbs(wanted: Iterable[str]) -> dict[str, str]:
    try:
        library = ctypes.CDLL(LIBRARY, use_errno=True)
    except OSError as error:
        return dict.fromkeys(wanted, f"{LIBRARY} can't be loaded ({error})")
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
