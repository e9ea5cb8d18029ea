"""The rows of MPIs whose mpirun is Hydra. Pure data, no I/O.

Measured with MPICH 4.0.2 (Debian's) and 5.0.2 (PyPI's), and Intel MPI 2021.18.1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mpiboot.core.model import MpiFamily
from mpiboot.job.dialect import Dialect, Export, Variable
from mpiboot.job.hostfile import Syntax
from mpiboot.job.mpirun_options import HYDRA, INTEL_HYDRA, Option, OptionKind

_HOSTS: Final = Option("hosts", 1, OptionKind.MOVES_HOSTS)
_ANOTHER_KIND: Final = "another kind would start no launch agent"

MPICH: Final = Dialect(
    family=MpiFamily.MPICH,
    title="MPICH (Hydra)",
    syntax=Syntax.COLON,
    grammar=HYDRA,
    daemon_without_ranks=False,
    wraps_around=True,
    spread_option="`-ppn 1`",
    exit_codes_option="-print-all-exitcodes",
    hostfile_var="HYDRA_HOST_FILE",
    hostfile_binding=True,
    # Another kind than ssh calls no agent, and fork starts every rank on the launcher.
    agent_kind=Variable("HYDRA_LAUNCHER", "ssh", _ANOTHER_KIND),
    agent_kind_aliases=("HYDRA_BOOTSTRAP",),
    agent_var="HYDRA_LAUNCHER_EXEC",
    agent_aliases=("HYDRA_BOOTSTRAP_EXEC",),
    agent_args_var="HYDRA_LAUNCHER_EXTRA_ARGS",
    # The MPI Operator sets it, and no MPICH reads it.
    agent_args_aliases=("HYDRA_LAUNCH_EXTRA_ARGS",),
    daemon_link_var="HYDRA_IFACE",
    one_link=True,
    own_link=True,
    ipv4_only=True,
    # Its own host is found by its address too (MPL_host_is_local); 4.3.0 compares names alone.
    resolves_since=(4, 3, 2),
    # UCX's, and libfabric's where MPIR_CVAR_CH4_NETMOD=ofi asks for it.
    # FI_TCP_IFACE alone does nothing there; both together do, whichever provider is chosen.
    mpi_link_vars=("UCX_NET_DEVICES", "FI_TCP_IFACE", "FI_SOCKETS_IFACE"),
    export=Export.ALL,
    by_itself=("*",),
    lost_without_parent=(
        "an endless wait when ssh fails (4.0)",
        "exit 0 after SIGTERM (4.0)",
        "no termination message",
    ),
    # 5.0's shared memory reads other ranks' memory without having tried it; 4.0 never does.
    no_single_copy=Variable(
        "MPIR_CVAR_CH4_CMA_ENABLE", "0", "ranks of one host copy by shared memory"
    ),
    # mpiexec and its proxies; then the ranks' own connections, each with an older name.
    daemon_range_vars=("MPIEXEC_PORT_RANGE",),
    range_vars=("MPIR_CVAR_CH3_PORT_RANGE", "MPICH_PORT_RANGE"),
)

INTEL: Final = Dialect(
    family=MpiFamily.INTEL,
    title="Intel MPI (Hydra)",
    syntax=Syntax.COLON,
    # A list of hosts on the line: how many ranks each gets is left to mpirun.
    grammar=replace(
        INTEL_HYDRA,
        options={**INTEL_HYDRA.options, **dict.fromkeys(("hosts", "host"), _HOSTS)},
    ),
    daemon_without_ranks=False,
    wraps_around=True,
    spread_option="`-ppn 1`",
    exit_codes_option="-print-all-exitcodes",
    # Its mpirun is a script that starts whichever mpiexec.hydra is on PATH, and as a pod's first
    # process it ignores SIGTERM.
    program="mpiexec.hydra",
    hostfile_var="I_MPI_HYDRA_HOST_FILE",
    # Of all ways to name a hostfile this one alone heeds the number behind a host.
    hostfile_option="-machinefile",
    agent_kind=Variable("I_MPI_HYDRA_BOOTSTRAP", "ssh", _ANOTHER_KIND),
    agent_kind_aliases=("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP"),
    agent_var="I_MPI_HYDRA_BOOTSTRAP_EXEC",
    agent_aliases=("HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP_EXEC"),
    agent_args_var="I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
    default_slots_var="I_MPI_PERHOST",
    daemon_link_var="I_MPI_HYDRA_IFACE",
    one_link=True,
    own_link=True,
    ipv4_only=True,
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
    agent_sockets=True,
    export=Export.ALL,
    by_itself=("*",),
    lost_without_parent=(
        "an endless wait when ssh ends without having started a daemon",
        "no reason of ssh's, which is told to be quiet",
        "no termination message",
    ),
    daemon_range_vars=("I_MPI_PORT_RANGE", "MPIEXEC_PORT_RANGE"),
)
