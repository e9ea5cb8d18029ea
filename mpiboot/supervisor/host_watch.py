"""What watches a job's hosts while it runs.

``ConnectionWatch`` looks for ranks whose connections nobody answers, ``SilenceWatch`` for hosts
that have gone silent, ``Notices`` hears of workers that are ending, and ``UnusedHosts`` names hosts
on which mpirun started nothing.
"""

from __future__ import annotations

import _socket as socket
import os
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from mpiboot.core import log
from mpiboot.core.launch_spec import RemoteHost
from mpiboot.core.wording import counted, first_few
from mpiboot.supervisor.asking import FarEnd, Found, Question, Request
from mpiboot.supervisor.state import HostLost
from mpiboot.system.loop import EventLoop

# Times the setting: by the default, what begins in the first four minutes is not missed.
_WHEN: Final = (1, 2, 3, 4)
# How often at most, with the looks that are for what was found before.
_LOOKS: Final = 8
# Seconds between two looks for the same connection, and until one that was told is looked for.
_APART: Final = 60.0
_AGAIN: Final = 3600.0


@dataclass(eq=False)
class ConnectionWatch:
    """Looks for ranks that try to connect to somebody who never answers.

    Open MPI waits in silence where a firewall drops what one worker sends to another. The workers'
    kernels know of it while they try, which is two minutes (tcp_syn_retries in the kernel's
    ip-sysctl.rst): they are asked some time after the start, and three times more for programs that
    take longer to come to MPI_Init. How often a kernel has tried tells nothing: newer ones try six
    times in the first seven seconds (tcp_syn_linear_timeouts). So only a connection that two looks
    find, a minute apart, is told, and its far host is asked first: a listener whose queue is full
    does not answer either, and no network is to blame for that.

    Attributes:
        loop: where the child is listened to.
        folder: the launch folder.
        environ: mpirun's environment.
        seconds: after how long the workers are asked; 0 for never.
        dropped: called with a sentence where what a rank sends to another host of the job seems
            to be dropped, and with an empty one where that is over.
    """

    loop: EventLoop
    folder: str
    environ: Mapping[str, str]
    seconds: float
    dropped: Callable[[str], None]

    def __post_init__(self) -> None:
        self._question = Question(
            self.loop, self.folder, self.environ, Request.CONNECTING, self._heard
        )
        self._seen: dict[str, float] = {}  # connections, and when they were found first
        self._told = False
        self._looks = _LOOKS
        now = time.monotonic()
        self._times = [now + self.seconds * times for times in _WHEN] if self.seconds else []

    @property
    def due(self) -> float | None:
        """When ``look`` has to be called (monotonic clock)."""
        return self._times[0] if self._times else None

    def look(self) -> None:
        """Ask where it is time; a child that hangs is ended by the next one or by the end."""
        now = time.monotonic()
        if self._times and self._times[0] <= now:
            del self._times[0]
            self._looks -= 1
            self._question.ask(*(key for key, at in self._seen.items() if now - at >= _APART))

    def stop(self) -> None:
        """End what asks."""
        self._question.stop()

    def _heard(self, lines: list[str]) -> None:
        now = time.monotonic()
        found = [line.split(" ", 2) for line in lines]
        self._seen = {key: self._seen.get(key, now) for _, key, *_ in found}
        texts = [(kind, words[0]) for kind, _, *words in found if words]
        dropped = [text for kind, text in texts if kind == FarEnd.DROPPED]
        others = [text for kind, text in texts if kind in (FarEnd.SLOW, FarEnd.ELSEWHERE)]
        for text in (*dropped[1:], *others):
            log.warning("unanswered", text)
        if dropped:
            self.dropped(dropped[0])
            self._looks, self._times = _LOOKS, [now + _AGAIN]
        elif found and self._looks > 0:
            later = (when for when in self._times if when > now + _APART)
            self._times = [now + _APART, *later]
        if self._told and not found:
            self.dropped("")
        self._told = bool(dropped) or (self._told and bool(found))


# Seconds after which a warning is repeated.
_REPEAT: Final = 3600.0
# Hosts that are looked for at once, and that get a line each.
_HOSTS: Final = 96
_LINES: Final = 8
# linux/netlink.h, sock_diag.h, inet_diag.h, tcp.h
_ERROR, _DONE, _DUMP = 2, 3, 0x1 | 0x300
_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, type
_ANSWER: Final = 1 << 16  # the kernel makes its datagrams no larger than 32 KiB
_NO_END: Final = 2.0  # seconds; the kernel answers at once
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_INET_DIAG_INFO: Final = 2
_TCP, _ESTABLISHED = 6, 1
_REQUEST: Final = struct.Struct("=BBBxI48x")
_SOCKET: Final = 72  # bytes before the attributes
# tcpi_last_data_sent and tcpi_last_data_recv: milliseconds since then.
_TIMES: Final = struct.Struct("=44xI4xI")


def silences() -> dict[tuple[str, int], float]:
    """Give for each remote address and port how many seconds its connections have been silent.

    A connection over which nothing was sent since the last answer isn't silent. Of several to one
    place the most silent counts: another may be what looks for the host.

    Raises:
        OSError: the kernel, or a sandbox, doesn't tell.
        ValueError: its answer can't be read.
    """
    channel = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
    )
    found: dict[tuple[str, int], float] = {}
    try:
        channel.settimeout(_NO_END)
        for version in (socket.AF_INET, socket.AF_INET6):
            request = _REQUEST.pack(version, _TCP, 1 << _INET_DIAG_INFO - 1, 1 << _ESTABLISHED)
            for data in _dump(channel, _SOCK_DIAG_BY_FAMILY, request):
                place, seconds = _connection(data)
                found[place] = max(seconds, found.get(place, 0.0))
    finally:
        channel.close()
    return found


def _dump(channel: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    """Ask for a dump, and give what stands behind the header of each message.

    This process stays for the whole job, and may not load pyroute2 for it.

    Raises:
        OSError: it is refused, the dump fails, or the answer has no end.
    """
    channel.send(_HEADER.pack(_HEADER.size + len(body), kind, _DUMP, 1, 0) + body)
    while True:
        datagram, offset = channel.recv(_ANSWER), 0
        while offset < len(datagram):
            length, answer, *_ = _HEADER.unpack_from(datagram, offset)
            message = datagram[offset + _HEADER.size : offset + length]
            if answer in {_ERROR, _DONE}:
                # A dump that fails says so in its end, and nowhere else.
                code = int.from_bytes(message[:4], sys.byteorder, signed=True)
                if code < 0:
                    raise OSError(-code, os.strerror(-code))
                return
            yield message
            offset += (length + 3) & ~3


def _attribute(data: bytes, wanted: int) -> bytes:
    """Find an attribute by its number; ``data`` begins with the first one."""
    offset = 0
    while offset < len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if kind == wanted:
            return data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return b""


def _connection(data: bytes) -> tuple[tuple[str, int], float]:
    """Read an ``inet_diag_msg``: where a connection leads to, and how long it has been silent."""
    info = _attribute(data[_SOCKET:], _INET_DIAG_INFO)
    if len(info) < _TIMES.size:
        raise ValueError(f"{len(info)} bytes of tcp_info")
    sent, received = _TIMES.unpack_from(info)
    address = data[24 : 28 if data[0] == socket.AF_INET else 40]
    text = socket.inet_ntop(data[0], address).removeprefix("::ffff:")
    port = int.from_bytes(data[6:8], "big")
    return (text, port), received / 1000 if sent < received else 0.0


def can_look() -> bool:
    """Whether this pod's kernel tells how long connections have been silent."""
    try:
        silences()
    except (OSError, ValueError):
        return False
    return True


@dataclass(eq=False)
class SilenceWatch:
    """Looks for hosts that have gone silent: connected by SSH, but nothing comes back.

    ssh asks every ten seconds, so a connection over which nothing came for half a minute is cut
    off, or its server is stopped. The kernel tells how long that is (sock_diag(7), as ``ss -i``
    shows it), whichever client holds the connection. Silence alone proves nothing: a child looks
    for the host (``ask_workers.look_for_one``), and only what that finds ends the session. It looks
    about twice a minute, and as soon as a host has been silent for long enough; a look costs 0.3 ms
    of CPU, 33 ms with 4,096 hosts whose daemons are connected too (measured on 2026-11-23).

    Attributes:
        loop: where the child is listened to.
        folder: the launch folder.
        environ: mpirun's environment.
        daemons: the remote hosts.
        silent: seconds of silence after which a host is looked for; 0 for never.
        keepalive: seconds of silence after which one that nothing answers for is lost.
        lost: called for each host that is lost.
    """

    loop: EventLoop
    folder: str
    environ: Mapping[str, str]
    daemons: Iterable[RemoteHost]
    silent: float
    keepalive: float
    lost: Callable[[HostLost], None]

    def __post_init__(self) -> None:
        self._question = Question(
            self.loop, self.folder, self.environ, Request.LOOK_FOR, self._heard
        )
        self._hosts = {(remote.address, remote.port): remote.name for remote in self.daemons}
        self._ages: dict[str, float] = {}  # of the silent hosts, at the last look
        self._asked: dict[str, float] = {}  # when they were looked for last
        self._warned: dict[str, tuple[str, float]] = {}
        self._asking = False
        self._blind = False  # the last look failed
        self.due = time.monotonic() + self.silent if self.silent else None

    def look(self) -> None:
        """Look where it is time (``due``, by the monotonic clock)."""
        now = time.monotonic()
        if self.due is None or self.due > now:
            return
        try:
            found = silences().items()
        except (OSError, ValueError) as wrong:
            # Not the last look: ssh itself gives no host up where this one looks for them.
            say = log.debug if self._blind else log.warning
            say("silent", f"connections can't be looked at, no silent host is noticed: {wrong}")
            self._blind, self.due = True, now + self.silent
            return
        self._blind = False
        ages = {self._hosts[place]: age for place, age in found if place in self._hosts}
        self._ages = {host: age for host, age in ages.items() if age >= self.silent}
        for host in [host for host in self._warned if host in ages and host not in self._ages]:
            log.info("silent", f"{host}: its SSH connection is alive again", host=host)
            del self._warned[host]
        oldest = max((age for age in ages.values() if age < self.silent), default=0.0)
        self.due = now + max(1.0, self.silent - oldest)
        again = now - self.silent / 2
        wanted = [host for host in self._ages if self._asked.get(host, 0.0) <= again]
        if wanted and not self._asking:
            self._asking = True
            self._asked.update(dict.fromkeys(wanted[:_HOSTS], now))
            self._question.ask(*wanted[:_HOSTS])

    def stop(self) -> None:
        """End what asks."""
        self._question.stop()

    def lines(self) -> tuple[str, ...]:
        """Say which hosts were silent at the last look, each with what was found."""
        found = [(host, message) for host, (message, _) in self._warned.items()]
        return tuple(f"{host}: {message}" for host, message in found if host in self._ages)[:_LINES]

    def _heard(self, lines: list[str]) -> None:
        self._asking, now = False, time.monotonic()
        if self.due is not None:
            self.due = now  # others may have gone silent meanwhile
        news = []
        for host, found, message in (line.split(" ", 2) for line in lines):
            age = self._ages.get(host)
            if age is None:
                continue
            text = f"nothing came over its SSH connection for {age:.0f} s: {message}"
            if found == Found.GONE or (found == Found.NOTHING and age >= self.keepalive):
                self.lost(HostLost(host, text))
                continue
            before, at = self._warned.get(host, ("", now))
            if before.partition(": ")[2] != message or at + _REPEAT <= now:
                self._warned[host] = (text, now)
                news.append(host)
        for host in news[:_LINES]:
            closer = f"The job goes on. Look closer: mpiboot doctor --host {host}"
            log.warning("silent", f"{host}: {self._warned[host][0]}. {closer}", host=host)
        if len(news) > _LINES:
            more = news[_LINES:]
            log.warning("silent", f"{first_few(more)} ({len(more)} more hosts): the same")


_LINE: Final = 512
_WORDS: Final = 3
# Connections that say nothing.
_SILENT: Final = 16


def _bound(address: str, port: int) -> socket.socket | None:
    """Listen on one address; None where that can't be."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError:  # no such protocol in this kernel
        return None
    with suppress(OSError):
        server.bind((address, port))
        server.listen(_SILENT)
        return server
    server.close()
    return None


@dataclass(eq=False)
class Notices:
    """A port on which workers tell that their pod is ending, before its first rank ends.

    A worker whose node is drained has no other way to say so: its SSH connections belong to
    mpirun's daemons. Messages without the launch ID are ignored; a message is one short line.
    """

    loop: EventLoop
    mark: str
    heard: Callable[[str], None]

    def __post_init__(self) -> None:
        self._servers: list[socket.socket] = []
        self._open: list[int] = []

    def listen(self, addresses: Iterable[str], ports: Iterable[int] = (0,)) -> int:
        """Listen on the first port that is free, 0 for any; give it, or 0 where that can't be.

        ``addresses`` are this pod's on the control link, by which the workers' daemons were
        started; nothing listens on any other link. All of them have the one port.
        """
        for port in ports:
            for address in addresses:
                server = _bound(address, port)
                if server is not None:
                    self._servers.append(server)
                    port = int(server.getsockname()[1])  # noqa: PLW2901 - 0 was any
            if self._servers:
                for server in self._servers:
                    self.loop.on(server.fileno(), partial(self._accept, server))
                return port
        return 0

    def close(self) -> None:
        """Listen no more."""
        for server in self._servers:
            self.loop.off(server.fileno())
            server.close()
        self._servers.clear()
        for handle in self._open[:]:
            self._drop(handle)

    def _accept(self, server: socket.socket) -> None:
        with suppress(OSError):
            # The module socket itself costs half a megabyte.
            handle, _ = server._accept()  # type: ignore[attr-defined] # noqa: SLF001
            os.set_blocking(handle, False)
            self._open.append(handle)
            self.loop.on(handle, lambda: self._read(handle))
        if len(self._open) > _SILENT:
            self._drop(self._open[0])

    def _drop(self, handle: int) -> None:
        self._open.remove(handle)
        self.loop.off(handle)
        os.close(handle)

    def _read(self, handle: int) -> None:
        data = b""
        with suppress(OSError):
            data = os.read(handle, _LINE)
        words = data.decode("utf-8", "replace").split()
        if len(words) == _WORDS and words[:2] == ["ending", self.mark]:
            self.heard(words[2])
        self._drop(handle)  # only now: that is the answer


class UnusedHosts:
    """The remote hosts whose use was left to mpirun, and what was seen of them.

    Where the plan can't tell, this is what tells that a job of many hosts runs on few.
    """

    def __init__(self, hosts: Collection[str]) -> None:
        """``hosts`` are named as in the hostfile that mpirun gets."""
        self._hosts = hosts
        self._started: set[str] = set()

    def started(self, host: str) -> None:
        """Note a launch agent."""
        self._started.add(host)

    def message(self, with_ranks: Collection[str]) -> str:
        """Name the unused hosts; empty where there are none, or they were named before.

        Args:
            with_ranks: the hosts of mpirun's own table of ranks; empty where it wrote none, and
                then hosts without a launch agent are meant.
        """
        used = with_ranks or self._started
        # Some mpirun cut names at the first dot.
        names = self._hosts
        unused = [name for name in names if not {name, name.partition(".")[0]}.intersection(used)]
        if not unused:
            return ""
        self._hosts = ()
        what = "put no rank on" if with_ranks else "started nothing on"
        return f"mpirun {what} {len(unused)} of {counted(len(names), 'host')}: {first_few(unused)}"
