"""The one place where a user's value wins over a proposal of mpiboot's. Pure.

The user's stands on the line, in any pod, or in the MPI's own files. Names that are one choice are
one group: who has chosen UCX's devices, or another pml, has chosen what carries MPI's messages, and
a part of mpiboot's own choice beside it would end the job, or take it off the fabric. Of what a
worker's pod sets only the names are known: that leaves the whole group alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from mpiboot.core import masking
from mpiboot.core.facts import Variable
from mpiboot.core.model import Decision, Finding, Level, Source
from mpiboot.core.wording import first_few, grouped
from mpiboot.network import nccl
from mpiboot.network.records import Owned

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

    Without a reason it is not shown.
    """

    name: str
    value: str
    reason: str = ""
    source: Source = Source.DETECTED


class Removal(NamedTuple):
    """A variable that mpirun must not have, shown where there is a reason for people."""

    name: str
    reason: str = ""


class ForAgents(NamedTuple):
    """A variable that launch agents need and mpirun must not have."""

    name: str
    value: str


class Drop(NamedTuple):
    """An option or MCA parameter that mpirun must not find on its line."""

    option: str


class Words(NamedTuple):
    """Words that stand on mpirun's line before the user's own."""

    words: tuple[str, ...]


# What the parts of a plan consist of; a ``Variable`` is a proposal.
Item: TypeAlias = Variable | Forced | Removal | ForAgents | Drop | Words | Decision | Finding


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
                case ForAgents():
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
    stands = "" if own.source is Source.FLAG else ", and kept"
    return Decision(by, masking.mask(by, own.value or ""), own.source, f"{own.by}{stands}")


def warning(check: str, message: str, hint: str = "") -> Finding:
    """A finding that does not keep the job from starting."""
    return Finding(check, Level.WARN, message, hint=hint)
