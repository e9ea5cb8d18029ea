"""Compares a launcher's hosts, and judges how they were reached. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.facts import Worker
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import counted, grouped, majority, size_of
from mpiboot.doctor.checks import check, ok, warned
from mpiboot.network.worker_network import link_of


@dataclass(frozen=True, slots=True)
class HostReport:
    """One host of the hostfile; ``worker`` is None where it was not reached.

    ``checks`` are its doctor's findings, and ``session`` is what hosts are compared by, as a
    session there has it (None: it has no doctor).
    """

    host: str
    worker: Worker | None = None
    checks: tuple[Finding, ...] | None = None
    session: Mapping[str, str] | None = None


_MAX_HOST_LINES: Final = 16  # where each host has another message
_NO_LINK: Final = "none"
_IMAGE: Final = "use one image for the launcher and all workers"
_LIMITS: Final = "give the container runtime the same limits on all nodes (LimitNOFILE, LimitNPROC)"
# What hosts are compared by: the message and the hint. The plan compares MPI and devices.
_VALUES: Final = {
    "mpiboot": ("its version of mpiboot is {}", _IMAGE),
    "uid": ("sessions have the uid {}", "set one securityContext.runAsUser for all workers"),
    "locked memory": ("memlock of a session is {}", BY_REFERENCE["memlock"].hint),
    "open files": ("the limit of open files of a session is {}", _LIMITS),
    "processes": ("the limit of processes of a session is {}", _LIMITS),
}


def _values(one: HostReport, worker: Worker) -> dict[str, str]:
    """List a host's known values."""
    known = worker.facts.mpiboot if worker.facts else "another"
    found = {**(one.session or {}), "mpiboot": known if worker.runs_mpiboot else "none"}
    if found.get("locked memory", "").isdecimal():
        found["locked memory"] = size_of(int(found["locked memory"]))
    return found


@check("hosts-differ")
def differ(hosts: Sequence[HostReport]) -> Iterable[Finding]:
    """Find hosts whose value of something, as a session has it, is not that of most others."""
    every = {one.host: _values(one, one.worker) for one in hosts if one.worker}
    links = {one.host: _links(one.worker) for one in hosts if one.worker and one.worker.facts}
    found = [*_values_differ(every), *_links_differ(links)]
    yield from found
    if len(every) > 1 and not found:
        yield ok("hosts-differ", f"{counted(len(every), 'host')} have the same limits and links")


def _links(worker: Worker) -> dict[str, str]:
    """Name a worker's links with their MTU, but for the control link (workers-differ)."""
    listed = worker.facts.links if worker.facts else ()
    control = link_of(worker.address, listed)
    return {link.name: str(link.mtu) for link in listed if link is not control}


def _values_differ(every: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    for name, (words, hint) in _VALUES.items():
        found = majority({host: values[name] for host, values in every.items() if name in values})
        if found is None:
            continue
        for value, which in found.outliers.items():
            message = f"{words.format(value)}, of the others ({found.alike}): {found.usual}"
            yield warned("hosts-differ", message, hint=hint).on(which)


def _links_differ(every: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Find hosts that lack a link of most others, or whose link has another MTU."""
    for link in sorted({link for links in every.values() for link in links}):
        found = majority({host: links.get(link, _NO_LINK) for host, links in every.items()})
        if found is None or found.usual == _NO_LINK:
            continue
        for value, which in found.outliers.items():
            message = f"the MTU of {link} is {value}, of the others ({found.alike}): {found.usual}"
            hint = "give that network one MTU on all nodes"
            if value == _NO_LINK:
                message = f"it has no link {link}, which the others ({found.alike}) have"
                hint = "give each worker the same networks (`k8s.v1.cni.cncf.io/networks`)"
            yield warned("hosts-differ", message, hint=hint).on(which)


@check("worker-checks")
def own_checks(hosts: Sequence[HostReport]) -> Iterable[Finding]:
    """Name the hosts whose own checks are unknown, or of another version.

    Looks at the report of each worker's `mpiboot doctor`, over the same session.
    """
    unknown = grouped(
        (one.worker.runs_mpiboot, one.host) for one in hosts if one.worker and one.checks is None
    )
    for runs_mpiboot, which in unknown.items():
        why = "its mpiboot has no checks for a launcher, or they took too long"
        why = why if runs_mpiboot else "it does not run mpiboot"
        message = f"its limits, files and devices were not checked from within: {why}"
        yield Finding("worker-checks", Level.UNKNOWN, message).on(which)


def merged(found: Iterable[Finding]) -> list[Finding]:
    """Merge equal findings of several hosts.

    A check that holds with another message on each of very many hosts is reported by its title.
    """
    listed = list(found)
    alike = grouped((replace(item, host=""), item.host) for item in listed)
    well = grouped((item.check, item.host) for item in listed if item.level is Level.OK)
    joined: dict[Finding, list[str]] = {}
    for item, which in alike.items():
        many = item.level is Level.OK and len(which) < len(set(well[item.check])) > _MAX_HOST_LINES
        same = ok(item.check, BY_REFERENCE[item.check].title) if many else item
        joined.setdefault(same, []).extend(which)
    return [item.on(list(dict.fromkeys(which))) for item, which in joined.items()]
