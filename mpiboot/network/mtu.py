"""The MTUs of the control links: where they differ, large messages may hang. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mpiboot.addresses import bare
from mpiboot.checks import BY_REFERENCE
from mpiboot.model import Finding, Level, Link, Worker
from mpiboot.network.control import link_of
from mpiboot.wording import first_few


def findings(launcher: Iterable[Link], workers: Sequence[Worker]) -> tuple[Finding, ...]:
    """Tell which pods have which MTU on the link of their control address, where they differ.

    Both ends of a connection agree on the smaller of theirs, so that only what lies between them
    can be too small for it; pods of one network with different MTUs are how that shows.
    """
    pods: dict[int, list[str]] = {}
    mine = tuple(launcher)
    own = {bare(worker.local_address) for worker in workers if worker.local_address}
    for address in sorted(own):
        link = link_of(address, mine)
        if link:
            pods.setdefault(link.mtu, []).append("the launcher")
    for worker in workers:
        link = link_of(worker.address, worker.facts.links) if worker.facts else None
        if link:
            pods.setdefault(link.mtu, []).append(worker.host.name)
    if len(pods) < 2:  # noqa: PLR2004 - two that differ
        return ()
    parts = [f"{size} on {first_few(dict.fromkeys(names))}" for size, names in sorted(pods.items())]
    said = f"MTUs of the control links differ: {'; '.join(parts)}"
    return (Finding("control-mtu", Level.WARN, said, hint=BY_REFERENCE["control-mtu"].hint),)
