"""The control link: one name, or one network, that launcher and workers all have. Pure.

Open MPI 5.0 takes a single value (a list crashes it) and waits for ever where the launcher has
no link in a network that the workers have; so the value holds every control address and no
address of any other link.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mpiboot.core.addresses import Network, bare, interface, network, parse, smallest_network
from mpiboot.core.model import Decision, Link, Source, Worker
from mpiboot.core.settings import Given
from mpiboot.core.wording import counted

_GIVEN: Final = Given(Source.ENVIRONMENT, "MPIBOOT_CONTROL_IFNAME")


def link_of(address: str, links: Iterable[Link]) -> Link | None:
    """Find the link that holds an address."""
    return next(
        (link for link in links if any(bare(own) == bare(address) for own in link.addresses)), None
    )


def launcher_addresses(workers: Iterable[Worker]) -> tuple[str, ...]:
    """Give the launcher's own control addresses: its ends of the connections to the workers."""
    return tuple(sorted({item.local_address for item in workers if item.local_address}))


def _in(address: str, where: Network) -> bool:
    found = interface(address)
    return found is not None and found.ip in where


def name_in(text: str, launcher: Iterable[Link], workers: Iterable[Worker]) -> str:
    """Name the link that has an address in a network, or that address, in every pod.

    Returns:
        The name; empty where it differs, or where a pod tells nothing or has no such link.
    """
    wanted = network(text)
    if wanted is None:
        return ""
    pods = [launcher, *(worker.facts.links if worker.facts else () for worker in workers)]
    found = [
        next((x.name for x in links if any(_in(own, wanted) for own in x.addresses)), "")
        for links in pods
    ]
    return found[0] if len(set(found)) == 1 else ""


def choose(
    wanted: str,
    launcher: tuple[Link, ...],
    workers: tuple[Worker, ...],
    *,
    given: Given = _GIVEN,
) -> tuple[Decision | None, str]:
    """Choose the value for daemons and MPI TCP.

    Args:
        wanted: the setting ``control_ifname``, empty where not set.
        launcher: this pod's links.
        workers: hosts that passed the gate; those without facts count by address alone.
        given: the flag or variable that ``wanted`` came from.

    Returns:
        The decision, or None and the reason why nothing is pinned.
    """
    if wanted:
        return Decision("control-link", wanted, given.source, str(given)), ""
    if not workers:
        return None, "no worker was reached, so no route tells the control link"
    own = launcher_addresses(workers)
    mine = [link_of(address, launcher) for address in own]
    names = {link.name for link in mine if link}
    others: list[str] = []
    known = all(mine) and bool(own)
    same_name = len(names) == 1 and known
    for worker in workers:
        if worker.facts is None:
            same_name = False
            continue
        link = link_of(worker.address, worker.facts.links)
        same_name = same_name and link is not None and link.name in names
        others += [
            address for item in worker.facts.links if item is not link for address in item.addresses
        ]
    if same_name:
        (name,) = names
        return (
            Decision(
                "control-link",
                name,
                Source.DETECTED,
                f"the launcher's routes to {counted(len(workers), 'worker')} leave by it, "
                "and their addresses are on a link of that name",
            ),
            "",
        )
    controls = {*map(bare, own), *(bare(worker.address) for worker in workers)}
    smallest = smallest_network(filter(None, map(parse, controls)))
    if smallest is None:
        return None, "the control addresses are of both IP versions"
    others += [address for link in launcher if link not in mine for address in link.addresses]
    inside = [item for item in others if bare(item) not in controls and _in(item, smallest)]
    if inside:
        return None, f"{smallest} would hold all control addresses but also {inside[0]}"
    return (
        Decision(
            "control-link",
            str(smallest),
            Source.DETECTED,
            "the smallest network that holds all control addresses and no other link's; "
            "the links' names differ or are not known",
        ),
        "",
    )
