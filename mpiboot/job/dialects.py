"""The MPIs as rows: which names each one reads for the same intent. Pure data, no I/O.

Measured on Open MPI 4.1.4 and 5.0.7 to 5.0.11, MPICH 4.0.2 (Debian's) and 5.0.2 (PyPI's), Intel MPI
2021.18.1. A new MPI is a new row; an intent that a row can't express is an empty column, and the
plan says what is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from mpiboot.core.facts import Variable
from mpiboot.core.model import Mpi, MpiFamily, Source
from mpiboot.job import platforms
from mpiboot.job.hostfile import Syntax
from mpiboot.job.mpirun_options import (
    HYDRA,
    INTEL_HYDRA,
    ORTE,
    PRRTE,
    SPECTRUM_ORTE,
    Grammar,
)


class PortVariable(NamedTuple):
    """A variable for a part of a range of ports: of ``names`` the user's counts, else the first.

    ``version`` in a name is the IP version; the value is made of ``first``, ``last`` and ``count``.
    """

    names: tuple[str, ...]
    value: str
    daemons: bool = False


class Export(Enum):
    """How an MPI forwards variables of the launcher to the ranks."""

    OPTION = "a `-x NAME` each"
    VARIABLE = "a variable with a list of names"
    ALL = "all of them, by itself"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One row.

    Columns that end in ``_var`` name the environment variable of an intent; empty where this
    MPI has none. ``evaluated`` is the prefix of variables whose values reach the workers' shell
    unescaped, but that of ``export_var``; ``evaluated_flags`` are
    the ``--mca`` parameters that do so. ``export_var`` is the list of forwarded names; with
    ``Export.ALL`` (Hydra) the launcher's whole environment overwrites the workers'.
    ``one_link`` is true where the daemons' link must be a single name or CIDR.
    """

    family: MpiFamily
    title: str
    syntax: Syntax
    # How the user's own line is read.
    grammar: Grammar
    # What begins each line of output with its rank, and the options beside which it can't stand.
    tag_option: tuple[str, ...]
    tagged_by: tuple[str, ...]
    hostfile_var: str
    # Of these the first is this MPI's own; it reads the others too, or others set them for it.
    agent_vars: tuple[str, ...]
    agent_args_vars: tuple[str, ...]
    daemon_link_vars: tuple[str, ...]
    one_link: bool
    mpi_link_vars: tuple[str, ...]
    export: Export
    # Patterns of variables that ranks get without being named.
    by_itself: tuple[str, ...]
    # What of the output tag_option loses.
    tag_loses: str = ""
    keep_fqdn_var: str = ""
    # The slots of hosts for which the hostfile has no number.
    default_slots_var: str = ""
    concurrency_var: str = ""
    bind_var: str = ""
    map_var: str = ""
    # Variables that say anything of mapping, ranking, binding or CPUs, as patterns.
    pinning_vars: tuple[str, ...] = ()
    oversubscribe_var: str = ""
    oversubscribe_value: str = ""
    constants: tuple[Variable, ...] = ()
    root: tuple[Variable, ...] = ()
    export_var: str = ""
    evaluated: str = ""
    evaluated_flags: tuple[str, ...] = ()
    # The program to start where it is not the mpirun that was asked what it is: one beside that.
    program: str = ""
    # The only option with which a hostfile's numbers count; else each host has the default number.
    slots_option: str = ""
    # `binding=` behind a host says how the ranks there are bound.
    hostfile_binding: bool = False
    # No binding, as bind_var has it.
    bind_value: str = "none"
    # What else keeps MPI's messages on the control link.
    on_control_link: tuple[Variable, ...] = ()
    # What chooses the kind of launch agent, with the value that calls the agent.
    agent_kind: Variable | None = None
    agent_kind_aliases: tuple[str, ...] = ()
    # The daemons' link is the launcher's own, and links are known by name alone.
    own_link: bool = False
    # mpirun's own host counts as the first, wherever the hostfile has it.
    own_host_first: bool = False
    # An option, and the beginning of its value, that names a file for which rank is where.
    rank_table: tuple[str, ...] = ()
    # An option by which mpirun tells at its end every rank's exit code, a line a host.
    exit_codes_option: str = ""
    # What is done about a series that was not tried.
    untried: str = ""
    # A range of ports.
    ports: tuple[PortVariable, ...] = ()
    # Variables and values that keep MPI and its daemons from the ``other`` IP version (4 or 6), and
    # what pods of IPv6 need set.
    not_version: tuple[tuple[str, str], ...] = ()
    # Its daemons find no IPv6 address of a link.
    ipv4_only: bool = False
    ipv6: tuple[Variable, ...] = ()
    # Connections from an address that is not the peer's own are dropped, and the job hangs.
    checks_peer_address: bool = False
    # Seconds that an agent whose daemon succeeded waits for mpirun to end first: the SIGCHLD of an
    # agent cuts off what mpirun is writing (docs/reference/open-mpi-output.md).
    agent_linger: int = 0
    # Hosts that are alike up to the first dot are one host; what keeps their own names whole.
    by_first_label: bool = False
    keep_own_names_var: str = ""
    # The version whose daemons die at a line with several programs (`:`).
    several_programs_fail: str = ""
    # Keeps ranks of one host from reading each other's memory.
    no_single_copy: Variable | None = None
    # The handle of mpirun's own messages, where ranks on its own host would inherit it.
    messages_var: str = ""
    # Keeps mpirun from looking hosts up to see whether they are its own.
    not_resolve_var: str = ""
    # What of a user's makes daemons leave their agents, and what keeps them there beside it.
    leaving_var: str = ""
    attached: tuple[Variable, ...] = ()
    # Prefix of variables that crash mpirun where they are empty.
    never_empty: str = ""

    @property
    def oversubscribes_by_mapping(self) -> bool:
        """Whether more ranks than slots are a part of the mapping's value."""
        return bool(self.map_var) and self.oversubscribe_var == self.map_var


def version_number(version: str) -> tuple[int, ...]:
    """Read a version so that it can be compared."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def parameter(variable: str) -> str:
    """Cut a variable to the name that ``--mca`` takes."""
    for prefix in ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_"):
        if variable.startswith(prefix):
            return variable[len(prefix) :]
    return variable


_ANOTHER_KIND: Final = "another kind would start no launch agent"

MPICH: Final = Dialect(
    family=MpiFamily.MPICH,
    title="MPICH (Hydra)",
    syntax=Syntax.COLON,
    grammar=HYDRA,
    tag_option=("-prepend-rank",),
    tagged_by=("l", "prepend-pattern"),  # "duplicate setting", and mpirun ends
    exit_codes_option="-print-all-exitcodes",
    hostfile_var="HYDRA_HOST_FILE",
    hostfile_binding=True,
    # Another kind than ssh calls no agent, and fork starts every rank on the launcher.
    agent_kind=Variable("HYDRA_LAUNCHER", "ssh", _ANOTHER_KIND),
    agent_kind_aliases=("HYDRA_BOOTSTRAP",),
    agent_vars=("HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP_EXEC"),
    # The MPI Operator sets the second one, and no MPICH reads it.
    agent_args_vars=("HYDRA_LAUNCHER_EXTRA_ARGS", "HYDRA_LAUNCH_EXTRA_ARGS"),
    daemon_link_vars=("HYDRA_IFACE",),
    one_link=True,
    own_link=True,
    ipv4_only=True,
    # UCX's, and libfabric's where MPIR_CVAR_CH4_NETMOD=ofi asks for it.
    # FI_TCP_IFACE alone does nothing there; both together do, whichever provider is chosen.
    mpi_link_vars=("UCX_NET_DEVICES", "FI_TCP_IFACE", "FI_SOCKETS_IFACE"),
    export=Export.ALL,
    by_itself=("*",),
    # 5.0's shared memory reads other ranks' memory without having tried it; 4.0 never does.
    no_single_copy=Variable(
        "MPIR_CVAR_CH4_CMA_ENABLE", "0", "ranks of one host copy by shared memory"
    ),
    # mpiexec and its proxies; then the ranks' own connections, with an older name.
    ports=(
        PortVariable(("MPIEXEC_PORT_RANGE",), "{first}:{last}", daemons=True),
        PortVariable(("MPIR_CVAR_CH3_PORT_RANGE", "MPICH_PORT_RANGE"), "{first}:{last}"),
    ),
)

# Hydra too, under names of its own.
INTEL: Final = replace(
    MPICH,
    family=MpiFamily.INTEL,
    title="Intel MPI (Hydra)",
    grammar=INTEL_HYDRA,
    tagged_by=(*MPICH.tagged_by, "prepend-timestamp"),
    # Its mpirun is a script that starts whichever mpiexec.hydra is on PATH, and as a pod's first
    # process it ignores SIGTERM.
    program="mpiexec.hydra",
    hostfile_var="I_MPI_HYDRA_HOST_FILE",
    hostfile_binding=False,
    slots_option="-machinefile",
    agent_kind=Variable("I_MPI_HYDRA_BOOTSTRAP", "ssh", _ANOTHER_KIND),
    agent_kind_aliases=("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP"),
    agent_vars=("I_MPI_HYDRA_BOOTSTRAP_EXEC", "HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP_EXEC"),
    agent_args_vars=("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",),
    default_slots_var="I_MPI_PERHOST",
    daemon_link_vars=("I_MPI_HYDRA_IFACE",),
    mpi_link_vars=("FI_TCP_IFACE",),
    # FI_PROVIDER would be NCCL's as well.
    on_control_link=(
        Variable("I_MPI_OFI_PROVIDER", "tcp", "MPI's own messages go over TCP on the control link"),
    ),
    bind_var="I_MPI_PIN",
    bind_value="0",
    pinning_vars=("I_MPI_PIN", "I_MPI_PIN_*"),
    constants=(
        Variable("I_MPI_HYDRA_BRANCH_COUNT", "0", "flat: no worker needs to reach another"),
    ),
    ports=(
        PortVariable(("I_MPI_PORT_RANGE", "MPIEXEC_PORT_RANGE"), "{first}:{last}", daemons=True),
    ),
    no_single_copy=None,
)


def _ports(daemons: str) -> tuple[PortVariable, ...]:
    """Give Open MPI's variables: MPI's TCP has first port and number for both IP versions."""
    mpis = (("min", "{first}"), ("range", "{count}"))
    return (
        PortVariable((daemons,), "{first}-{last}", daemons=True),
        *(
            PortVariable((f"OMPI_MCA_btl_tcp_port_{what}_v{version}",), value)
            for what, value in mpis
            for version in (4, 6)
        ),
    )


_OTHER_FAMILY: Final = ("OMPI_MCA_btl_tcp_disable_family", "{other}")
OMPI_TRANSPORTS: Final = (
    Variable(
        "OMPI_MCA_pml",
        "ob1",
        "MPI's own messages go over TCP; NCCL carries the data by itself",
    ),
    # vader is the name of the shared-memory transport that both 4.1 and 5.0 accept.
    Variable("OMPI_MCA_btl", "self,vader,tcp", "TCP between hosts, shared memory within one"),
    Variable("OMPI_MCA_coll_hcoll_enable", "0", "HCOLL would open RDMA devices for MPI itself"),
    Variable("OMPI_MCA_coll_ucc_enable", "0", "UCC would open RDMA devices for MPI itself"),
)
OMPI_ROOT: Final = (
    Variable("OMPI_ALLOW_RUN_AS_ROOT", "1", "this pod runs as root", Source.DETECTED),
    Variable("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", "this pod runs as root", Source.DETECTED),
)


def _pinning(prefixes: str, parameters: str) -> tuple[str, ...]:
    return tuple(
        f"{prefix}{parameter}" for prefix in prefixes.split() for parameter in parameters.split()
    )


# By ompi_info 4.1.4, and the sources of PRRTE 3.0.8, which takes OMPI_MCA_ for these as well
# (translate_params in schizo_ompi.c).
_PINNING_4: Final = _pinning(
    "OMPI_MCA_",
    "rmaps rmaps_base_*policy rmaps_base_by* rmaps_base_*per* rmaps_base_pattern rmaps_ppr_* "
    "rmaps_rank_file_* rmaps_dist_device orte_rankfile hwloc_base_bind* hwloc_base_cpu_* "
    "hwloc_base_slot_list hwloc_base_use_hwthreads_as_cpus",
)
_PINNING_5: Final = _pinning(
    "PRTE_MCA_ OMPI_MCA_",
    "rmaps rmaps_default_*policy hwloc_default_binding_policy hwloc_default_cpu_list "
    "hwloc_base_bind_to_* hwloc_*use_hwthreads_as_cpus",
)

OPENMPI4: Final = Dialect(
    family=MpiFamily.OPENMPI4,
    title="Open MPI 4.1 (ORTE)",
    syntax=Syntax.SLOTS,
    grammar=ORTE,
    tag_option=("--tag-output",),
    tagged_by=("tag-output",),
    # ORTE_IOF_BASE_TAGGED_OUT_MAX is 8192, for a piece of 4096 with all its labels
    # (orte/mca/iof/base/iof_base_output.c); 31 % of short lines were lost with 4.1.4.
    tag_loses="where a rank writes many lines at once that are shorter than their labels, its "
    "`--tag-output` cuts off a part of them",
    own_host_first=True,
    hostfile_var="OMPI_MCA_orte_default_hostfile",
    agent_vars=("OMPI_MCA_plm_rsh_agent",),
    agent_args_vars=("OMPI_MCA_plm_rsh_args",),
    keep_fqdn_var="OMPI_MCA_orte_keep_fqdn_hostnames",
    default_slots_var="OMPI_MCA_orte_set_default_slots",
    daemon_link_vars=("OMPI_MCA_oob_tcp_if_include",),
    one_link=False,
    checks_peer_address=True,
    mpi_link_vars=("OMPI_MCA_btl_tcp_if_include",),
    concurrency_var="OMPI_MCA_plm_rsh_num_concurrent",
    bind_var="OMPI_MCA_hwloc_base_binding_policy",
    map_var="OMPI_MCA_rmaps_base_mapping_policy",
    pinning_vars=_PINNING_4,
    oversubscribe_var="OMPI_MCA_rmaps_base_oversubscribe",
    oversubscribe_value="1",
    constants=(
        *OMPI_TRANSPORTS,
        # A bare no_tree_spawn lets orted daemonize, and the agent ends at once.
        Variable(
            "OMPI_MCA_routed",
            "direct",
            "no worker starts another one, and each host's agent runs as long as the job",
        ),
    ),
    root=OMPI_ROOT,
    export=Export.OPTION,
    export_var="OMPI_MCA_mca_base_env_list",
    evaluated="OMPI_MCA_",
    evaluated_flags=("*",),
    by_itself=("OMPI_*", "PMIX_MCA_*"),
    no_single_copy=Variable(
        "OMPI_MCA_btl_vader_single_copy_mechanism",
        "none",
        "ranks of one host copy by /dev/shm",
        Source.DETECTED,
    ),
    messages_var="OPAL_OUTPUT_STDERR_FD",
    ports=_ports("OMPI_MCA_oob_tcp_dynamic_ipv{version}_ports"),
    not_version=(_OTHER_FAMILY, ("OMPI_MCA_oob_tcp_disable_ipv{other}_family", "1")),
    # Else each host of the hostfile is asked for in turn, to see whether it is mpirun's own.
    not_resolve_var="OMPI_MCA_if_base_do_not_resolve",
    # Many guides set it for a flat launch, which routed=direct is already.
    leaving_var="OMPI_MCA_plm_rsh_no_tree_spawn",
    attached=(
        Variable(
            "OMPI_MCA_orte_leave_session_attached",
            "1",
            "plm_rsh_no_tree_spawn is set, and by itself daemons would leave their agents",
            Source.DETECTED,
        ),
    ),
)

# 5.0 routes --mca by framework; prted gets those of PRRTE, as its own parameter PREFIXES has them.
_PRRTE_FRAMEWORKS: Final = (
    "prte errmgr ess filem grpcomm iof odls oob plm prtebacktrace prtedl prteinstalldirs "
    "prtereachable ras rmaps rml routed rtc schizo state hwloc if reachable"
)

OPENMPI5: Final = Dialect(
    family=MpiFamily.OPENMPI5,
    title="Open MPI 5.0 (PRRTE)",
    syntax=Syntax.SLOTS,
    grammar=PRRTE,
    tag_option=("--output", "tag"),
    tagged_by=("output", "tag-output"),  # of two --output the first counts, and the other is lost
    rank_table=("--runtime-options", "output-proctable="),
    hostfile_var="PRTE_MCA_prte_default_hostfile",
    agent_vars=("PRTE_MCA_plm_ssh_agent",),
    agent_args_vars=("PRTE_MCA_plm_ssh_args",),
    agent_linger=5,
    # Measured with 5.0.7: of `a.b-0` and `a.b-1` the hostfile has one host ("multiple definitions
    # of the slot count"). The variable doesn't change that, but that daemons then call their own
    # hosts `a` both, and their ranks wait for each other in shared memory.
    by_first_label=True,
    keep_own_names_var="PRTE_MCA_prte_keep_fqdn_hostnames",
    default_slots_var="PRTE_MCA_prte_set_default_slots",
    daemon_link_vars=("PRTE_MCA_prte_if_include", "PRTE_MCA_oob_tcp_if_include"),
    one_link=True,
    checks_peer_address=True,
    mpi_link_vars=("OMPI_MCA_btl_tcp_if_include",),
    concurrency_var="PRTE_MCA_plm_ssh_num_concurrent",
    bind_var="PRTE_MCA_hwloc_default_binding_policy",
    map_var="PRTE_MCA_rmaps_default_mapping_policy",
    pinning_vars=_PINNING_5,
    oversubscribe_var="PRTE_MCA_rmaps_default_mapping_policy",
    oversubscribe_value="slot:oversubscribe",
    constants=(
        *OMPI_TRANSPORTS,
        Variable(
            "PRTE_MCA_plm_ssh_no_tree_spawn",
            "1",
            "mpirun starts every daemon itself: no worker has to reach another one",
        ),
    ),
    root=OMPI_ROOT,
    no_single_copy=Variable("OMPI_MCA_smsc", "^cma", "ranks of one host copy by /dev/shm"),
    # The list takes names and a user's -x wins over it; with -x twice the first would win.
    export=Export.VARIABLE,
    export_var="OMPI_MCA_mca_base_env_list",
    evaluated="PRTE_MCA_",
    evaluated_flags=tuple(f"{name}_*" for name in _PRRTE_FRAMEWORKS.split()),
    by_itself=("OMPI_*", "PMIX_MCA_*"),
    # Measured with Debian's 5.0.7, and without mpiboot too: mpirun returns 0 then.
    several_programs_fail="5.0.7",
    ports=_ports("PRTE_MCA_oob_tcp_dynamic_ipv{version}_ports"),
    not_version=(_OTHER_FAMILY, ("PRTE_MCA_oob_tcp_disable_ipv{other}_family", "1")),
    ipv6=(
        Variable(
            "OMPI_MCA_reachable",
            "weighted",
            "5.0's own choice, netlink, takes IPv6 peers for unreachable and says so for each rank",
            Source.DETECTED,
        ),
    ),
    # Measured with 5.0.7, as soon as a daemon is started by ssh.
    never_empty="PRTE_MCA_",
    # Its default is 1 in each PRRTE of 5.0 (src/runtime/prte_mca_params.c of 3.0.0 to 3.0.14).
    not_resolve_var="PRTE_MCA_prte_do_not_resolve",
)

# A series that was not tried. An unknown parameter is ignored; a component or an option that is
# gone would end mpirun.
OPENMPI_NEWER: Final = replace(
    OPENMPI5,
    title="Open MPI after 5.0",
    constants=tuple(item for item in OPENMPI5.constants if item not in OMPI_TRANSPORTS),
    no_single_copy=None,
    ipv6=(),
    rank_table=(),
    untried="leaves out the choice of MPI's own transports (OMPI_MCA_pml, OMPI_MCA_btl, "
    "OMPI_MCA_coll_*) and the table of which rank is where",
)

# Not run: no registry has a package of it (Horovod's image has 3.0). It is ORTE with the names of
# 4.1, and a parameter that it lacks is ignored.
OPENMPI_OLDER: Final = replace(
    OPENMPI4, title="Open MPI before 4.1", untried="sets what Open MPI 4.1 reads"
)

# Not run, for it can't be had here. It is built on Open MPI with ORTE (3.0 in 10.2, by its release
# notes) and reads OMPI_MCA_ names; PAMI, a component of its own, carries its messages, and fails
# under other launchers than its own: https://github.com/flux-framework/flux-core/issues/1382
SPECTRUM: Final = replace(
    OPENMPI4,
    family=MpiFamily.SPECTRUM,
    title="IBM Spectrum MPI (ORTE)",
    grammar=SPECTRUM_ORTE,
    constants=tuple(item for item in OPENMPI4.constants if item not in OMPI_TRANSPORTS),
    no_single_copy=None,
    messages_var="",
    untried="leaves out the choice of MPI's own transports (OMPI_MCA_pml, OMPI_MCA_btl, "
    "OMPI_MCA_coll_*) and what its own messages tell of a rank that failed",
)

DIALECTS: Final = {row.family: row for row in (OPENMPI4, OPENMPI5, MPICH, INTEL, SPECTRUM)}

_TRIED: Final = "5.0"
_FIRST_TRIED: Final = (4, 1)


def row_of(mpi: Mpi) -> Dialect | None:
    """Find the row of an installed MPI; of a series that was not tried, what of it is safe.

    Off a cluster its version may not be known: then it is the series that was tried.
    """
    row = DIALECTS.get(mpi.family)
    if row is OPENMPI4 and () < version_number(mpi.version) < _FIRST_TRIED:
        return OPENMPI_OLDER
    if row is OPENMPI5 and mpi.version[:1].isdigit() and not mpi.version.startswith(_TRIED):
        return OPENMPI_NEWER
    return row


# Every variable by which a user or an operator names a hostfile, for whichever MPI. What
# mpirun finds there must be mpiboot's own copy, whatever the family.
HOSTFILE_VARS: Final = (*platforms.HOSTFILE_VARS, "MPI_HOSTFILE", "MPIBOOT_HOSTFILE")

# The same intent under the name of another version: read where the row's own name isn't set.
ALSO_AGENT: Final = (
    "OMPI_MCA_plm_rsh_agent",
    "OMPI_MCA_plm_ssh_agent",
    "PRTE_MCA_plm_ssh_agent",
    "PRTE_MCA_plm_rsh_agent",
)
ALSO_AGENT_ARGS: Final = (
    "OMPI_MCA_plm_rsh_args",
    "OMPI_MCA_plm_ssh_args",
    "PRTE_MCA_plm_ssh_args",
    "PRTE_MCA_plm_rsh_args",
)
# The MPI Operator and Trainer set the first one for every MPI.
ALSO_DEFAULT_SLOTS: Final = ("OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots")
