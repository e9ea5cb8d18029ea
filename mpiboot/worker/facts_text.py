"""A pod's facts as tables for a person, as `mpiboot facts` shows them. Pure."""

from __future__ import annotations

from mpiboot.core.fabric import Fabric
from mpiboot.core.model import PodFacts
from mpiboot.job.render import table


def facts(found: PodFacts) -> str:
    """Lay a pod's facts out for a person."""
    who = found.identity
    mpi = f"{found.mpi.said} ({found.mpi.path})" if found.mpi else "none on PATH"
    memlock = "unlimited" if found.memlock < 0 else f"{found.memlock} bytes"
    rows = [
        ("host name", found.hostname),
        ("user", f"{who.user} (uid {who.uid}, gid {who.gid})" + ("" if who.known else ", made up")),
        ("user namespace", "the pod's own" if who.own_users else "the node's"),
        ("home", who.home),
        ("control address", found.control_address or "none"),
        ("MPI", mpi),
        ("sshd", found.sshd or "not started by mpiboot here"),
        ("CPUs", _cpus(found)),
        ("locked memory", memlock),
        ("shared memory", f"{found.shm >> 20} MiB"),
        ("GPUs", f"{found.gpus.count} {found.gpus.kind}".strip()),
    ]
    if found.gpus.count:
        rows.append(
            ("RDMA to GPU memory by", " or ".join(found.gpus.peer_memory) or "nothing seen")
        )
    if found.gpus.fabric:
        rows.append(("NVLink fabric", found.gpus.fabric))
    links = [
        (
            link.name,
            link.kind or "-",
            ("up" if link.carrier else "no carrier") if link.up else "down",
            str(link.mtu),
            " ".join(link.addresses) or "-",
        )
        for link in found.links
    ]
    head = ("link", "kind", "state", "MTU", "addresses")
    return table(("fact", "value"), rows) + "\n" + table(head, links) + _fabric(found.fabric)


def _fabric(seen: Fabric) -> str:
    """Lay out what a pod sees of RDMA, its GIDs, its platform's word and what could not be read."""
    text = ""
    if seen.routes:
        ways = [(way.destination, way.link, way.gateway or "-") for way in seen.routes]
        text += "\n" + table(("route to", "link", "gateway"), ways)
    ports = [
        (
            f"{device.name}:{port.number}",
            port.link_layer.value or "-",
            port.state.value or "-",
            port.netdev or "-",
            f"{port.rate:g}" if port.rate else "-",
            str(port.mtu or "-"),
            device.open_error or device.library_error or "opens",
        )
        for device in seen.devices
        for port in device.ports
    ]
    bare = [device.name for device in seen.devices if not device.ports]
    if ports or bare:
        head = ("RDMA port", "layer", "state", "link", "Gb/s", "MTU", "device node")
        text += "\n" + table(head, [*ports, *((name, *["-"] * 6) for name in bare)])
        text += f"(network namespace mode: {seen.netns_mode or 'not known'})\n"
    else:
        text += f"\nno RDMA device: {seen.why_none}\n"
    gids = [
        (
            f"{device.name}:{port.number}",
            str(gid.index),
            gid.value,
            gid.netdev or "-",
            gid.kind.value or "-",
        )
        for device in seen.devices
        for port in device.ports
        for gid in port.gids
    ]
    if gids:
        text += "\n" + table(("RDMA port", "index", "GID", "link", "kind"), gids)
    if seen.attachments:
        said = [
            (
                item.by.value,
                item.link or "-",
                item.pci or "-",
                item.rdma or "-",
                item.resource or "-",
            )
            for item in seen.attachments
        ]
        text += "\n" + table(("platform", "link", "PCI", "RDMA device", "resource"), said)
    if seen.missing:
        text += f"\nnot in this image: {', '.join(seen.missing)}\n"
    return text + "".join(f"\nnot read: {odd}\n" for odd in seen.unreadable)


def _cpus(found: PodFacts) -> str:
    """Tell the CPUs, and, where that is known, whether they are the pod's own."""
    if found.cpus is None:
        return str(found.cores)
    whose = "the pod's own" if found.cpus.exclusive else "shared"
    return f"{found.cpus.usable} of the node's {found.cpus.online}, {whose}"
