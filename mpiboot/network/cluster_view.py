"""The data network of all workers side by side: one row a worker, and what is wrong with it. Pure.

Every finding says what to change, with the lines of the pod's specification where that is it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Final

from mpiboot.core.choices import DataNetworkUse
from mpiboot.core.data_checks import DATA_ROWS, NEVER_STOP
from mpiboot.core.majority import majority
from mpiboot.core.model import Finding, Level, Link
from mpiboot.core.settings import Settings
from mpiboot.core.wording import first_few
from mpiboot.network import nccl, reach, worker_checks
from mpiboot.network.link_addresses import usable
from mpiboot.network.records import RDMA, Problem, Transport, WorkerNetwork

HEADINGS: Final = ("worker", "control", "data", "HCA", "state", "Gb/s", "MTU", "GID")


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One line of the table; cells are text, empty where there is nothing to say."""

    worker: str
    control: str
    data: str
    hca: str
    state: str
    rate: str
    mtu: str
    gid: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells in the order of ``HEADINGS``."""
        return astuple(self)


def row(network: WorkerNetwork) -> WorkerRow:
    """Make a worker's row; what is equal for all of its ports stands once."""
    if network.facts is None:
        why = f"not known: the worker {network.no_facts.value}"
        return WorkerRow(network.host, "", why, *("",) * 5)
    rails = network.rails
    links = [rail.link for rail in rails if rail.link] or list(network.data)
    ports = [str(rail.port.mtu) for rail in rails if rail.port.mtu]
    return WorkerRow(
        worker=network.host,
        control=_shown(network.control),
        data=_span(map(_shown, network.data)) or network.transport.value,
        hca=_span(rail.name for rail in rails),
        state=_once(rail.port.state.value or "-" for rail in rails),
        rate=_once(f"{rail.port.rate:g}" for rail in rails if rail.port.rate),
        mtu="/".join(filter(None, (_once(str(link.mtu) for link in links), _once(ports)))),
        gid=_once(str(gid.index) if gid else "-" for gid in network.gids.wanted)
        if network.transport is Transport.ROCE
        else "",
    )


def _shown(link: Link | None) -> str:
    if link is None:
        return ""
    own = usable(link)
    return f"{link.name} {own[0].ip}" if own else link.name


def _span(words: Iterable[str]) -> str:
    """Write a list in one cell: more than two as the first, the last and how many."""
    listed = list(words)
    long = len(listed) > 2  # noqa: PLR2004 - two still fit
    return f"{listed[0]} .. {listed[-1]} ({len(listed)})" if long else ", ".join(listed)


def _once(words: Iterable[str]) -> str:
    listed = list(words)
    return listed[0] if len(set(listed)) == 1 else ",".join(listed)


def findings(
    networks: Sequence[WorkerNetwork],
    settings: Settings,
    taken: Collection[str],
    values: Mapping[str, str],
) -> tuple[Finding, ...]:
    """Apply every rule to all workers: one finding a problem, whichever workers have it.

    Args:
        networks: all workers.
        settings: ``require`` makes most findings failures; ``off`` gives none.
        taken: names that the user has set for all ranks.
        values: the values of those names, as far as they are known here.
    """
    if settings.data_network is DataNetworkUse.OFF:
        return ()
    expected = settings.data_network is DataNetworkUse.REQUIRE or any(
        network.usable for network in networks
    )
    hosts: dict[Problem, list[str]] = {}
    for network in networks:
        found = [*network.problems, *network.gids.problems]
        found += [
            *worker_checks.of_one(network, expected=expected),
            *worker_checks.user_values(network, taken, values),
        ]
        for problem in dict.fromkeys(found):
            hosts.setdefault(problem, []).append(network.host)
    everywhere = [network.host for network in networks]
    whole = [problem for rule in _RULES for problem in rule(networks, settings)]
    return (
        *(_finding(problem, names, settings) for problem, names in hosts.items()),
        *(_finding(problem, problem.hosts or everywhere, settings) for problem in whole),
    )


def level(check: str, settings: Settings, *, always: bool = False) -> Level:
    """Tell what a problem of this row is under the user's ``MPIBOOT_DATA_NETWORK``."""
    strict = settings.data_network is DataNetworkUse.REQUIRE and check not in NEVER_STOP
    return Level.FAIL if strict or always else Level.WARN


def _finding(problem: Problem, names: Sequence[str], settings: Settings) -> Finding:
    hint = DATA_ROWS[problem.check].hint if problem.hint is None else problem.hint
    several = len(names) > 1
    return Finding(
        problem.check,
        level(problem.check, settings, always=problem.always),
        problem.said,
        "" if several else names[0],
        hint=hint,
        hosts=tuple(names) if several else (),
    )


def _odd(
    networks: Sequence[WorkerNetwork],
    describe: Callable[[WorkerNetwork], str],
    check: str,
    what: str,
) -> Iterable[Problem]:
    """Report workers that differ from most others."""
    seen = {one.host: describe(one) for one in networks if one.facts is not None}
    found = majority(seen)
    if found:
        yield Problem(check, f"{what} differ: {found.said}", hosts=found.hosts)


def _agree(networks: Sequence[WorkerNetwork], _: Settings) -> Iterable[Problem]:
    def describe(network: WorkerNetwork) -> str:
        if network.transport not in RDMA:
            return "no RDMA"
        count = len(network.rails)
        rates = sorted({rail.port.rate for rail in network.rails if rail.port.rate})
        speed = " at " + ", ".join(f"{rate:g}" for rate in rates) + " Gb/s" if rates else ""
        entries = [nccl.address(gid) for gid in network.gids.wanted if gid is not None]
        versions = sorted({item.version for item in entries if item is not None})
        # An entry of one version does not talk to one of the other.
        family = " by IPv" + "/".join(map(str, versions)) if 6 in versions else ""  # noqa: PLR2004
        return f"{count} {network.transport.value} port{'s' * (count > 1)}{speed}{family}"

    return _odd(networks, describe, "rdma-differs", "RDMA devices")


def _one_mtu(networks: Sequence[WorkerNetwork], _: Settings) -> Iterable[Problem]:
    with_data = [network for network in networks if network.data or network.rails]
    # Where one worker's image can't tell its ports' MTU, those of the others prove nothing.
    known = all(rail.port.mtu for network in with_data for rail in network.rails)

    def describe(network: WorkerNetwork) -> str:
        links = sorted({link.mtu for link in network.data})
        ports = sorted({rail.port.mtu for rail in network.rails}) if known else []
        link = ", ".join(map(str, links)) or "no link"
        return link + (" (port " + ", ".join(map(str, ports)) + ")" if ports else "")

    return _odd(with_data, describe, "data-mtu", "MTUs of the data network")


def _reach(networks: Sequence[WorkerNetwork], settings: Settings) -> Iterable[Problem]:
    networks = [network for network in networks if network.data]
    positions = min((len(network.data) for network in networks), default=0)
    crossed = list(_crossed(networks, settings))
    yield from crossed
    # Rails of the same subnets pair up by device, whatever their links are called.
    paired = len({_subnets(network) for network in networks}) <= 1
    for position in range(positions):
        ends = reach.endpoints(networks, position)
        if ends is None:
            if all(network.transport is not Transport.INFINIBAND for network in networks):
                name = networks[0].data[position].name
                said = f"the workers have no IP version in common on the links beside {name}"
                yield Problem("data-networks", said)
            continue
        twice, apart = reach.shared_address(ends), reach.unreachable(ends)
        if twice:
            yield Problem("data-networks", twice, "look at the network's IPAM: one address, once")
        elif apart and not crossed and not paired:
            yield Problem("data-networks", apart)


def _subnets(network: WorkerNetwork) -> tuple[str, ...]:
    return tuple(sorted(str(own.network) for link in network.data for own in usable(link)[:1]))


def _crossed(networks: Sequence[WorkerNetwork], settings: Settings) -> Iterable[Problem]:
    """Compare the subnet of the k-th device, as NCCL numbers them, across workers."""
    version = nccl.version(settings.nccl_version)
    by_function = version is None or version >= nccl.PCI_ORDER
    orders: Mapping[str, tuple[str, ...]] = {
        network.host: tuple(
            str(usable(rail.link)[0].network)
            for rail in sorted(
                network.rails,
                key=lambda rail: (rail.device.pci if by_function else "", rail.device.index),
            )
            if rail.link is not None and usable(rail.link)
        )
        for network in networks
        if len(network.rails) > 1 and all(rail.device.pci for rail in network.rails)
    }
    first = next(iter(orders.values()), ())
    odd = [
        host for host, order in orders.items() if order != first and sorted(order) == sorted(first)
    ]
    if odd:
        yield Problem(
            "rdma-rails",
            f"rails cross: on {first_few(odd)} the devices' order leads to other subnets than on "
            f"{next(iter(orders))} ({', '.join(first)})",
        )


_RULES: Final = (_agree, _one_mtu, _reach)
