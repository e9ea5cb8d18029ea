"""RDMA devices by netlink (nldev, NETLINK_RDMA), and requests that end, for pyroute2.

pyroute2 0.9.7 has no part for NETLINK_RDMA; this module is written as its own parts are and needs
nothing else, so that it could become one. What its sockets can't do is worked around here, for
routing netlink too:

- ``AsyncCoreSocket.get`` (netlink/core.py) waits for ever for an answer: ``gather`` has a limit.
- ``Marshal.parse_one_message`` (netlink/marshal.py) overlooks the error that ends a failed dump,
  the code of NLMSG_DONE: ``DumpErrors`` raises it.
- ``SyncAPI`` (netlink/core.py) runs an event loop at each step, which fails beside a running one:
  ``run`` takes a thread there.

What stays: attributes are read from the whole datagram (``nlmsg_decoder_generic``,
netlink/__init__.py), so one that is shorter than its type has bytes of the next one. The kernel
writes none.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar


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
    from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, nlmsg
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.netlink.marshal import Marshal
    from pyroute2.netlink.nlsocket import AsyncNetlinkSocket

_T = TypeVar("_T")

NETLINK_RDMA: Final = 20
SECONDS: Final = 2.0  # the kernel answers at once; this is for an answer that has no end

# include/uapi/rdma/rdma_netlink.h: the type of a message is the client's number and the command.
_CLIENT: Final = 5 << 10
GET, PORT_GET, SYS_GET, GET_CHARDEV = (_CLIENT + command for command in (1, 5, 6, 15))
_HEADER: Final = 16


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


class DumpErrors:
    """Mixed into a marshal: a dump that fails says so in its end, and nowhere else."""

    def parse_one_message(
        self,
        key: int,
        flags: int,
        sequence_number: int,
        data: bytes,
        offset: int,
        length: int,
    ) -> Any:  # noqa: ANN401 - pyroute2 has no types
        """Parse a message; the error of a dump's end is noted as pyroute2 notes another's."""
        whole: Any = super()
        message = whole.parse_one_message(key, flags, sequence_number, data, offset, length)
        if key == NLMSG_DONE and length >= _HEADER + 4:
            (code,) = struct.unpack_from("=i", data, offset + _HEADER)
            if code < 0:
                message["header"]["error"] = NetlinkError(-code)
        return message


class MarshalNldev(DumpErrors, Marshal):  # type: ignore[misc]
    """The messages of the device client; each has the type of GET, also one to PORT_GET."""

    msg_map = dict.fromkeys((GET, PORT_GET, SYS_GET, GET_CHARDEV), nldevmsg)


class AsyncNldev(AsyncNetlinkSocket):  # type: ignore[misc]
    """Requests to the device client.

    Raises:
        OSError: the kernel has no such part (EPROTONOSUPPORT), or it is refused here.
    """

    marshal_class = MarshalNldev

    def __init__(self, **options: object) -> None:
        """Open a socket; ``options`` are AsyncNetlinkSocket's."""
        super().__init__(family=NETLINK_RDMA, **options)

    async def request(
        self, kind: int, *, dump: bool = False, **attributes: int | str
    ) -> AsyncIterator[Any]:
        """Ask; ``attributes`` are named without their prefix, in small letters."""
        message = nldevmsg()
        message["attrs"] = [
            (f"{nldevmsg.prefix}ATTR_{name.upper()}", value) for name, value in attributes.items()
        ]
        flags = NLM_F_REQUEST | (NLM_F_DUMP if dump else 0)
        answer: AsyncIterator[Any] = await self.nlm_request(message, kind, flags)
        return answer


async def gather(
    asked: Awaitable[AsyncIterator[Any]], into: list[Any], seconds: float | None = None
) -> None:
    """Put the messages of an answer into a list; what came before an error stays there.

    Raises:
        TimeoutError: the answer has no end.
        OSError: it is refused, or the dump fails.
    """

    async def collect() -> None:
        async for message in await asked:
            into.append(message)  # noqa: PERF401 - as said

    try:
        await asyncio.wait_for(collect(), SECONDS if seconds is None else seconds)
    except asyncio.TimeoutError:
        raise TimeoutError("the kernel's answer has no end") from None
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code)) from None


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run requests, beside a running loop in a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
