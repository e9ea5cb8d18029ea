"""What a plan asks of an MPI, whichever it is; ``openmpi`` and ``hydra`` answer. Pure.

An attribute that is empty, or a method that gives nothing: this MPI has nothing of that kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mpiboot.core.model import Finding, MpiFamily, Source
from mpiboot.job.resolve import Forced, Item

if TYPE_CHECKING:
    from mpiboot.core.facts import Host, Variable
    from mpiboot.job.control_links import Control
    from mpiboot.job.hostfile import Syntax
    from mpiboot.job.mpi_environment import Chosen, Forwarding
    from mpiboot.job.mpirun_line import UserLine
    from mpiboot.job.plan_input import PlanInput
    from mpiboot.network.decision import DataNetwork


class PortVariable(NamedTuple):
    """A variable for a part of a range of ports: of ``names`` the user's counts, else the first.

    ``version`` in a name is the IP version; the value is made of ``first``, ``last`` and ``count``.
    """

    names: tuple[str, ...]
    value: str
    daemons: bool = False


class Implementation:
    """One MPI: its names for what every MPI has, and what it does in a way of its own."""

    family: MpiFamily
    title: str
    # What is done about a series that was not tried.
    untried = ""
    syntax: Syntax
    hostfile_var: str
    # It reads `binding=` behind a host of the hostfile.
    hostfile_binding = False
    # The slots of hosts for which the hostfile has no number.
    default_slots_var = ""
    # mpirun's own host counts as the first, wherever the hostfile has it.
    own_host_first = False
    # Hosts that are alike up to the first dot are one host.
    by_first_label = False
    # Of these the first is this MPI's own; it reads the others too, or others set them for it.
    agent_vars: tuple[str, ...]
    agent_args_vars: tuple[str, ...]
    # Seconds that an agent whose daemon succeeded waits for mpirun to end first.
    agent_linger = 0
    daemon_link_vars: tuple[str, ...]
    # The daemons' link must be a single name or CIDR.
    one_link = True
    # That link is the launcher's own, and links are known by name alone.
    own_link = False
    mpi_link_vars: tuple[str, ...]
    # Its daemons find no IPv6 address of a link.
    ipv4_only = False
    # Connections from an address that is not the peer's own are dropped, and the job hangs.
    checks_peer_address = False
    ports: tuple[PortVariable, ...] = ()
    constants: tuple[Variable, ...] = ()
    # Keeps ranks of one host from reading each other's memory.
    no_single_copy: Variable | None = None
    # What turns binding off; variables for mapping, ranking, binding or CPUs.
    bind_var = ""
    bind_value = "none"
    pinning_vars: tuple[str, ...] = ()
    # The list of variables that ranks get, and patterns of those that they get without being named.
    export_var = ""
    exports_beside_list = True
    by_itself: tuple[str, ...]
    # The launcher's whole environment overwrites the workers'.
    hands_on_all = False

    def program(self, inp: PlanInput) -> str:
        """Give the program to start: the line's, or the one that this would start."""
        return inp.line.argv[0]

    def default_slots(self, line: UserLine) -> str:
        """Name the variable for hosts without a number of slots; empty where it has no effect."""
        return self.default_slots_var

    def one_number(self, inp: PlanInput) -> bool:
        """Whether each host has the default number of slots, whatever the hostfile has."""
        return False

    def passes_over(self, listed: Sequence[Host]) -> bool:
        """Whether mpirun takes no host of such a hostfile, and goes on to another one."""
        return False

    def hosts(self, inp: PlanInput, listed: Sequence[Host]) -> Iterable[Item]:
        """Keep the hosts' names as the gate found them."""
        return ()

    def agent(self, inp: PlanInput, hosts: int, remote: Collection[str]) -> Iterable[Item]:
        """Have mpirun call mpiboot's launch agent.

        Args:
            inp: what the plan is made of.
            hosts: the number of the job's hosts.
            remote: those that are not this pod.
        """
        reason = "reports on which hosts mpirun starts daemons"
        yield Forced(self.agent_vars[0], inp.paths.agent, reason, Source.DEFAULT)

    def control(self, inp: PlanInput, wanted: Control) -> Iterable[Item]:
        """Keep daemons and MPI's own messages to the control network."""
        raise NotImplementedError

    def always(self, inp: PlanInput) -> Iterable[Item]:
        """Give what this MPI gets in any job."""
        return self.constants

    def network(self, inp: PlanInput, found: DataNetwork) -> DataNetwork:
        """Fit the data network to this MPI: without what only Open MPI reads."""
        return replace(
            found,
            common=_without_open_mpis(found.common),
            per_host={host: _without_open_mpis(own) for host, own in found.per_host.items()},
            decisions=tuple(item for item in found.decisions if not item.name.startswith("OMPI_")),
        )

    def taken_out(self, inp: PlanInput, environ: Mapping[str, str]) -> Iterable[Item]:
        """Take out of mpirun's environment what would end it, or harm ranks."""
        return ()

    def hand_on(self, inp: PlanInput, chosen: Chosen) -> Forwarding:
        """Hand variables of the launcher on to the ranks."""
        raise NotImplementedError

    def words(self, inp: PlanInput) -> Iterable[Item]:
        """Give what stands on the line: options that have no variable, or report to the parent."""
        return ()

    def findings(self, inp: PlanInput) -> Iterable[Finding]:
        """Find what this MPI can't do, or ends badly over, in these pods or with this line."""
        return ()


def _without_open_mpis(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if not name.startswith("OMPI_")}
