"""Host names: the cluster's domain, long and short forms, and which names mean this pod.

Pure text: nothing is resolved here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from mpiboot.core.addresses import Address, parse

# The rest of 127/8 is left to workers that stand on it in a trial without a cluster: no mpirun
# takes it for its own host either. 127.0.1.1 is a Debian machine's own name.
_SELF = ("127.0.0.1", "127.0.1.1", "::1")
_DASHES = str.maketrans({":": "-", "%": "-"})


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
    ``svc`` two entries begin so; the one that another entry extends is right.

    Returns:
        The domain without dots at its ends; empty where no entry has it.
    """
    entries = [canonical(entry) for entry in search]
    candidates = [entry for entry in entries if entry.startswith("svc.") and entry != "svc."]
    for candidate in candidates:
        if any(entry.endswith("." + candidate) for entry in entries):
            return candidate.removeprefix("svc.")
    return candidates[0].removeprefix("svc.") if candidates else ""


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
    if wanted in ("localhost", "localhost.localdomain") or (wanted and wanted == host_name):
        return True
    for fqdn in map(canonical, fqdns):
        if not fqdn or not wanted:
            continue
        completed = fqdn.startswith(wanted + ".") and wanted.split(".", 1)[0] == host_name
        lengthened = fqdn.endswith(".svc") and wanted.startswith(fqdn + ".")
        if wanted == fqdn or completed or lengthened:
            return True
    return False


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
