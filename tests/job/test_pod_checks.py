from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Host
from mpiboot.core.model import Level
from mpiboot.job import job_hosts
from mpiboot.job.mpirun_line import read
from tests.fakes.plans import OPERATOR, POD, failing, observed, planned


def listed(*names: str) -> tuple[Host, ...]:
    return tuple(Host(name, 1, slots_given=True) for name in names)


def test_hosts_of_their_own_address_or_server_are_well_and_elsewhere_any_may_be_the_launcher() -> (
    None
):
    seen = observed()
    first, second = seen.workers
    assert list(job_hosts.shared_addresses(seen)) == []
    second = replace(second, address=first.address, port=2222)
    assert list(job_hosts.shared_addresses(replace(seen, workers=(first, second)))) == []
    hosts = listed("train-worker-0", "train-worker-1")
    assert list(job_hosts.shared_addresses(observed(listed=hosts, local=hosts[:1]))) == []


def test_two_hosts_of_one_server_end_the_job_with_both_names() -> None:
    seen = observed()
    first, second = seen.workers
    second = replace(second, address=first.address)
    plan = planned("./train", replace(seen, workers=(first, second)))
    assert failing(plan) == ["settings-conflict"]
    (found,) = job_hosts.shared_addresses(replace(seen, workers=(first, second)))
    assert found.message == (
        f"{first.host.name}, {second.host.name} lead to one and the same SSH server, "
        "10.244.0.10 port 22"
    )
    assert "podAntiAffinity" in found.hint
    assert "EndpointSlices" in found.hint


@pytest.mark.parametrize(("name", "count"), [("pi-worker-0.pi.ns.svc", 1), ("pi-launcher", 0)])
def test_a_worker_at_the_launchers_own_address_is_no_launcher(name: str, count: int) -> None:
    hosts = listed(name, "pi-worker-1")
    seen = observed(environ={**POD, **OPERATOR}, listed=hosts, local=hosts[:1])
    found = list(job_hosts.shared_addresses(seen))
    assert len(found) == count
    assert all(item.host == name and "hostNetwork" in item.hint for item in found)


LONG = "a-long-name-for-a-job-of-one-team-with-more-words-than-fi"  # 57 characters


@pytest.mark.parametrize(
    ("family", "own", "name", "told"),
    [
        ("openmpi4", LONG, "w-0", LONG),
        ("openmpi4", "pi-launcher", f"{LONG}.pi.svc", f"{LONG}.pi.svc"),
        # By the first digit it is short enough.
        ("openmpi4", f"a1{LONG}", f"w-0.{LONG}.default.svc", ""),
        ("openmpi4", LONG[1:], f"{LONG[1:]}-0"[1:], ""),
        ("openmpi5", LONG, LONG, ""),
        ("mpich", LONG, LONG, ""),
    ],
)
def test_host_names_that_are_too_long_for_open_mpi_4_are_warned_of(
    family: str, own: str, name: str, told: str
) -> None:
    seen = observed(family, listed=listed(name, "w-1"))
    facts = seen.workers[0].facts
    assert facts
    plan = planned("./train", replace(seen, own=replace(facts, hostname=own)))
    found = [item for item in plan.findings if item.check == "host-names"]
    assert [item.message.partition(":")[0] for item in found] == ([told] if told else [])


@pytest.mark.parametrize(
    ("family", "line", "then"),
    [
        ("openmpi4", "mpirun ./p", "they start in the home directory there"),
        ("openmpi5", "mpirun -wdir /x ./p", "no rank can start there"),
        ("mpich", "mpirun ./p", "no rank can start there"),
        ("intel", "mpirun -wdir /x ./p", "they start in the home directory there"),
    ],
)
def test_hosts_that_lack_the_directory_where_mpirun_starts_are_named(
    family: str, line: str, then: str
) -> None:
    seen = observed(family)
    first, second = seen.workers
    seen = replace(seen, workdir="/x", line=read(line.split(), seen.mpi.family))
    assert not any(job_hosts.working_directory(seen))
    seen = replace(seen, workers=(replace(first, missing_workdir=True), second))
    plan = planned(line, seen)
    (found,) = [item for item in plan.findings if item.check == "working-directory"]
    where = (
        f"/x, where ranks are to start, is not on {first.host.name}, or this user may not enter it"
    )
    assert (found.level, found.message) == (Level.WARN, f"{where}: {then}")
