"""Records of the data network: routes, RDMA devices, their ports and GIDs, the platform's word.

Frozen values as observed in one pod, without an opinion; nothing here touches the world.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class _Word(str, Enum):
    """Words of the kernel or a platform; one that is not known here reads as the empty one."""

    @classmethod
    def _missing_(cls, _: object) -> _Word:
        return cls("")


class PortState(_Word):
    """The state of an RDMA port, by its name in the kernel."""

    UNKNOWN = ""
    DOWN = "DOWN"
    INIT = "INIT"
    ARMED = "ARMED"
    ACTIVE = "ACTIVE"
    ACTIVE_DEFER = "ACTIVE_DEFER"


class LinkLayer(_Word):
    """The link layer of an RDMA port, as sysfs and libibverbs write it."""

    UNKNOWN = ""
    INFINIBAND = "InfiniBand"
    ETHERNET = "Ethernet"
    UNSPECIFIED = "Unspecified"


class GidType(_Word):
    """The type of an entry of a GID table, as sysfs writes it."""

    UNKNOWN = ""
    ROCE_V1 = "IB/RoCE v1"
    ROCE_V2 = "RoCE v2"


class AttachmentSource(_Word):
    """Who said which links and devices are this pod's; ``gib`` is GKE's transport for NCCL."""

    UNKNOWN = ""
    MULTUS = "multus"
    DEVICE_PLUGIN = "sriov-device-plugin"
    DRA = "dra"
    GIB = "gib"


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

    ``value`` is the GID as IPv6 text; ``netdev`` is the name that sysfs gives, which may be one
    of another network namespace; ``link`` is that link's index in its own namespace, as the RDMA
    library tells it (0: not known).
    """

    index: int
    value: str
    kind: GidType
    netdev: str
    link: int = 0


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device.

    ``netdev`` is the link of this network namespace that the kernel says the port drives, else
    empty; ``rate`` is in Gb/s; ``mtu`` is the port's active MTU in bytes: the RDMA library's
    word, else what drivers make of the MTU of ``netdev``, else 0.
    """

    number: int
    state: PortState = PortState.UNKNOWN
    physical: str = ""
    link_layer: LinkLayer = LinkLayer.UNKNOWN
    netdev: str = ""
    rate: float = 0.0
    mtu: int = 0
    gids: tuple[Gid, ...] = ()
    pkeys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device that this pod can see, its own or not.

    ``index`` is -1 where the kernel gave none. ``protocol``, ``node_type`` and ``driver`` are the
    kernel's words (``roce``, ``CA``, ``mlx5``); ``pci`` is its PCI function where it has one;
    ``uverbs`` is the device node's path, empty where it has none in this pod. ``open_error`` says
    why that can't be opened, ``library_error`` why the image's RDMA library can't use the device;
    empty where they can, and where it was not tried.
    """

    index: int
    name: str
    protocol: str
    node_type: str
    node_guid: str
    driver: str
    pci: str
    uverbs: str
    open_error: str
    ports: tuple[RdmaPort, ...]
    library_error: str = ""

    @property
    def opens(self) -> bool:
        """Whether its device node opens in this pod."""
        return not self.open_error

    @property
    def usable(self) -> bool:
        """Whether it opens, and the RDMA library has a driver for it, as far as is known."""
        return not self.open_error and not self.library_error

    @property
    def efa(self) -> bool:
        """Whether it is AWS's EFA: it has no link, and NCCL's own IB transport skips it."""
        return self.driver.lower().startswith("efa") or (
            self.node_type.lower() == "unspecified" and not self.protocol
        )


@dataclass(frozen=True, slots=True)
class Attachment:
    """What a platform says of a link or device of this pod: evidence that outweighs names.

    ``resource`` names its network or resource, of ``gib`` the folder; what it does not say is
    empty.
    """

    by: AttachmentSource
    link: str = ""
    pci: str = ""
    rdma: str = ""
    resource: str = ""
    default: bool = False

    def names(self, device: RdmaDevice) -> bool:
        """Tell whether a device is the one that it speaks of."""
        return (bool(self.rdma) and self.rdma == device.name) or (
            bool(self.pci) and self.pci == device.pci
        )


@dataclass(frozen=True, slots=True)
class Fabric:
    """Everything of the data network that one pod sees.

    ``netns_mode`` is ``shared``, ``exclusive`` or empty (no RDMA in the kernel, or not asked);
    ``infiniband_folder`` tells whether /dev/infiniband is there; ``unreadable`` are sentences on
    what could not be read; ``missing`` are libraries without which nothing uses these devices;
    ``settings`` are the pod's own values of those variables that are checked, none of them secret;
    ``refused`` is why the kernel did not say which RDMA devices it has.
    """

    netns_mode: str = ""
    infiniband_folder: bool = False
    devices: tuple[RdmaDevice, ...] = ()
    routes: tuple[Route, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    unreadable: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    refused: str = ""

    @property
    def why_none(self) -> str:
        """Say why no RDMA device is listed, where none is."""
        if self.netns_mode:
            return "the kernel shows none in this pod"
        if self.refused:
            return f"the kernel could not be asked ({self.refused})"
        return "the kernel has no RDMA"
