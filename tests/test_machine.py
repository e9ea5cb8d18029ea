"""What the gate says of a machine that tests have touched, and of tests that were skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import machine


def look(folder: Path, *, depth: int = 99, but: str = "nothing") -> dict[str, machine.State]:
    return machine.seen({str(folder): depth}, folder / but)


def test_what_came_went_or_was_touched_is_named(tmp_path: Path) -> None:
    for name in ("kept", "mode", "away", "moved"):
        (tmp_path / name).write_text(name)
    before = look(tmp_path)
    (tmp_path / "new").mkdir()
    (tmp_path / "mode").chmod(0o600)
    (tmp_path / "away").unlink()
    (tmp_path / "moved").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "moved")  # the same file, but it was away

    assert machine.changed(before, look(tmp_path)) == [
        f"{tmp_path}/away is gone",
        f"{tmp_path}/mode was changed",
        f"{tmp_path}/moved was changed",
        f"{tmp_path}/new is new",
    ]


def test_caches_the_checkout_and_what_is_deeper_are_passed_over(tmp_path: Path) -> None:
    before = look(tmp_path, depth=1, but="checkout")
    for name in ("__pycache__/x.pyc", "checkout/file"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert machine.changed(before, look(tmp_path, depth=1, but="checkout")) == []
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "not").touch()
    assert machine.changed(before, look(tmp_path, depth=1, but="checkout")) == [
        f"{tmp_path}/seen is new"
    ]


def test_nothing_is_skipped_where_all_that_tests_need_is_here(tmp_path: Path) -> None:
    test = tmp_path / "test_skip.py"
    test.write_text("import pytest\ndef test_a():\n    pytest.skip('no such tool')\n")
    root = Path(__file__).parent.parent
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    argv += ["-p", "tests.conftest", "--rootdir", str(tmp_path), str(test)]
    codes = {}
    for value in ("", "required"):
        environ = {**os.environ, "MPIBOOT_RIG": value, "PYTHONPATH": str(root), "RDMA_VM": "1"}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        codes[value] = done.returncode
        assert "no such tool" in done.stdout or not value
    assert codes == {"": 0, "required": 1}
