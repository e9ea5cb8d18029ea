"""IP addresses and host names in text: how they are read, compared, cut and lengthened. Pure.

Nothing is resolved here, and nothing raises.
"""

from __future__ import annotations

import functools
import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final, TypeAlias

Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"
Interface: TypeAlias = "ipaddress.IPv4Interface | ipaddress.IPv6Interface"
Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"

IPV4: Final = 4
IPV6: Final = 6
_CACHED_ADDRESSES: Final = 1 << 16  # every rule reads every table: a thousand workers are felt
# The rest of 127/8 is left to workers that stand on it in a trial without a cluster: no mpirun
# takes it for its own host either. 127.0.1.1 is a Debian machine's own name.
_SELF: Final = ("127.0.0.1", "127.0.1.1", "::1")
_DASHES: Final = str.maketrans({":": "-", "%": "-"})


def bare(text: str) -> str:
    """Cut prefix length and zone off: ``fe80::1%eth0/64`` is ``fe80::1``."""
    return text.partition("/")[0].partition("%")[0]


@functools.lru_cache(_CACHED_ADDRESSES)
def parse(text: str) -> Address | None:
    """Read an address without a prefix length, its zone left out; None where it is none."""
    kind = ipaddress.IPv6Address if ":" in text else ipaddress.IPv4Address
    try:
        found = kind(text)
    except ValueError:
        return None
    # With its zone an address equals no other one, and can't be in a network.
    return kind(bare(text)) if "%" in text else found


def is_address(text: str) -> bool:
    """Whether a host is named by its IPv4 or IPv6 address, which needs no resolver."""
    return parse(text) is not None


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Give each host's name up to its first dot where these differ, else the whole."""
    cut = {name: short(name) for name in names}
    return cut if len(set(cut.values())) == len(cut) else dict(zip(names, names, strict=True))


def plain(text: str) -> str:
    """Write an address as the kernel's tables have it: no zone, IPv4 also where it is in IPv6."""
    found = parse(text)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found or text)


@functools.lru_cache(_CACHED_ADDRESSES)
def interface(text: str) -> Interface | None:
    """Read an address with its prefix length (without: the whole), its zone left out."""
    address, slash, prefix = text.partition("/")
    try:
        return ipaddress.ip_interface(bare(address) + slash + prefix)
    except ValueError:
        return None


def network(text: str) -> Network | None:
    """Read a network in CIDR form; bits beyond the prefix are overlooked."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def inside(text: str, where: Network) -> bool:
    """Whether an address, with or without its prefix length, is in a network."""
    found = interface(text)
    return found is not None and found.ip in where


def smallest_network(addresses: Iterable[Address]) -> Network | None:
    """Find the smallest network that holds all addresses; None where their versions differ."""
    known = list(addresses)
    if len({item.version for item in known}) != 1:
        return None
    numbers = [int(item) for item in known]
    prefix = known[0].max_prefixlen - (min(numbers) ^ max(numbers)).bit_length()
    return ipaddress.ip_network(f"{known[0]}/{prefix}", strict=False)


def _address(name: str) -> Address | None:
    return parse(name.removeprefix("[").removesuffix("]"))


def canonical(name: str) -> str:
    """A host's name or address as it is compared: no final dot, small letters (RFC 4343)."""
    return str(_address(name) or name.removesuffix(".").lower())


def cluster_domain(search: Sequence[str]) -> str:
    """Find the cluster's domain in the search list of resolv.conf.

    A kubelet writes ``NAMESPACE.svc.DOMAIN``, ``svc.DOMAIN`` and ``DOMAIN``. The entry that
    begins with ``svc.`` is the one to read: the MPI Operator appends an entry of its own that
    ends in ``svc.cluster.local`` whatever the domain is. In a namespace that is itself called
    ``svc``, or with a node's own search list, two entries begin so; the one that another entry
    extends is right.

    Returns:
        The domain without dots at its ends; empty where no entry has it.
    """
    entries = [canonical(entry) for entry in search]
    found = [entry for entry in entries if entry.startswith("svc.")]
    best = max(found, key=lambda one: any(e.endswith(f".{one}") for e in entries), default="")
    return best.removeprefix("svc.")


def long_form(name: str, domain: str) -> str | None:
    """Append the cluster's domain to a name that ends in ``.svc``; None for any other name.

    A final dot stays, so that the long form is as absolute as the name was.
    """
    absolute, suffix = name.removesuffix("."), domain.strip(".")
    if not suffix or not absolute.lower().endswith(".svc") or absolute.lower() == ".svc":
        return None
    return f"{absolute}.{suffix}" + ("." if name.endswith(".") else "")


def short(name: str) -> str:
    """Return the first label of a name; an address stays whole."""
    return name if _address(name) else name.split(".", 1)[0]


def is_local(name: str, hostname: str, fqdns: Iterable[str] = ()) -> bool:
    """Return whether a hostfile's name means this pod; of addresses only loopback's do.

    Args:
        name: the name or address as the hostfile has it.
        hostname: this pod's host name.
        fqdns: this pod's full names, as /etc/hosts or the resolver have them.

    A name between the host name and a full name (``w-0.job`` for ``w-0.job.ns.svc.DOMAIN``) is
    this pod, since the search list completes it; another pod's name that only begins with the
    same label is not.
    """
    address = _address(name)
    if address is not None:
        return str(address) in _SELF
    wanted, host_name = canonical(name), canonical(hostname)
    known = {"localhost", "localhost.localdomain", host_name, *map(canonical, fqdns)}
    return bool(wanted) and any(
        wanted == fqdn
        or (fqdn.startswith(f"{wanted}.") and wanted.partition(".")[0] == host_name)
        or (fqdn.endswith(".svc") and wanted.startswith(f"{fqdn}."))
        for fqdn in known
    )


def for_mpirun(
    listed: Sequence[str],
    local: Collection[str],
    hostname: str,
    *,
    by_first_label: bool = False,
) -> dict[str, str]:
    """Give the hosts that mpirun must get by another name than the hostfile's.

    Open MPI 4.1 ends over the colons of an IPv6 address, and the private ssh_config leads back
    from any name. This pod itself has its own host name, however it is listed: each mpirun takes
    that for its own host without looking it up.

    Args:
        listed: the names of the hostfile.
        local: names of this pod, there and on the mpirun line.
        hostname: this pod's host name.
        by_first_label: this mpirun takes hosts for one whose names are alike up to the first dot,
            as those of a job whose own name has a dot.
    """
    found = {name: "ip-" + name.translate(_DASHES) for name in listed if ":" in name}
    if by_first_label:
        others = [name for name in dict.fromkeys(listed) if name not in local]
        labels = Counter(canonical(short(name)) for name in (*others, hostname))
        alike = (name for name in others if labels[canonical(short(name))] > 1)
        found |= {name: name.replace(".", "-") for name in alike if parse(name) is None}
    return found | {name: hostname for name in local if name != hostname}
