"""A worker's part of ``mpiboot doctor --network``: it measures the way to other workers.

Run as ``python3 -I -S``, alone, with FIRST-LAST ADDRESS..., while the launcher asks; stdlib
only. It listens at each address on a port of that range (0-0: any), by TCP and UDP, and prints
``mpiboot-paths PORT...``. Each line on stdin, ``OWN ADDRESS PORT MTU SECONDS BYTES``, is measured
from the address OWN and answered by one line, ``RESULT RTT MTU RATE``: how the connection went (as
in ``pairs.py``; ``stalled``: small packets came through and large ones did not); microseconds of
the quickest of some round trips; the largest packet that came through unbroken, MTU at most; bytes
a second of a stream of BYTES at most (0: none is sent). ``-`` is not known. It ends with its stdin,
and whatever it is in the middle of then takes some seconds at most.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import threading
import time

_RESET = struct.pack("ii", 1, 0)  # no port stays in TIME_WAIT when MPI wants it
_PINGS = 5
_TRIES = 2  # datagrams of one size: one may be lost by chance
_PATIENCE = 0.25  # seconds for a datagram's answer, and before a packet is called lost for good
_LAST_PATIENCE = 1.0
_STREAM = 0.5  # seconds
_BLOCK = bytes(1 << 16)
_SMALL = 100  # bytes; any path carries it
_LEAST = 1280  # IPv6's smallest MTU, and less than any link of a cluster has
# linux/in.h and linux/in6.h: packets are never broken up, and no remembered path MTU counts.
_MTU_DISCOVER = {
    socket.AF_INET: (socket.IPPROTO_IP, 10),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 23),
}
_PROBE = 3
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # of IP and UDP


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listen(address: str, first: int, last: int) -> tuple[socket.socket, socket.socket]:
    """Listen by TCP and UDP on one port of a range; from its end, as MPI takes the first ones.

    Raises:
        OSError: no port of it is free, or the address is not this pod's.
    """
    wrong = OSError(errno.EADDRINUSE, f"no port of {first}-{last} is free")
    for port in [0] * 8 if last == 0 else range(last, first - 1, -1):
        stream = socket.socket(_family(address), socket.SOCK_STREAM)
        datagram = socket.socket(_family(address), socket.SOCK_DGRAM)
        try:
            stream.bind((address, port))
            datagram.bind((address, stream.getsockname()[1]))
            stream.listen()
        except OSError as why:
            wrong = why
            stream.close()
            datagram.close()
        else:
            return stream, datagram
    raise wrong


def answer_datagrams(sock: socket.socket) -> None:
    """Tell whoever sends a datagram how long it was, behind the word that it began with."""
    while True:
        try:
            data, peer = sock.recvfrom(1 << 16)
            sock.sendto(b"%s %d" % (data.partition(b" ")[0][:32], len(data)), peer)
        except OSError:  # noqa: PERF203 - each datagram fails alone
            continue


def answer_connections(listener: socket.socket) -> None:
    """Serve whoever connects, a thread each."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            time.sleep(_PATIENCE)  # no descriptor is left, say
            continue
        threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _serve(connection: socket.socket) -> None:
    """Send each byte of ``p`` back; of anything else, tell at its end how much has come."""
    try:
        with connection:
            connection.settimeout(10 * _STREAM)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if connection.recv(1) == b"p":
                while data := connection.recv(16):
                    connection.sendall(data)
                return
            count, block = 0, memoryview(bytearray(1 << 18))
            while got := connection.recv_into(block):
                count += got
            connection.sendall(b"%d\n" % count)
    except OSError:
        return


def connect(own: str, address: str, port: int, seconds: float) -> tuple[str, socket.socket | None]:
    """Connect, twice where nobody answers: packets are lost."""
    result = ""
    for _ in range(2):
        sock = socket.socket(_family(address), socket.SOCK_STREAM)
        try:
            sock.settimeout(seconds)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.bind((own, 0))
            sock.connect((address, port))
        except OSError as why:
            sock.close()
            if isinstance(why, TimeoutError):
                result = "silent"
                continue
            return "refused" if isinstance(why, ConnectionRefusedError) else "no-route", None
        else:
            return "connected", sock
    return result, None


def round_trip(sock: socket.socket) -> float:
    """Give the seconds of the quickest of some round trips; raises OSError where one gets lost."""
    best = float("inf")
    sock.sendall(b"p")
    for _ in range(_PINGS):
        began = time.perf_counter()
        sock.sendall(b"x")
        if not sock.recv(1):
            raise OSError(errno.ECONNRESET, "closed")
        best = min(best, time.perf_counter() - began)
    return best


def largest(own: str, address: str, port: int, mtu: int) -> int:
    """Find the largest packet that comes through unbroken; 0 where not even a small one does."""
    family = _family(address)
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(*_MTU_DISCOVER[family], _PROBE)
        sock.bind((own, 0))
        sock.connect((address, port))

        def passes(size: int, patience: float = _PATIENCE) -> bool:
            sock.settimeout(patience)
            for _ in range(_TRIES):
                word = os.urandom(8).hex().encode()
                data = (word + b" ").ljust(size - _HEADERS[family], b"x")
                try:
                    sock.send(data)
                    wanted = b"%s %d" % (word, len(data))
                    while sock.recv(64) != wanted:
                        pass  # the answer to an earlier one
                except TimeoutError:
                    continue
                except OSError as why:
                    if why.errno == errno.EMSGSIZE:  # larger than this very link
                        return False
                    continue
                return True
            return False

        # A host that is busy answers late, and loses nothing.
        if passes(mtu) or passes(mtu, _LAST_PATIENCE):
            return mtu
        if not passes(_SMALL, _LAST_PATIENCE):
            return 0
        low, high = (_LEAST, mtu) if passes(_LEAST) else (_SMALL, _LEAST)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if passes(middle) else (low, middle)
        return low


def stream(sock: socket.socket, most: int) -> float:
    """Send for a moment; bytes a second, by what the far end has got. Raises OSError: it stalls."""
    sock.settimeout(6 * _STREAM)
    began = time.perf_counter()
    sock.sendall(b"s")
    sent = 0
    while sent < most and time.perf_counter() - began < _STREAM:
        sent += sock.send(_BLOCK[: most - sent])
    sock.shutdown(socket.SHUT_WR)
    got = b""
    while data := sock.recv(64):
        got += data
    return float(got) / (time.perf_counter() - began)


def measure(own: str, address: str, port: int, mtu: int, seconds: float, most: int) -> str:
    """Measure one way, and answer as this program does."""
    result, sock = connect(own, address, port, seconds)
    if sock is None:
        return f"{result} - - -"
    trip = size = rate = "-"
    try:
        with sock:
            trip = f"{round_trip(sock) * 1e6:.0f}"
    except OSError:
        return "silent - - -"
    try:
        size = str(largest(own, address, port, mtu) or "-")
    except OSError:
        size = "-"
    # Without datagrams a short stream shows at least whether large packets come through.
    wanted = most or (len(_BLOCK) if size == "-" else 0)
    if wanted:
        _, sock = connect(own, address, port, seconds)
        try:
            if sock is not None:
                with sock:
                    found = stream(sock, wanted)
                rate = f"{found:.0f}" if most else "-"
        except (OSError, ValueError):
            result = "stalled"
    return f"{result} {trip} {size} {rate}"


def main(ports: str, *own: str) -> None:
    """Serve until stdin ends."""
    first, last = map(int, ports.split("-"))
    listening = []
    for address in own:
        try:
            sockets = listen(address, first, last)
        except OSError as why:
            sys.exit(f"mpiboot: nobody can listen at {address}: {why.strerror or why}")
        threading.Thread(target=answer_connections, args=sockets[:1], daemon=True).start()
        threading.Thread(target=answer_datagrams, args=sockets[1:], daemon=True).start()
        listening.append(str(sockets[0].getsockname()[1]))
    sys.stdout.write(f"mpiboot-paths {' '.join(listening)}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        here, there, port, mtu, seconds, most = line.split()
        message = measure(here, there, int(port), int(mtu), float(seconds), int(most))
        sys.stdout.write(f"{message}\n")
        sys.stdout.flush()


def run() -> None:
    """Run as a program."""
    main(*sys.argv[1:])
