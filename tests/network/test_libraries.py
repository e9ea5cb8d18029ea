"""Which libraries an image has, and what libibverbs tells: the program that asks, run or called."""

from __future__ import annotations

import ctypes
import errno
import json
import shutil
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mpiboot.network import libraries, rdma
from mpiboot.network.libraries import LibraryAnswer
from tests.data.build_sysfs import build, kernel
from tests.data.rdma_nodes import TREES


def played(tmp_path: Path, text: str) -> str:
    """A program in the place of the one that asks the library, whose drivers can't be had here."""
    path = tmp_path / "libraries.py"
    path.write_text(text)
    return str(path)


def test_the_loader_tells_which_libraries_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "libbroken.so").write_text("no library")
    names = ("libc.so.6", "libmpiboot-has-none.so.1", str(tmp_path / "libbroken.so"))
    found = libraries.find(names, 60)
    assert found == {"libc.so.6": "", str(tmp_path / "libbroken.so"): ""}


def test_a_library_is_found_by_the_pods_own_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "libmpiboot-of-the-image.so"
    (tmp_path / name).write_text("found, whatever it is")
    assert libraries.find((name,), 60) == {}
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert libraries.find((name,), 60) == {name: ""}


@pytest.mark.parametrize("version", [4, 8, 11])
def test_a_plugin_of_nccls_tells_its_name_and_is_not_started(tmp_path: Path, version: int) -> None:
    code = 'struct { const char *name; void *start; } ncclNetPlugin_v%d = {"AWS Libfabric", 0};'
    library = tmp_path / "libnccl-net.so"
    (tmp_path / "plugin.c").write_text(code % version)
    build = ("cc", "-shared", "-o", str(library), str(tmp_path / "plugin.c"))
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    subprocess.run(build, check=True)
    assert libraries.find((str(library),), 60) == {str(library): "AWS Libfabric"}


def test_a_library_that_crashes_its_reader_is_not_called_missing(tmp_path: Path) -> None:
    program = played(tmp_path, "import os; os.kill(os.getpid(), 11)")
    assert libraries.find(("libc.so.6",), 60, program) is None


def test_what_a_library_prints_as_it_loads_is_no_part_of_the_answer(tmp_path: Path) -> None:
    program = tmp_path / "libraries.py"
    program.write_text(
        "import os, sys\n"
        f"sys.path.append({str(Path(libraries.__file__).parents[2])!r})\n"
        "from mpiboot.network import libraries\n"
        "libraries._load = lambda name: str(os.write(1, b'{}'))\n"
        "libraries._main(sys.argv[1], sys.argv[2:])\n"
    )
    assert libraries.find(("libc.so.6",), 60, str(program)) == {"libc.so.6": "2"}


@pytest.mark.parametrize(
    ("tree", "there", "missing", "plugin"),
    [
        ("efa", {"libfabric.so.1": ""}, ("libnccl-net.so",), ""),
        ("efa", {"libfabric.so.1": "", "libnccl-net.so": "AWS Libfabric"}, (), "AWS Libfabric"),
        # It could not be read, but NCCL may load it.
        ("mlx5-vfs", {"libnccl-net.so": ""}, (), "libnccl-net.so"),
        ("mlx5-vfs", {"librccl-net.so": "ANP"}, (), "ANP"),
        ("mlx5-vfs", {}, (), ""),
        ("efa", None, (), ""),
    ],
)
def test_what_uses_rdma_is_looked_for_where_a_device_opens(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tree: str,
    there: dict[str, str] | None,
    missing: tuple[str, ...],
    plugin: str,
) -> None:
    # The kernel's answer is a built tree's: this hardware can't be had here.
    found = rdma.assemble(kernel(TREES[tree]), *build(TREES[tree], tmp_path))
    devices = tuple(replace(one, open_error="") for one in found.devices)
    opened = replace(found, devices=devices)
    monkeypatch.setattr(rdma, "assemble", lambda *_: opened)
    monkeypatch.setattr(libraries, "find", lambda _: there)
    monkeypatch.setattr(libraries, "devices", lambda _: ({}, ""))
    seen = rdma.observe()
    assert (seen.missing, seen.plugin) == (missing, plugin)


ASKED = {"mlx5_5": 1, "mlx5_6": 2}


def test_what_the_library_says_is_read(tmp_path: Path) -> None:
    message = {
        "mlx5_5": {"why": "", "mtus": [[1, 4096]], "links": [[1, 3, 7]]},
        "other": {"why": "", "mtus": [], "links": []},
    }
    words = ["verbs", "mlx5_5:1", "mlx5_6:2"]
    text = f"import sys\nassert sys.argv[1:] == {words}\nprint({json.dumps(json.dumps(message))})\n"
    program = played(tmp_path, text)
    found, wrong = libraries.devices(ASKED, program=program)
    assert found == {"mlx5_5": LibraryAnswer("", {1: 4096}, {(1, 3): 7})}
    assert wrong == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended with signal 11"),
        ("raise SystemExit(3)", "ended with 3"),
        ("import sys; sys.stdout.buffer.write(bytes(range(256)))", "ended with 0"),
        ("print('[1]')", "ended with 0"),
        ('print(\'{"mlx5_5": {"why": ""}}\')', "ended with 0"),
        ('print(\'{"mlx5_5": {"why": "", "mtus": [[1]], "links": []}}\')', "ended with 0"),
        ("import time; time.sleep(1000)", "took longer than 0.5 s"),
    ],
)
def test_a_driver_that_crashes_hangs_or_prints_is_said_and_nothing_is_known(
    tmp_path: Path, text: str, message: str
) -> None:
    patience = 0.5 if "longer" in message else 60
    found, wrong = libraries.devices(ASKED, patience, played(tmp_path, text))
    assert found == {}
    assert wrong.startswith("libibverbs.so.1 ")
    assert wrong.endswith(message)


def test_a_device_that_the_library_does_not_have_is_said_on_any_machine() -> None:
    found, wrong = libraries.devices({"no:such": 1})
    assert wrong == ""
    assert found["no:such"].why.startswith(
        ("libibverbs.so.1 has no driver for it", "libibverbs.so.1 does not load")
    )


def test_the_librarys_word_stands_beside_the_kernels(tmp_path: Path) -> None:
    tree = TREES["mlx5-vfs"]
    found = rdma.assemble(kernel(tree), *build(tree, tmp_path))
    message = {"mlx5_5": LibraryAnswer("", {1: 2048}, {(1, 3): 9})}
    known = rdma.with_library(found, message, "it was slow").devices
    ours, other = known[2], known[1]
    assert (ours.library_error, ours.ports[0].mtu) == ("", 2048)
    assert {gid.index: gid.link for gid in ours.ports[0].gids} == {0: 0, 1: 0, 2: 0, 3: 9}
    assert other.library_error == ""
    without = rdma.with_library(found, {"mlx5_5": LibraryAnswer("no driver", {}, {})}, "slow")
    assert (without.devices[2].library_error, without.devices[2].ports[0].mtu) == (
        "no driver",
        4096,
    )
    assert without.unreadable == ("slow",)


# libibverbs itself: a library of Python functions in its place

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
