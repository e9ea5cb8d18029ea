from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mpiboot.network import libraries, rdma
from tests.data.build_sysfs import build, kernel
from tests.data.rdma_nodes import TREES


def test_the_loader_tells_which_libraries_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "libbroken.so").write_text("no library")
    names = ("libc.so.6", "libmpiboot-has-none.so.1", str(tmp_path / "libbroken.so"))

    assert libraries.missing(names) == ("libmpiboot-has-none.so.1",)


def test_a_library_is_found_by_the_pods_own_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "libmpiboot-of-the-image.so"
    (tmp_path / name).write_text("found, whatever it is")
    assert libraries.missing((name,)) == (name,)

    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    assert libraries.missing((name,)) == ()


@pytest.mark.parametrize(
    "text",
    [
        "import os; os.kill(os.getpid(), 11)",
        "import sys; sys.stdout.buffer.write(bytes(range(256)))",
        "print('{}')",
        "import time; time.sleep(1000)",
    ],
)
def test_a_library_that_crashes_hangs_or_prints_is_not_called_missing(
    tmp_path: Path, text: str
) -> None:
    program = tmp_path / "libraries.py"
    program.write_text(text)

    found = libraries.missing(("libc.so.6",), 0.5 if "sleep" in text else 60, str(program))

    assert found == ()


def test_what_a_library_prints_as_it_loads_is_no_part_of_the_answer(tmp_path: Path) -> None:
    program = tmp_path / "libraries.py"
    program.write_text(
        "import os, sys\n"
        f"sys.path.append({str(Path(libraries.__file__).parents[2])!r})\n"
        "from mpiboot.network import libraries\n"
        "libraries._loads = lambda name: os.write(1, b'[]') == 0\n"
        "libraries._main(sys.argv[1], sys.argv[2:])\n"
    )

    assert libraries.missing(("libc.so.6",), 60, str(program)) == ("libc.so.6",)


def test_what_uses_efa_is_looked_for_where_an_efa_device_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel's answer is a built tree's: this hardware can't be had here.
    found = rdma.assemble(kernel(TREES["efa"]), *build(TREES["efa"], tmp_path))
    asked: list[Sequence[str]] = []

    def missing(names: Sequence[str]) -> tuple[str, ...]:
        asked.append(names)
        return ("libnccl-net.so",)

    monkeypatch.setattr(rdma, "assemble", lambda *_: found)
    monkeypatch.setattr(libraries, "missing", missing)

    seen = rdma.observe()

    assert asked == [rdma.EFA_LIBRARIES]
    assert seen.missing == ("libnccl-net.so",)
