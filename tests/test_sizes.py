"""The ratchet: what scripts/sizes counts, and that its bounds only fall."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT

MODULE = '''"""A docstring."""

# a comment
def double(value):  # behind code
    """Another one,
    of two lines.
    """
    text = """counts,
    # all of it"""
    return 2 * (
        value
    )
'''
TEXT, LINES = 'def double(value):  text = """counts,# all of it"""return 2 * (value)', 6
FILES = {
    "mpiboot/a/one.py": MODULE,
    "mpiboot/b/two.py": "x = 1\ny = 2\nz = 3\n",
    "mpiboot/libexec/agent": "#!/bin/sh\n# why\n  exit 1\n",
    "tests/test_one.py": "# two\n\n",
    "README.md": "Three words here.\n",
}


class Repository:
    """A repository of its own with scripts/sizes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet")
        (folder / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/sizes", folder / "scripts/sizes")
        for name, text in FILES.items():
            self.write(name, text)
        assert self.sizes("--write").returncode == 0
        self.commit()

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def git(self, *words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *name, *words], cwd=self.folder, check=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "one")

    def sizes(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(self.folder / "scripts/sizes"), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    def wrong(self) -> list[str]:
        done = self.sizes("--check")
        assert done.returncode == bool(done.stderr)
        return done.stderr.splitlines()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_code_is_counted_by_lines_and_characters(repository: Repository) -> None:
    rows = [line.split() for line in repository.sizes().stdout.splitlines()[1:]]
    assert {row[0]: [int(cell) for cell in row[1:]] for row in rows} == {
        "mpiboot": [2, LINES + 3, len(TEXT) + 15],
        "mpiboot/a": [1, LINES, len(TEXT)],
        "mpiboot/b": [1, 3, 15],
        "mpiboot/libexec": [1, 3, len("exit 1")],
        "pages": [1, 3, 18],
        "tests": [1, 2, 7],
    }


def test_no_folder_grows(repository: Repository) -> None:
    assert repository.wrong() == []
    for path, text, wrong in (
        ("mpiboot/b/two.py", "x = 1; y = 2; z = 3; u\n", "mpiboot/b: 22 characters, at most 15"),
        ("mpiboot/c/three.py", "x = 1\n", "mpiboot/c: 1 lines, at most 0"),
        ("mpiboot/a/data.json", "[1]\n", "mpiboot/libexec: 2 files, at most 1"),
        ("tests/test_one.py", "# two\n\n\n", "tests: 3 lines, at most 2"),
        ("README.md", "Four words are here.\n", "pages: 4 lines, at most 3"),
    ):
        repository.write(path, text)
        assert wrong in repository.wrong()
        repository.git("reset", "--quiet", "--hard")
        repository.git("clean", "-fdq")
