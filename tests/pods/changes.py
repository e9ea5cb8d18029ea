"""What a job has with mpiboot that it has not with mpirun alone: a row each.

A page of the docs is made from it (scripts/pages), and `test_same_as_plain` lets nothing else
differ. The names are those of the tables in the code, where there are such.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from mpiboot.job.dialects import DIALECTS, HOSTFILE_VARS
from mpiboot.network.decision import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mpiboot.job.dialects import Variable

_ROWS: Final = tuple(DIALECTS.values())


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that mpiboot changes.

    `names` are the variables, patterns among them, and `values` what those get where it is always
    the same; `harm` is what happens without it; `leave` how it is switched off. `differs` are the
    other things in which a line's two runs may differ for it: as `same.differences` calls them.
    """

    what: str
    names: tuple[str, ...] = ()
    values: str = ""
    when: str
    harm: str
    leave: str
    differs: tuple[str, ...] = ()


def _columns(*names: str) -> tuple[str, ...]:
    """The variables that the MPIs' rows have in some columns."""
    found: dict[str, None] = {}
    for column in names:
        for row in _ROWS:
            value = getattr(row, column)
            found |= dict.fromkeys(_names(value))
    return tuple(found)


def _names(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from [value] if value else []
    elif isinstance(value, tuple):
        yield from chain.from_iterable(map(_names, value))
    elif value is not None:
        yield value.name  # type: ignore[attr-defined] # a Variable


def _constants(*names: str) -> tuple[Variable, ...]:
    """The constants of all rows of these names, once each."""
    every: Iterable[Variable] = chain.from_iterable(row.constants for row in _ROWS)
    return tuple({item.name: item for item in every if item.name in names}.values())


def _shown(items: Iterable[Variable]) -> str:
    return ", ".join(f"`{item.name}={item.value}`" for item in items)


_TRANSPORTS: Final = _constants(
    "OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_coll_hcoll_enable", "OMPI_MCA_coll_ucc_enable"
)
_FLAT: Final = _constants(
    "OMPI_MCA_routed", "PRTE_MCA_plm_ssh_no_tree_spawn", "I_MPI_HYDRA_BRANCH_COUNT"
)
_YOURS: Final = "your own value, by line, environment or one of Open MPI's own files, is kept"
_NEVER: Final = "not by itself: leave mpiboot out of that line (`/usr/bin/mpirun`)"

CHANGES: Final = {
    "hosts": Change(
        what="the hostfile is a copy of yours, with a number of slots for each host; Intel MPI "
        "gets it by `-machinefile`, and `-n` where nothing says how many ranks",
        # The last is what MPICH's ranks get of it: this pod is called by its own name.
        names=(*HOSTFILE_VARS, *_columns("default_slots_var"), "PMI_HOSTNAME"),
        when="always",
        harm="Open MPI 5 does not read the MPI Operator's variables, and runs the job in the "
        "launcher's pod alone; Intel MPI ignores the number behind a host; hosts that join or "
        "leave during the start are another list for the gate than for mpirun",
        leave=_NEVER,
    ),
    "agent": Change(
        what="`mpirun` calls mpiboot's launch agent, which calls ssh or your own agent; your ssh "
        "arguments stand in the ssh_config that it uses",
        names=_columns(
            *("agent_var", "agent_args_var", "agent_kind", "agent_kind_aliases"),
            *("agent_aliases", "agent_args_aliases"),
        ),
        when="always",
        harm="an ssh that fails, or a host that gets no daemon, is a job that waits for ever "
        "(Open MPI, MPICH 4) or that runs in the launcher's pod alone (`fork`)",
        leave="an agent of yours, by line or variable, is kept and called behind it; " + _NEVER,
    ),
    "flat": Change(
        what="`mpirun` starts the daemon of every host itself",
        names=(*(item.name for item in _FLAT), *_columns("attached", "concurrency_var")),
        values=_shown(_FLAT),
        when="always; agents at once where there are more than 128 hosts",
        harm="workers start each other's daemons: each needs the key and the names of others, and "
        "what their ssh says is lost; with fewer agents at once than hosts mpirun waits for ever",
        leave=_YOURS
        + "; fewer agents at once than hosts are raised to their number, with a warning",
    ),
    "names": Change(
        what="host names are taken as the gate found them",
        names=_columns("keep_fqdn_var", "keep_own_names_var", "not_resolve_var", "cut_prefix_var"),
        when="names with a dot; Open MPI",
        harm="Open MPI 4.1 cuts names at the first dot and asks for each host in turn, a second "
        "each where a nameserver is slow; 5.0 takes pods that are alike up to a dot for one",
        leave=_YOURS,
    ),
    "control-link": Change(
        what="daemons and MPI's own TCP keep to the link of the pods' addresses",
        names=(
            *_columns("daemon_link_var", "mpi_link_vars", "on_control_link"),
            "MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE",  # MPICH's mpiexec makes it of HYDRA_IFACE
        ),
        when="that link is known, and the same in all pods",
        harm="MPI tries every link; where a secondary network has no route between two pods the "
        "job hangs, and its bulk data goes over links that are meant for something else",
        leave=f"`MPIBOOT_CONTROL_IFNAME` names another; {_YOURS}, and so is an `..._if_exclude`",
    ),
    "transports": Change(
        what="MPI's own messages go over TCP, and by shared memory on one host",
        names=tuple(item.name for item in _TRANSPORTS),
        values=_shown(_TRANSPORTS),
        when="Open MPI, unless the data network is MPI's, too",
        harm="an MPI that is built with UCX, libfabric, HCOLL or openib opens whichever RDMA "
        "device it finds, and ends or hangs in MPI_Init where not all pods have it",
        leave="`MPIBOOT_MPI_NETWORK=data`, for programs whose data MPI itself carries over RDMA; "
        + _YOURS,
    ),
    "binding": Change(
        what="ranks are not bound to CPUs",
        names=(*_columns("bind_var"), "I_MPI_PIN_INFO", "I_MPI_PIN_MAPPING"),
        values="`none`; Intel MPI `0`",
        when="nothing of yours says anything of mapping, ranking, binding, CPUs or ranks per host, "
        "and the pod's CPUs are not its own (static CPU manager) or fewer than its slots",
        harm="mpirun binds the ranks of several pods to the same first CPUs while others are idle",
        leave=f"`--bind-to core`, or whatever you want, on the line; {_YOURS}",
        differs=("binding", "output"),
    ),
    "mapping": Change(
        what="more ranks than slots fill the hosts in turn",
        names=_columns("oversubscribe_var"),
        values="`slot:oversubscribe` (5.0), `1` (4.1)",
        when="`MPIBOOT_OVERSUBSCRIBE`, or with 5.0 `--oversubscribe`, and no mapping of yours",
        harm="Open MPI 5 starts all ranks on the first host then; 4.1 refuses them",
        leave=f"`--map-by` on the line; {_YOURS}",
        differs=("host",),
    ),
    "root": Change(
        what="`mpirun` may run as root",
        names=_columns("root"),
        when="Open MPI, where the launcher's pod runs as root",
        harm="mpirun refuses to run",
        leave="`runAsUser` in the pod's securityContext",
    ),
    "user": Change(
        what="who the user is",
        names=("HOME", "USER", "LOGNAME"),
        when="the variable is not set, as under a uid without a passwd entry",
        harm="Open MPI 5 ends without HOME, ssh and programs that ask for the user fail",
        leave="set it in the pod",
    ),
    "memory": Change(
        what="ranks of one host don't read each other's memory",
        names=_columns("no_single_copy"),
        when="a pod refuses process_vm_readv",
        harm="large messages between ranks of a host fail: `Read -1, expected ..., errno = 1`",
        leave=_YOURS,
    ),
    "ip-version": Change(
        what="MPI speaks the IP version of the pods' addresses",
        names=_columns("not_version_var", "not_daemons_vars", "ipv6"),
        when="pods have addresses of both versions, or of IPv6 alone",
        harm="MPI tries addresses that nobody listens on, and the job hangs",
        leave=_YOURS,
    ),
    "ports": Change(
        what="daemons and MPI's TCP keep to a range of ports",
        names=_columns(
            *("daemon_ports_vars", "daemon_range_vars"),
            *("first_port_vars", "port_count_vars", "range_vars"),
        ),
        when="`MPIBOOT_PORT_RANGE` asks for it",
        harm="a NetworkPolicy that leaves only these open drops the rest",
        leave="take the setting out",
    ),
    "forwarding": Change(
        what="ranks get variables of the launcher's pod, and don't get what holds in that pod "
        "alone; which: [forwarding](forwarding.md)",
        names=_columns("export_var"),
        when="Open MPI hands on what is named, MPICH and Intel MPI everything",
        harm="NCCL, UCX, libfabric and OpenMP behave in ranks otherwise than the pod's manifest "
        "says; a name, an address or GPUs of the launcher's pod hold for no worker",
        leave="`MPIBOOT_NO_FORWARD=NAME,...`; `-x NAME=VALUE`, `-genv NAME VALUE` on the line",
    ),
    "data-network": Change(
        what="what NCCL, UCX, libfabric and Gloo need for the links and devices that were found; "
        "why each: [data network](../data-network.md)",
        names=tuple(row.name for row in VARIABLES if not row.name.startswith("OMPI_")),
        when="a worker tells its links; each only where you set none of that kind",
        harm="NCCL takes the first link and every RDMA device it finds, with a GID that may not "
        "be routed; Gloo takes the address of the pod's name",
        leave=f"`MPIBOOT_DATA_NETWORK=off`; {_YOURS}",
    ),
    "torchrun": Change(
        what="`mpiboot rank` before each program, and where ranks meet",
        names=("MASTER_ADDR", "MASTER_PORT"),
        when="`MPIBOOT_RANK_ENV` asks for it, or the line has `mpiboot rank`",
        harm="a program for torchrun finds neither RANK nor MASTER_ADDR",
        leave="take the setting out",
    ),
    "empty-parameters": Change(
        what="an empty parameter of PRRTE's is taken out",
        when="Open MPI 5",
        harm="its mpirun crashes of it as soon as a daemon is started by ssh",
        leave=_NEVER,
    ),
    "marks": Change(
        what="variables of mpiboot's own, in daemons and ranks",
        names=("MPIBOOT_*",),
        when="always",
        harm="nobody knows after a kill which processes on a worker are of this job, and a worker "
        "that ends can't tell the launcher",
        leave=_NEVER,
    ),
    "messages": Change(
        what="`mpirun` tells mpiboot how each rank ended: its own messages by a handle of their "
        "own (Open MPI), `--runtime-options output-proctable=FILE` (5.0), `-print-all-exitcodes` "
        "(MPICH, Intel MPI; taken out of the output again)",
        names=("OPAL_OUTPUT_STDERR_FD", "PMIX_OUTPUT_STDERR_FD"),
        when="mpiboot stays as mpirun's parent",
        harm="which rank failed first, where and by which signal is told by no exit status",
        leave="`MPIBOOT_SUPERVISE=off`; the same option on your own line",
    ),
    "exit-status": Change(
        what="the exit status is the program's own, 127 where it is missing, 128 and more for a "
        "signal, and never 0 after a host or a rank was lost",
        when="mpiboot stays as mpirun's parent",
        harm="a Job that is started again by its exit code is not, or is in vain: mpirun's own "
        "status depends on its version, and 5.0 may return 0 after it lost a host",
        leave="`MPIBOOT_SUPERVISE=off`",
        differs=("status",),
    ),
    "intel-program": Change(
        what="`mpiexec.hydra` instead of `mpirun`",
        names=("PWD",),  # the script hands its own on
        when="Intel MPI",
        harm="its mpirun is a shell script: as a pod's first process it ignores SIGTERM, and "
        "killed it leaves the job running",
        leave="`MPIBOOT_SUPERVISE` does not change it; " + _NEVER,
    ),
    "limits": Change(
        what="`mpirun`'s soft limit of open files is raised to what the hosts need",
        when="many hosts",
        harm="mpirun ends at the host for which no descriptor is left",
        leave="set the limit in the pod",
    ),
}

# Variables that may differ between a run with mpiboot and one without.
CHANGED: Final = tuple(dict.fromkeys(chain.from_iterable(row.names for row in CHANGES.values())))
