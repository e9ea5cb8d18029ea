"""Which shared libraries the loader finds in this image, and what libibverbs reports of devices.

Only that library knows whether there is a driver for a device, and which MTU is in use. This
module is also the program that does so: ``python -I -S libraries.py loads NAME...`` and ``verbs
DEVICE:PORTS...`` write JSON. A library that is loaded runs code, and a vendor's driver may print,
hang or crash.
"""

# Run by its path, it must get along without its package.
from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

_T = TypeVar("_T")

LIBRARY: Final = "libibverbs.so.1"
_TIMEOUT_S: Final = 5.0
# struct _compat_ibv_port_attr of rdma-core's verbs.h, whose beginning is a part of the ABI:
# state, max_mtu, active_mtu, gid_tbl_len.
_PORT: Final = struct.Struct("=iiii")
_PORT_SIZE: Final = 512  # more than any version of it has
# struct ibv_gid_entry: GID, index, port, type, index of the link.
_ENTRY: Final = struct.Struct("=16sIIII")
_MAX_GIDS: Final = 1 << 14
_PLUGIN_VERSIONS: Final = 20  # NCCL 2.30 knows 11


class LibraryAnswer(NamedTuple):
    """The library's answer about a device: ``why`` it can't use it (empty: it can).

    ``mtus`` are the active MTUs by port; ``links`` the index of an entry's link, in the network
    namespace of that link, by port and place in the GID table.
    """

    why: str
    mtus: Mapping[int, int]
    links: Mapping[tuple[int, int], int]


class _FailedError(Exception):
    """The program that queries them failed; the message goes on behind the library's name."""


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
    try:
        return _ask(program, ("loads", *names), seconds, dict)
    except _FailedError:
        return None


def devices(
    ports: Mapping[str, int], seconds: float = _TIMEOUT_S, program: str = __file__
) -> tuple[dict[str, LibraryAnswer], str]:
    """Query libibverbs about this pod's RDMA devices.

    Args:
        ports: the number of ports, by device.
        seconds: how long the child may take.
        program: what is run in its place, for tests.

    Returns:
        Its answers by device, and what went wrong; nothing is known of a device that isn't there.
    """
    words = ("verbs", *(f"{name}:{count}" for name, count in ports.items()))
    try:
        return _ask(program, words, seconds, lambda answer: _answers(answer, ports)), ""
    except _FailedError as failed:
        return {}, f"{LIBRARY} {failed}"


def _ask(program: str, words: Iterable[str], seconds: float, read: Callable[[Any], _T]) -> _T:
    """Run the program and read its answer."""
    from mpiboot.system import programs  # noqa: PLC0415 - the program itself has no package

    try:
        done = programs.run((sys.executable, "-I", "-S", program, *words), seconds)
    except OSError as error:
        raise _FailedError(f"could not be queried: {error.strerror}") from None
    if done is None:
        raise _FailedError(f"took longer than {seconds:g} s")
    try:
        return read(json.loads(done.stdout))
    except (ValueError, TypeError, KeyError, AttributeError):
        how = f"signal {-done.status}" if done.status < 0 else f"{done.status}"
        message = f"or one of its drivers fails: the program that queries it ended with {how}"
        raise _FailedError(message) from None


def _answers(answer: Any, ports: Iterable[str]) -> dict[str, LibraryAnswer]:  # noqa: ANN401 - JSON
    return {
        name: LibraryAnswer(
            str(found["why"]),
            dict(found["mtus"]),
            {(port, index): link for port, index, link in found["links"]},
        )
        for name in ports
        if (found := answer.get(name))
    }


def _main(what: str, words: list[str]) -> None:
    # A library or driver may write to stdout, which is for the answer.
    answer = os.dup(1)
    os.dup2(2, 1)
    found: Mapping[str, object]
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


def _verbs(words: Iterable[str]) -> dict[str, dict[str, object]]:
    wanted = {word.rpartition(":")[0]: int(word.rpartition(":")[2]) for word in words}
    try:
        library = ctypes.CDLL(LIBRARY, use_errno=True)
    except OSError as error:
        return {name: _unusable(f"{LIBRARY} does not load ({error})") for name in wanted}
    return _read(library, wanted)


def _unusable(why: str) -> dict[str, object]:
    return {"why": why, "mtus": [], "links": []}


def _read(library: ctypes.CDLL, wanted: Mapping[str, int]) -> dict[str, dict[str, object]]:
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
    for name, ports in wanted.items():
        if name not in known:
            found[name] = _unusable(f"{LIBRARY} has no driver for it")
            continue
        opened = library.ibv_open_device(known[name])
        if opened:
            found[name] = _opened(library, opened, ports)
        else:
            found[name] = _unusable(f"{LIBRARY} can't open it ({os.strerror(ctypes.get_errno())})")
    return found


def _opened(library: ctypes.CDLL, device: int, ports: int) -> dict[str, object]:
    mtus, slots = [], 0
    library.ibv_query_port.argtypes = (ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p)
    for port in range(1, ports + 1):
        about = ctypes.create_string_buffer(_PORT_SIZE)
        if library.ibv_query_port(device, port, about):
            continue
        _, _, active, length = _PORT.unpack_from(about)
        slots += max(length, 0)
        if 1 <= active <= 5:  # noqa: PLR2004 - enum ibv_mtu: 256 to 4096
            mtus.append([port, 128 << active])
    return {"why": "", "mtus": mtus, "links": _links(library, device, min(slots, _MAX_GIDS))}


def _links(library: ctypes.CDLL, device: int, slots: int) -> list[list[int]]:
    try:
        query = library._ibv_query_gid_table  # noqa: SLF001 - so it is called; since rdma-core 32
    except AttributeError:
        return []
    query.argtypes = (
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_uint32,
        ctypes.c_size_t,
    )
    query.restype = ctypes.c_ssize_t
    table = ctypes.create_string_buffer(_ENTRY.size * slots)
    found = query(device, table, slots, 0, _ENTRY.size) if slots else 0
    entries = (_ENTRY.unpack_from(table, _ENTRY.size * place) for place in range(max(found, 0)))
    return [[port, index, link] for _, index, port, _, link in entries if link]


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
