"""What a plan is made of: what was observed, the settings, an MPI, and items that are resolved.

``Resolution`` is the one place where a user's value wins over a proposal of mpiboot's. The user's
stands on the line, in any pod, or in the MPI's own files. Names that are one choice are one group:
who has chosen UCX's devices, or another pml, has chosen what carries MPI's messages, and a part of
mpiboot's own choice beside it would end the job, or take it off the fabric. Of what a worker's pod
sets only the names are known: that leaves the whole group alone. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from mpiboot.core import facts, masking
from mpiboot.core.facts import Host, Hostfile, Link, MpiParameter, PodFacts, Variable, Worker
from mpiboot.core.model import (
    Decision,
    Finding,
    Identity,
    LaunchAgent,
    Level,
    Mpi,
    MpiFamily,
    Source,
)
from mpiboot.core.settings import Given, Settings
from mpiboot.core.wording import first_few, grouped
from mpiboot.job import parameter_files, platforms
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.parameter_files import parameter
from mpiboot.job.platforms import Platform
from mpiboot.network import nccl
from mpiboot.network.records import Owned, WorkerNetwork

Lookup: TypeAlias = Callable[[str], Owned | None]

# Transports of UCX that open no RDMA device (`ucx_info -d`).
_UCX_WITHOUT_RDMA: Final = frozenset(
    {"tcp", "self", "sm", "shm", "mm", "posix", "sysv", "cma", "knem", "xpmem"}
    | {"cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "rocm", "rocm_copy", "rocm_ipc"}
)


def _words(value: str) -> set[str]:
    """Split a list; what only excludes (`^openib`) chooses nothing."""
    return set() if value.startswith("^") else {word.strip() for word in value.split(",")} - {""}


def _anything(_value: str) -> bool:
    return True


class ChoiceGroup(NamedTuple):
    """``members`` are left alone where the user has made one of ``choices``.

    Each is called with a value of that name.
    """

    members: tuple[str, ...]
    choices: Mapping[str, Callable[[str], bool]]


_OF_MPIS: Final = (
    ChoiceGroup(
        (
            "OMPI_MCA_pml",
            "OMPI_MCA_btl",
            "OMPI_MCA_coll_hcoll_enable",
            "OMPI_MCA_coll_ucc_enable",
        ),
        {
            "OMPI_MCA_pml": lambda value: bool(_words(value) - {"ob1"}),
            "OMPI_MCA_mtl": lambda value: bool(_words(value)),
            "OMPI_MCA_btl": lambda value: bool(_words(value) & {"openib", "uct", "usnic"}),
            "UCX_TLS": lambda value: bool(_words(value) - _UCX_WITHOUT_RDMA),
            # RDMA devices have their port behind them; of links there is no more than the name.
            "UCX_NET_DEVICES": lambda value: ":" in value,
            "FI_PROVIDER": _anything,
        },
    ),
    ChoiceGroup(("OMPI_MCA_pml",), {"UCX_TLS": lambda value: bool(_words(value))}),
    # Intel MPI 2021.18 aborts in MPI_Init where the two don't fit.
    ChoiceGroup(("I_MPI_OFI_PROVIDER",), {"FI_PROVIDER": _anything, "I_MPI_FABRICS": _anything}),
    *(
        ChoiceGroup((name,), dict.fromkeys(others.split(), _anything))
        for name, others in {
            # Open MPI ends where links are taken and left out.
            "OMPI_MCA_btl_tcp_if_include": "OMPI_MCA_btl_tcp_if_exclude",
            "OMPI_MCA_oob_tcp_if_include": "OMPI_MCA_oob_tcp_if_exclude",
            "PRTE_MCA_prte_if_include": "PRTE_MCA_oob_tcp_if_include PRTE_MCA_prte_if_exclude "
            "PRTE_MCA_oob_tcp_if_exclude",
            # Of two names for one value another beside the user's would be one of two.
            "MPIR_CVAR_CH3_PORT_RANGE": "MPICH_PORT_RANGE",
            "I_MPI_PORT_RANGE": "MPIEXEC_PORT_RANGE",
        }.items()
    ),
)
_OF_DATA_NETWORKS: Final = (
    ChoiceGroup(("OMPI_MCA_mtl",), {"OMPI_MCA_pml": _anything}),
    # A GID index for mpiboot's devices is wrong for the user's; UCX_TLS=tcp finds no RDMA port.
    ChoiceGroup(("UCX_NET_DEVICES",), {"UCX_TLS": _anything}),
    ChoiceGroup(("UCX_IB_PKEY",), dict.fromkeys(nccl.UCX_GID[:2], _anything)),
    ChoiceGroup(nccl.UCX_GID[2:], dict.fromkeys(nccl.UCX_GID, _anything)),
    ChoiceGroup(nccl.NCCL_GID[1:4], dict.fromkeys(nccl.NCCL_GID, _anything)),
    ChoiceGroup(("NCCL_IB_PKEY",), {"NCCL_IB_HCA": _anything}),
    # The recipes' own values choose nothing.
    ChoiceGroup(
        ("NCCL_NET",),
        {
            "NCCL_NET_PLUGIN": lambda value: value.strip().lower() != "none",
            "NCCL_IB_DISABLE": lambda value: value.strip() != "0",
            "NCCL_IB_HCA": _anything,
        },
    ),
)
CHOICE_GROUPS: Final = (*_OF_MPIS, *_OF_DATA_NETWORKS)
# What ranks read of an MPI, so that a value in a worker's own pod counts.
READ_BY_RANKS: Final = frozenset({"MASTER_ADDR", "MASTER_PORT", "NCCL_IB_HCA"}).union(
    *((*group.members, *group.choices) for group in _OF_MPIS)
)


def users_choice(name: str, owned: Lookup) -> tuple[str, Owned] | None:
    """Find what of the user's keeps mpiboot from setting a variable: its own value, or a choice.

    Returns:
        The name that has it, and the value; None where mpiboot's own counts.
    """
    own = owned(name)
    if own:
        return name, own
    for group in CHOICE_GROUPS:
        for other, is_choice in group.choices.items() if name in group.members else ():
            item = owned(other)
            if item and (item.value is None or is_choice(item.value)):
                return other, item
    return None


class Forced(NamedTuple):
    """What mpiboot must set itself, whatever the user has: the hostfile's copy, the launch agent.

    Without a reason it is not shown. ``by_agents``: launch agents need it, mpirun must not have it.
    """

    name: str
    value: str
    reason: str = ""
    source: Source = Source.DETECTED
    by_agents: bool = False


class Removal(NamedTuple):
    """A variable that mpirun must not have, shown where there is a reason for people."""

    name: str
    reason: str = ""


class Drop(NamedTuple):
    """An option or MCA parameter that mpirun must not find on its line."""

    option: str


class Words(NamedTuple):
    """Words that stand on mpirun's line before the user's own."""

    words: tuple[str, ...]


# What the parts of a plan consist of; a ``Variable`` is a proposal.
Item: TypeAlias = Variable | Forced | Removal | Drop | Words | Decision | Finding


# A setting of the user's comes before a file.
_SETTINGS: Final = (Source.FLAG, Source.ENVIRONMENT)


@dataclass(slots=True, eq=False)
class Resolution:
    """What becomes of the items, in the order in which they are shown; ``owned`` finds the user's.

    ``left`` are names that the data network decides.
    """

    owned: Lookup
    left: Collection[str] = ()
    values: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    for_agents: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(self, *parts: Iterable[Item]) -> None:
        """Set what the user has not chosen."""
        for item in chain(*parts):
            match item:
                case Decision():
                    self.decisions.append(item)
                case Finding():
                    self.findings.append(item)
                case Drop():
                    self.dropped.append(item.option)
                case Words():
                    self.words += item.words
                case Forced(by_agents=True):
                    self.for_agents[item.name] = item.value
                case Removal():
                    self.removed.add(item.name)
                    if item.reason:
                        self._show(item.name, "(removed)", Source.DETECTED, item.reason)
                case Variable() if item.name in self.left:
                    pass
                case Variable() if kept := _kept(item, self.owned):
                    self.decisions.append(kept)
                case _:
                    self.values[item.name] = item.value
                    if item.reason:
                        shown = masking.mask(item.name, item.value)
                        self._show(item.name, shown, item.source, item.reason)

    def _show(self, name: str, value: str, source: Source, reason: str) -> None:
        self.decisions.append(Decision(name, value, source, reason))


Values: TypeAlias = dict[str, str]


def for_ranks(
    proposals: Iterable[Variable], hosts: Sequence[str], owned: Callable[[str, str], Owned | None]
) -> tuple[Values, dict[str, Values], list[Decision]]:
    """Resolve what the ranks of each host are to get.

    Args:
        proposals: each for one host, or for all.
        hosts: those that have ranks.
        owned: finds the user's value of a variable on a host.

    Returns:
        What all ranks get, and those of single hosts (no name is in both); what is shown of it.
    """
    values: dict[str, Values] = {host: {} for host in hosts}
    reasons, kept = dict[str, str](), dict[tuple[str, str, Owned], list[str]]()
    for item in proposals:
        for host in (item.host,) if item.host else hosts:
            if found := users_choice(item.name, partial(owned, host)):
                kept.setdefault((item.name, *found), []).append(host)
            else:
                values[host][item.name] = item.value
                reasons.setdefault(item.name, item.reason)
    every = [set(mine.items()) for mine in values.values()]
    equal = dict(set.intersection(*every) if every else ())
    common = {name: equal[name] for name in reasons if name in equal}
    shown = [_on_hosts(name, common, values, reason) for name, reason in reasons.items()]
    for (name, by, own), names in kept.items():
        where = f"{own.by}; on {first_few(names)}"
        if by != name:
            shown.append(Decision(name, "", Source.DETECTED, f"not set: {by} is set ({where})"))
        else:
            value = "(the user's own)" if own.value is None else own.value
            shown.append(Decision(name, value, own.source, where))
    for mine in values.values():
        for name in common:
            del mine[name]
    return common, values, shown


def _on_hosts(name: str, common: Values, values: Mapping[str, Values], reason: str) -> Decision:
    """Show a variable's value: one for all workers, or each with its hosts."""
    if name in common:
        return Decision(name, common[name], Source.DETECTED, f"{reason}; on all workers")
    hosts = grouped((own[name], host) for host, own in values.items() if name in own)
    by_number = sorted(hosts.items(), key=lambda item: -len(item[1]))
    each = first_few(f"{value} ({first_few(names)})" for value, names in by_number)
    return Decision(name, each, Source.DETECTED, f"{reason}; per worker")


def _kept(item: Variable, owned: Lookup) -> Decision | None:
    by, own = users_choice(item.name, owned) or ("", None)
    if own is None:
        return None
    if by == item.name and own.source is Source.FILE and item.source in _SETTINGS:
        return None
    if by != item.name:
        return Decision(item.name, "", Source.DETECTED, f"not set: {by} is {own.by}")
    return Decision(by, masking.mask(by, own.value or ""), own.source, own.by)


def warning(check: str, message: str, hint: str = "") -> Finding:
    """A finding that does not keep the job from starting."""
    return Finding(check, Level.WARN, message, hint=hint)


@dataclass(frozen=True, slots=True)
class Observed:
    """What the plan is decided on.

    ``line`` is what is to be started. ``renamed`` maps a name of the hostfile to the longer one
    that is to be used; ``own`` are this pod's facts, which count where the hostfile names it too,
    ``own_answer`` is its answer, as a worker's to the gate; ``client`` is what the agents use;
    ``mpi_ipv6`` is whether the MPI is built with IPv6, None where that is unknown; ``networks`` are
    those of workers that are decided already, by host; ``data_blocked`` is where TCP does not pass
    on the data network; ``parameters`` are those of the files that mpirun reads, the strongest
    first; ``workdir`` is where ranks start, empty where it isn't known.
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
    own_answer: facts.HostAnswer = facts.HostAnswer()  # noqa: RUF009 - it is frozen
    client: Decision | None = None
    mpi_ipv6: bool | None = None
    networks: Mapping[str, WorkerNetwork] = field(default_factory=dict)
    data_blocked: str = ""
    parameters: tuple[MpiParameter, ...] = ()
    workdir: str = ""

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


Names: TypeAlias = Collection[str]
# What is shown, and the names of what ranks get.
HandedOn: TypeAlias = tuple[list[Item], Names]


# An attribute that is empty, or a method that gives nothing: this MPI has nothing of that kind.
class PortVariable(NamedTuple):
    """A variable for a part of a range of ports.

    ``version`` in its name is the IP version; its value is made of ``first``, ``last`` and
    ``count``.
    """

    name: str
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
    exports_all = False

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

    def agent(self, inp: PlanInput, hosts: int) -> Iterable[Item]:
        """Have mpirun call mpiboot's launch agent; ``hosts`` is the number of the job's."""
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

    def hand_on(self, inp: PlanInput, names: Names, given: Names, values: Names) -> HandedOn:
        """Hand variables of mpirun's environment on to the ranks.

        Args:
            inp: what the plan is made of.
            names: those that must be named to mpirun.
            given: those that the user's line has.
            values: all that may be handed on.
        """
        raise NotImplementedError

    def words(self, inp: PlanInput) -> Iterable[Item]:
        """Give what stands on the line: options that have no variable, or report to mpiboot."""
        return ()


@dataclass(frozen=True)
class PlanInput:
    """All that a plan is made of: the MPI, what was observed, the settings, the paths.

    ``given`` is where each setting's value came from.
    """

    implementation: Implementation
    observed: Observed
    settings: Settings
    given: Mapping[str, Given]
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
    def forwards_all(self) -> bool:
        """Whether mpirun's environment would overwrite that of the ranks' own pods."""
        return self.implementation.exports_all and bool(self.observed.workers)

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
        if name in READ_BY_RANKS:
            for worker in self.observed.workers:
                if worker.facts and name in worker.facts.environment:
                    return Owned(None, Source.ENVIRONMENT, f"set in {worker.host.name}'s pod")
        return None
