from __future__ import annotations

import json
from pathlib import Path

import pytest

from mpiboot.network import libraries, rdma
from tests.data.build_sysfs import build, kernel
from tests.data.rdma_nodes import TREES

ASKED = {"mlx5_5": 1, "mlx5_6": 2}


def played(tmp_path: Path, text: str) -> str:
    """A program in the place of the one that asks the library, whose drivers can't be had here."""
    path = tmp_path / "libraries.py"
    path.write_text(text)
    return str(path)


def test_what_the_library_says_is_read(tmp_path: Path) -> None:
    message = {
        "mlx5_5": {"why": "", "mtus": [[1, 4096]], "links": [[1, 3, 7]]},
        "other": {"why": "", "mtus": [], "links": []},
    }
    words = ["verbs", "mlx5_5:1", "mlx5_6:2"]
    text = f"import sys\nassert sys.argv[1:] == {words}\nprint({json.dumps(json.dumps(message))})\n"
    program = played(tmp_path, text)

    found, wrong = libraries.devices(ASKED, program=program)

    assert found == {"mlx5_5": libraries.LibraryAnswer("", {1: 4096}, {(1, 3): 7})}
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
    message = {"mlx5_5": libraries.LibraryAnswer("", {1: 2048}, {(1, 3): 9})}

    known = rdma.with_library(found, message, "it was slow").devices

    ours, other = known[2], known[1]
    assert (ours.library_error, ours.ports[0].mtu) == ("", 2048)
    assert {gid.index: gid.link for gid in ours.ports[0].gids} == {0: 0, 1: 0, 2: 0, 3: 9}
    assert other.library_error == ""
    without = rdma.with_library(
        found, {"mlx5_5": libraries.LibraryAnswer("no driver", {}, {})}, "slow"
    )
    assert (without.devices[2].library_error, without.devices[2].ports[0].mtu) == (
        "no driver",
        4096,
    )
    assert without.unreadable == ("slow",)
