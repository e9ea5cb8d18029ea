"""The kernel's RDMA devices by NETLINK_RDMA, with a message class on pyroute2's base classes.

It reads what the kernel answers and nothing else: no sysfs, no device nodes, no opinion.

pyroute2 has no RDMA family. Its base classes encode and decode the attributes; the socket, and the
cutting of answers into messages, are own code, because pyroute2's sockets run an event loop for
each request (which fails inside a running one), wait for ever for an answer without an end, and
hide the error in the end of a failed dump, as of a device that went away meanwhile.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from pyroute2.netlink import (
    NLM_F_DUMP,
    NLM_F_MULTI,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    nlmsg,
)

from mpiboot.data_network.observe import rdma_report
from mpiboot.data_network.observe.rdma_report import DeviceReport
from mpiboot.fabric import RdmaPort

NETLINK_RDMA: Final = 20

# include/uapi/rdma/rdma_netlink.h: the type of a message is the client's number and the command.
_CLIENT: Final = 5 << 10
_GET, _PORT_GET, _SYS_GET, _GET_CHARDEV = 1, 5, 6, 15
_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, type
_NUMBER: Final = 0x3FFF  # the type without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_ANSWER: Final = 1 << 16  # the kernel makes its datagrams no larger than 32 KiB
_SECONDS: Final = 2.0  # the kernel answers at once; this is for an answer that has no end

# A kernel before 5.2 or 5.3 knows no such question.
_UNKNOWN: Final = (errno.EINVAL, errno.EOPNOTSUPP)
# Neither has it a node without ib_uverbs, or where the driver has none.
_NO_NODE: Final = (*_UNKNOWN, errno.ENODEV, errno.ENOENT)

_SIZES: Final = {"uint8": 1, "uint32": 4, "uint64": 8}


class NldevMessage(nlmsg):  # type: ignore[misc] # pyroute2 has no types
    """A message of NETLINK_RDMA's device client: attributes follow the header directly."""

    __slots__ = ()
    prefix = "RDMA_NLDEV_ATTR_"
    fields = ()
    nla_map = (
        (1, "RDMA_NLDEV_ATTR_DEV_INDEX", "uint32"),
        (2, "RDMA_NLDEV_ATTR_DEV_NAME", "asciiz"),
        (3, "RDMA_NLDEV_ATTR_PORT_INDEX", "uint32"),
        (6, "RDMA_NLDEV_ATTR_NODE_GUID", "uint64"),
        (12, "RDMA_NLDEV_ATTR_PORT_STATE", "uint8"),
        (13, "RDMA_NLDEV_ATTR_PORT_PHYS_STATE", "uint8"),
        (14, "RDMA_NLDEV_ATTR_DEV_NODE_TYPE", "uint8"),
        (51, "RDMA_NLDEV_ATTR_NDEV_NAME", "asciiz"),
        # The kernel calls this one RDMA_NLDEV_SYS_…; pyroute2 finds names by the prefix only.
        (66, "RDMA_NLDEV_ATTR_SYS_NETNS_MODE", "uint8"),
        (67, "RDMA_NLDEV_ATTR_DEV_PROTOCOL", "asciiz"),
        (69, "RDMA_NLDEV_ATTR_CHARDEV_TYPE", "asciiz"),
        (70, "RDMA_NLDEV_ATTR_CHARDEV_NAME", "asciiz"),
        (72, "RDMA_NLDEV_ATTR_CHARDEV", "uint64"),
        # Documented as 64 bits, put as 32: drivers/infiniband/core/uverbs_main.c.
        (73, "RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID", "uint32"),
    )

    def number(self, name: str) -> int | None:
        """Give an attribute that is a number; None if it isn't there."""
        value = self.get_attr(self.prefix + name)
        return value if isinstance(value, int) else None

    def text(self, name: str) -> str:
        """Give an attribute that is text; empty if it isn't there or no UTF-8."""
        value = self.get_attr(self.prefix + name)
        return value if isinstance(value, str) else ""


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
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_RDMA)


def read(channel: socket.socket, seconds: float = _SECONDS) -> KernelRdma:
    """Ask for everything: netns mode, devices, their ports and device nodes.

    What is refused, cut short or gone meanwhile is left out and told in ``unreadable``.
    """
    asking = _Asking(channel, seconds)
    listed = asking.ask(_GET, NLM_F_DUMP, "the list of RDMA devices")
    complete = not asking.unreadable
    found = [device for message in listed if (device := _device(message)) is not None]
    return KernelRdma(
        mode=_mode(asking),
        devices=tuple(_whole(asking, device) for device in found),
        complete=complete and len(found) == len(listed),
        unreadable=tuple(asking.unreadable),
    )


def decode(data: bytes) -> NldevMessage:
    """Decode one message, header and all.

    Raises:
        ValueError: the lengths in it do not fit each other or the attributes' types.
    """
    sizes = {number: _SIZES.get(kind, 0) for number, _, kind in NldevMessage.nla_map}
    offset, end = _HEADER.size, len(data)
    # Checked here because pyroute2 reads a value that is too short into the next attribute, and
    # logs tracebacks.
    while offset < end:
        if offset + _ATTRIBUTE.size > end:
            raise ValueError(f"{end - offset} bytes where an attribute begins")
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        wanted = sizes.get(kind & _NUMBER, 0)
        if length < _ATTRIBUTE.size + wanted or offset + length > end:
            raise ValueError(f"attribute {kind & _NUMBER} says {length} bytes of {end - offset}")
        offset += (length + 3) & ~3
    message = NldevMessage(data)
    message.decode()
    return message


class _Asking:
    """Requests on one socket, one after the other: a second dump at the same time is refused."""

    def __init__(self, channel: socket.socket, seconds: float) -> None:
        self._channel = channel
        self._sequence = 0
        self._silent = False
        self.unreadable: list[str] = []
        channel.settimeout(seconds)

    def ask(
        self,
        command: int,
        flags: int,
        what: str,
        attributes: tuple[tuple[str, int | str], ...] = (),
        known: tuple[int, ...] = (),
    ) -> list[NldevMessage]:
        """Give the messages of an answer; an error that isn't a ``known`` one is told."""
        messages: list[NldevMessage] = []
        if self._silent:
            return messages
        try:
            self._send(command, flags, attributes)
            for data in self._answer():
                messages.append(decode(data))  # noqa: PERF401 # what came before an error stays
        except TimeoutError:
            self._silent = True  # it won't talk the next time either
            self.unreadable.append(f"netlink: {what}: the kernel's answer has no end")
        except OSError as error:
            if error.errno not in known:
                self.unreadable.append(f"netlink: {what}: {error.strerror}")
        except ValueError as error:
            self.unreadable.append(f"netlink: {what}: the answer is cut short ({error})")
        return messages

    def _send(
        self, command: int, flags: int, attributes: tuple[tuple[str, int | str], ...]
    ) -> None:
        self._sequence += 1
        message = NldevMessage()
        message["header"]["type"] = _CLIENT + command
        message["header"]["flags"] = NLM_F_REQUEST | flags
        message["header"]["sequence_number"] = self._sequence
        message["attrs"] = [(NldevMessage.prefix + name, value) for name, value in attributes]
        message.encode()
        self._channel.send(bytes(message.data))

    def _answer(self) -> Iterator[bytes]:
        while True:
            datagram = self._channel.recv(_ANSWER)
            if not datagram:
                raise ValueError("nothing came")
            for kind, flags, sequence, data in _messages(datagram):
                if sequence != self._sequence:
                    continue  # the rest of an answer that was given up
                if kind in {NLMSG_ERROR, NLMSG_DONE}:
                    # A dump that fails says so in its end, and nowhere else.
                    _raise_code(data)
                    return
                yield data
                if not flags & NLM_F_MULTI:
                    return


def _messages(datagram: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    offset = 0
    while offset < len(datagram):
        if offset + _HEADER.size > len(datagram):
            raise ValueError(f"{len(datagram) - offset} bytes where a message begins")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(datagram, offset)
        if length < _HEADER.size or offset + length > len(datagram):
            raise ValueError(f"a message says {length} bytes of {len(datagram) - offset}")
        yield kind, flags, sequence, datagram[offset : offset + length]
        offset += (length + 3) & ~3


def _raise_code(data: bytes) -> None:
    if len(data) < _HEADER.size + 4:
        return  # an old kernel's end of a dump has no code
    (code,) = struct.unpack_from("=i", data, _HEADER.size)
    if code < 0:
        raise OSError(-code, os.strerror(-code))


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
        node_type=rdma_report.node_type(message.number("DEV_NODE_TYPE")),
        protocol=message.text("DEV_PROTOCOL"),
    )


def _guid(number: int | None) -> str:
    digits = f"{number:016x}" if number is not None else ""
    return ":".join(digits[place : place + 4] for place in range(0, len(digits), 4))


def _whole(asking: _Asking, device: DeviceReport) -> DeviceReport:
    before = len(asking.unreadable)
    this = ("DEV_INDEX", device.index)
    listed = asking.ask(_PORT_GET, NLM_F_DUMP, f"the ports of {device.name}", (this,))
    ports = tuple(port for message in listed if (port := _port(message)) is not None)
    device = replace(device, ports=None if len(asking.unreadable) > before and not ports else ports)
    kind = ("CHARDEV_TYPE", "uverbs")
    node = asking.ask(
        _GET_CHARDEV, 0, f"the device node of {device.name}", (kind, this), known=_NO_NODE
    )
    if not node:
        return device
    return replace(
        device,
        uverbs=node[0].text("CHARDEV_NAME"),
        rdev=node[0].number("CHARDEV"),
        driver=rdma_report.driver(node[0].number("UVERBS_DRIVER_ID")),
    )


def _port(message: NldevMessage) -> RdmaPort | None:
    number = message.number("PORT_INDEX")
    if number is None:
        return None
    return RdmaPort(
        number,
        rdma_report.port_state(message.number("PORT_STATE")),
        rdma_report.physical_state(message.number("PORT_PHYS_STATE")),
        # There only if the link is in this network namespace.
        netdev=message.text("NDEV_NAME"),
    )
