"""This pod as itself sees it: user, addresses, limits, and the facts that travel to the launcher.

Stdlib only, and light: a worker's way to its sshd leads through here. Decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mpiboot.core import log
from mpiboot.core.addresses import bare, parse
from mpiboot.core.addresses import network as network_of
from mpiboot.core.model import Identity
from mpiboot.system import processes
from mpiboot.system.processes import GROUPS, text

if TYPE_CHECKING:
    from mpiboot.core.facts import Cpus

HOSTS: Final = Path("/etc/hosts")
SYSTEM: Final = Path("/sys/devices/system/cpu")
USERS: Final = Path("/proc/self/uid_map")
_SHELL: Final = "/bin/sh"
# Documentation addresses (RFC 5737, RFC 3849): only the default route leads there.
_OUTSIDE: Final = ("192.0.2.1", "2001:db8::1")
_DISCARD: Final = 9
API: Final = "KUBERNETES_SERVICE_HOST"
NO_DEFAULT_ROUTE: Final = "there is no default route"


def _capabilities() -> int:
    """This process's effective capabilities; none where they can't be read."""
    for line in text(Path("/proc/self/status")).splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def identity(environ: Mapping[str, str]) -> Identity:
    """Who this process is; made up from its uid where the system has no passwd entry for it.

    The made-up name depends on nothing but the uid, so that launcher and workers agree on it.
    """
    uid = os.getuid()
    try:
        entry = pwd.getpwuid(uid)
        user, home, shell, known = entry.pw_name, entry.pw_dir or "/", entry.pw_shell, True
    except KeyError:
        home = environ.get("HOME", "")
        user, home, shell, known = f"uid{uid}", home if home.startswith("/") else "/", "", False
    return Identity(
        uid,
        os.getgid(),
        user,
        home,
        shell or _SHELL,
        known=known,
        capabilities=_capabilities(),
        # The node's maps every uid to itself.
        own_users=text(USERS).split() not in (["0", "0", str((1 << 32) - 1)], []),
    )


def user_environment(
    who: Identity, environ: Mapping[str, str], fallback: Path | None = None
) -> dict[str, str]:
    """What has to be added to an environment before a library looks this user up.

    asyncssh and Open MPI 5 fail without HOME, ssh's clients without USER or LOGNAME. A value that
    is there and can be used is kept.

    Args:
        who: this process's identity.
        environ: the environment that is to be completed.
        fallback: a writable folder to be HOME where there is no other, as under a random uid.
    """
    patch = {name: who.user for name in ("USER", "LOGNAME") if not environ.get(name)}
    home = environ.get("HOME", "")
    if not _usable(home):
        patch["HOME"] = who.home if fallback is None or _usable(who.home) else str(fallback)
        if home:
            log.info("home", f"HOME={home} can't be used: {patch['HOME']} is used instead")
    return patch


def _usable(home: str) -> bool:
    return home.startswith("/") and home.strip("/") != "" and os.access(home, os.X_OK)


def hosts_lines(path: Path) -> list[list[str]]:
    """Read the lines of a hosts file as words in small letters: an address and its names."""
    return [line.partition("#")[0].lower().split() for line in text(path).splitlines()]


def own_names(hostname: str, path: Path = HOSTS) -> tuple[str, ...]:
    """Names that /etc/hosts has for this pod: those on the lines with its host name."""
    found = [words[1:] for words in hosts_lines(path) if hostname.lower() in words[1:]]
    return tuple(dict.fromkeys(name for line in found for name in line))


def _hosts_address(hostname: str, path: Path) -> str:
    for words in hosts_lines(path):
        found = parse(words[0]) if hostname.lower() in words[1:] else None
        # Debian writes 127.0.1.1 for the machine's own name, which nobody else can reach.
        if found is not None and not found.is_loopback:
            return words[0]
    return ""


def _route_address(api: str) -> tuple[str, str]:
    for outside in _OUTSIDE:
        if own := source_address(outside):
            return own, "the default route's source address"
    if parse(api) is not None and (own := source_address(api)):
        return own, f"{NO_DEFAULT_ROUTE}; the source address of the route to the API, {api}"
    own, link = _any_link()
    routes = f"{NO_DEFAULT_ROUTE} and none to the API" + (f", {api}" if api else "")
    return (
        own,
        f"{routes}; an address of {link}" if own else f"{routes}, and no link has an address",
    )


def source_address(peer: str) -> str:
    """Give the address from which the kernel would talk to a peer; empty without a route."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, _DISCARD))  # finds a route; nothing is sent
        return str(probe.getsockname()[0])
    return ""


def is_local(address: str) -> bool:
    """Whether an address is this pod's own.

    The kernel talks to an own address from that address. The rest of 127/8 is not counted: it is
    talked to from 127.0.0.1, and workers may stand on it in a trial without a cluster.
    """
    wanted = parse(address)
    return wanted is not None and parse(source_address(address)) == wanted


def _any_link() -> tuple[str, str]:
    """Give an address of a link, and that link's name; a bridge seldom leads to other nodes."""
    from mpiboot.network import netlink  # noqa: PLC0415 - takes long: the last resort
    from mpiboot.network.records import has_carrier, usable  # noqa: PLC0415 - as above

    links = (link for link in netlink.observe()[0] if has_carrier(link) and usable(link))
    link = min(links, key=lambda link: link.kind == "bridge", default=None)
    return (str(usable(link)[0].ip), link.name) if link else ("", "")


def _address_in(wanted: str) -> str | None:
    """This pod's own address in a network, empty for none; None where the text names no network."""
    network = network_of(wanted)
    # An address with its prefix is an address.
    if network is None or network.num_addresses == 1 or parse(bare(wanted)) != network[0]:
        return None
    source = source_address(str(network[1]))
    return source if source and parse(source) in network else ""


def _link_address(name: str) -> str:
    """The first address of a link, IPv4 before IPv6; empty where it has none."""
    from mpiboot.network import netlink  # noqa: PLC0415 - takes long: only where a link is named

    links = (link for link in netlink.observe()[0] if link.name == name)
    # A link-local address needs a zone everywhere.
    own = [bare(item) for link in links for item in link.addresses if not item.startswith("fe80:")]
    return min(own, key=lambda item: ":" in item, default="")


def control_address(
    wanted: str, hostname: str, hosts: Path = HOSTS, *, api: str = ""
) -> tuple[str, str]:
    """This pod's address for control traffic and why it is that; or none, and why not.

    Args:
        wanted: a link's name, an address or a network, where the user named one.
        hostname: this pod's host name.
        hosts: the hosts file, in which a kubelet writes the pod's own address.
        api: the address of the cluster's API; a node without a default route may have one to it.
    """
    if wanted:
        found = _address_in(wanted)
        if found is not None:
            return found, f"the address in {wanted}" if found else f"no address in {wanted}"
        address = wanted.partition("/")[0]
        if parse(address) is not None:
            return address, "MPIBOOT_CONTROL_IFNAME"
        address = _link_address(wanted)
        why_not = f"no link {wanted} with an address"
        return address, f"the address of the link {wanted}" if address else why_not
    address = _hosts_address(hostname, hosts)
    if address:
        return address, f"{hostname} in {hosts}"
    return _route_address(api)


def spec_names(pid: int) -> tuple[str, ...]:
    """Names of the variables that a process was started with: for the pod's first, its spec's."""
    try:
        found = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ()
    pairs = (item.partition("=") for item in os.fsdecode(found).split("\0"))
    return tuple(sorted({name for name, equals, _ in pairs if name and equals}))


def cpus(allowed: set[int], system: Path = SYSTEM, groups: Path = GROUPS) -> Cpus | None:
    """The CPUs that this pod has, by the numbers of those it may use; None if sysfs hides them."""
    from mpiboot.core.facts import Cpus  # noqa: PLC0415 - a worker listens first

    online = text(system / "online")
    siblings = {text(system / f"cpu{one}/topology/thread_siblings_list") for one in allowed}
    if not online or "" in siblings:
        return None
    ranges = (part.partition("-") for part in online.split(",") if part)
    count = sum(int(last or first) - int(first) + 1 for first, _, last in ranges)
    return Cpus(len(allowed), len(siblings), count, processes.cpu_quota(groups))


def shm_size() -> int:
    """The size of /dev/shm in bytes; 0 where there is none."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage("/dev/shm").total  # noqa: S108 - its size alone
    return 0
