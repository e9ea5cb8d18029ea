"""RDMA devices by netlink (nldev, NETLINK_RDMA), and questions to the kernel, by pyroute2.

pyroute2 0.9.7 has no part for NETLINK_RDMA; its messages are declared here as its own parts do it.

Questions go through a plain socket, as AsyncNetlinkSocket (netlink/nlsocket.py) would take a third
of the CPU time until a worker's facts are there: it loads asyncio, multiprocessing and what makes
network namespaces. Besides, it waits for ever for an answer (AsyncCoreSocket.get, netlink/core.py)
and overlooks the error that ends a failed dump (Marshal.parse_one_message, netlink/marshal.py).

What stays: attributes are read from the whole datagram (``nlmsg_decoder_generic``,
netlink/__init__.py), so one that is shorter than its type has bytes of the next one. The kernel
writes none.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final


@contextmanager
def only_parts() -> Iterator[None]:
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


with only_parts():
    from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, nlmsg
    from pyroute2.netlink.marshal import Marshal

Message = Any  # pyroute2 has no types

NETLINK_RDMA: Final = 20
SECONDS: Final = 2.0  # the kernel answers at once; this is for an answer that has no end

# include/uapi/rdma/rdma_netlink.h: the type of a message is the client's number and the command.
_CLIENT: Final = 5 << 10
GET, PORT_GET, SYS_GET, GET_CHARDEV = (_CLIENT + command for command in (1, 5, 6, 15))
_HEADER: Final = 16
_MOST: Final = 1 << 18  # bytes; the kernel fills 32 KiB of a dump at a time


class nldevmsg(nlmsg):  # type: ignore[misc]  # noqa: N801 - as pyroute2's are called
    """A message of the device client: attributes follow the header directly."""

    prefix = "RDMA_NLDEV_"
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
        (66, "RDMA_NLDEV_SYS_ATTR_NETNS_MODE", "uint8"),
        (67, "RDMA_NLDEV_ATTR_DEV_PROTOCOL", "asciiz"),
        (69, "RDMA_NLDEV_ATTR_CHARDEV_TYPE", "asciiz"),
        (70, "RDMA_NLDEV_ATTR_CHARDEV_NAME", "asciiz"),
        (72, "RDMA_NLDEV_ATTR_CHARDEV", "uint64"),
        # Documented as 64 bits, put as 32: drivers/infiniband/core/uverbs_main.c.
        (73, "RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID", "uint32"),
    )


# Each answer has the type of GET, also one to PORT_GET.
_MESSAGES: Final = dict.fromkeys((GET, PORT_GET, SYS_GET, GET_CHARDEV), nldevmsg)


class Kernel:
    """A socket to a part of the kernel, and questions that end.

    Raises:
        OSError: the kernel has no such part (EPROTONOSUPPORT), or it is refused here.
    """

    def __init__(
        self,
        family: int = NETLINK_RDMA,
        messages: Mapping[int, type[Message]] = _MESSAGES,
        channel: socket.socket | None = None,
    ) -> None:
        """Open it; ``messages`` are what answers are read as, by type."""
        self._marshal = Marshal()
        self._marshal.msg_map = messages
        self._socket = channel or socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family)
        self._asked = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def ask(
        self, kind: int, question: Message, *, dump: bool = True, seconds: float | None = None
    ) -> Iterator[Message]:
        """Ask, and give each message of the answer as it comes.

        Raises:
            TimeoutError: the answer has no end.
            OSError: it is refused, or the dump fails.
        """
        until = time.monotonic() + (SECONDS if seconds is None else seconds)
        self._asked += 1
        header = question["header"]
        header["type"], header["sequence_number"] = kind, self._asked
        header["flags"] = NLM_F_REQUEST | (NLM_F_DUMP if dump else 0)
        question.encode()
        self._socket.send(question.data)
        while True:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError("the kernel's answer has no end")
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(_MOST)
            except TimeoutError:
                continue
            for message in self._marshal.parse(data):
                if message["header"].get("sequence_number") != self._asked:
                    continue  # the late rest of another answer
                if message["header"]["type"] in (NLMSG_DONE, NLMSG_ERROR):
                    _end(message)
                    return
                yield message
                if not dump:
                    return

    def ask_device(
        self, kind: int, *, dump: bool, seconds: float | None = None, **about: int | str
    ) -> Iterator[Message]:
        """Ask the device client; attributes are named without their prefix, in small letters."""
        question = nldevmsg()
        question["attrs"] = [
            (f"{nldevmsg.prefix}ATTR_{name.upper()}", value) for name, value in about.items()
        ]
        return self.ask(kind, question, dump=dump, seconds=seconds)


def _end(message: Message) -> None:
    """Raise the error that an answer ends with; both kinds of an end begin with its number."""
    data, begin = message.data, message.offset + _HEADER
    code = struct.unpack_from("=i", data, begin)[0] if len(data) >= begin + 4 else 0
    if code < 0:
        raise OSError(-code, os.strerror(-code))
