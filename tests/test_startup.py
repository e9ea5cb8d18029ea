from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from mpiboot.cli import commands, main

# Each of these costs a worker's start 10 to 170 ms, and its start is everybody's wait.
HEAVY = {
    "asyncio",
    "asyncssh",
    "concurrent.futures",
    "cryptography",
    "dns",
    "logging",
    "mpiboot.core.facts",
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
    # A variable of the gate's own is no setting, and a word about it would load what finds them.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MPIBOOT_")}
    done = subprocess.run(
        [sys.executable, *options, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


BEFORE = loaded("")


def test_a_worker_loads_nothing_heavy() -> None:
    line = "from mpiboot.cli.main import run; run(['worker', '--help']); import mpiboot.worker.role"
    assert (loaded(line) - BEFORE) & HEAVY == set()


def test_a_command_and_a_worker_s_facts_load_nothing_of_plans() -> None:
    assert "mpiboot.core.masking" not in loaded("import mpiboot.cli.commands")
    plans = {"mpiboot.job.plan_input", "mpiboot.job.mpis", "mpiboot.job.platforms"}
    assert not loaded("import mpiboot.worker.facts") & plans


def test_a_worker_s_facts_load_little() -> None:
    facts = "from mpiboot.core.settings import resolve; from mpiboot.worker import facts; "
    facts += "facts.gather(resolve({}, {}), {}, mpi=None, pid=1)"
    found = loaded(facts) - BEFORE
    assert "pyroute2.netlink" in found
    needed = {"logging", "mpiboot.core.facts", "subprocess"}
    assert not {*HEAVY, "pyroute2.netlink.core"} - needed & found


def test_a_line_without_options_needs_no_parser() -> None:
    keyless = "import os; os.environ |= {'MPIBOOT_SSH_KEY': '/none', 'MPIBOOT_TIMEOUT': '0'}; "
    keyless += "os.environ['MPIBOOT_TERMINATION_LOG'] = ''; from mpiboot.cli.main import run; "
    for line in (["worker"], ["worker", "--", "true"], ["(program)", "/usr/sbin/sshd", "-De"]):
        found = loaded(f"{keyless}assert run({line!r}) == 77") - BEFORE
        assert "mpiboot.worker.role" in found
        assert found & {*THIRD_PARTY, "difflib"} == set()
    assert "click" in loaded(f"{keyless}assert run(['worker', '-v']) == 77")


def test_each_command_is_known_without_the_parser() -> None:
    assert {*main.COMMANDS} == {*commands.cli.commands, "help", "version"}  # none is a program


def test_what_workers_dial_each_other_with_starts_at_once() -> None:
    found = loaded("import mpiboot.worker.probe", bare=True)
    assert found & {"asyncio", "logging", "subprocess", "typing"} == set()


def test_a_launcher_loads_no_network_library_before_its_signals_are_taken() -> None:
    found = loaded("import mpiboot.launcher.role", bare=True)
    assert found & THIRD_PARTY == set()


@pytest.mark.parametrize("command", ["settings", "--version", "--help", "launcher --help"])
def test_what_only_prints_loads_no_network_library(command: str) -> None:
    words = command.split()
    found = loaded(f"from mpiboot.cli.main import run; run({words!r})") - BEFORE
    assert found & {"asyncio", "asyncssh", "dns", "pyroute2", "psutil"} == set()
