"""A worker's probe: it listens for other workers, and dials them and the launcher.

Run as ``python3 -I -S``, alone, for a launcher, with FIRST-LAST ADDRESS LAUNCH; stdlib only,
and little of it. It listens at ADDRESS on a port of that range (0-0: any), answers whoever connects
with the launch's ID and the address from which that came, and prints ``mpiboot-probe PORT``. It
answers each line on stdin by one line, in their order, works on all of them at once, and ends with
its stdin.

``listen ADDRESS``: listens at another address of its own; answered by the port, 0 if it can't.

``dial ADDRESS PORT SSH-PORT SECONDS``: connects. The answer is ``RESULT OWN SEEN SSH``, ``-`` where
something isn't known:

- RESULT: ``answered``; ``connected`` where the far end doesn't answer with the launch's ID, as a
  proxy or another server; ``silent``, ``refused``, ``no-route``
- OWN, SEEN: the address from which it dialled, and the one that the far end saw
- SSH: the result of dialling SSH-PORT, tried only if the dial fails (0: never)

For ``validate pairs`` it runs one end of a measurement instead, by ``measure PORT PROGRAM``, until
a line comes on stdin or that ends. It passes the program's output on, and writes
``mpiboot-listens`` as soon as the program listens at PORT (0: a client, which does not). Two are
built in: ``receive PORT ADDRESS`` takes one connection, ``send PORT SECONDS FROM ADDRESS`` sends to
it for so long, and prints Gb/s.
"""

# Its start on the last host is waited for: nothing else is imported.
from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

_PAUSE = 0.2  # seconds, where a connection can't be accepted now
_ANSWER = 512  # bytes; a launch's ID has a host's name, the longest address 45
# A reset instead of a close: no port of the job's range stays in TIME_WAIT when MPI wants it.
_RESET = struct.pack("ii", 1, 0)
_PATIENCE = 5.0  # seconds for a client that has its answer to close
_LISTEN_PAUSE = 0.02  # seconds
_CONNECT_S = 5.0  # for a stream
_BLOCK = bytes(1 << 16)
# Of linux/tcp.h's tcp_info, since 4.2: tcpi_bytes_acked. What is still in buffers does not count,
# nor is it waited for: over a slow link it takes many times as long.
_ACKNOWLEDGED = struct.Struct("=120xQ")


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _start(work: Callable[..., None], *given: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=given, daemon=True)
    thread.start()
    return thread


def listen(address: str, low: int, high: int, launch: str) -> int:
    """Serve at an address from now on, on the last port of a range that is free.

    MPI's daemons take the first ones.

    Returns:
        The port; 0 where none is free, or the address is not this pod's.
    """
    for port in range(high, low - 1, -1):
        stream = socket.socket(_family(address))
        try:
            stream.bind((address, port))
            stream.listen()
        except OSError:
            stream.close()
        else:
            _start(accept, stream, launch)
            found: int = stream.getsockname()[1]
            return found
    return 0


def accept(listener: socket.socket, launch: str) -> None:
    """Answer everybody who connects; a thread serves what follows."""
    while True:
        try:
            connection, peer = listener.accept()
            connection.sendall(f"{launch} {peer[0]}\n".encode())
            _start(outlast, connection)
        except ConnectionError:  # noqa: PERF203 - each connection fails alone
            continue  # whoever has gone before the answer needs none
        except (OSError, RuntimeError):
            time.sleep(_PAUSE)  # no descriptor or thread is left: who connected is still there


def outlast(connection: socket.socket) -> None:
    """Close a connection after its client: no port of the range stays in TIME_WAIT here either."""
    with connection:
        connection.settimeout(_PATIENCE)
        try:
            connection.recv(1)
        except OSError:
            return


def connect(address: str, port: int, seconds: float) -> tuple[str, socket.socket | None]:
    """Connect once."""
    sock = socket.socket(_family(address))
    try:
        sock.settimeout(seconds)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.connect((address, port))
    except OSError as error:
        sock.close()
        if isinstance(error, TimeoutError):
            return "silent", None
        return "refused" if isinstance(error, ConnectionRefusedError) else "no-route", None
    return "connected", sock


def answer(sock: socket.socket, launch: str) -> str:
    """Read the address that the far end saw; ``-`` where it isn't one of this launch."""
    found = b""
    try:
        while b"\n" not in found and len(found) < _ANSWER and (more := sock.recv(_ANSWER)):
            found += more
    except OSError:
        return "-"
    identity, _, seen = found.decode("ascii", "replace").strip().partition(" ")
    known = identity == launch and seen and all(c in "0123456789abcdef.:%" for c in seen)
    return seen if known else "-"


def dial(address: str, port: int, ssh: int, seconds: float, launch: str) -> str:
    """Dial a host, twice if that fails, as packets are lost; answer as this program does."""
    result, sock = connect(address, port, seconds)
    ssh_results = []
    if sock is None:

        def try_ssh() -> None:
            ssh_results.append(connect(address, ssh, seconds)[0] if ssh else "-")

        trying = _start(try_ssh)
        result, sock = connect(address, port, seconds)
        trying.join()
    ssh_result = ssh_results[0] if ssh_results else "-"
    if sock is None:
        return f"{result} - - {ssh_result}"
    with sock:
        here, seen = sock.getsockname()[0], answer(sock, launch)
    return f"{result if seen == '-' else 'answered'} {here} {seen} {ssh_result}"


def main(ports: str, address: str, launch: str) -> None:
    """Serve until stdin ends."""
    low, high = map(int, ports.split("-"))
    port = listen(address, low, high, launch)
    if not port:
        sys.exit(f"mpiboot: no port of {ports} is free at {address}")
    sys.stdout.write(f"mpiboot-probe {port}\n")
    sys.stdout.flush()

    def work(line: str, before: threading.Thread | None) -> None:
        what, to, *words = line.split()
        try:
            if what == "listen":
                result = str(listen(to, low, high, launch))
            else:
                there, ssh, seconds = words
                result = dial(to, int(there), int(ssh), float(seconds), launch)
        except (OSError, RuntimeError):  # no descriptor or thread is left
            result = "unknown - - -"
        if before:
            before.join()
        sys.stdout.write(f"{result}\n")
        sys.stdout.flush()

    # One that nobody answers must not hold up the next.
    before = None
    for line in sys.stdin:
        before = _start(work, line, before)
    # An interpreter that ends while a thread holds stdout aborts.
    os._exit(0)


def receive(port: str, address: str) -> None:
    """Read what one connection brings."""
    with socket.create_server((address, int(port)), family=_family(address)) as server:
        connection, block = server.accept()[0], bytearray(1 << 18)
    try:
        while connection.recv_into(block):
            pass
    except ConnectionResetError:  # its client's end
        return


def send(port: str, seconds: str, source: str, address: str) -> None:
    """Send, and print by what the far end has acknowledged."""
    sock = socket.create_connection((address, int(port)), _CONNECT_S, (source, 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    began = now = time.perf_counter()
    while now - began < float(seconds):
        sock.send(_BLOCK)
        now = time.perf_counter()
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.size)
    took = time.perf_counter() - began
    sys.stdout.write(f"{_ACKNOWLEDGED.unpack(info)[0] * 8e-9 / took:.4f}\n")


def measure(pid: int, port: int) -> None:
    """Watch one end of a measurement, a child: report that it listens, and end it in time."""

    def kill() -> None:
        os.read(0, 1)
        os.kill(pid, signal.SIGKILL)

    _start(kill)
    if port:
        while not _listens(port):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(_LISTEN_PAUSE)
        # On a line of its own: the program may have written a part of one.
        sys.stdout.write("\nmpiboot-listens\n")
        sys.stdout.flush()
    os.waitpid(pid, 0)


def _listens(port: int) -> bool:
    """Whether somebody listens at a port of this pod (0A is LISTEN, the kernel's tcp_states.h)."""
    tables = (f"/proc/net/{name}" for name in ("tcp", "tcp6"))  # a kernel may be without IPv6
    lines = (line for path in filter(os.path.exists, tables) for line in open(path))  # noqa: PTH123, SIM115
    return any(f":{port:04X} " in line and " 0A " in line for line in lines)


def run() -> None:
    """Run as a program."""
    what, *words = sys.argv[1:]
    if what != "measure":
        main(what, *words)
    port, program, *rest = words
    if pid := os.fork():
        measure(pid, int(port))
        os._exit(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(1, 2)
    try:
        if program == "receive":
            receive(*rest)
        elif program == "send":
            send(*rest)
        else:
            os.execvp(program, (program, *rest))  # noqa: S606 - no shell is the point
    except OSError as error:
        sys.exit(f"{program} could not measure: {error.strerror or error}")
