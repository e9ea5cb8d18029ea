"""What the gate says of a machine that tests have touched, and of tests that were skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import machine


def test_what_came_went_or_was_touched_is_named(tmp_path: Path) -> None:
    """Caches, the checkout, and what lies deeper than is looked are passed over."""

    def state(depth: int = 1) -> dict[str, machine.State]:
        return machine.seen({str(tmp_path): depth}, tmp_path / "checkout")

    for name in ("kept", "mode", "away", "moved"):
        (tmp_path / name).write_text(name)
    before = state()
    for folder in ("__pycache__", "checkout", "new"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").touch()
    (tmp_path / "mode").chmod(0o600)
    (tmp_path / "away").unlink()
    (tmp_path / "moved").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "moved")  # the same file, but it was away
    words = ["away is gone", "mode was changed", "moved was changed", "new is new"]
    assert machine.changed(before, state()) == [f"{tmp_path}/{line}" for line in words]
    deeper = [f"{tmp_path}/new is new", f"{tmp_path}/new/file is new"]
    assert machine.changed(before, state(99))[-2:] == deeper


def test_nothing_is_skipped_where_all_that_tests_need_is_here(tmp_path: Path) -> None:
    test = tmp_path / "test_skip.py"
    test.write_text("import pytest\ndef test_a():\n    pytest.skip('no such tool')\n")
    root = Path(__file__).parent.parent
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    argv += ["-p", "tests.conftest", "--rootdir", str(tmp_path), str(test)]
    for value, code in (("", 0), ("required", 1)):
        environ = {**os.environ, "MPIBOOT_RIG": value, "PYTHONPATH": str(root), "RDMA_VM": "1"}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert "no such tool" in done.stdout or not value
