from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Each of these costs a worker's start 10 to 170 ms, and its start is everybody's wait.
HEAVY = {
    "asyncio",
    "asyncssh",
    "concurrent.futures",
    "cryptography",
    "dns",
    "logging",
    "multiprocessing",
    "psutil",
    "pyroute2",
    "ssl",
    "subprocess",
    "urllib.request",
}
THIRD_PARTY = {"asyncssh", "click", "cryptography", "dns", "psutil", "pyroute2"}


def loaded(statement: str, *, bare: bool = False) -> set[str]:
    """Modules that a child has after a statement, without those of a bare interpreter."""
    show = "import json, sys; print('\\n' + json.dumps(sorted(sys.modules)))"
    options = ["-I", "-S"] if bare else ["-I"]
    code = f"{statement}\n{show}"
    if bare:
        code = f"import sys; sys.path[:0] = {sys.path!r}\n{code}"
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


BEFORE = loaded("")


@pytest.mark.parametrize(
    "statement",
    [
        "import mpiboot.worker.role",
        "from mpiboot.cli import run; run(['worker', '--help']); import mpiboot.worker.role",
        "import mpiboot.cli, mpiboot.entry, mpiboot.worker.role",
    ],
    ids=["the module", "the command", "the entrypoint form"],
)
def test_a_worker_loads_nothing_heavy(statement: str) -> None:
    assert (loaded(statement) - BEFORE) & HEAVY == set()


def test_what_workers_dial_each_other_with_starts_at_once() -> None:
    found = loaded("import mpiboot.worker.pairs", bare=True)
    assert found & {"selectors", "socket", "threading"} == set()


def test_the_parent_that_stays_is_stdlib_only() -> None:
    found = loaded("import mpiboot.parent.__main__", bare=True)
    assert found & (HEAVY | THIRD_PARTY) == set()


@pytest.mark.parametrize("command", ["settings", "--version", "--help", "launcher --help"])
def test_what_only_prints_loads_no_network_library(command: str) -> None:
    words = command.split()
    found = loaded(f"from mpiboot.cli import run; run({words!r})") - BEFORE
    assert found & {"asyncio", "asyncssh", "dns", "pyroute2", "psutil"} == set()
