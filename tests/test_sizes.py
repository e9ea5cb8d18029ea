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
CODE = ('def double(value):  text = """counts,# all of it"""return 2 * (value)', 6)


class Repository:
    """A repository of its own with scripts/sizes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet")
        (folder / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/sizes", folder / "scripts/sizes")

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

    def rows(self) -> dict[str, list[int]]:
        lines = self.sizes().stdout.splitlines()[1:]
        return {line.split()[0]: [int(cell) for cell in line.split()[1:]] for line in lines}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path)
    made.write("mpiboot/a/one.py", MODULE)
    made.write("mpiboot/b/two.py", "x = 1\ny = 2\nz = 3\n")
    made.write("mpiboot/libexec/agent", "#!/bin/sh\n# why\n  exit 1\n")
    made.write("tests/test_one.py", "# two\n\n")
    made.write("README.md", "Three words here.\n")
    assert made.sizes("--write").returncode == 0
    made.commit()
    return made


def test_code_is_counted_by_lines_and_characters(repository: Repository) -> None:
    text, lines = CODE
    assert repository.rows() == {
        "mpiboot": [2, lines + 3, len(text) + 15],
        "mpiboot/a": [1, lines, len(text)],
        "mpiboot/b": [1, 3, 15],
        "mpiboot/libexec": [1, 3, len("exit 1")],
        "pages": [1, 3, 18],
        "tests": [1, 2, 7],
    }


@pytest.mark.parametrize(
    ("path", "text", "wrong"),
    [
        (
            "mpiboot/b/two.py",
            "x = 1; y = 2; z = 3; u = 4\n",
            "mpiboot/b: 26 characters, at most 15",
        ),
        ("mpiboot/b/three.py", "", "mpiboot/b: 2 files, at most 1"),
        ("mpiboot/c/three.py", "x = 1\n", "mpiboot/c: 1 lines, at most 0"),
        ("mpiboot/a/data.json", "[1]\n", "mpiboot/libexec: 2 files, at most 1"),
        ("tests/test_one.py", "# two\n\n\n", "tests: 3 lines, at most 2"),
        ("README.md", "Four words are here.\n", "pages: 4 lines, at most 3"),
    ],
)
def test_no_folder_grows(repository: Repository, path: str, text: str, wrong: str) -> None:
    assert repository.wrong() == []
    repository.write(path, text)
    assert wrong in repository.wrong()


def test_a_bound_rises_by_what_another_falls_and_no_total_does(repository: Repository) -> None:
    bounds = (repository.folder / "scripts/sizes.txt").read_text()
    repository.write("mpiboot/b/two.py", "x = 1\n")
    repository.write("mpiboot/a/one.py", MODULE + "\nx = 1\n")
    assert repository.wrong() != []
    text, lines = CODE
    moved = bounds.replace(f"{lines:>12}{len(text):>12}", f"{lines + 2:>12}{len(text) + 10:>12}")
    repository.write("scripts/sizes.txt", moved.replace(f"{3:>12}{15:>12}", f"{1:>12}{5:>12}"))
    assert repository.wrong() == []
    repository.write("scripts/sizes.txt", moved)
    risen = [
        f"mpiboot: {lines + 5} lines, a bound that was already {lines + 3}",
        f"mpiboot: {len(text) + 25} characters, a bound that was already {len(text) + 15}",
    ]
    assert repository.wrong() == sorted(risen)
    repository.commit()
    repository.sizes("--write")
    repository.commit()
    assert repository.wrong() == []
