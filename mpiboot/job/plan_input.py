"""What a plan is made of: what was observed, the settings, and what an MPI has to provide. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from mpiboot.core.facts import Host, Hostfile, Link, MpiParameter, PodFacts, Variable, Worker
from mpiboot.core.model import Decision, Finding, Identity, LaunchAgent, Mpi, MpiFamily, Source
from mpiboot.core.settings import Given, Resolved, Settings
from mpiboot.job import parameter_files, platforms, resolve
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.parameter_files import parameter
from mpiboot.job.platforms import Platform
from mpiboot.job.resolve import Forced, Item
from mpiboot.network.records import Owned, WorkerNetwork

if TYPE_CHECKING:
    from mpiboot.job.mpi_environment import Chosen


@dataclass(frozen=True, slots=True)
class Observed:
    """What the plan is decided on.

    ``line`` is what is to be started. ``renamed`` maps a name of the hostfile to the longer one
    that is to be used; ``own`` are this pod's facts, which count where the hostfile names it too,
    ``own_oom_kills`` its out-of-memory kills so far, None where it isn't known, and
    ``own_counters`` those of its RDMA ports and links;
    ``client`` is what the agents use; ``mpi_ipv6`` is whether the MPI is
    built with IPv6, None where that is unknown; ``networks`` are those of workers that are
    decided already, by host; ``data_blocked`` is where TCP does not pass on the data network;
    ``parameters`` are those of the files that mpirun reads, the strongest first; ``workdir`` is
    where ranks start, empty where it isn't known; ``asked`` is whether hosts were queried at all.
    """

    hostfile: Hostfile
    mpi: Mpi
    identity: Identity
    environ: Mapping[str, str]
    line: UserLine
    local: tuple[Host, ...] = ()
    workers: tuple[Worker, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    own: PodFacts | None = None
    own_oom_kills: int | None = None
    own_counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    client: Decision | None = None
    mpi_ipv6: bool | None = None
    networks: Mapping[str, WorkerNetwork] = field(default_factory=dict)
    data_blocked: str = ""
    parameters: tuple[MpiParameter, ...] = ()
    workdir: str = ""
    asked: bool = True

    @property
    def platform(self) -> Platform:
        """The platform that made this pod."""
        return platforms.recognise(self.environ, self.hostfile.path)[0]

    @property
    def local_names(self) -> frozenset[str]:
        """The names by which mpirun gets this pod, where it runs ranks."""
        return frozenset(self.called(host.name) for host in self.local)

    @property
    def by_kubectl(self) -> bool:
        """Whether the launch agents enter pods by kubectl."""
        return self.client is not None and self.client.value == LaunchAgent.KUBECTL

    def called(self, name: str) -> str:
        """Give the name by which mpirun gets a host of the hostfile."""
        return self.renamed.get(name, name)


@dataclass(frozen=True, slots=True)
class LaunchPaths:
    """Where the launcher's private files will be; all in one folder without blanks."""

    launch_dir: str
    agent: str

    @property
    def hostfile(self) -> str:
        """The normalised hostfile that mpirun reads."""
        return f"{self.launch_dir}/hostfile"

    def of_program(self, hostfile: Hostfile) -> Mapping[str, str]:
        """The copies of hostfiles that single programs of a line have, by the files' paths."""
        return {file.path: f"{self.hostfile}-{at}" for at, file in enumerate(hostfile.parts)}


# An attribute that is empty, or a method that gives nothing: this MPI has nothing of that kind.
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
    hostfile_var: str
    # It reads `host:N`, and not `host slots=N`.
    hostfile_colon = False
    # It reads `binding=` behind a host of the hostfile.
    hostfile_binding = False
    # The slots of hosts for which the hostfile has no number.
    default_slots_var = ""
    # mpirun's own host counts as the first, wherever the hostfile has it.
    launcher_first = False
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
    local_link = False
    mpi_link_vars: tuple[str, ...]
    # What else keeps MPI's messages on the control link.
    on_control_link: tuple[Variable, ...] = ()
    # Its daemons find no IPv6 address of a link.
    ipv4_only = False
    # What keeps MPI and its daemons from the ``other`` IP version (4 or 6).
    not_version: tuple[tuple[str, str], ...] = ()
    # What pods of IPv6 need set.
    ipv6: tuple[Variable, ...] = ()
    # Connections from an address that is not the peer's own are dropped, and the job hangs.
    checks_peer_address = False
    ports: tuple[PortVariable, ...] = ()
    constants: tuple[Variable, ...] = ()
    # What carries MPI's own messages, where the setting leaves it to mpiboot.
    transports: tuple[Variable, ...] = ()
    # Keeps ranks of one host from reading each other's memory.
    no_single_copy: Variable | None = None
    # What turns binding off; variables for mapping, ranking, binding or CPUs.
    bind_var = ""
    bind_value = "none"
    pinning_vars: tuple[str, ...] = ()
    # The list of variables that ranks get, and patterns of those that they get without being named.
    export_var = ""
    exports_and_list = True
    auto_exported: tuple[str, ...]
    # It reads Open MPI's variables for MPI's own messages; the data network has some.
    reads_open_mpis = False
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

    def without_ipv4(self, version: str) -> Iterable[Finding]:
        """Find what a release does in pods without an IPv4 address."""
        return ()

    def always(self, inp: PlanInput) -> Iterable[Item]:
        """Give what this MPI gets in any job."""
        return self.constants

    def taken_out(self, inp: PlanInput, environ: Mapping[str, str]) -> Iterable[Item]:
        """Take out of mpirun's environment what would end it, or harm ranks."""
        return ()

    def hand_on(self, inp: PlanInput, chosen: Chosen) -> tuple[list[Item], Collection[str]]:
        """Hand variables of mpirun's environment on to the ranks: what is shown, and the names."""
        raise NotImplementedError

    def words(self, inp: PlanInput) -> Iterable[Item]:
        """Give what stands on the line: options that have no variable, or report to mpiboot."""
        return ()

    def findings(self, inp: PlanInput) -> Iterable[Finding]:
        """Find what this MPI can't do, or ends badly over, in these pods or with this line."""
        return ()


@dataclass(frozen=True)
class PlanInput:
    """All that a plan is made of: the MPI, what was observed, the settings, the paths."""

    implementation: Implementation
    observed: Observed
    resolved: Resolved
    paths: LaunchPaths

    @cached_property
    def line(self) -> UserLine:
        """The user's line, with the names by which mpirun gets the hosts."""
        return self.observed.line.with_names(self.observed.renamed)

    @cached_property
    def of_files(self) -> Mapping[str, MpiParameter]:
        """Parameters of files that this MPI reads, by the variables that would mean the same."""
        return parameter_files.effective(self.observed, self.implementation)

    @cached_property
    def environ(self) -> Mapping[str, str]:
        """This pod's environment with those of files, as they count as much as variables."""
        values = {name: item.value for name, item in self.of_files.items()}
        return {**self.observed.environ, **values}

    @property
    def settings(self) -> Settings:
        """The settings of this run."""
        return self.resolved.settings

    @property
    def given(self) -> Mapping[str, Given]:
        """Where each setting's value came from."""
        return self.resolved.given

    @property
    def forwards_all(self) -> bool:
        """Whether mpirun's environment would overwrite that of the ranks' own pods."""
        return self.implementation.hands_on_all and bool(self.observed.workers)

    def set_by(self, name: str) -> tuple[Source, str]:
        """Return who set a variable of this pod: the platform, the user or a file; and in words."""
        if name in self.of_files:
            return Source.FILE, f"set in {self.of_files[name].path}"
        platform = self.observed.platform
        if platform.has_set(name, self.environ.get(name, "")):
            return Source.PLATFORM, f"set by {platform.name}"
        return Source.ENVIRONMENT, "set in this pod"

    def owned(self, name: str) -> Owned | None:
        """Find the user's own value of a variable, wherever it stands; the strongest first."""
        flagged = self.line.mca.get(parameter(name), self.line.exports.get(name))
        if flagged is not None:
            return Owned(flagged, Source.FLAG, "given on the mpirun line")
        if self.environ.get(name):
            return Owned(self.environ[name], *self.set_by(name))
        if name in resolve.READ_BY_RANKS:
            for worker in self.observed.workers:
                if worker.facts and name in worker.facts.environment:
                    return Owned(None, Source.ENVIRONMENT, f"set in {worker.host.name}'s pod")
        return None
