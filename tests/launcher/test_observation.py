"""What is asked of this pod and its MPI, after the hosts are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.gates.gate import GateResult
from mpiboot.gates.job_hostfile import JobHostfile
from mpiboot.job.mpirun_line import read
from mpiboot.launcher import observation
from mpiboot.launcher.setup import LauncherPod
from mpiboot.observe import programs
from mpiboot.settings import resolve
from mpiboot.system.keys import JobKey
from tests.fakes import plans


@pytest.mark.parametrize(
    ("addresses", "asked"),
    [
        (("10.0.0.1", "10.0.0.2"), 0),
        (("10.0.0.1", "fd00::2"), 1),
        (("fd00::1", "fd00::2"), 1),
    ],
)
def test_an_mpi_is_asked_for_ipv6_where_a_worker_needs_it(
    addresses: tuple[str, ...], asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs a process, and most jobs have no such address."""
    seen = plans.observed()
    calls = []

    def has_ipv6(*_: object) -> bool:
        calls.append(1)
        return False

    monkeypatch.setattr(programs, "has_ipv6", has_ipv6)
    launcher = LauncherPod(
        resolve({}, plans.POD),
        plans.POD,
        plans.ROOT,
        tmp_path,
        JobKey(tmp_path / "key", "ssh-ed25519 AAAA"),
        0.0,
        1,
    )
    workers = tuple(
        replace(worker, address=address)
        for worker, address in zip(seen.workers, addresses, strict=True)
    )
    passed = GateResult(workers, (), {"w-0": "w-0.long"}, {}, {})
    (facts,) = {worker.facts for worker in seen.workers[:1]}
    assert facts
    line = read(["./train"], seen.mpi.family)
    found = observation._observation(
        launcher, JobHostfile(seen.hostfile, ()), passed, seen.mpi, line, (facts, None), {}
    )
    assert len(calls) == asked
    assert found.observed.mpi_ipv6 is (False if asked else None)
    assert found.observed.workers == workers
    assert found.observed.renamed["w-0"] == "w-0.long"
    assert found.observed.hostfile == seen.hostfile
