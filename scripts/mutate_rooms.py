"""The program behind scripts/mutate: chooses places, runs a room's tests on each, and counts.

The library (mutmut) makes the changes of one node; its own runner keeps no sample of places and
puts all changes of a function into one file, so that the tests of what a process imports, or of
what it costs, would fail by themselves. Here each change is a file as somebody could have written
it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

ROOT = Path(__file__).resolve().parent.parent
# The tests of a room that lie elsewhere, or that are of the same name with another word.
TOP = "top"
MORE = {
    "job": ("tests/hosts/test_host_sources.py",),
    "ssh": ("tests/worker/test_role.py",),
    "launcher": ("tests/cli/test_cli.py",),
    TOP: ("tests/test_*.py",),
}
# Words of messages are read by people; the tests of each message are the tests of its cause.
OPERATORS = [row for row in mutators.mutation_operators if row[1] is not mutators.operator_string]
NO_TESTS = 5  # pytest's exit status

# A process table, a /tmp and a read-only root of its own: a change can turn what a test ends or
# removes into something else.
ALONE = ("unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
INSIDE = """
mount --bind "$1" "$1"; mount -t tmpfs -o mode=1777 tmpfs /tmp; mount -o remount,bind,ro /
cd "$1"; shift
"$@"
exit $?
"""


@dataclass(frozen=True)
class Room:
    """Files that are changed, and the tests that have to notice."""

    name: str
    files: tuple[Path, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """One changed file: its path from the root, the line, and its whole text before and after."""

    path: Path
    line: int
    before: str
    text: str

    def diff(self) -> str:
        """What differs, without context."""
        before, after = self.before.splitlines(), self.text.splitlines()
        lines = difflib.unified_diff(before, after, n=0, lineterm="")
        rows = [row for row in lines if not row.startswith(("---", "+++", "@@"))]
        return "\n".join([f"  {self.path}:{self.line}", *(f"    {row}" for row in rows)])


def rooms() -> dict[str, Room]:
    """Every package that has tests of its name, and the modules beside the packages."""
    found = {}
    package = ROOT / "mpiboot"
    for folder in sorted(path for path in package.iterdir() if (path / "__init__.py").exists()):
        tests = [f"tests/{folder.name}"] if (ROOT / "tests" / folder.name).is_dir() else []
        for pattern in MORE.get(folder.name, ()):
            tests += [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(pattern))]
        if tests:
            found[folder.name] = Room(folder.name, _sources(folder, deep=True), tuple(tests))
    tests = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(MORE[TOP][0]))]
    found[TOP] = Room(TOP, _sources(package, deep=False), tuple(tests))
    return found


def _sources(folder: Path, *, deep: bool) -> tuple[Path, ...]:
    paths = folder.rglob("*.py") if deep else folder.glob("*.py")
    return tuple(sorted(path.relative_to(ROOT) for path in paths))


# --- the changes ---


# What no test of behaviour could notice.
_PASSED_OVER = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)


class _Collector(cst.CSTVisitor):
    """All changes of a module by line; annotations and docstrings do nothing."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, list[tuple[cst.CSTNode, cst.CSTNode]]] = defaultdict(list)

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, _PASSED_OVER) or _is_text(node):
            return False
        line = self.get_metadata(PositionProvider, node).start.line
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                self.found[line] += [(node, changed) for changed in operator(node)]
        self.found[line] += [(node, changed) for changed in _own(node)]
        return True


def _is_text(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Expr) and isinstance(
        node.value, cst.SimpleString | cst.ConcatenatedString
    )


def _own(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What the library lacks: a condition turned round, a statement dropped."""
    if isinstance(node, cst.If | cst.While | cst.IfExp):
        inner = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), inner))
    if isinstance(node, cst.Raise | cst.Del | cst.AugAssign | cst.Return):
        yield cst.Pass()
    if isinstance(node, cst.Expr) and not _is_text(node):
        yield cst.Pass()


def changes(room: Room, places: int, seed: int) -> list[Change]:
    """One change on each of so many lines of a room, the same ones for the same seed."""
    choice = random.Random(f"{seed} {room.name}")
    lines: list[tuple[Path, int, cst.Module, list[tuple[cst.CSTNode, cst.CSTNode]]]] = []
    for path in room.files:
        wrapper = MetadataWrapper(cst.parse_module((ROOT / path).read_text()))
        collector = _Collector()
        wrapper.visit(collector)
        lines += [
            (path, line, wrapper.module, found)
            for line, found in sorted(collector.found.items())
            if found
        ]
    chosen = sorted(choice.sample(range(len(lines)), min(places, len(lines))))
    made = []
    for path, line, module, found in (lines[number] for number in chosen):
        old, new = choice.choice(found)
        changed = module.deep_replace(old, new)
        text = cst.ensure_type(changed, cst.Module).code
        made.append(Change(path, line, module.code, text))
    return made


# --- the tests ---


class Workplace:
    """A copy of the repository with a virtual environment whose mpiboot is that copy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        self._environment(folder / ".venv")

    def _environment(self, venv: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = sysconfig.get_path("purelib")
        # This folder's packages without its own .pth files, which would lead to this folder's code.
        (venv / "lib" / version / "site-packages" / "copy.pth").write_text(
            f"{self.folder}\n{packages}\n"
        )
        for script in Path(sys.executable).parent.iterdir():
            text = script.read_bytes() if script.is_file() else b""
            if text.startswith(b"#!") and b"python" in text.partition(b"\n")[0]:
                line = f"#!{venv}/bin/python\n".encode()
                (venv / "bin" / script.name).write_bytes(line + text.partition(b"\n")[2])
                (venv / "bin" / script.name).chmod(0o755)

    def run(self, tests: Sequence[str], limit: float | None = None) -> tuple[int, str]:
        """Runs tests until one fails; 124 where they took longer than `limit` seconds."""
        python = str(self.folder / ".venv/bin/python")
        marks = ("-m", "not full and not pods and not vm")
        quiet = ("-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider")
        argv = [python, "-m", "pytest", *quiet, *marks, *tests]
        if os.geteuid() == 0:
            argv = [*ALONE, "sh", "-ec", INSIDE, "sh", str(self.folder), *argv]
        environ = {name: value for name, value in os.environ.items() if name != "MPIBOOT_RIG"}
        process = subprocess.Popen(
            argv,
            cwd=self.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return 124, ""
        return process.returncode, out

    def notices(self, change: Change, tests: Sequence[str], limit: float) -> bool:
        """Whether a test fails, or never ends, with this change."""
        path = self.folder / change.path
        before = path.read_bytes()
        compiled = Path(importlib.util.cache_from_source(str(path)))
        try:
            # A compiled file is told from an old one by the second it was made in.
            compiled.unlink(missing_ok=True)
            path.write_text(change.text)
            code, message = self.run(tests, limit)
        finally:
            path.write_bytes(before)
            compiled.unlink(missing_ok=True)
        if code == NO_TESTS:
            raise RuntimeError(f"no tests ran:\n{message}")
        return code != 0


def nearest_first(tests: Sequence[str], path: Path) -> list[str]:
    """A room's files of tests, those first that speak of this module: most changes end there."""
    files = [
        file
        for name in tests
        for file in (sorted((ROOT / name).rglob("test_*.py")) or [ROOT / name])
    ]
    word = path.parent.name if path.stem == "__main__" else path.stem
    near = {file: (word in file.stem, file.read_text().count(word)) for file in files}
    return [str(file.relative_to(ROOT)) for file in sorted(files, key=near.__getitem__)][::-1]


def examine(room: Room, found: Sequence[Change], places: queue.Queue[Workplace]) -> int | None:
    """Tries every change of a room and prints those that no test notices; counts the others."""
    place = places.get()
    begin = time.monotonic()
    code, message = place.run(room.tests)
    places.put(place)
    took = time.monotonic() - begin
    if code != 0:
        print(f"{room.name}: the tests fail without any change:\n{message[-2000:]}", flush=True)
        return None
    print(f"{room.name}: {len(found)} places, {took:.0f} s for all tests of the room", flush=True)
    lock = threading.Lock()

    def attempt(change: Change) -> bool:
        mine = places.get()
        try:
            tests = nearest_first(room.tests, change.path)
            caught = mine.notices(change, tests, limit=60 + 5 * took)
        finally:
            places.put(mine)
        if not caught:
            with lock:
                print(change.diff(), flush=True)
        return caught

    with ThreadPoolExecutor(places.qsize()) as several:
        return sum(several.map(attempt, found))


def main() -> int:
    """Reads the command line, examines the rooms, prints the table."""
    parser = argparse.ArgumentParser(prog="scripts/mutate", allow_abbrev=False)
    parser.add_argument("rooms", nargs="*", metavar="ROOM")
    parser.add_argument("--places", type=int, default=20, help="lines to change in each room")
    parser.add_argument("--seed", type=int, default=1, help="chooses the lines")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="changes at a time")
    parser.add_argument("--list", action="store_true", help="the rooms, their files and tests")
    given = parser.parse_args()
    known = rooms()
    if wrong := sorted(set(given.rooms) - set(known)):
        parser.error(f"no such room: {', '.join(wrong)}; there are {', '.join(known)}")
    chosen = [known[name] for name in given.rooms or known]
    if given.list:
        for room in chosen:
            print(f"{room.name:14} {len(room.files):3} files; {' '.join(room.tests)}")
        return 0
    counts: dict[str, tuple[int, int]] = {}
    # Not in /tmp, which the tests have for themselves.
    with tempfile.TemporaryDirectory(prefix="mpiboot-mutate-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)  # some tests run as another user
        places: queue.Queue[Workplace] = queue.Queue()
        for number in range(given.jobs):
            (Path(folder) / str(number)).mkdir()
            places.put(Workplace(Path(folder) / str(number)))
        for room in chosen:
            found = changes(room, given.places, given.seed)
            caught = examine(room, found, places)
            if caught is not None:
                counts[room.name] = (caught, len(found))
    for name, (caught, tried) in counts.items():
        print(f"{name:14} {caught:3} of {tried} caught")
    caught = sum(pair[0] for pair in counts.values())
    tried = sum(pair[1] for pair in counts.values())
    print(f"{'all':14} {caught:3} of {tried} caught ({100 * caught // max(tried, 1)} %)")
    return int(len(counts) < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
