"""The oldest asyncssh that mpiboot may be installed with; the gate itself has the newest."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.pages import ROOT

# Logins and their outcomes, commands and sessions; client and server.
NAMES = "login pool embedded"
FILES = [f"tests/ssh/test_{name}.py" for name in NAMES.split()]


def environment(folder: Path, requirement: str) -> Path:
    """An environment with one package of its own, and all others of this one; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--retries=20"]
    subprocess.run([*install, "--target", site, requirement], check=True)
    others = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (site / "others.pth").write_text(others)
    return folder / "bin/python"


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_logins_and_sessions_with_the_oldest_asyncssh(tmp_path: Path) -> None:
    oldest = re.search(r'"asyncssh>=(.*)"', (ROOT / "pyproject.toml").read_text())
    assert oldest
    python = environment(tmp_path / "venv", f"asyncssh=={oldest[1]}")
    pytest_of_it = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    argv = [*pytest_of_it, "-m", "not full", *FILES]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
