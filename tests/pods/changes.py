"""What a job has with mpiboot that it has not with mpirun alone: a row each.

A page of the docs is made from it (scripts/pages), and `test_same_as_plain` lets nothing else
differ. The names are those of the tables in the code, where there are such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from mpiboot.core.facts import Variable
from mpiboot.job.job_hosts import HOSTFILE_VARS
from mpiboot.job.mpis import IMPLEMENTATIONS, TRANSPORTS
from mpiboot.network.nccl import NCCL_GID, UCX_GID

_MPIS: Final = tuple(IMPLEMENTATIONS.values())


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that mpiboot changes.

    `names` are the variables, patterns among them, and `values` what those get where it is always
    the same; `harm` is what happens without it; `leave` how else than by one's own value, or
    the real mpirun, it is switched off. `differs` are the
    other things in which a line's two runs may differ for it: as `same.differences` calls them.
    """

    what: str
    names: tuple[str, ...] = ()
    values: str = ""
    when: str
    harm: str
    leave: str = ""
    differs: tuple[str, ...] = ()


def _columns(*names: str) -> tuple[str, ...]:
    """The variables that MPIs have under some names of attributes."""
    found: dict[str, None] = {}
    for column in names:
        for mpi in _MPIS:
            found |= dict.fromkeys(_names(getattr(mpi, column, ())))
    return tuple(found)


def _with_versions(names: Iterable[str]) -> tuple[str, ...]:
    """The names with each IP version in its place."""
    pairs = ((name.format(version=one, other=one), None) for name in names for one in (4, 6))
    return tuple(dict(pairs))


def _names(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from [value] if value else []
    elif isinstance(value, tuple):
        yield from chain.from_iterable(map(_names, value))
    elif value is not None:
        yield value.name  # type: ignore[attr-defined] # a Variable


def _constants(*names: str) -> tuple[Variable, ...]:
    """The constants of all MPIs of these names, once each."""
    every: Iterable[Variable] = chain.from_iterable(mpi.constants for mpi in _MPIS)
    return tuple({item.name: item for item in every if item.name in names}.values())


def _shown(items: Iterable[Variable]) -> str:
    return ", ".join(f"`{item.name}={item.value}`" for item in items)


_FLAT: Final = _constants(
    "OMPI_MCA_routed", "PRTE_MCA_plm_ssh_no_tree_spawn", "I_MPI_HYDRA_BRANCH_COUNT"
)

CHANGES: Final = {
    "hosts": Change(
        what="the hostfile is a copy of yours; `-n`, and Intel's `-machinefile`, are added where "
        "nothing says how many ranks",
        # The last is what MPICH's ranks get of it: this pod is called by its own name.
        names=(*HOSTFILE_VARS, *_columns("default_slots_var"), "PMI_HOSTNAME"),
        when="always",
        harm="Open MPI 5 ignores the MPI Operator's variables and runs the job in the launcher's "
        "pod alone; Intel MPI ignores slots; a hostfile that changes during the start differs from "
        "the hosts that were waited for",
    ),
    "agent": Change(
        what="`mpirun` calls mpiboot's launch agent, which uses the connection that mpiboot has "
        "opened, or calls your own agent; of ssh arguments port, user and time limits count",
        names=_columns(*("agent_vars", "agent_args_vars", "agent_kind_vars")),
        when="always",
        harm="a failed ssh, or a host without a daemon, makes the job wait for ever (Open MPI, "
        "MPICH 4) or run in the launcher's pod alone (`fork`)",
        leave="your own agent is kept and called by it",
    ),
    "flat": Change(
        what="`mpirun` starts the daemon of every host itself",
        names=(
            *(item.name for item in _FLAT),
            *_columns("attached", "concurrency_var"),
            "OMPI_MCA_plm_rsh_no_tree_spawn",  # of a command that is no mpirun
        ),
        values=_shown(_FLAT),
        when="always; agents at once where there are more than 128 hosts",
        harm="workers start each other's daemons: each needs the key and all names, and its ssh's "
        "messages are lost; with fewer agents at once than hosts mpirun waits for ever",
        leave="fewer agents at once than hosts are raised",
    ),
    "names": Change(
        what="host names are taken as the gate found them",
        names=_columns("keep_fqdn_var", "keep_hostnames_var", "not_resolve_var"),
        when="names with a dot; Open MPI",
        harm="Open MPI 4.1 cuts names at the first dot and looks up each host in turn, slowly "
        "where a nameserver is; 5.0 takes pods with the same first label for one",
    ),
    "control-link": Change(
        what="daemons and MPI's own TCP keep to the link of the pods' addresses",
        names=(
            *_columns("daemon_link_vars", "mpi_link_vars", "on_control_link"),
            "MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE",  # MPICH's mpiexec makes it of HYDRA_IFACE
        ),
        when="that link is known, and the same in all pods",
        harm="MPI tries every link, and hangs where a secondary network has no route between two "
        "pods",
        leave="`MPIBOOT_CONTROL_IFNAME`; your own `..._if_exclude`, too",
    ),
    "transports": Change(
        what="MPI's own messages go over TCP, and by shared memory on one host",
        names=tuple(item.name for item in TRANSPORTS),
        values=_shown(TRANSPORTS),
        when="Open MPI beside GPUs or without RDMA",
        harm="an MPI with UCX, libfabric, HCOLL or openib opens any RDMA device it finds, and "
        "fails or hangs in MPI_Init where not all pods have it",
        leave="`MPIBOOT_MPI_NETWORK=data`",
    ),
    "binding": Change(
        what="ranks are not bound to CPUs",
        names=(*_columns("bind_var"), "I_MPI_PIN_INFO", "I_MPI_PIN_MAPPING"),
        values="`none`; Intel MPI `0`",
        when="you set no mapping, ranking, binding, CPUs or ranks per host, and the pod has no "
        "CPUs of its own (static CPU manager), or fewer than slots",
        harm="mpirun binds the ranks of several pods to the same first CPUs",
        leave="`--bind-to core` on the line",
        differs=("binding", "output"),
    ),
    "root": Change(
        what="`mpirun` may run as root",
        names=_columns("root"),
        when="Open MPI, where the launcher's pod runs as root",
        harm="mpirun refuses to run",
        leave="`runAsUser` in the pod's securityContext",
    ),
    "user": Change(
        what="HOME, USER and LOGNAME are set",
        names=("HOME", "USER", "LOGNAME"),
        when="the variable is unset, as under a uid without a passwd entry",
        harm="Open MPI 5 fails without HOME; ssh and programs that look up the user fail",
        leave="set it in the pod",
    ),
    "memory": Change(
        what="ranks of one host don't read each other's memory",
        names=_columns("no_single_copy"),
        when="a pod refuses process_vm_readv",
        harm="large messages between ranks of a host fail: `Read -1, expected ..., errno = 1`",
    ),
    "ip-version": Change(
        what="MPI speaks the IP version of the pods' addresses",
        names=(
            *_with_versions(name for mpi in _MPIS for name, _ in getattr(mpi, "not_version", ())),
            *_columns("ipv6"),
        ),
        when="pods have addresses of both versions, or of IPv6 alone",
        harm="MPI tries addresses that nothing listens on, and the job hangs",
    ),
    "ports": Change(
        what="daemons and MPI's TCP keep to a range of ports",
        names=_with_versions(port.name for mpi in _MPIS for port in mpi.ports),
        when="`MPIBOOT_PORT_RANGE` is set",
        harm="a NetworkPolicy that allows only these ports drops the rest",
        leave="unset it",
    ),
    "forwarding": Change(
        what="ranks get variables of the launcher's pod, without those that belong to that pod "
        "([forwarding](forwarding.md))",
        when="always; by itself Open MPI passes on nothing, MPICH and Intel MPI everything",
        harm="NCCL, UCX and OpenMP ignore what the manifest sets; the launcher's own name, "
        "address and GPUs reach every worker",
        leave="`MPIBOOT_NO_FORWARD=NAME,...`; `-x NAME=VALUE`, `-genv NAME VALUE` on the line",
    ),
    "data-network": Change(
        what="NCCL, UCX, libfabric and Gloo are given the links and devices that were found "
        "([data network](../data-network.md))",
        names=(
            *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
            *(*NCCL_GID[:4], "NCCL_IB_PKEY", "NCCL_NET"),
            *(UCX_GID[0], *UCX_GID[2:], "UCX_IB_PKEY", "FI_TCP_IFACE", "FI_SOCKETS_IFACE"),
        ),
        when="a worker reports its links, and you set nothing of that kind",
        harm="NCCL takes the first link and every RDMA device, with a GID that may not be routed; "
        "Gloo takes the address of the pod's name",
        leave="`MPIBOOT_DATA_NETWORK=off`",
    ),
    "torchrun": Change(
        what="`mpiboot rank` is put before each program, and sets where ranks meet",
        names=("MASTER_ADDR", "MASTER_PORT"),
        when="`MPIBOOT_RANK_ENV=on`, or the line has `mpiboot rank`",
        harm="a program for torchrun finds neither RANK nor MASTER_ADDR",
        leave="unset it",
    ),
    "empty-parameters": Change(
        what="empty PRRTE parameters are removed",
        when="Open MPI 5",
        harm="its mpirun crashes when ssh starts a daemon",
    ),
    "marks": Change(
        what="daemons and ranks have mpiboot's own variables",
        names=("MPIBOOT_*",),
        when="always",
        harm="what a killed launcher left can't be told from other processes, and a worker that "
        "ends can't tell the launcher",
    ),
    "messages": Change(
        what="`mpirun` reports to mpiboot how each rank ended: its messages on a descriptor of "
        "their own (Open MPI), `--runtime-options output-proctable=FILE` (5.0), "
        "`-print-all-exitcodes` (MPICH, Intel MPI; removed from the output)",
        names=("OPAL_OUTPUT_STDERR_FD", "PMIX_OUTPUT_STDERR_FD"),
        when="mpiboot stays as mpirun's parent",
        harm="no exit status says which rank failed first, where and by which signal",
        leave="`MPIBOOT_SUPERVISE=off`; the same option on your own line",
    ),
    "exit-status": Change(
        what="the exit status is the program's own, 127 where it is missing, 128+n for a signal, "
        "and never 0 after a host or a rank was lost",
        when="mpiboot stays as mpirun's parent",
        harm="retries by exit code are in vain: mpirun's status depends on its version, and 5.0 "
        "may return 0 after a lost host",
        leave="`MPIBOOT_SUPERVISE=off`",
        differs=("status",),
    ),
    "intel-program": Change(
        what="`mpiexec.hydra` instead of `mpirun`",
        names=("PWD",),  # the script hands its own on
        when="Intel MPI",
        harm="its mpirun is a shell script: as PID 1 it ignores SIGTERM, and killed it leaves the "
        "job running",
    ),
    "command": Change(
        what="a folder with mpiboot's `mpirun` and `ssh` comes first on the `PATH` of a command "
        "that is no `mpirun`",
        when="such a command is run",
        harm="what it calls meets hosts that are not ready",
        leave="call them by their paths",
        differs=("PATH",),
    ),
    "limits": Change(
        what="`mpirun`'s soft limit of open files is raised to the hard one, to at most 65,536",
        when="always",
        harm="with many hosts mpirun fails where it runs out of descriptors",
        leave="give the pod a lower hard limit",
    ),
}

# Variables that may differ between a run with mpiboot and one without.
CHANGED: Final = tuple(dict.fromkeys(chain.from_iterable(row.names for row in CHANGES.values())))
