"""How a launcher logs in to its workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mpiboot.hosts.kubectl_pods import PodAccess

# Stock images, the MPI Operator's and Trainer's, and those of Google's gIB.
PORTS: Final = (22, 2222, 222)


@dataclass(frozen=True, slots=True)
class Access:
    """How to log in to the workers.

    ``user`` is the login where the hostfile names none; ``key`` the path of the private key;
    ``host_key`` the pinned public key as a line, empty for the public half of ``key``; ``ports``
    the candidates in order; ``hostname`` is this pod's own, ``fqdns`` its full names; ``ipv6``
    tells whether its own address is of IPv6, None where that isn't known; ``domain`` is the
    cluster's, for the long form of names, empty where there is none. ``attempt`` and
    ``may_disconnect`` are what workers are told of this launcher (``host_shell.gate``). With
    ``pods`` nobody logs in: the hosts' pods are entered by kubectl, and there is no key.
    """

    user: str
    key: Path
    hostname: str
    host_key: str = ""
    ports: tuple[int, ...] = PORTS
    fqdns: tuple[str, ...] = ()
    ipv6: bool | None = None
    domain: str = ""
    attempt: str = ""
    may_disconnect: bool = False
    pods: PodAccess | None = None
