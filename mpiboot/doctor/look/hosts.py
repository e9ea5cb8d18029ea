"""What a launcher learns of its hosts beside the gate: their names' answers, the way back to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mpiboot.core.addresses import is_address
from mpiboot.core.model import Host, Worker
from mpiboot.core.settings import Settings
from mpiboot.doctor import host_report
from mpiboot.doctor.host_report import HostReport, LauncherPlace, NameLook
from mpiboot.hosts import host_shell, pacing
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.dns_query import NoAddress
from mpiboot.network import pod
from mpiboot.ssh.attempt import Attempt
from mpiboot.system import os_calls

_AGAIN: Final = 2  # questions beside the first one
# Connections wait here until the launcher has asked all hosts; the kernel takes its own bound.
_BACKLOG: Final = 4096
_NEVER: Final = (NoAddress.NXDOMAIN, NoAddress.NO_RECORD)


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[LauncherPlace]:
    """Listen at this pod's control address while hosts try to reach it; nobody is answered."""
    name = socket.gethostname()
    address, _ = pod.control_address(settings.control_ifname, name)
    with contextlib.ExitStack() as open_sockets:
        free = _listen(address, range(1), open_sockets)
        first, _, last = settings.port_range.partition("-")
        # From its end: MPI's daemons take the first ones.
        ports = range(int(last), int(first) - 1, -1) if last else range(0)
        own = _listen(address, ports, open_sockets)
        yield LauncherPlace(name, address, free, own, settings.port_range)


def _listen(address: str, ports: range, open_sockets: contextlib.ExitStack) -> int:
    """Listen at the first of these ports that is free; 0 where none is."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports if address else ():
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.bind((address, port))
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
        else:
            open_sockets.enter_context(sock)
            return int(sock.getsockname()[1])
    return 0


def questions(place: LauncherPlace) -> tuple[str, ...]:
    """Give what each host is asked beside the gate's question."""
    ports = [port for port in (place.port, place.range_port) if port]
    places = [(place.address, port) for port in ports]
    places += [(place.name, port) for port in ports[-1:]]
    return ("own_values", *host_shell.dials(place.seconds, places), "own_checks")


def reports(
    hosts: Sequence[Host],
    workers: Sequence[Worker],
    answers: Mapping[str, Attempt],
    names: Mapping[str, NameLook],
) -> tuple[HostReport, ...]:
    """Put together what is known of each host."""
    by_name = {worker.host.name: worker for worker in workers}
    found = []
    for host in hosts:
        attempt = answers.get(host.name)
        answer = host_shell.read(attempt.output if attempt else "")
        found.append(
            HostReport(
                host.name,
                by_name.get(host.name),
                names.get(host.name),
                dict(answer.values),
                host_report.dials(answer),
                attempt.fingerprint if attempt else "",
                host_report.own_checks(host.name, answer),
            )
        )
    return tuple(found)


async def look_up(hosts: Sequence[Host]) -> dict[str, NameLook]:
    """Ask for each host's name: as every program does, then the nameservers themselves, twice."""
    # The system's answers are of both IP versions, whatever this pod's links have.
    each = max(1, pacing.lookup_sockets(os_calls.most_open_files()) // 2)
    system = Resolver(sockets=each)
    servers = Resolver(system=lambda _: (), families=("AAAA", "A"), sockets=each)
    listed = [host.name for host in hosts if not is_address(host.name)]
    looks = await asyncio.gather(*(_look_up(name, system, servers) for name in listed))
    return dict(zip(listed, looks, strict=True))


async def _look_up(name: str, system: Resolver, servers: Resolver) -> NameLook:
    began = time.monotonic()
    first = await system.ask(name)
    seconds = time.monotonic() - began
    if not first.addresses:
        return NameLook(unknown=first.reason in _NEVER)
    answers, found_as = [first.addresses], ""
    for _ in range(_AGAIN):
        again = await servers.ask(name)
        if again.addresses:
            answers.append(again.addresses)
            # Of /etc/hosts it is the name itself.
            found_as = again.searched[-1] if again.searched else ""
    return NameLook(tuple(answers), seconds, "" if found_as == name else found_as)
