"""The plan of each MPI on each platform, as text: what ``tests/data/plans`` holds for review.

What a platform sets, mounts and calls its pods is in the tests of that platform with its sources;
here are the launcher's side of it, and lines of the user's that meet it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mpiboot.core import addresses
from mpiboot.core.facts import Host, Hostfile
from mpiboot.core.model import LogLevel, Mpi, Source
from mpiboot.job import hostfile, platforms, render
from mpiboot.job.mpis import implementation_of
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import Observed
from mpiboot.system import programs
from tests.fakes.plans import (
    HYDRA_OPERATOR,
    HYDRAS,
    MPIS,
    OPERATOR,
    POD,
    link,
    observed,
    planned,
    worker,
)
from tests.fakes.workers import changed

KNOWN: Final[Mapping[str, Mpi]] = {
    "openmpi-4.1": MPIS["openmpi4"],
    "openmpi-5.0": MPIS["openmpi5"],
    "openmpi-6.0": replace(MPIS["openmpi5"], version="6.0.0", banner="mpirun (Open MPI) 6.0.0"),
    "mpich-4.0": HYDRAS["mpich"],
    "mpich-5.0": replace(HYDRAS["mpich"], version="5.0.2", path="/opt/mpi/bin/mpirun"),
    "intel": HYDRAS["intel"],
    "spectrum": programs.recognise(
        "/opt/ibm/spectrum_mpi/bin/mpirun", "mpirun (IBM Spectrum MPI) 10.3.1.02rtm0"
    ),
}
HYDRA: Final = ("mpich-4.0", "mpich-5.0", "intel")
_TRAIN: Final = "./train --epochs 3"


@dataclass(frozen=True)
class Sample:
    """A platform's launcher.

    ``hosts`` is the text of its list of hosts, ``path`` and ``by`` where that was found. ``own`` is
    this pod's name in it, if it has one. ``everywhere`` are variables that workers have too.
    """

    environ: Callable[[str], Mapping[str, str]]
    hosts: str
    path: str
    by: str
    source: Source | None = None
    hostname: str = "train-launcher"
    own: str = ""
    everywhere: tuple[str, ...] = ()
    lines: Callable[[str], tuple[str, ...]] = lambda _: (_TRAIN,)
    flags: Mapping[str, str] = field(default_factory=dict)


_VOLCANO: Final = {
    "VC_TASK_INDEX": "0",
    "VK_TASK_INDEX": "0",
    "VC_MASTER_HOSTS": "train-master-0.train",
    "VC_MASTER_NUM": "1",
    "VC_WORKER_HOSTS": "train-worker-0.train,train-worker-1.train",
    "VC_WORKER_NUM": "2",
}
_LSF: Final = {
    "LSB_JOBID": "77",
    "LSB_DJOB_HOSTFILE": "/home/me/.lsbatch/1.77.hostfile",
    "LSB_MCPU_HOSTS": "hostA 4 hostB 2",
    "LSF_BINDIR": "/opt/lsf/bin",
}
_TRAINER: Final = {
    **{name: value for name, value in OPERATOR.items() if name.startswith("OMPI_")},
    "JOB_COMPLETION_INDEX": "0",
}
_INDEXED: Final = {
    "JOB_COMPLETION_INDEX": "0",
    "MPIBOOT_ROLE": "by-index",
    "MPIBOOT_REPLICAS": "2",
    "MPIBOOT_SERVICE": "train",
    "MPIBOOT_NAME": "train",
    "MPIBOOT_SLOTS": "2",
}


def _lines(mpi: str) -> tuple[str, ...]:
    """A program, and lines of the user's as manifests have them."""
    if mpi in HYDRA:
        flags = "mpirun -f /etc/mpi/hostfile -n 2 -ppn 1 -genv NCCL_DEBUG INFO -l ./train -n 9"
    else:
        flags = (
            "mpirun -n 2 --hostfile /etc/mpi/hostfile --map-by node -x NCCL_DEBUG=INFO "
            "--mca btl self,tcp --bind-to core ./train -n 9"
        )
    return _TRAIN, "mpirun ./train", flags


SAMPLES: Final[Mapping[str, Sample]] = {
    "mpi-operator": Sample(
        environ=lambda mpi: {
            **(HYDRA_OPERATOR[mpi.partition("-")[0]] if mpi in HYDRA else OPERATOR),
            "NCCL_DEBUG": "WARN",
            "NCCL_IB_HCA": "mlx5_0",
            "OMP_NUM_THREADS": "4",
            **({"HYDRA_LAUNCHER": "fork"} if mpi in HYDRA else {"OMPI_MCA_pml": "ucx"}),
        },
        hosts="train-worker-0.train.ns.svc slots=2\ntrain-worker-1.train.ns.svc slots=2\n",
        path="/etc/mpi/hostfile",
        by="OMPI_MCA_orte_default_hostfile",
        everywhere=("K_MPI_JOB_ROLE", "OMP_NUM_THREADS"),
        lines=_lines,
    ),
    "trainer": Sample(
        environ=lambda _: _TRAINER,
        hosts="".join(
            f"{name}.train slots=2\n"
            for name in ("train-launcher-0-0", "train-node-0-0", "train-node-0-1")
        ),
        path="/etc/mpi/hostfile",
        by="OMPI_MCA_orte_default_hostfile",
        hostname="train-launcher-0-0",
        own="train-launcher-0-0.train",
        everywhere=("JOB_COMPLETION_INDEX",),
    ),
    "volcano": Sample(
        environ=lambda _: {**_VOLCANO, platforms.VOLCANO_MASTER: _VOLCANO["VC_WORKER_HOSTS"]},
        hosts=_VOLCANO["VC_WORKER_HOSTS"].replace(",", "\n"),
        path="/etc/volcano/worker.host",
        by=f"{platforms.VOLCANO_MASTER} of Volcano's mpi plugin",
        source=Source.PLATFORM,
        hostname="train-master-0",
        everywhere=tuple(_VOLCANO),
        flags={"slots": "2"},
    ),
    "statefulset": Sample(
        environ=lambda _: {"OMPI_MCA_orte_default_hostfile": "/opt/mpi/etc/hostfile"},
        hosts="my-cnode-0 slots=2\nmy-cnode-1 slots=2\n",
        path="/opt/mpi/etc/hostfile",
        by="OMPI_MCA_orte_default_hostfile",
        hostname="my-launcher-x7k2p",
    ),
    "indexed-job": Sample(
        environ=lambda _: _INDEXED,
        hosts="train-0.train\ntrain-1.train\n",
        path="train-[0-1].train",
        by="MPIBOOT_REPLICAS",
        source=Source.ENVIRONMENT,
        hostname="train-0",
        own="train-0.train",
        everywhere=tuple(_INDEXED),
    ),
    "lsf": Sample(
        environ=lambda _: _LSF,
        hosts=platforms.of_lsf_pairs(_LSF["LSB_MCPU_HOSTS"]),
        path="LSB_MCPU_HOSTS",
        by="LSF",
        source=Source.PLATFORM,
        hostname="launcher",
        everywhere=tuple(_LSF),
    ),
    "plain": Sample(
        environ=lambda _: {},
        hosts="w-0 slots=2\nw-1 slots=2\n",
        path="/etc/mpi/hostfile",
        by="default",
        hostname="launcher",
    ),
}


def seen(platform: str, mpi: str) -> Observed:
    """What a launcher of the platform has before it, every worker having the same MPI."""
    sample, installed = SAMPLES[platform], KNOWN[mpi]
    listed = hostfile.parse(sample.hosts, sample.path, sample.by).hosts
    local = tuple(host for host in listed if host.name == sample.own)
    workers = [
        changed(worker(host, number, installed), environment=sample.everywhere)
        for number, host in enumerate(listed)
        if host not in local
    ]
    own = worker(Host(sample.hostname), -1, installed).facts
    mpi_ = implementation_of(installed)
    assert mpi_
    return replace(
        observed(),
        hostfile=Hostfile(sample.path, sample.by, listed, sample.source),
        local=local,
        workers=tuple(workers),
        renamed=addresses.for_mpirun(
            [host.name for host in listed],
            [host.name for host in local],
            sample.hostname,
            by_first_label=mpi_.by_first_label,
        ),
        mpi=installed,
        links=(link("lo", "127.0.0.1/8"), link("eth0", "10.244.0.9/24")),
        environ={**POD, "HOSTNAME": sample.hostname, **sample.environ(mpi)},
        own=own,
    )


def files() -> dict[str, str]:
    """The text of every file, by its path below ``tests/data/plans``."""
    return {
        f"{platform}/{mpi}.txt": "\n".join(
            text(line, seen(platform, mpi), sample.flags) for line in sample.lines(mpi)
        )
        for platform, sample in SAMPLES.items()
        for mpi in KNOWN
    }


def parts(plan: Plan, seen: Observed) -> dict[str, list[str]]:
    """What a plan has of each kind, for people to review."""
    return {
        "argv": [shlex.join(plan.argv)],
        "hostfile": plan.hostfile.splitlines(),
        "remote hosts": [" ".join(plan.remote_hosts)],
        "ranks": [str(plan.ranks)],
        "set": [f"{name}={value}" for name, value in sorted(plan.set_env.items())],
        "removed": list(plan.unset_env),
        "set for one host": [
            f"{host}: {name}={value}"
            for host, mine in plan.per_host.items()
            for name, value in sorted(mine.items())
        ],
        "for launch agents alone": [f"{name}={value}" for name, value in plan.agent_env.items()],
        "ssh": [*plan.user_args.lines, *plan.user_args.words],
        "decisions": [
            f"{item.name} = {item.value} ({item.source.value}: {item.reason})"
            for item in plan.decisions
        ],
        "findings": [f"{item.level.value} {item.check}: {item.message}" for item in plan.findings],
        "log": [
            f"{event} = {message}"
            for level, event, message, _ in render.log_lines(plan, seen)
            if level is LogLevel.INFO
        ],
    }


def text(line: str, seen: Observed, flags: Mapping[str, str]) -> str:
    """A plan for people to review: one thing a line."""
    shown = (
        f"{title}\n" + "".join(f"    {item}\n" for item in items)
        for title, items in parts(planned(line, seen, flags), seen).items()
        if items
    )
    return f"# {line}\n" + "".join(shown)
