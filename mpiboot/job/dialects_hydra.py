"""The rows of MPIs whose mpirun is Hydra. Pure data, no I/O."""

from __future__ import annotations

from typing import Final

from mpiboot.job.dialect import Dialect, Export, Variable
from mpiboot.job.hostfile import Syntax
from mpiboot.job.mpirun_options import HYDRA
from mpiboot.model import MpiFamily

# Measured with Debian's 4.0.2 and PyPI's 5.0.2.
MPICH: Final = Dialect(
    family=MpiFamily.MPICH,
    title="MPICH (Hydra)",
    syntax=Syntax.COLON,
    grammar=HYDRA,
    daemon_without_ranks=False,
    begins_again=True,
    spread_hint="`-ppn N` to spread the ranks",
    own_host_by_its_name=True,
    hostfile_var="HYDRA_HOST_FILE",
    # Another kind than ssh calls no agent, and fork starts every rank on the launcher.
    agent_kind=Variable("HYDRA_LAUNCHER", "ssh", "another kind would start no launch agent"),
    agent_kind_aliases=("HYDRA_BOOTSTRAP",),
    agent_var="HYDRA_LAUNCHER_EXEC",
    agent_aliases=("HYDRA_BOOTSTRAP_EXEC",),
    agent_args_var="HYDRA_LAUNCHER_EXTRA_ARGS",
    # The MPI Operator sets it, and no MPICH reads it.
    agent_args_aliases=("HYDRA_LAUNCH_EXTRA_ARGS",),
    keep_fqdn_var="",
    default_slots_var="",
    daemon_link_var="HYDRA_IFACE",
    one_link=True,
    own_link=True,
    # UCX's, and libfabric's where MPIR_CVAR_CH4_NETMOD=ofi asks for it.
    mpi_link_vars=("UCX_NET_DEVICES", "FI_TCP_IFACE"),
    concurrency_var="",
    bind_var="",
    map_var="",
    oversubscribe_var="",
    oversubscribe_value="",
    constants=(),
    root=(),
    export=Export.ALL,
    export_var="",
    evaluated="",
    evaluated_but=(),
    evaluated_flags=(),
    by_itself=("*",),
    lost_without_parent=(
        "an endless wait when ssh fails (4.0)",
        "exit 0 after SIGTERM (4.0)",
        "no termination message",
    ),
    # mpiexec and its proxies; then the ranks' own connections, each with an older name.
    daemon_range_vars=("MPIEXEC_PORT_RANGE",),
    range_vars=("MPIR_CVAR_CH3_PORT_RANGE", "MPICH_PORT_RANGE"),
)
