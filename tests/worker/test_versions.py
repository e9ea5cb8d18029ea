"""A launcher and a worker of two versions: this one, and the last that was asked in another way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpiboot
from tests.fakes.worker import HAVE_SSH, Worker

pytestmark = pytest.mark.skipif(not HAVE_SSH, reason="no ssh client")

ROOT = Path(mpiboot.__file__).parent.parent
# Whoever changes what is asked of a worker, or what it answers, names the commit before here.
BEFORE = "b6ad23e0"
# What a launcher asks and orders in a job's life, by the host_shell of either version.
LAUNCHER = """
import json, subprocess, sys
from mpiboot.core.facts import NoFacts
from mpiboot.hosts import host_shell
from mpiboot.hosts.remote_commands import facts_of
ssh, launch = json.loads(sys.argv[1]), sys.argv[2]
def run(command):
    words = [*ssh, "/bin/sh -s"]
    done = subprocess.run(words, input=command.encode(), stdout=subprocess.PIPE)
    return host_shell.read(done.stdout.decode())
gate = run(host_shell.gate("/bin/mpirun", workdir="/no", attempt="l@1@a", traffic=True))
facts, why = facts_of(gate)
ranks = run(host_shell.ask(host_shell.query("ranks", launch))).ranks
run(host_shell.stop_ranks(*json.loads(sys.argv[3]), f"MPIBOOT_LAUNCH_ID={launch}"))
run(host_shell.job_failed("l@1@a", 60, "host-lost"))
later = run(host_shell.gate(attempt="l@2@b"))
print(json.dumps({
    "facts": facts.hostname if facts else why.value,
    "launches": launch in gate.launches,
    "lacks": gate.lacks,
    "mpirun": gate.mpirun_by_path,
    "links": "lo" in gate.counters,
    "ranks": ranks,
    "attempts": later.attempts,
    "ended": run(host_shell.end_processes([launch])).ended,
    "over": run(host_shell.ask(host_shell.JOB_IS_OVER)).ended,
}))
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of that commit."""
    words = ("git", "-C", str(ROOT), "archive", BEFORE, "mpiboot")
    made = subprocess.run(words, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"commit {BEFORE} is not in this clone (a shallow one?)")
    folder = tmp_path_factory.mktemp("older")
    subprocess.run(("tar", "-x", "-C", str(folder)), input=made.stdout, check=True)
    return folder


@pytest.fixture(params=["this launcher, an older worker", "an older launcher, this worker"])
def pair(
    request: pytest.FixtureRequest, older: Path, tmp_path: Path
) -> Iterator[tuple[Worker, Path]]:
    """A worker that listens, and the package of its launcher."""
    packages = (older, ROOT) if request.param.startswith("this") else (ROOT, older)
    environ = {"PYTHONPATH": str(packages[0]), "MPIBOOT_WORKER_EXIT": "with-job"}
    worker = Worker(tmp_path / "worker", "auto", environ=environ).start()
    try:
        yield worker.listens(), packages[1]
    finally:
        worker.stop()


def test_a_job_between_two_versions(pair: tuple[Worker, Path]) -> None:
    worker, package = pair
    launch = f"test-{os.urandom(8).hex()}"
    rank = "trap 'echo saves' USR1; echo ready; while :; do sleep 0.1; done"
    signal = "[10]" if package == ROOT else "[10, 1]"  # an older launcher gives it a time
    with worker.client(
        f'export MPIBOOT_LAUNCH_ID={launch} PMI_RANK=0; exec sh -c "{rank}"'
    ) as client:
        assert client.stdout.readline() == b"ready\n"
        done = subprocess.run(
            [sys.executable, "-c", LAUNCHER, json.dumps(worker.argv()), launch, signal],
            cwd=package,  # of -c the first on sys.path
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert client.stdout.read() == b"saves\n"
    assert worker.wait() == 0
    found = json.loads(done.stdout)
    assert found.pop("ended") >= 1  # the rank, and what it has started
    assert found == {
        "facts": os.uname().nodename,
        "launches": True,
        "lacks": [["folder", "/no"]],
        "mpirun": ["/bin/mpirun", found["mpirun"][1]],
        "links": True,
        "ranks": 1,
        "attempts": [["l@1@a", "host-lost"]],
        "over": 0,
    }
