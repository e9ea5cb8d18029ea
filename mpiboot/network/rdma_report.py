"""What one source, netlink or sysfs, reports of an RDMA device; the kernel's numbers as words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mpiboot.core.fabric import PortState, RdmaPort

# enum ib_port_state and ib_port_phys_state of include/rdma/ib_verbs.h
_STATES: Final = ("", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_PHYSICAL: Final = (
    *("", "SLEEP", "POLLING", "DISABLED", "PORT_CONFIGURATION_TRAINING", "LINK_UP"),
    *("LINK_ERROR_RECOVERY", "PHY_TEST"),
)
# As sysfs writes them: drivers/infiniband/core/sysfs.c, node_type_show().
_NODE_TYPES: Final = ("", "CA", "switch", "router", "RNIC", "usNIC", "usNIC UDP", "unspecified")
# enum rdma_driver_id of include/uapi/rdma/ib_user_ioctl_verbs.h
_DRIVERS: Final = (
    *("", "mlx5", "mlx4", "cxgb3", "cxgb4", "mthca", "bnxt_re", "ocrdma", "nes", "irdma"),
    *("vmw_pvrdma", "qedr", "hns", "usnic", "rxe", "hfi1", "qib", "efa", "siw", "erdma", "mana"),
    "ionic",
)


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What one source says of a device; empty, -1 or None where it says nothing.

    ``uverbs`` is the name of its node, ``rdev`` the number that the node must have. ``ports`` is
    None where the source did not list them, as for a device that went away meanwhile.
    """

    name: str
    index: int = -1
    node_guid: str = ""
    node_type: str = ""
    protocol: str = ""
    driver: str = ""
    pci: str = ""
    uverbs: str = ""
    rdev: int | None = None
    ports: tuple[RdmaPort, ...] | None = None
    unreadable: tuple[str, ...] = ()


def port_state(number: int | None) -> PortState:
    """Name a port's state."""
    return PortState(_word(_STATES, number, "state"))


def physical_state(number: int | None) -> str:
    """Name the state of a port's cable."""
    return _word(_PHYSICAL, number, "state")


def node_type(number: int | None) -> str:
    """Name the type of a device."""
    return _word(_NODE_TYPES, number, "type")


def driver(number: int | None) -> str:
    """Name a driver."""
    return _word(_DRIVERS, number, "driver")


def _word(words: Sequence[str], number: int | None, what: str) -> str:
    if number is None:
        return ""
    return words[number] if number < len(words) else f"{what} {number}"
