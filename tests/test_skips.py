"""What the gate says of tests that were skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_nothing_is_skipped_where_all_that_tests_need_is_here(tmp_path: Path) -> None:
    test = tmp_path / "test_skip.py"
    test.write_text("import pytest\ndef test_a():\n    pytest.skip('no such tool')\n")
    root = Path(__file__).parent.parent
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    argv += ["-p", "tests.conftest", "--rootdir", str(tmp_path), str(test)]
    for value, code in (("", 0), ("required", 1)):
        environ = {**os.environ, "MPIBOOT_RIG": value, "PYTHONPATH": str(root)}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert "no such tool" in done.stdout or not value
