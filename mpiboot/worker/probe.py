"""A worker's probe: it listens for other workers, dials them, and measures the paths to them.

Run as ``python3 -I -S``, alone, while a launcher asks, with FIRST-LAST ADDRESS; stdlib only, and
little of it. It listens at ADDRESS, by TCP and UDP on one port of that range (0-0: any), tells
whoever connects from which address that came, and prints ``mpiboot-probe PORT``. It answers each
line on stdin by one line, and ends with its stdin; a measurement then takes some seconds at most.

``listen ADDRESS``: listens at another address of its own; answered by the port, 0 if it can't.

``dial ADDRESS PORT SSH-PORT SECONDS FROM MTU BYTES [LASTING]``: connects, from the address FROM
(``-``: any), and measures the path unless MTU is 0. The answer is ``RESULT OWN SEEN SSH RTT MTU
RATE``, ``-`` where something isn't known; with LASTING a stream of so many seconds is sent, no MTU
is looked for, and RESENT follows:

- RESULT: ``answered``; ``connected`` where the far end says nothing, as a proxy or another server
  does; ``silent``, ``refused``, ``no-route``; ``stalled``: small packets come through, large ones
  do not
- OWN, SEEN: the address from which it dialled, and the one that the far end saw
- SSH: the result of dialling SSH-PORT, tried only if the dial fails (0: never)
- RTT: microseconds of the quickest of some round trips
- MTU: the largest packet that comes through unfragmented, the requested MTU at most
- RATE: bytes a second of a stream of BYTES at most (0: none is sent)
- RESENT: the share of the stream's packets that TCP had to send again
"""

# Its start on the last host is waited for; socket and threading would double that.
from __future__ import annotations

import _socket as socket
import _thread
import errno
import struct
import sys
import time

_PAUSE = 0.2  # seconds, where a connection can't be accepted now
_WORD = 64  # bytes; the longest address has 45
# A reset instead of a close: no port of the job's range stays in TIME_WAIT when MPI wants it.
_RESET = struct.pack("ii", 1, 0)
_PINGS = 5
_TRIES = 2  # datagrams of one size: one may be lost by chance
_PATIENCE = 0.25  # seconds for a datagram's answer
_LAST_PATIENCE = 1.0  # before a packet is called lost for good
_STREAM = 0.5  # seconds
_BLOCK = bytes(1 << 16)
_SMALL = 100  # bytes; any path carries it
_LEAST = 1280  # IPv6's smallest MTU, and less than any link of a cluster has
# linux/in.h and linux/in6.h: packets are never fragmented, and no cached path MTU counts.
_MTU_DISCOVER = {
    socket.AF_INET: (socket.IPPROTO_IP, 10),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 23),
}
_PROBE = 3
# Of linux/tcp.h's tcp_info: tcpi_total_retrans, tcpi_bytes_acked, tcpi_segs_out.
_INFO = "=100xI16xQ8xI"
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # of IP and UDP


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listen(address: str, first: int, last: int) -> int:
    """Serve at an address from now on, on the last port of a range that is free.

    MPI's daemons take the first ones.

    Returns:
        The port; 0 where none is free, or the address is not this pod's.
    """
    for port in [0] * 8 if last == 0 else range(last, first - 1, -1):
        stream = socket.socket(_family(address), socket.SOCK_STREAM)
        datagram = socket.socket(_family(address), socket.SOCK_DGRAM)
        try:
            stream.bind((address, port))
            found: int = stream.getsockname()[1]
            datagram.bind((address, found))
            stream.listen()
        except OSError:
            stream.close()
            datagram.close()
        else:
            _thread.start_new_thread(accept, (stream,))
            _thread.start_new_thread(answer_datagrams, (datagram,))
            return found
    return 0


def accept(listener: socket.socket) -> None:
    """Tell everybody who connects the address that is seen here; a thread serves what follows."""
    while True:
        try:
            handle, peer = listener._accept()  # type: ignore[attr-defined] # noqa: SLF001 - as socket
            connection = socket.socket(fileno=handle)
            try:
                connection.sendall(f"{peer[0]}\n".encode())
                _thread.start_new_thread(echo, (connection,))
            except BaseException:
                connection.close()
                raise
        except ConnectionError:  # noqa: PERF203 - each connection fails alone
            continue  # whoever has gone before the answer needs none
        except (OSError, RuntimeError):
            time.sleep(_PAUSE)  # no descriptor or thread is left: who connected is still there


def echo(connection: socket.socket) -> None:
    """Send back each byte that follows a ``p``; of a stream, tell at its end how long it was."""
    try:
        connection.settimeout(10 * _STREAM)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kind = connection.recv(1)
        if kind == b"p":
            while data := connection.recv(16):
                connection.sendall(data)
        elif kind:
            count, block = 0, memoryview(bytearray(1 << 18))
            while got := connection.recv_into(block):
                count += got
            connection.sendall(b"%d\n" % count)
    except OSError:
        return  # whoever dials tells how that went
    finally:
        connection.close()


def answer_datagrams(sock: socket.socket) -> None:
    """Tell whoever sends a datagram how long it was, behind the word that it began with."""
    while True:
        try:
            data, peer = sock.recvfrom(1 << 16)
            sock.sendto(b"%s %d" % (data.partition(b" ")[0][:32], len(data)), peer)
        except OSError:  # noqa: PERF203 - each datagram fails alone
            continue


def connect(
    address: str, port: int, seconds: float, own: str = "-"
) -> tuple[str, socket.socket | None]:
    """Connect once, from an own address or any."""
    sock = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if own != "-":
            sock.bind((own, 0))
        sock.connect((address, port))
    except OSError as error:
        sock.close()
        if isinstance(error, TimeoutError):
            return "silent", None
        return "refused" if isinstance(error, ConnectionRefusedError) else "no-route", None
    return "connected", sock


def greeting(sock: socket.socket) -> str:
    """Read the address that the far end saw; ``-`` where it tells none."""
    try:
        seen = sock.recv(_WORD).decode("ascii", "replace").strip()
    except OSError:
        return "-"
    return seen if seen and all(c in "0123456789abcdef.:%" for c in seen) else "-"


def dial(
    address: str,
    port: int,
    ssh: int,
    seconds: float,
    own: str,
    mtu: int,
    most: int,
    lasting: float = 0.0,
) -> str:
    """Dial a host, twice if that fails, as packets are lost; answer as this program does."""
    result, sock = connect(address, port, seconds, own)
    beside = "-"
    if sock is None:
        answers: list[str] = []
        done = _thread.allocate_lock()
        done.acquire()

        def try_ssh() -> None:
            try:
                answers.append(connect(address, ssh, seconds)[0] if ssh else "-")
            finally:
                done.release()

        _thread.start_new_thread(try_ssh, ())
        result, sock = connect(address, port, seconds, own)
        done.acquire()
        beside = answers[0]
    if sock is None:
        return f"{result} - - {beside} - - -"
    here, seen, trip = "-", "-", ""
    try:
        here, seen = sock.getsockname()[0], greeting(sock)
        if seen != "-":
            result = "answered"
            trip = f"{round_trip(sock) * 1e6:.0f}" if mtu else ""
    except OSError:
        trip = ""
    finally:
        sock.close()
    if not mtu:
        return f"{result} {here} {seen} {beside} - - -"
    if not trip:
        return f"silent {here} {seen} {beside} - - -"
    result, size, rate = measure(address, port, seconds, own, mtu, most, lasting)
    return f"{result} {here} {seen} {beside} {trip} {size} {rate}"


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


def measure(
    address: str, port: int, seconds: float, own: str, mtu: int, most: int, lasting: float
) -> tuple[str, str, str]:
    """Measure the path to a host that answers: the result, the largest packet, and the rate."""
    try:
        size = "-" if lasting else str(largest(own, address, port, mtu) or "-")
    except OSError:
        size = "-"
    # Without datagrams a short stream shows at least whether large packets come through.
    wanted = most or (len(_BLOCK) if size == "-" else 0)
    sock = connect(address, port, seconds, own)[1] if wanted else None
    if sock is None:
        return "answered", size, "-"
    try:
        greeting(sock)
        rate = stream(sock, sys.maxsize if lasting else wanted, lasting)
    except (OSError, ValueError):
        return "stalled", size, "-"
    finally:
        sock.close()
    return "answered", size, rate if most else "-"


def largest(own: str, address: str, port: int, mtu: int) -> int:
    """Find the largest packet that comes through unfragmented; 0 if not even a small one does."""
    family = _family(address)
    sock = socket.socket(family, socket.SOCK_DGRAM)

    def passes(size: int, patience: float = _PATIENCE) -> bool:
        sock.settimeout(patience)
        for _ in range(_TRIES):
            word = b"%016x" % time.perf_counter_ns()
            data = (word + b" ").ljust(size - _HEADERS[family], b"x")
            try:
                sock.send(data)
                wanted = b"%s %d" % (word, len(data))
                while sock.recv(64) != wanted:
                    pass  # the answer to an earlier one
            except TimeoutError:
                continue
            except OSError as error:
                if error.errno == errno.EMSGSIZE:  # larger than this very link
                    return False
                continue
            return True
        return False

    try:
        sock.setsockopt(*_MTU_DISCOVER[family], _PROBE)
        if own != "-":
            sock.bind((own, 0))
        sock.connect((address, port))
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
    finally:
        sock.close()


def stream(sock: socket.socket, most: int, lasting: float) -> str:
    """Send for a moment, or as long as that lasts; bytes a second, and then the share sent again.

    Raises:
        OSError: it stalls.
    """
    sock.settimeout(6 * _STREAM)
    began = time.perf_counter()
    sock.sendall(b"s")
    sent = 0
    while sent < most and time.perf_counter() - began < (lasting or _STREAM):
        sent += sock.send(_BLOCK[: most - sent])
    if not lasting:
        sock.shutdown(socket.SHUT_WR)
        got = b""
        while data := sock.recv(64):
            got += data
        return f"{float(got) / (time.perf_counter() - began):.0f}"
    # By what the far end has acknowledged: what is still in buffers is not waited for, as over a
    # slow link that takes many times as long.
    size = struct.calcsize(_INFO)
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    took = time.perf_counter() - began
    if len(info) < size:  # a kernel before 4.2
        return "-"
    again, acknowledged, count = struct.unpack(_INFO, info)
    return f"{acknowledged / took:.0f} {min(1.0, again / max(1, count)):.6f}"


def main(ports: str, address: str) -> None:
    """Serve until stdin ends."""
    first, last = map(int, ports.split("-"))
    port = listen(address, first, last)
    if not port:
        sys.exit(f"mpiboot: no port of {ports} is free at {address}")
    sys.stdout.write(f"mpiboot-probe {port}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        what, to, *words = line.split()
        if what == "listen":
            answer = str(listen(to, first, last))
        else:
            there, ssh, seconds, own, mtu, most, *more = words
            path = own, int(mtu), int(most), float(more[0]) if more else 0.0
            answer = dial(to, int(there), int(ssh), float(seconds), *path)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def run() -> None:
    """Run as a program."""
    main(*sys.argv[1:])
