"""Records of the data network: routes, RDMA devices, their ports and GIDs, the platform's word.

Frozen values as observed in one pod, without an opinion; nothing here touches the world.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Route:
    """A route: ``destination`` in CIDR form (``0.0.0.0/0`` for the default), by which link."""

    destination: str
    link: str
    gateway: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of a port's GID table that is not empty.

    ``value`` is the GID as IPv6 text; ``kind`` is ``RoCE v2``, ``IB/RoCE v1`` or empty;
    ``netdev`` is the name that sysfs gives, which may be one of another network namespace;
    ``link`` is that link's index in its own namespace, as the RDMA library tells it (0: not known).
    """

    index: int
    value: str
    kind: str
    netdev: str
    link: int = 0


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device.

    ``state`` is ``DOWN``, ``INIT``, ``ARMED``, ``ACTIVE`` or empty; ``link_layer`` is
    ``InfiniBand``, ``Ethernet``, ``Unspecified`` or empty; ``netdev`` is the link of this
    network namespace that the kernel says the port drives, else empty; ``rate`` is in Gb/s;
    ``mtu`` is the port's active MTU in bytes: the RDMA library's word, else what drivers make of
    the MTU of ``netdev``, else 0.
    """

    number: int
    state: str
    physical: str
    link_layer: str
    netdev: str
    rate: float
    mtu: int
    gids: tuple[Gid, ...]
    pkeys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device that this pod can see, its own or not.

    ``uverbs`` is the device node's path, empty where it has none in this pod; ``opens`` is
    ``ok`` or the reason why it can't be opened; ``pci`` is its PCI function where it has one;
    ``library`` is ``ok``, the reason why the image's RDMA library can't use the device, or empty.
    """

    index: int
    name: str
    protocol: str
    node_type: str
    node_guid: str
    driver: str
    pci: str
    uverbs: str
    opens: str
    ports: tuple[RdmaPort, ...]
    library: str = ""


@dataclass(frozen=True, slots=True)
class Attachment:
    """What a platform says of a link or device of this pod: evidence that outweighs names.

    ``by`` is ``multus``, ``sriov-device-plugin``, ``dra`` or ``gib``, a folder of GKE's transport
    for NCCL, which ``resource`` names; any of the others may be empty.
    """

    by: str
    link: str = ""
    pci: str = ""
    rdma: str = ""
    resource: str = ""
    default: bool = False


@dataclass(frozen=True, slots=True)
class Fabric:
    """Everything of the data network that one pod sees.

    ``netns_mode`` is ``shared``, ``exclusive`` or empty (a kernel without RDMA);
    ``infiniband_folder`` tells whether /dev/infiniband is there; ``oddities`` are sentences on
    what could not be read; ``missing`` are libraries without which nothing uses these devices.
    """

    netns_mode: str = ""
    infiniband_folder: bool = False
    devices: tuple[RdmaDevice, ...] = ()
    routes: tuple[Route, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    oddities: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
