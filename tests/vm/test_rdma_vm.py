"""Runs the tests of the folder ``inside`` in one virtual machine and reports each here."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.vm.inside import test_decision, test_evidence, test_kernel, test_perftest

ROOT = Path(__file__).resolve().parents[2]
# Each test by its name: where it is, and whether it is one of the whole matrix alone.
TESTS = {
    name: (f"{Path(str(module.__file__)).relative_to(ROOT)}::{name}", test)
    for module in (test_kernel, test_decision, test_evidence, test_perftest)
    for name, test in vars(module).items()
    if name.startswith("test_")
}
FULL = {
    name
    for name, (_, test) in TESTS.items()
    if any(mark.name == "full" for mark in getattr(test, "pytestmark", ()))
}
GUARD = "1800"  # seconds, against a hang: it is emulated, beside others
# All else is done long before the machine: it comes first on the processor. Between sessions a nice
# value alone counts for nothing (sched(7), autogroup).
FIRST = ("setsid", "--wait", "sh", "-c", 'echo -10 >/proc/self/autogroup; nice -n-5 "$@"', "sh")
REQUIRED = os.environ.get("MPIBOOT_RIG") == "required"

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")

pytestmark = [
    pytest.mark.vm,
    pytest.mark.timeout(int(GUARD) + 100),  # the first run downloads a kernel
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the guest shares this system"),
    pytest.mark.skipif(
        not REQUIRED and shutil.which("qemu-system-x86_64") is None, reason="QEMU isn't installed"
    ),
]


def in_machine(*words: str, first: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a virtual machine."""
    return subprocess.run(
        [*(FIRST if first else ()), "scripts/rdma-vm", *words],
        cwd=ROOT,
        env={**os.environ, "MPIBOOT_VM_SECONDS": GUARD, "PYTEST_ADDOPTS": "", **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> dict[str, str]:
    """What each test that was selected came to in the machine: empty, or its failure."""
    script = '"$@" --junitxml=/run/report.xml >&2; status=$?; cat /run/report.xml; exit $status'
    here = [item for item in request.session.items if item.path == request.node.path]
    names = [item.callspec.params["name"] for item in here if "reports" in item.fixturenames]  # type: ignore[attr-defined]
    inside = [TESTS[name][0] for name in names]
    done = in_machine("sh", "-c", script, "sh", *PYTEST, "--timeout=600", *inside)
    if not done.stdout.lstrip().startswith("<?xml"):
        message = f"scripts/rdma-vm ended with {done.returncode}:\n{done.stderr[-8000:]}"
        # 125: no machine to be had, as where no kernel can be downloaded.
        if done.returncode == 125 and not REQUIRED:
            pytest.skip(message)
        pytest.fail(message)
    found: dict[str, str] = {}
    for case in ET.fromstring(done.stdout).iter("testcase"):
        name = case.get("name", "").partition("[")[0]
        broken = [item.text or "" for item in case if item.tag in {"failure", "error", "skipped"}]
        found[name] = "\n".join(filter(None, (found.get(name), *broken)))
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name in FULL else ()) for name in TESTS]
)
def test_in_the_machine(reports: dict[str, str], name: str) -> None:
    assert reports.get(name, "it did not run") == ""


@pytest.mark.full
def test_a_launched_jobs_ranks_use_rdma_as_they_are_told() -> None:
    inside = str(Path(test_kernel.__file__).with_name("job.py").relative_to(ROOT))
    done = in_machine(*PYTEST, "--timeout=1700", inside, MPIBOOT_VM_MIB="2048")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]


def test_the_machine_gives_output_and_exit_status_of_the_command() -> None:
    done = in_machine("sh", "-c", 'echo "$1"; exit 7', "sh", "two  words $", first=False)
    assert (done.stdout, done.returncode) == ("two  words $\n", 7)
