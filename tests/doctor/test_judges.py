"""The judges of a pod's parts: outcomes that no broken pod of tests/pods shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.facts import Fabric, Gpus, PodFacts
from mpiboot.core.model import Finding, Level
from mpiboot.core.settings import Settings
from mpiboot.doctor import checks as pod
from mpiboot.doctor.checks import DoctorCheck, ImagePart, LimitsPart, Program, ShmPart
from tests.fakes import plans

MPI = plans.MPIS["openmpi4"]
GIB, MIB = 1 << 30, 1 << 20

_FACTS = plans.worker(plans.hosts(2)[0], 0, MPI).facts
assert _FACTS is not None
FACTS: PodFacts = _FACTS


def told(found: Iterable[Finding]) -> list[str]:
    """Level and sentence; what is not well has a hint."""
    listed = list(found)
    assert all(item.hint or item.level is Level.OK for item in listed)
    assert all(item.check in BY_REFERENCE for item in listed)
    return [f"{item.level.value}: {item.message}" for item in listed]


LACKS = ("libhwloc.so.15 => not found",)
PROGRAMS = (Program("mpirun", MPI.path), Program("ssh", ""))
IMAGE = ImagePart(MPI, PROGRAMS, Program("orted", "/usr/bin/orted"), "/usr/bin")
NO_MPI = ImagePart(None, (Program("ssh", ""),), None, "/opt/bin:/bin")
BROKEN = IMAGE._replace(daemon=Program("orted", "/usr/bin/orted", LACKS))
SAME = {"locked memory": -1, "open files": 1024}
SAME_LIMITS = "locked memory unlimited, open files 1024"
LOWER_LIMITS = (
    "locked memory 64 KiB (the first process: unlimited), processes 10 (the first process: 20)"
)
LOW = {"locked memory": 65536, "open files": 1 << 20, "processes": 10}
HIGH = {"locked memory": -1, "open files": 1024, "processes": 20}


@pytest.mark.parametrize(
    ("judge", "parts", "expected"),
    [
        (pod.daemon, [IMAGE._replace(daemon=None)], []),
        (pod.daemon, [NO_MPI], []),
        (
            *(pod.libraries, [BROKEN]),
            ["fail: /usr/bin/orted does not find all of its shared libraries"],
        ),
        (pod.libraries, [IMAGE], ["ok: shared libraries: all are found for mpirun, orted"]),
        (
            *(pod.limits, [LimitsPart(SAME, SAME)]),
            [f"ok: SSH sessions have the limits of the first process: {SAME_LIMITS}"],
        ),
        (
            *(pod.limits, [LimitsPart(LOW, HIGH)]),
            [f"warn: SSH sessions get less: {LOWER_LIMITS}"],
        ),
        (pod.limits, [LimitsPart({}, {"open files": 1})], []),
        (pod.shm, [ShmPart(GIB, 0)], ["ok: 0 bytes of 1 GiB in /dev/shm in use"]),
        (pod.memory, [0], ["ok: the kernel killed no process here for want of memory"]),
        (pod.memory, [2], ["warn: out of memory: the kernel killed 2 processes here"]),
        (pod.memory, [None], []),
        # Rules that compare workers find nothing at one.
        (
            *(pod.data_network, [replace(FACTS, shm=64 * MIB, gpus=Gpus(2)), Settings()]),
            [
                "warn: /dev/shm has 64 MiB for 2 ranks",
                "ok: no RDMA device of this pod; data goes over TCP",
            ],
        ),
        (pod.gpus, [FACTS], []),
        (pod.gpus, [replace(FACTS, gpus=Gpus(8))], ["ok: 8 GPUs"]),
        (pod.named_links, [{"GLOO_SOCKET_IFNAME": "eth0"}, FACTS], []),
        (pod.named_links, [{"OMPI_MCA_btl_tcp_if_include": "10.0.0.0/8,eth0"}, FACTS], []),
        (
            *(pod.named_links, [{"HYDRA_IFACE": "eth0, ib0"}, FACTS]),
            ["warn: HYDRA_IFACE=eth0, ib0: no link ib0 here (there are lo, eth0)"],
        ),
    ],
)
def test_every_outcome(judge: DoctorCheck, parts: list[object], expected: list[str]) -> None:
    assert told(judge(*parts)) == expected


def test_unknown_rdma_is_not_called_none() -> None:
    facts = replace(FACTS, fabric=Fabric(refused="EPERM"))
    (found,) = pod.data_network(facts, Settings())
    assert found.check == "data-facts"


@pytest.mark.parametrize(
    ("found", "evidence"),
    [(pod.programs(NO_MPI), ("PATH=/opt/bin:/bin",)), (pod.libraries(BROKEN), LACKS)],
)
def test_the_evidence_is_beside_it(found: Iterable[Finding], evidence: tuple[str, ...]) -> None:
    assert next(iter(found)).evidence == evidence
