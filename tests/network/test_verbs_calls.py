"""How libibverbs is called and its answers are read: a library of Python functions in its place."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable
from typing import Any, cast

import pytest

from mpiboot.network import libraries
from mpiboot.network.libraries import LibraryAnswer
from mpiboot.system import programs

ACTIVE = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}  # enum ibv_mtu


class Library:
    """Devices by name: each port's number of MTU and length of table; and the table's entries."""

    def __init__(
        self,
        devices: dict[str, list[tuple[int, int]]],
        entries: Iterable[tuple[int, int, int]] = (),
        *,
        refused: Iterable[str] = (),
        old: bool = False,
    ) -> None:
        names = list(devices)
        self.asked: list[int] = []

        def ibv_get_device_list(count: Any) -> list[int] | None:  # noqa: ANN401 - a reference
            count._obj.value = len(names)
            return list(range(len(names))) or None

        def ibv_get_device_name(device: int) -> bytes:
            return names[device].encode("latin-1")

        def ibv_open_device(device: int) -> int:
            ctypes.set_errno(errno.EPERM)
            return 0 if names[device] in refused else device + 1

        def ibv_query_port(opened: int, port: int, about: Any) -> int:  # noqa: ANN401 - a buffer
            ports = devices[names[opened - 1]]
            if not ports[port - 1][0] and not ports[port - 1][1]:
                return errno.EINVAL
            active, length = ports[port - 1]
            struct.pack_into("=iiii", about, 0, 4, 5, active, length)
            return 0

        def query(_: int, table: Any, slots: int, flags: int, size: int) -> int:  # noqa: ANN401
            self.asked.append(slots)
            assert (flags, size, len(table)) == (0, 32, 32 * slots)
            found = list(entries)
            for place, (index, port, link) in enumerate(found):
                struct.pack_into("=16sIIII", table, 32 * place, b"", index, port, 0, link)
            return len(found) if found else -errno.EOPNOTSUPP

        self.ibv_get_device_list = ibv_get_device_list
        self.ibv_get_device_name = ibv_get_device_name
        self.ibv_open_device = ibv_open_device
        self.ibv_query_port = ibv_query_port
        if not old:
            self._ibv_query_gid_table = query

    def says(self, wanted: dict[str, int]) -> dict[str, LibraryAnswer]:
        message = libraries._read(cast("ctypes.CDLL", self), wanted)
        return libraries._answers(message, wanted)


@pytest.mark.parametrize(("mtu", "number"), ACTIVE.items())
def test_the_active_mtu_of_each_port_is_read(mtu: int, number: int) -> None:
    library = Library({"mlx5_0": [(number, 8), (1, 8)]})
    assert library.says({"mlx5_0": 2}) == {"mlx5_0": LibraryAnswer("", {1: mtu, 2: 256}, {})}
    assert library.says({"mlx5_0": 1})["mlx5_0"].mtus == {1: mtu}


@pytest.mark.parametrize("number", [0, 6, -1])
def test_a_number_that_is_no_mtu_is_left_out(number: int) -> None:
    assert Library({"a": [(number, 8)]}).says({"a": 1})["a"].mtus == {}


def test_a_port_that_can_not_be_asked_is_left_out_and_the_others_are_not() -> None:
    library = Library({"a": [(0, 0), (5, 16)]})
    assert library.says({"a": 2})["a"].mtus == {2: 4096}
    assert library.asked == [16]


def test_the_links_of_a_table_are_read_by_port_and_place() -> None:
    library = Library({"a": [(5, 8), (5, 8)]}, [(0, 1, 0), (3, 1, 7), (3, 2, 9)])
    assert library.says({"a": 2})["a"].links == {(1, 3): 7, (2, 3): 9}
    assert library.asked == [16], "one table for all ports"


@pytest.mark.parametrize(
    ("length", "asked"), [(0, []), (-5, []), (1 << 14, [1 << 14]), (1 << 20, [1 << 14])]
)
def test_a_table_is_no_larger_than_what_is_believed(length: int, asked: list[int]) -> None:
    library = Library({"a": [(5, length)]})
    assert library.says({"a": 1})["a"].links == {}
    assert library.asked == asked


def test_a_library_before_this_question_tells_no_links() -> None:
    assert Library({"a": [(5, 8)]}, [(3, 1, 7)], old=True).says({"a": 1})["a"].links == {}


def test_devices_that_it_does_not_have_or_can_not_open_are_said() -> None:
    library = Library({"a": [(5, 8)], "b": [(4, 8)]}, refused=("b",))
    found = library.says({"a": 1, "b": 1, "c": 1})
    assert found["a"] == LibraryAnswer("", {1: 4096}, {})
    assert found["b"].why == "libibverbs.so.1 can't open it (Operation not permitted)"
    assert found["c"].why == "libibverbs.so.1 has no driver for it"
    assert (found["c"].mtus, found["c"].links) == ({}, {})
    assert Library({}).says({"a": 1})["a"].why == "libibverbs.so.1 has no driver for it"


def test_a_list_that_could_not_be_had_has_no_devices() -> None:
    library = Library({"a": [(5, 8)]})

    def failed(count: Any) -> None:  # noqa: ANN401 - a reference
        count._obj.value = 1

    library.ibv_get_device_list = failed
    assert library.says({"a": 1})["a"].why == "libibverbs.so.1 has no driver for it"


def test_a_name_that_is_no_utf8_is_another_one() -> None:
    assert Library({"\xff": [(5, 8)]}).says({"\ufffd": 1})["\ufffd"].why == ""


def test_a_library_that_does_not_load_says_why_of_each_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(libraries, "LIBRARY", "libmpiboot-has-none.so.1")
    found = libraries._verbs(["a:1", "b:c:2"])
    assert set(found) == {"a", "b:c"}
    assert str(found["a"]["why"]).startswith("libmpiboot-has-none.so.1 does not load (libmpiboot")
    loaded: list[dict[str, int]] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: "library")
    monkeypatch.setattr(libraries, "_read", lambda _, wanted: loaded.append(wanted))
    libraries._verbs(["a:1", "b:c:2"])
    assert loaded == [{"a": 1, "b:c": 2}]


def test_a_library_is_waited_for_no_longer_than_a_few_seconds() -> None:
    assert 0 < programs._LEFT < libraries._SECONDS <= 10
