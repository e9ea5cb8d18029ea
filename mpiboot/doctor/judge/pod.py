"""Limits, memory, /dev/shm and routing of one pod, judged. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mpiboot.core.checks import failed
from mpiboot.core.model import Finding, PodFacts
from mpiboot.core.settings import Settings
from mpiboot.core.wording import counted, first_few, size_of
from mpiboot.doctor.judge.image import ok, warned
from mpiboot.doctor.report import (
    LimitsPart,
    MemoryPart,
    MeshPart,
    RoutingPart,
    ServersPart,
    ShmPart,
)
from mpiboot.network import service_mesh
from mpiboot.network.records import usable

# Above this part of a limit the next large step of a program meets it.
_FULL: Final = 0.9
_STRICT: Final = 1  # net.ipv4.conf.*.rp_filter, Documentation/networking/ip-sysctl
_SSH: Final = 22


def ssh_servers(seen: ServersPart) -> Iterable[Finding]:
    """Judge whose SSH server has the port of this pod's worker, or those that are looked at."""
    for server in seen.servers:
        who = f", process {server.pid} ({server.program})" if server.pid else ""
        said = f"port {server.port} greets with {server.greeting!r}{who}"
        if server.port == seen.own:
            if server.ours:
                yield ok("other-ssh-server", f"port {server.port} is mpiboot's{who}")
            elif server.pid:  # of one that can't be seen, a login shows whose it is
                yield failed("other-ssh-server", f"{said}: not mpiboot's, whose port it is")
        elif not seen.own and not server.ours:
            yield warned("other-ssh-server", f"{said}: an SSH server that mpiboot did not start")


def limits(seen: LimitsPart) -> Iterable[Finding]:
    """Compare the limits of sessions with those of the pod's first process."""
    if not seen.sessions or not seen.first:
        return
    lower = [
        f"{name} {_limit(name, own)} (the first process: {_limit(name, seen.first[name])})"
        for name, own in seen.sessions.items()
        if name in seen.first and _less(own, seen.first[name])
    ]
    if lower:
        yield warned("session-limits", f"SSH sessions get less: {', '.join(lower)}")
    else:
        parts = ", ".join(f"{name} {_limit(name, own)}" for name, own in seen.sessions.items())
        yield ok("session-limits", f"SSH sessions have the limits of the first process: {parts}")


def _less(one: int, other: int) -> bool:
    return one >= 0 and (other < 0 or one < other)


def _limit(name: str, value: int) -> str:
    if value < 0:
        return "unlimited"
    return size_of(value) if name == "locked memory" else str(value)


def processes(seen: LimitsPart) -> Iterable[Finding]:
    """Judge the control group's count of processes and threads."""
    if not seen.most_processes:
        return
    said = f"{seen.processes} of {seen.most_processes} processes and threads"
    full = seen.processes > _FULL * seen.most_processes
    yield warned("processes", f"{said}: the next may not start") if full else ok("processes", said)


def shm(seen: ShmPart) -> Iterable[Finding]:
    """Judge what is in /dev/shm; whether its size is enough is judged with the data network."""
    if seen.stale and seen.all_seen:
        size = size_of(sum(size for _, size in seen.stale))
        names = first_few(name for name, _ in seen.stale)
        files = counted(len(seen.stale), "file")
        said = f"{files} of NCCL in /dev/shm ({size}) that no process here holds: {names}"
        yield warned("shm-full", said)
    told = f"{size_of(seen.used)} of {size_of(seen.size)} in /dev/shm in use"
    if seen.size and seen.used > _FULL * seen.size:
        yield warned("shm-full", told)
    elif not (seen.stale and seen.all_seen):
        yield ok("shm-full", told)


def memory(seen: MemoryPart) -> Iterable[Finding]:
    """Judge the container's memory."""
    limit = f" of {size_of(seen.limit)}" if seen.limit else " (no limit)"
    said = f"memory: {size_of(seen.used)}{limit} in use"
    if seen.kills:
        killed = counted(seen.kills, "time", "times")
        yield warned("memory-limit", f"out of memory: the kernel killed {killed} here; {said}")
    elif seen.limit and seen.used > _FULL * seen.limit:
        yield warned("memory-limit", said)
    else:
        yield ok("memory-limit", said)


def rp_filter(seen: RoutingPart, facts: PodFacts) -> Iterable[Finding]:
    """Judge rp_filter where it counts: where a pod has several links with addresses."""
    links = [link.name for link in facts.links if usable(link) and link.name != "lo"]
    strict = [name for name in links if seen.rp_filter.get(name) == _STRICT]
    if len(links) < 2:  # noqa: PLR2004 - with one link there is no other way
        return
    if strict:
        said = f"rp_filter is 1 (strict) on {first_few(strict)}"
        about = "packets whose answer would leave by another link are dropped without a word"
        yield warned("rp-filter", f"{said}: {about}")
    else:
        yield ok("rp-filter", f"not strict on {first_few(links)}")


def default_routes(facts: PodFacts) -> Iterable[Finding]:
    """Judge whether one link alone has the default route of an IP version."""
    ways: dict[str, list[str]] = {}
    for route in facts.fabric.routes:
        if route.destination in ("0.0.0.0/0", "::/0"):
            ways.setdefault(route.destination, []).append(route.link)
    several = {name: links for name, links in ways.items() if len(set(links)) > 1}
    for name, links in several.items():
        said = f"{name} leaves by {' and by '.join(dict.fromkeys(links))}"
        yield warned("default-routes", f"{said}: the kernel decides by metric")
    if ways and not several:
        only = dict.fromkeys(link for named in ways.values() for link in named)
        yield ok("default-routes", f"the default route leaves by {' and '.join(only)}")


def mesh(seen: MeshPart, settings: Settings) -> Iterable[Finding]:
    """Tell of a proxy in front of this pod, as the launcher does of all pods."""
    ports = [settings.ssh_port or _SSH]
    yield from service_mesh.findings({"this pod": seen.mesh}, ports, settings.port_range)
