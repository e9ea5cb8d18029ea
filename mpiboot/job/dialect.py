"""What a row says of one MPI: the names that it reads for each intent. Pure data, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mpiboot.core.model import MpiFamily
from mpiboot.job.hostfile import Syntax
from mpiboot.job.mpirun_options import Grammar


class Export(Enum):
    """How an MPI forwards variables of the launcher to the ranks."""

    OPTION = "a `-x NAME` each"
    VARIABLE = "a variable with a list of names"
    ALL = "all of them, by itself"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that is always set in this MPI's environment, with the reason."""

    name: str
    value: str
    because: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """One row.

    Columns that end in ``_var`` name the environment variable of an intent; empty where this
    MPI has none. ``evaluated`` is the prefix of variables whose values reach the workers' shell
    unescaped (``evaluated_but``: exceptions); ``evaluated_flags`` are
    the ``--mca`` parameters that do so. ``export_var`` is the list of forwarded names; with
    ``Export.ALL`` (Hydra) the launcher's whole environment overwrites the workers'.
    ``one_link`` is true where the daemons' link must be a single name or CIDR.
    """

    family: MpiFamily
    title: str
    syntax: Syntax
    # How the user's own line is read.
    grammar: Grammar
    hostfile_var: str
    agent_var: str
    agent_args_var: str
    daemon_link_var: str
    one_link: bool
    mpi_link_vars: tuple[str, ...]
    export: Export
    # Patterns of variables that ranks get without being named.
    by_itself: tuple[str, ...]
    lost_without_parent: tuple[str, ...]
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
    evaluated_but: tuple[str, ...] = ()
    evaluated_flags: tuple[str, ...] = ()
    # The program to start where it is not the mpirun that was asked what it is: one beside that.
    program: str = ""
    # The option by which the hostfile is named, where only that one heeds the slots.
    hostfile_option: str = ""
    # `binding=` behind a host says how the ranks there are bound.
    hostfile_binding: bool = False
    # No binding, as bind_var has it.
    bind_value: str = "none"
    # What else keeps MPI's messages on the control link.
    on_control_link: tuple[Variable, ...] = ()
    # What on the line spreads ranks over hosts.
    spread_option: str = "`--map-by node`"
    # What chooses the kind of launch agent, with the value that calls the agent.
    agent_kind: Variable | None = None
    # The same intents under older names, and under those that others set for this MPI.
    agent_kind_aliases: tuple[str, ...] = ()
    agent_aliases: tuple[str, ...] = ()
    agent_args_aliases: tuple[str, ...] = ()
    # The daemons' link is the launcher's own, and links are known by name alone.
    own_link: bool = False
    # A daemon is started on hosts without a rank too, and mpirun's own host counts as the first.
    daemon_without_ranks: bool = True
    own_host_first: bool = False
    # More ranks than slots begin again at the first host without a word.
    wraps_around: bool = False
    # An option, and the beginning of its value, that names a file for which rank is where.
    rank_table: tuple[str, ...] = ()
    # An option by which mpirun tells at its end every rank's exit code, a line a host.
    exit_codes_option: str = ""
    # What is done about a series that was not tried.
    untried: str = ""
    # Where this MPI chooses what carries its messages: how a user has a say in it.
    own_transports: str = ""
    # A range of ports: first-last for the daemons, first and number for MPI's own TCP.
    daemon_ports_vars: tuple[str, ...] = ()
    first_port_vars: tuple[str, ...] = ()
    port_count_vars: tuple[str, ...] = ()
    # The same as first:last, where that is how an MPI reads both.
    daemon_range_vars: tuple[str, ...] = ()
    range_vars: tuple[str, ...] = ()
    # The IP version that MPI's own TCP leaves alone (4 or 6), and what pods of IPv6 need set.
    not_version_var: str = ""
    # Its daemons find no IPv6 address of a link.
    ipv4_only: bool = False
    # By IP version, what keeps the daemons from its addresses.
    not_daemons_vars: tuple[str, ...] = ()
    ipv6: tuple[Variable, ...] = ()
    # Connections from an address that is not the peer's own are dropped, and the job hangs.
    checks_peer_address: bool = False
    # Agents get sockets for their streams, which no other process can open: mpiboot's own client
    # has a second process for each host then, and takes about three times the CPU time of ssh
    # (scripts/bench/scale).
    agent_sockets: bool = False
    # Hosts that are alike up to the first dot are one host; what keeps their own names whole.
    by_first_label: bool = False
    keep_own_names_var: str = ""
    # What is cut off the hosts' own names, and whether hosts are compared by name alone.
    cut_prefix_var: str = ""
    # What became of a line with several programs (`:`), where that went wrong.
    several_programs: str = ""
    # Keeps ranks of one host from reading each other's memory.
    no_single_copy: Variable | None = None
    # The handle of mpirun's own messages, where ranks on its own host would inherit it.
    messages_var: str = ""
    # Keeps mpirun from looking hosts up to see whether they are its own; and the first version that
    # does so where nothing keeps it from that.
    not_resolve_var: str = ""
    resolves_since: tuple[int, ...] = ()
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
