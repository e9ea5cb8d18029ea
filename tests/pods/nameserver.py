"""Client of the cluster's name server (dns.py): sets its behaviour, reads its log of queries."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pods.cache import REPOSITORY


@dataclass(frozen=True)
class Question:
    """A query: its time (monotonic), name, type, response code, transport and client."""

    time: float
    name: str
    kind: str
    message: str
    transport: str
    client: str


class Nameserver:
    """The server's process and the way to talk to it."""

    def __init__(self, prefix: Sequence[str], folder: Path) -> None:
        self._socket = str(folder / "dns.socket")
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.pods.dns", self._socket],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._connection: socket.socket | None = None

    def ready(self) -> None:
        """Waits until the server answers questions: its orders come last."""
        self._order("configure")

    def publish(
        self,
        name: str,
        addresses: Sequence[str],
        *,
        after: float = 0.0,
        when_port: int | None = None,
    ) -> None:
        """Publishes a name at once, after seconds, or as soon as a port of its pod answers."""
        self._order(
            "publish", name=name, addresses=list(addresses), after=after, when_port=when_port
        )

    def unpublish(self, name: str) -> None:
        """Takes a name's record away."""
        self._order("unpublish", name=name)

    def behave(self, name: str = "*", **behaviour: float | str) -> None:
        """Set how questions about a name (`*`: any other) are treated: fields of dns.Behaviour."""
        self._order("behave", name=name, **behaviour)

    def negative_cache(self, seconds: float) -> None:
        """Cache each NXDOMAIN for so long, with that time in the SOA record."""
        self._order("configure", negative_cache=seconds, soa_minimum=math.ceil(seconds))

    def serve(self, domain: str) -> None:
        """Serves another cluster domain than cluster.local; the pods' is `cluster_domain`."""
        self._order("configure", domain=domain)

    def questions(self, name: str | None = None) -> list[Question]:
        """The queries so far, for one name or for all."""
        asked = [Question(*entry) for entry in self._order("log")]
        return [q for q in asked if name is None or q.name.rstrip(".") == name.lower()]

    def close(self) -> None:
        """Ends the server and waits for it."""
        if self._connection is not None:
            self._connection.close()
        self._process.communicate()

    def _order(self, order: str, **details: object) -> Any:
        self._connection = self._connection or self._connect()
        self._connection.sendall(json.dumps({"order": order, **details}).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            chunk = self._connection.recv(1 << 20)
            if not chunk:
                raise RuntimeError("the name server is gone")
            answer += chunk
        return json.loads(answer)

    def _connect(self) -> socket.socket:
        """The server needs some tenths of a second to come up; the pods do so meanwhile."""
        deadline = time.monotonic() + 120  # a guard
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self._socket)
            except OSError:
                connection.close()
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.005)
            else:
                connection.settimeout(120)
                return connection
