"""Queries of the kernel by netlink, in pyroute2's messages: links, and RDMA's nldev.

Which link is used for what is decided from these facts elsewhere. pyroute2 takes long to load, so
this module is loaded only where one of these is listed. pyroute2 0.9.7 has no part for
NETLINK_RDMA; its messages are declared here as its own parts do it.

Questions go through a plain socket, as AsyncNetlinkSocket (netlink/nlsocket.py) would take a third
of the CPU time until a worker's facts are there: it loads asyncio, multiprocessing and what makes
network namespaces. Besides, it waits for ever for an answer (AsyncCoreSocket.get, netlink/core.py)
and overlooks the error that ends a failed dump (Marshal.parse_one_message, netlink/marshal.py).

What stays: attributes are read from the whole datagram (``nlmsg_decoder_generic``,
netlink/__init__.py), so one that is shorter than its type has bytes of the next one. The kernel
writes none.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

from mpiboot.core.facts import Link
from mpiboot.core.wording import grouped


@contextmanager
def _only_parts() -> Iterator[None]:
    """Import modules of pyroute2 without the package's own, which imports all of them.

    That would be half of the CPU time until a worker's facts are there (50 of 95 ms).
    """
    spec = importlib.util.find_spec("pyroute2")
    if spec is None or "pyroute2" in sys.modules:
        yield
        return
    sys.modules["pyroute2"] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules["pyroute2"]


with _only_parts():
    from pyroute2.netlink import (
        NETLINK_ROUTE,
        NLM_F_DUMP,
        NLM_F_DUMP_INTR,
        NLM_F_REQUEST,
        NLMSG_DONE,
        NLMSG_ERROR,
        nla,
        nlmsg,
        rtnl,
    )
    from pyroute2.netlink.marshal import Marshal
    from pyroute2.netlink.rtnl.ifaddrmsg import (
        IFA_F_DADFAILED,
        IFA_F_OPTIMISTIC,
        IFA_F_TENTATIVE,
        ifaddrmsg,
    )

Message = Any  # pyroute2 has no types

NETLINK_RDMA: Final = 20
# An answer comes at once, but while links change: the kernel takes up to seconds for many of them.
TIMEOUT_S: Final = 10.0

# include/uapi/rdma/rdma_netlink.h: the type of a message is the client's number and the command.
_CLIENT: Final = 5 << 10
GET, PORT_GET = (_CLIENT + command for command in (1, 5))
_HEADER: Final = 16
_ENDS: Final = (NLMSG_DONE, NLMSG_ERROR)
_DUMP_TRIES: Final = 20  # of a dump; links come and go all the time on a node that starts pods
_MAX_DATAGRAM_BYTES: Final = 1 << 18  # the kernel fills 32 KiB of a dump at a time


class nldevmsg(nlmsg):  # type: ignore[misc]  # noqa: N801 - as pyroute2's are called
    """A message of the device client: attributes follow the header directly."""

    prefix = "RDMA_NLDEV_"
    fields = ()
    nla_map = (
        (1, "RDMA_NLDEV_ATTR_DEV_INDEX", "uint32"),
        (2, "RDMA_NLDEV_ATTR_DEV_NAME", "asciiz"),
        (3, "RDMA_NLDEV_ATTR_PORT_INDEX", "uint32"),
        (51, "RDMA_NLDEV_ATTR_NDEV_NAME", "asciiz"),
    )


class Kernel:
    """A socket to a part of the kernel, and dumps within one deadline.

    Raises:
        OSError: the kernel has no such part (EPROTONOSUPPORT), or it is refused here.
    """

    def __init__(self, family: int = NETLINK_RDMA) -> None:
        """Open it."""
        self._marshal = Marshal()
        self._marshal.msg_map = _MESSAGES
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family)
        self._until = time.monotonic() + TIMEOUT_S
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def dump_rdma(self, kind: int, device: int | None = None) -> list[Message]:
        """List RDMA devices, or the ports of one."""
        question = nldevmsg()
        about = [("RDMA_NLDEV_ATTR_DEV_INDEX", device)]
        question["attrs"] = about if device is not None else []
        return self.dump(kind, question)

    def dump(self, kind: int, question: Message) -> list[Message]:
        """List objects; where they changed meanwhile, the dump is requested anew.

        Raises:
            TimeoutError: the answer has no end.
            OSError: it is refused, or the dump fails or is interrupted each time.
        """
        self._sequence += 1
        header = question["header"]
        header["type"], header["sequence_number"] = kind, self._sequence
        header["flags"] = NLM_F_REQUEST | NLM_F_DUMP
        question.encode()
        for _ in range(_DUMP_TRIES):
            self._socket.send(question.data)
            answer = list(self._answer())
            # The kernel marks any message, the end too: entries may be missing or come twice.
            if not any(message["header"]["flags"] & NLM_F_DUMP_INTR for message in answer):
                return answer[:-1]
        raise OSError(errno.EINTR, f"changes interrupted the dump {_DUMP_TRIES} times")

    def _answer(self) -> Iterator[Message]:
        """Yield each message of a dump, its end included."""
        while True:
            if (left := self._until - time.monotonic()) <= 0:
                raise TimeoutError("the kernel's answer has no end")
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(_MAX_DATAGRAM_BYTES)
            except TimeoutError:
                continue
            for message in self._marshal.parse(data):
                if message["header"].get("sequence_number") != self._sequence:
                    continue  # the rest of an earlier answer
                ends = message["header"]["type"] in _ENDS
                if ends:
                    _end(message)
                yield message
                if ends:
                    return


def _end(message: Message) -> None:
    """Raise the error that an answer ends with; both kinds of an end begin with its number."""
    data, begin = message.data, message.offset + _HEADER
    code = struct.unpack_from("=i", data, begin)[0] if len(data) >= begin + 4 else 0
    if code < 0:
        raise OSError(-code, os.strerror(-code))


# -- links ----------------------------------------------------------------------------------------

_IFF_UP: Final = 0x1
_IFF_RUNNING: Final = 0x40
# ARPHRD_ of linux/if_arp.h, for links that have no driver kind of their own.
_TYPES: Final = {1: "ether", 32: "ipoib", 772: "loopback"}
_FAMILIES: Final = (int(socket.AF_INET), int(socket.AF_INET6))


class linkmsg(nlmsg):  # type: ignore[misc]  # noqa: N801 - as pyroute2's are called
    """A link, by include/uapi/linux/if_link.h, the attributes that are read.

    pyroute2's own (netlink/rtnl/ifinfmsg) loads multiprocessing and platform, a third of what it
    takes to load this module, and cuts an IPoIB link's address to 6 bytes.
    """

    prefix = "IFLA_"
    fields = (
        *(("family", "B"), ("__align", "x"), ("ifi_type", "H"), ("index", "i")),
        *(("flags", "I"), ("change", "I")),
    )
    nla_map = (
        (1, "IFLA_ADDRESS", "hex"),
        (3, "IFLA_IFNAME", "asciiz"),
        (4, "IFLA_MTU", "uint32"),
        (18, "IFLA_LINKINFO", "info"),
    )

    class info(nla):  # type: ignore[misc]  # noqa: N801
        """What the link's driver reports; ``ipoib`` is read of IPoIB's alone."""

        nla_map = ((1, "IFLA_INFO_KIND", "asciiz"), (2, "IFLA_INFO_DATA", "ipoib"))

        class ipoib(nla):  # type: ignore[misc]  # noqa: N801, D106
            nla_map = ((1, "IFLA_IPOIB_PKEY", "uint16"),)


# What answers are read as, by type. Each of RDMA's has that of GET, also one to PORT_GET.
_MESSAGES: Final = {
    GET: nldevmsg,
    PORT_GET: nldevmsg,
    rtnl.RTM_NEWADDR: ifaddrmsg,
    rtnl.RTM_NEWLINK: linkmsg,
}


def observe() -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """List the links with their addresses, in the kernel's order.

    ``kind`` is the driver's (veth, macvlan, ipvlan, vlan, ipoib, …); else ether or loopback.

    Returns:
        None of them, with a sentence on why, where netlink is refused: a sandbox may have none, and
        a pod no descriptor left for it.
    """
    try:
        with closing(Kernel(NETLINK_ROUTE)) as kernel:
            addresses = kernel.dump(rtnl.RTM_GETADDR, ifaddrmsg())
            links = kernel.dump(rtnl.RTM_GETLINK, linkmsg())
    except OSError as error:
        return (), (f"netlink: {error.strerror or error}: links are not known",)
    known = grouped(
        (message["index"], (f"{own}/{message['prefixlen']}", message.get_attr("IFA_FLAGS") or 0))
        for message in addresses
        # On a point-to-point link IFA_ADDRESS is the peer's, IFA_LOCAL is ours.
        if (own := message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS"))
        and message["family"] in _FAMILIES
    )
    return tuple(link(message, known.get(message["index"], ())) for message in links), ()


def link(message: Message, addresses: Sequence[tuple[str, int]]) -> Link:
    """Read a link from netlink's answer, with its addresses and their flags."""
    arp, flags = message["ifi_type"], message["flags"]
    info = message.get_attr("IFLA_LINKINFO")
    kind = decoded(info and info.get_attr("IFLA_INFO_KIND")) or _TYPES.get(arp, f"type {arp}")
    data = info and kind == "ipoib" and info.get_attr("IFLA_INFO_DATA")
    return Link(
        index=message["index"],
        name=decoded(message.get_attr("IFLA_IFNAME")),
        kind=kind,
        up=bool(flags & _IFF_UP),
        mtu=message.get_attr("IFLA_MTU") or 0,
        addresses=tuple(text for text, _ in addresses),
        hardware=message.get_attr("IFLA_ADDRESS") or "",
        pkey=data.get_attr("IFLA_IPOIB_PKEY") if data else None,
        carrier=bool(flags & _IFF_RUNNING),
        # An optimistic address is used while it is still tentative.
        tentative=tuple(
            text
            for text, flags in addresses
            if flags & IFA_F_TENTATIVE and not flags & (IFA_F_OPTIMISTIC | IFA_F_DADFAILED)
        ),
        duplicate=tuple(text for text, flags in addresses if flags & IFA_F_DADFAILED),
    )


def decoded(value: str | bytes | None) -> str:
    """Give an attribute's text; what is no UTF-8, which pyroute2 gives as bytes, escaped."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value or ""
