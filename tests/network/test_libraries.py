"""Which libraries an image has, and what libibverbs tells: the program that asks, run or called."""

from __future__ import annotations

import ctypes
import errno
import json
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mpiboot.network import libraries, rdma
from tests.data.build_sysfs import TREES, build, kernel


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a program in the place of the one that asks the library, whose drivers aren't here."""

    def put(text: str) -> None:
        path = tmp_path / "libraries.py"
        path.write_text(text)
        monkeypatch.setattr(libraries, "PROGRAM", str(path))

    return put


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "TIMEOUT_S", 60.0)


def test_the_loader_tells_which_libraries_are_there_by_the_pods_own_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, name = tmp_path / "libbroken.so", "libmpiboot-of-the-image.so"
    broken.write_text("no library")
    found = libraries.find(("libc.so.6", "libmpiboot-has-none.so.1", str(broken)))
    assert found == {"libc.so.6": "", str(broken): ""}
    (tmp_path / name).write_text("found, whatever it is")
    assert libraries.find((name,)) == {}
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert libraries.find((name,)) == {name: ""}


@pytest.mark.parametrize("version", [4, 8, 11])
def test_a_plugin_of_nccls_tells_its_name_and_is_not_started(tmp_path: Path, version: int) -> None:
    code = 'struct { const char *name; void *start; } ncclNetPlugin_v%d = {"AWS Libfabric", 0};'
    library = tmp_path / "libnccl-net.so"
    (tmp_path / "plugin.c").write_text(code % version)
    build = ("cc", "-shared", "-o", str(library), str(tmp_path / "plugin.c"))
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    subprocess.run(build, check=True)
    assert libraries.find((str(library),)) == {str(library): "AWS Libfabric"}


def test_a_library_that_crashes_its_reader_is_not_called_missing(
    play: Callable[[str], None],
) -> None:
    play("import os; os.kill(os.getpid(), 11)")
    assert libraries.find(("libc.so.6",)) is None


def test_what_a_library_prints_as_it_loads_is_no_part_of_the_answer(
    play: Callable[[str], None],
) -> None:
    play(
        "import os, sys\n"
        f"sys.path.append({str(Path(libraries.__file__).parents[2])!r})\n"
        "from mpiboot.network import libraries\n"
        "libraries._load = lambda name: str(os.write(1, b'{}'))\n"
        "libraries._main(sys.argv[1], sys.argv[2:])\n"
    )
    assert libraries.find(("libc.so.6",)) == {"libc.so.6": "2"}


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


ASKED = ("mlx5_5", "mlx5_6")


def test_what_the_library_says_is_read(play: Callable[[str], None]) -> None:
    message = json.dumps({"mlx5_5": ""})
    play(f"import sys\nassert sys.argv[1:] == ['verbs', *{ASKED}]\nprint({message!r})\n")
    assert libraries.devices(ASKED) == ({"mlx5_5": ""}, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended with signal 11"),
        ("raise SystemExit(3)", "ended with 3"),
        ("import sys; sys.stdout.buffer.write(bytes(range(256)))", "ended with 0"),
        ("print('[1]')", "ended with 0"),
        ("import time; time.sleep(1000)", "took longer than 0.5 s"),
    ],
)
def test_a_driver_that_crashes_hangs_or_prints_is_said_and_nothing_is_known(
    play: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    if "longer" in message:
        monkeypatch.setattr(libraries, "TIMEOUT_S", 0.5)
    play(text)
    found, wrong = libraries.devices(ASKED)
    assert found == {}
    assert wrong.startswith("libibverbs.so.1 ")
    assert wrong.endswith(message)


def test_a_device_that_the_library_does_not_have_is_said_on_any_machine() -> None:
    found, wrong = libraries.devices(["no:such"])
    assert wrong == ""
    assert found["no:such"].startswith(
        ("libibverbs.so.1 has no driver for it", "libibverbs.so.1 can't be loaded")
    )


def test_the_librarys_word_stands_beside_the_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = TREES["mlx5-vfs"]
    monkeypatch.setattr(rdma, "query_kernel", lambda: kernel(tree))
    monkeypatch.setattr(libraries, "find", lambda _: None)
    monkeypatch.setattr(libraries, "devices", lambda _: ({"mlx5_5": "no driver"}, "it was slow"))
    known = rdma.observe(*build(tree, tmp_path))
    assert [one.library_error for one in known.devices] == ["", "", "no driver"]
    assert known.unreadable == ("it was slow",)


class Library:
    """libibverbs as Python functions: devices by name."""

    def __init__(self, *names: str, refused: Iterable[str] = (), failed: bool = False) -> None:
        def ibv_get_device_list(count: Any) -> list[int] | None:  # noqa: ANN401 - a reference
            count._obj.value = len(names)
            return None if failed else list(range(len(names))) or None

        def ibv_open_device(device: int) -> int:
            ctypes.set_errno(errno.EPERM)
            return 0 if names[device] in refused else device + 1

        def ibv_get_device_name(device: int) -> bytes:
            return names[device].encode("latin-1")

        self.ibv_get_device_list = ibv_get_device_list
        self.ibv_get_device_name = ibv_get_device_name
        self.ibv_open_device = ibv_open_device

    def says(self, *wanted: str) -> dict[str, str]:
        return libraries._read(cast("ctypes.CDLL", self), wanted)


def test_devices_that_it_does_not_have_or_can_not_open_are_said() -> None:
    no_driver = "libibverbs.so.1 has no driver for it"
    denied = "libibverbs.so.1 can't open it (Operation not permitted)"
    found = Library("a", "b", "d", refused=("b",)).says("a", "b", "c")
    assert found == {"a": "", "b": denied, "c": no_driver}
    for library in (Library(), Library("a", failed=True)):
        assert library.says("a") == {"a": no_driver}
    assert Library("\xff").says("\ufffd") == {"\ufffd": ""}
