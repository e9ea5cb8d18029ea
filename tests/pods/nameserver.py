"""The cluster's name server, which can misbehave as real ones do: a thread in its network."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyroute2 import netns

from tests.fakes import nameserver
from tests.fakes.nameserver import DROP, NODATA, NXDOMAIN, SERVFAIL
from tests.pods.network import DNS_ADDRESSES


@dataclass(frozen=True)
class Question:
    """A query: its name, what was answered, and its client."""

    name: str
    message: str
    client: str


@dataclass
class Behaviour:
    """How queries for a name (`*`: any name) are answered.

    Each count is of answers still to be spoilt; `other` is the address that questions get.
    """

    servfail: int = 0
    drop: int = 0
    other: str = ""


class Nameserver(nameserver.Nameserver):
    """Records, behaviours and the log of queries; a test changes them while they are served."""

    def __init__(self, pid: int) -> None:
        super().__init__({})
        self._domain = "cluster.local"
        # Repeated for so long: that a name has no address, whatever is published meanwhile.
        self.negative_cache = 0.0
        self._records: dict[str, list[str]] = {}
        self._behaviours: dict[str, Behaviour] = {}
        self._log: list[Question] = []
        self._denied: dict[tuple[str, str], tuple[float, str]] = {}
        self._ended = asyncio.Event()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, args=(pid, started), daemon=True)
        self._thread.start()
        self._loop = started.result()

    def _run(self, pid: int, started: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            with open(f"/proc/{pid}/ns/net") as namespace:  # noqa: PTH123
                netns.setns(namespace)  # of this thread alone
            asyncio.run(self._serve(started))
        except BaseException as error:  # noqa: BLE001
            started.set_exception(error)

    async def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            for address in DNS_ADDRESSES:
                datagrams, _ = await loop.create_datagram_endpoint(
                    lambda: nameserver.Datagrams(self), local_addr=(address, 53)
                )
                stack.callback(datagrams.close)
            started.set_result(loop)
            await self._ended.wait()

    def publish(self, name: str, addresses: Sequence[str], *, after: float = 0.0) -> None:
        keep = partial(self._records.__setitem__, name.lower(), list(addresses))
        if after:
            self._loop.call_soon_threadsafe(self._loop.call_later, after, keep)
        else:
            keep()

    def unpublish(self, name: str) -> None:
        self._records.pop(name.lower(), None)

    def behave(self, name: str = "*", **behaviour: Any) -> None:
        """Sets how questions about a name (`*`: any other) are treated: fields of Behaviour."""
        self._behaviours[name.lower()] = Behaviour(**behaviour)

    def serve(self, domain: str) -> None:
        """Serves another cluster domain than cluster.local; the pods' is `cluster_domain`."""
        self._domain = domain

    def questions(self) -> list[Question]:
        return self._log.copy()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()

    def message(self, name: str, kind: str, client: str) -> str:
        behaviour = self._behaviours.get(name) or self._behaviours.get("*") or Behaviour()
        if behaviour.drop > 0:
            behaviour.drop -= 1
            message = DROP
        elif behaviour.servfail > 0:
            behaviour.servfail -= 1
            message = SERVFAIL
        else:
            message = self._found(name, kind, behaviour)
        self._log.append(Question(name, message, client))
        return message

    def _found(self, name: str, kind: str, behaviour: Behaviour) -> str:
        if not f".{name}".endswith(f".{self._domain}"):
            return NXDOMAIN
        now = time.monotonic()
        until, message = self._denied.get((name, kind), (0.0, ""))
        if now < until:
            return message
        records = self._records.copy()
        # A Service's name has the addresses of all its pods.
        of_pods = (value for key, value in records.items() if key.partition(".")[2] == name)
        here = records.get(name) or [address for value in of_pods for address in value]
        if behaviour.other:
            here = [behaviour.other]
        if found := [text for text in here if (":" in text) == (kind == "AAAA")]:
            return " ".join(found)
        message = NODATA if any(f".{key}".endswith(f".{name}") for key in records) else NXDOMAIN
        self._denied[name, kind] = (now + self.negative_cache, message)
        return message
