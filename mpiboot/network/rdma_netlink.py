"""The kernel's RDMA devices by NETLINK_RDMA: what it answers, and nothing else.

No sysfs, no device nodes, no opinion.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from mpiboot.core.model import RdmaPort
from mpiboot.network import netlink, sysfs
from mpiboot.network.sysfs import DeviceReport

NETLINK_RDMA: Final = 20

# include/uapi/rdma/rdma_netlink.h: the type of a message is the client's number and the command.
_CLIENT: Final = 5 << 10
_GET, _PORT_GET, _SYS_GET, _GET_CHARDEV = 1, 5, 6, 15

# A kernel before 5.2 or 5.3 knows no such question.
_UNKNOWN: Final = (errno.EINVAL, errno.EOPNOTSUPP)
# Neither has it a node without ib_uverbs, or where the driver has none.
_NO_NODE: Final = (*_UNKNOWN, errno.ENODEV, errno.ENOENT)

# RDMA_NLDEV_ATTR_: their numbers, and how many bytes a number has (0: text).
_ATTRIBUTES: Final = {
    "DEV_INDEX": (1, 4),
    "DEV_NAME": (2, 0),
    "PORT_INDEX": (3, 4),
    "NODE_GUID": (6, 8),
    "PORT_STATE": (12, 1),
    "PORT_PHYS_STATE": (13, 1),
    "DEV_NODE_TYPE": (14, 1),
    "NDEV_NAME": (51, 0),
    "SYS_NETNS_MODE": (66, 1),
    "DEV_PROTOCOL": (67, 0),
    "CHARDEV_TYPE": (69, 0),
    "CHARDEV_NAME": (70, 0),
    "CHARDEV": (72, 8),
    # Documented as 64 bits, put as 32: drivers/infiniband/core/uverbs_main.c.
    "UVERBS_DRIVER_ID": (73, 4),
}


class NldevMessage:
    """A message of NETLINK_RDMA's device client: attributes follow the header directly."""

    def __init__(self, data: bytes) -> None:
        """Read what stands behind the header.

        Raises:
            ValueError: the lengths in it do not fit each other or the attributes' types.
        """
        self._values = netlink.attributes(data)
        for kind, size in _ATTRIBUTES.values():
            given = len(self._values.get(kind, bytes(size)))
            if given < size:
                raise ValueError(f"attribute {kind} has {given} bytes instead of {size}")

    def number(self, name: str) -> int | None:
        """Give an attribute that is a number; None if it isn't there."""
        kind, size = _ATTRIBUTES[name]
        value = self._values.get(kind)
        return None if value is None else netlink.number(value[:size])

    def text(self, name: str) -> str:
        """Give an attribute that is text; empty if it isn't there or no UTF-8."""
        try:
            return self._values.get(_ATTRIBUTES[name][0], b"").rstrip(b"\0").decode()
        except UnicodeDecodeError:
            return ""


@dataclass(frozen=True, slots=True)
class KernelRdma:
    """What the kernel told; ``complete`` says whether its list of devices came to its end.

    ``mode`` is ``shared``, ``exclusive`` or empty.
    """

    mode: str
    devices: tuple[DeviceReport, ...]
    complete: bool
    unreadable: tuple[str, ...] = ()


def connect() -> socket.socket:
    """Open a socket to the kernel's RDMA part.

    Raises:
        OSError: the kernel has no such part (EPROTONOSUPPORT), or it is refused here.
    """
    return netlink.connect(NETLINK_RDMA)


def read(channel: socket.socket, seconds: float = netlink.SECONDS) -> KernelRdma:
    """Ask for everything: netns mode, devices, their ports and device nodes.

    What is refused, cut short or gone meanwhile is left out and told in ``unreadable``.
    """
    asking = _Asking(channel, seconds)
    listed = asking.ask(_GET, netlink.DUMP, "the list of RDMA devices")
    complete = not asking.unreadable
    found = [device for message in listed if (device := _device(message)) is not None]
    return KernelRdma(
        mode=_mode(asking),
        devices=tuple(_whole(asking, device) for device in found),
        complete=complete and len(found) == len(listed),
        unreadable=tuple(asking.unreadable),
    )


class _Asking:
    """Questions, and what went wrong with them."""

    def __init__(self, channel: socket.socket, seconds: float) -> None:
        self._questions = netlink.Questions(channel, seconds)
        self._silent = False
        self.unreadable: list[str] = []

    def ask(
        self,
        command: int,
        flags: int,
        what: str,
        about: Mapping[str, int | str] | None = None,
        known: tuple[int, ...] = (),
    ) -> list[NldevMessage]:
        """Give the messages of an answer; an error that isn't a ``known`` one is told."""
        messages: list[NldevMessage] = []
        if self._silent:
            return messages
        body = b"".join(
            netlink.attribute(_ATTRIBUTES[name][0], value) for name, value in (about or {}).items()
        )
        try:
            for data in self._questions.ask(_CLIENT + command, body, flags=flags):
                messages.append(NldevMessage(data))  # noqa: PERF401 # what came before an error stays
        except TimeoutError:
            self._silent = True  # it won't talk the next time either
            self.unreadable.append(f"netlink: {what}: the kernel's answer has no end")
        except OSError as error:
            if error.errno not in known:
                self.unreadable.append(f"netlink: {what}: {error.strerror}")
        except ValueError as error:
            self.unreadable.append(f"netlink: {what}: the answer is cut short ({error})")
        return messages


def _mode(asking: _Asking) -> str:
    before = len(asking.unreadable)
    answer = asking.ask(_SYS_GET, 0, "the network namespace mode", known=_UNKNOWN)
    if not answer:
        return "shared" if len(asking.unreadable) == before else ""
    return "exclusive" if answer[0].number("SYS_NETNS_MODE") == 0 else "shared"


def _device(message: NldevMessage) -> DeviceReport | None:
    index = message.number("DEV_INDEX")
    name = message.text("DEV_NAME")
    if index is None or not name:
        return None
    return DeviceReport(
        name,
        index,
        node_guid=_guid(message.number("NODE_GUID")),
        node_type=sysfs.node_type(message.number("DEV_NODE_TYPE")),
        protocol=message.text("DEV_PROTOCOL"),
    )


def _guid(number: int | None) -> str:
    digits = f"{number:016x}" if number is not None else ""
    return ":".join(digits[place : place + 4] for place in range(0, len(digits), 4))


def _whole(asking: _Asking, device: DeviceReport) -> DeviceReport:
    before = len(asking.unreadable)
    this = {"DEV_INDEX": device.index}
    listed = asking.ask(_PORT_GET, netlink.DUMP, f"the ports of {device.name}", this)
    ports = tuple(port for message in listed if (port := _port(message)) is not None)
    device = replace(device, ports=None if len(asking.unreadable) > before and not ports else ports)
    about: dict[str, int | str] = {"CHARDEV_TYPE": "uverbs", **this}
    node = asking.ask(_GET_CHARDEV, 0, f"the device node of {device.name}", about, known=_NO_NODE)
    if not node:
        return device
    return replace(
        device,
        uverbs=node[0].text("CHARDEV_NAME"),
        rdev=node[0].number("CHARDEV"),
        driver=sysfs.driver(node[0].number("UVERBS_DRIVER_ID")),
    )


def _port(message: NldevMessage) -> RdmaPort | None:
    number = message.number("PORT_INDEX")
    if number is None:
        return None
    return RdmaPort(
        number,
        sysfs.port_state(message.number("PORT_STATE")),
        sysfs.physical_state(message.number("PORT_PHYS_STATE")),
        # There only if the link is in this network namespace.
        netdev=message.text("NDEV_NAME"),
    )
