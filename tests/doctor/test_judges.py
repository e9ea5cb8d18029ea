"""Each judge of a pod's parts, with a value for every outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.facts import Fabric, Gpus, PodFacts
from mpiboot.core.model import Finding, Level
from mpiboot.core.settings import Settings
from mpiboot.doctor import pod
from mpiboot.doctor.checks import DoctorCheck
from mpiboot.doctor.pod import ImagePart, LimitsPart, MemoryPart, Program, ShmPart
from tests.fakes import plans

MPI = plans.MPIS["openmpi4"]
ORTED = Program("orted", "/usr/bin/orted")
GIB, MIB = 1 << 30, 1 << 20
USED = "memory: 1 GiB of 4 GiB in use"

_FACTS = plans.worker(plans.hosts(2)[0], 0, MPI).facts
assert _FACTS is not None
FACTS: PodFacts = _FACTS


def told(found: Iterable[Finding]) -> list[str]:
    """Level and sentence; what is not well says what to do."""
    listed = list(found)
    assert all(item.hint or item.level is Level.OK for item in listed)
    assert all(item.check in BY_REFERENCE for item in listed)
    return [f"{item.level.value}: {item.message}" for item in listed]


def an_image(
    ssh: str = "/usr/bin/ssh", daemon: Program | None = ORTED, lacks: tuple[str, ...] = ()
) -> ImagePart:
    listed = (Program("mpirun", MPI.path, lacks), Program("ssh", ssh))
    return ImagePart(MPI, listed, daemon, "/usr/bin")


NO_MPI = ImagePart(None, (Program("ssh", ""),), None, "/opt/bin:/bin")
NO_ORTED = Program("orted", "")
LACKS = ("libhwloc.so.15 => not found",)
BROKEN = Program("orted", "/usr/bin/orted", LACKS)


SAME = {"locked memory": -1, "open files": 1024}
SAME_SAYS = "locked memory unlimited, open files 1024"
LOW_SAYS = (
    "locked memory 64 KiB (the first process: unlimited), processes 10 (the first process: 20)"
)
LOW = {"locked memory": 65536, "open files": 1 << 20, "processes": 10}
HIGH = {"locked memory": -1, "open files": 1024, "processes": 20}


def with_gpus(gpus: Gpus) -> PodFacts:
    return replace(FACTS, gpus=gpus)


@pytest.mark.parametrize(
    ("judge", "parts", "expected"),
    [
        # -- image
        (
            *(pod.programs, [an_image()]),
            ["ok: mpirun is /usr/bin/mpirun, mpirun (Open MPI) 4.1.4"],
        ),
        (pod.programs, [NO_MPI], ["fail: no mpirun or mpiexec on PATH"]),
        (pod.daemon, [an_image()], ["ok: orted is /usr/bin/orted"]),
        (
            *(pod.daemon, [an_image(daemon=NO_ORTED)]),
            ["fail: /usr/bin/mpirun has no orted beside it or on PATH"],
        ),
        (pod.daemon, [an_image(daemon=None)], []),
        (pod.daemon, [NO_MPI], []),
        (
            *(pod.libraries, [an_image(lacks=LACKS)]),
            ["fail: /usr/bin/mpirun does not find all of its shared libraries"],
        ),
        (
            *(pod.libraries, [an_image(daemon=BROKEN)]),
            ["fail: /usr/bin/orted does not find all of its shared libraries"],
        ),
        (
            *(pod.libraries, [an_image(ssh="")]),
            ["ok: shared libraries: all are found for mpirun, orted"],
        ),
        (pod.passwd, [plans.ROOT], ["ok: uid 0 is root, home /root"]),
        (pod.passwd, [plans.NOBODY], ["warn: uid 1000 has no passwd entry"]),
        # -- limits and memory
        (
            *(pod.limits, [LimitsPart(SAME, SAME)]),
            [f"ok: SSH sessions have the limits of the first process: {SAME_SAYS}"],
        ),
        (*(pod.limits, [LimitsPart(LOW, HIGH)]), [f"warn: SSH sessions get less: {LOW_SAYS}"]),
        (pod.limits, [LimitsPart({}, {"open files": 1})], []),
        (pod.shm, [ShmPart(GIB, 0)], ["ok: 0 bytes of 1 GiB in /dev/shm in use"]),
        (pod.shm, [ShmPart(GIB, GIB)], ["warn: 1 GiB of 1 GiB in /dev/shm in use"]),
        (pod.memory, [MemoryPart(0, GIB, 0)], ["ok: memory: 1 GiB in use (no limit)"]),
        (pod.memory, [MemoryPart(4 * GIB, GIB, 0)], [f"ok: {USED}"]),
        (pod.memory, [MemoryPart(GIB, GIB - MIB, 0)], ["warn: memory: 1023 MiB of 1 GiB in use"]),
        (
            *(pod.memory, [MemoryPart(4 * GIB, GIB, 1)]),
            [f"warn: out of memory: the kernel killed 1 process here; {USED}"],
        ),
        # -- SSH servers
        (pod.ssh_servers, [()], []),
        (
            *(pod.ssh_servers, [("port 22: process 7 (sshd)",)]),
            ["warn: port 22: process 7 (sshd) listens, which mpiboot did not start"],
        ),
        # -- data network and GPUs; rules that compare workers say nothing of one
        (
            pod.data_network,
            [replace(FACTS, shm=64 * MIB, gpus=Gpus(2)), Settings()],
            [
                "warn: /dev/shm has 64 MiB for 2 ranks",
                "ok: no RDMA device of this pod; data goes over TCP",
            ],
        ),
        (pod.gpus, [with_gpus(Gpus())], []),
        (pod.gpus, [with_gpus(Gpus(8))], ["ok: 8 GPUs"]),
        (
            *(pod.gpus, [with_gpus(Gpus(7, lost=1))]),
            ["warn: 1 of 8 GPUs in /dev are no longer on the PCI bus"],
        ),
        # -- variables
        (pod.named_links, [{}, FACTS], []),
        (pod.named_links, [{"GLOO_SOCKET_IFNAME": "eth0"}, FACTS], []),
        (*(pod.named_links, [{"OMPI_MCA_btl_tcp_if_include": "10.0.0.0/8,eth0"}, FACTS]), []),
        (
            *(pod.named_links, [{"GLOO_SOCKET_IFNAME": "ens5"}, FACTS]),
            ["warn: GLOO_SOCKET_IFNAME=ens5: no link ens5 here (there are lo, eth0)"],
        ),
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
    [
        (pod.programs(NO_MPI), ("PATH=/opt/bin:/bin",)),
        (pod.libraries(an_image(lacks=LACKS)), LACKS),
    ],
)
def test_the_evidence_is_beside_it(found: Iterable[Finding], evidence: tuple[str, ...]) -> None:
    assert next(iter(found)).evidence == evidence
