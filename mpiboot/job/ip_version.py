"""Which IP version the pods speak, and what this MPI has to be told for it. Pure.

Pods that have IPv4 alone need nothing and get nothing. Measured on Debian's Open MPI 4.1.4 and
5.0.7, and on 5.0.8 to 5.0.11 of PyPI.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mpiboot.core.addresses import IPV4, IPV6
from mpiboot.core.checks import failed
from mpiboot.core.model import Link, Source
from mpiboot.job.dialect import version_number
from mpiboot.job.plan_builder import Observed, PlanBuilder
from mpiboot.network.control import launcher_addresses, link_of
from mpiboot.network.records import usable

# PRRTE before 3.0.12, as a distribution builds it with a PMIx without IPv6, reads past the end of
# a pod's list of aliases, which is empty without IPv4 (prte_check_host_is_local): SIGSEGV on every
# host. A prefix that is cut off every name gives each pod its alias.
_ALIASES_SINCE: Final = (5, 0, 9)
# open-mpi/ompi#12771: in these releases PMIx sees no IPv6 address at all.
_PMIX_BLIND: Final = ((5, 0, 3), (5, 0, 6))
_NAME: Final = "ip-version"


def settle(builder: PlanBuilder, observed: Observed) -> int:
    """Keep MPI to the version of the control addresses, and say where it can't speak that.

    Returns:
        The version that MPI and its daemons speak: 4 or 6.
    """
    spoken = {_version(worker.address) for worker in observed.workers}
    if spoken != {IPV6}:
        mixed = _has_both(observed)
        if mixed and spoken == {IPV4}:
            _keep_to(builder, IPV4, f"the control addresses are IPv4, though {mixed} has IPv6 too")
        return IPV4
    alone = _without_ipv4(observed)
    ipv4_only = builder.row.ipv4_only
    if not alone:
        if ipv4_only or observed.mpi_ipv6 is False:
            what = "speaks IPv4 alone" if ipv4_only else "is built without IPv6"
            because = f"this MPI {what}, and every pod has an IPv4 address too"
            builder.decide(_NAME, "IPv4", Source.DETECTED, because)
            return IPV4
        _keep_to(builder, IPV6, "the control addresses are IPv6")
    elif observed.mpi_ipv6 is False:
        said = f"{observed.mpi.said or builder.row.title} is built without IPv6 (ompi_info says so)"
        builder.fail(_NAME, f"{said}, and {_some(alone)} no IPv4 address")
        return IPV6
    elif ipv4_only:
        said = f"the daemons of {builder.row.title} speak IPv4 alone"
        hint = "give the pods IPv4 addresses too (dual stack), or take Open MPI"
        found = failed(_NAME, f"{said}, and {_some(alone)} no IPv4 address", hint=hint)
        builder.findings.append(found)
        return IPV6
    else:
        builder.decide(_NAME, "IPv6", Source.DETECTED, f"{_some(alone)} no IPv4 address")
    for item in builder.row.ipv6:
        builder.variable(item.name, item.value, item.because, Source.DETECTED)
    if alone and builder.row.cut_prefix_var:
        _give_aliases(builder, observed)
    return IPV6


def _keep_to(builder: PlanBuilder, version: int, because: str) -> None:
    builder.decide(_NAME, f"IPv{version}", Source.DETECTED, because)
    other = IPV6 if version == IPV4 else IPV4
    said = f"keeps to IPv{version}; it would try addresses of both"
    if builder.row.not_version_var:
        value = str(other)
        builder.variable(builder.row.not_version_var, value, f"MPI's TCP {said}", Source.DETECTED)
    for name in (item for item in builder.row.not_daemons_vars if f"_ipv{other}_" in item):
        builder.variable(name, "1", f"the daemons' TCP {said}", Source.DETECTED)


def _version(address: str) -> int:
    return IPV6 if ":" in address else IPV4


def _versions(links: Iterable[Link]) -> set[int]:
    return {item.version for link in links for item in usable(link)}


def _has_both(observed: Observed) -> str:
    """Name the first pod whose control link has addresses of both versions."""
    pods = [(worker.host.name, worker.address, worker.facts) for worker in observed.workers]
    for name, address, facts in pods:
        link = link_of(address, facts.links) if facts else None
        if link and len(_versions([link])) > 1:
            return name
    links = [link_of(item, observed.links) for item in launcher_addresses(observed.workers)]
    return "the launcher" if any(link and len(_versions([link])) > 1 for link in links) else ""


def _without_ipv4(observed: Observed) -> list[str]:
    """List the pods that have no IPv4 address; one that tells nothing counts by its address."""
    found = [] if IPV4 in _versions(observed.links) else ["the launcher"]
    found += [
        worker.host.name
        for worker in observed.workers
        if worker.facts is None or IPV4 not in _versions(worker.facts.links)
    ]
    return found


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more have" if len(names) > 1 else " has"
    return f"{names[0]}{more}"


def _give_aliases(builder: PlanBuilder, observed: Observed) -> None:
    """Keep PRRTE's daemons from their crash, where this release has it."""
    row, version = builder.row, version_number(observed.mpi.version)
    if _PMIX_BLIND[0] <= version < _PMIX_BLIND[1]:
        said = f"{row.title} {observed.mpi.version} is known to see no IPv6 addresses"
        hint = "use 5.0.6 or newer (open-mpi/ompi#12771), or give the pods IPv4 addresses too"
        builder.warn(_NAME, said, hint)
    if version >= _ALIASES_SINCE or builder.environ.get(row.cut_prefix_var):
        return
    own = observed.own.hostname if observed.own else ""
    theirs = [
        worker.facts.hostname if worker.facts else worker.host.name.partition(".")[0]
        for worker in observed.workers
    ]
    prefix = cut_prefix([*([own] if own else []), *theirs])
    if not prefix:
        said = f"{row.title} {observed.mpi.version} crashes in pods without an IPv4 address"
        hint = "use 5.0.9 or newer, or give the pods IPv4 addresses too (dual stack)"
        builder.fail(_NAME, said, hint)
        return
    because = f"{observed.mpi.version} crashes in a pod without IPv4 that has no second name"
    builder.variable(row.cut_prefix_var, prefix, because, Source.DETECTED)
    if observed.local:
        because = "its name is cut, so mpirun asks for each host to find its own"
        builder.variable(row.not_resolve_var, "0", because, Source.DETECTED)


def cut_prefix(hostnames: Sequence[str]) -> str:
    """Find what can be cut off all host names so that each keeps a name of its own.

    Returns:
        The prefix, as short as it can be, or one for each first letter; empty where none will do.
    """
    first = hostnames[0].partition(".")[0]
    shared = [first[:size] for size in range(1, len(first) + 1)]
    shared = [item for item in shared if all(name.startswith(item) for name in hostnames)]
    for prefix in (*shared, ",".join(sorted({name[:1] for name in hostnames}))):
        left = [_cut(name, prefix.partition(",")[0]) for name in hostnames]
        if all(left) and len({*left, *hostnames}) == len(left) + len(set(hostnames)):
            return prefix
    return ""


def _cut(name: str, prefix: str) -> str:
    """Cut a name as PRRTE does: also what stands before its first digit from 1 to 9."""
    rest = name[len(prefix) :]
    digit = next((index for index, char in enumerate(rest) if char in "123456789"), None)
    return rest if digit is None else rest[digit:]
