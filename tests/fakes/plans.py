"""Hand-made observations to plan with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pytest

from mpiboot.core.addresses import is_address
from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.facts import Cpus, Host, Hostfile, Link, PodFacts, Worker
from mpiboot.core.model import Identity, Level, Mpi, MpiFamily, Source
from mpiboot.core.settings import resolve
from mpiboot.job.mpirun_line import read
from mpiboot.job.plan import Plan, make
from mpiboot.job.plan_input import LaunchPaths, Observed
from mpiboot.job.program_words import is_mpirun

ROOT: Final = Identity(0, 0, "root", "/root", "/bin/sh", known=True, capabilities=0)
NOBODY: Final = Identity(1000, 1000, "uid1000", "/", "/bin/sh", known=False, capabilities=0)
PATHS: Final = LaunchPaths("/run/mpiboot/launcher/launch", "/opt/agent")
MPIS: Final = {
    "openmpi4": Mpi(MpiFamily.OPENMPI4, "4.1.4", "/usr/bin/mpirun", "mpirun (Open MPI) 4.1.4"),
    "openmpi5": Mpi(MpiFamily.OPENMPI5, "5.0.7", "/usr/bin/mpirun", "mpirun (Open MPI) 5.0.7"),
}
both = pytest.mark.parametrize("family", list(MPIS))
HYDRAS: Final = {
    "mpich": Mpi(MpiFamily.MPICH, "4.0.2", "/usr/bin/mpirun", "HYDRA build details:"),
    "intel": Mpi(
        MpiFamily.INTEL,
        "2021.18.1",
        "/opt/mpi/bin/mpiexec.hydra",
        "Intel(R) MPI Library for Linux* OS, Version 2021.18.1",
    ),
}
# What the MPI Operator's controller sets on a launcher.
OPERATOR: Final = {
    "K_MPI_JOB_ROLE": "launcher",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    "OMPI_MCA_orte_set_default_slots": "2",
    "NVIDIA_VISIBLE_DEVICES": "",
    "NVIDIA_DRIVER_CAPABILITIES": "",
}
_GPU: Final = {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
HYDRA_OPERATOR: Final = {
    "mpich": {
        "K_MPI_JOB_ROLE": "launcher",
        "HYDRA_HOST_FILE": "/etc/mpi/hostfile",
        "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10",
        **_GPU,
    },
    "intel": {
        "K_MPI_JOB_ROLE": "launcher",
        "I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
        "I_MPI_PERHOST": "2",
        **_GPU,
    },
}
POD: Final = {"PATH": "/usr/bin:/bin", "HOME": "/root", "HOSTNAME": "job-launcher"}


def link(name: str, address: str) -> Link:
    return Link(2, name, "veth", up=True, mtu=1500, addresses=(address,))


def worker(host: Host, number: int, mpi: Mpi | None, *, name: str = "eth0") -> Worker:
    address = f"10.244.0.{number + 10}"
    facts = PodFacts(
        hostname=host.name.partition(".")[0],
        mpiboot="0",
        identity=ROOT,
        control_address=address,
        links=(link("lo", "127.0.0.1/8"), link(name, f"{address}/24")),
        mpi=mpi,
        sshd="openssh",
        memlock=-1,
        shm=1 << 30,
        environment=(),
        cpus=Cpus(usable=64, cores=32, online=64),
    )
    name = "" if is_address(host.name) else host.name
    return Worker(host, address, 22, "root", "10.244.0.9", facts, dns_name=name)


def hosts(*slots: int, domain: str = ".job.ns.svc") -> tuple[Host, ...]:
    return tuple(
        Host(f"w-{number}{domain}", count, slots_given=True, line=number + 1)
        for number, count in enumerate(slots)
    )


def observed(
    family: str = "openmpi4",
    environ: Mapping[str, str] = POD,
    *,
    listed: tuple[Host, ...] = hosts(2, 2),
    local: tuple[Host, ...] = (),
    renamed: Mapping[str, str] | None = None,
    identity: Identity = ROOT,
    worker_mpi: Mpi | None = None,
    worker_link: str = "eth0",
) -> Observed:
    mpi = {**MPIS, **HYDRAS}[family]
    return Observed(
        hostfile=Hostfile("/etc/mpi/hostfile", "default", listed),
        local=local,
        workers=tuple(
            worker(host, number, worker_mpi or mpi, name=worker_link)
            for number, host in enumerate(listed)
            if host not in local
        ),
        renamed=renamed or {},
        mpi=mpi,
        links=(link("lo", "127.0.0.1/8"), link("eth0", "10.244.0.9/24")),
        identity=identity,
        environ=environ,
        line=read(["mpirun", "./train"], MpiFamily(family)),
    )


def with_facts(seen: Observed, **facts: Sequence[object]) -> Observed:
    """The same, where workers have other facts: of each a value for every worker."""
    values = zip(*facts.values(), strict=True)
    workers = (
        replace(one, facts=one.facts and replace(one.facts, **dict(zip(facts, row, strict=True))))
        for one, row in zip(seen.workers, values, strict=True)
    )
    return replace(seen, workers=tuple(workers))


def planned(
    program: str | Sequence[str] = "./train",
    seen: Observed | None = None,
    flags: Mapping[str, str] | None = None,
) -> Plan:
    """Plan a line, or a program that mpirun starts, as one line or as words.

    Whatever is decided and found is said in words.
    """
    seen = seen or observed()
    words = program.split() if isinstance(program, str) else program
    words = words if is_mpirun(words[0]) else ("mpirun", *words)
    seen = replace(seen, line=read(words, seen.mpi.family))
    plan = make(seen, resolve(flags or {}, seen.environ), PATHS)
    told: list[object] = [*plan.argv, *plan.set_env.values(), *plan.unset_env]
    for decision in plan.decisions:
        assert isinstance(decision.source, Source), decision
        told += (decision.name, decision.value, decision.reason)
    for finding in plan.findings:
        assert finding.check in BY_REFERENCE, finding
        assert finding.message, finding
        told += (finding.message, finding.host, finding.hint, *finding.evidence, *finding.hosts)
    assert [word for word in told if not isinstance(word, str)] == []
    return plan


def failing(plan: Plan) -> list[str]:
    return [item.check for item in plan.findings if item.level is Level.FAIL]


def warned(plan: Plan) -> list[str]:
    return [item.message for item in plan.findings if item.level is Level.WARN]


def reason(plan: Plan, name: str) -> tuple[str, Source, str]:
    (found,) = [item for item in plan.decisions if item.name == name]
    return found.value, found.source, found.reason
