"""One end of mpiboot's own TCP stream, by which ``validate pairs`` measures a path.

Run on a worker as ``python3 -I -S``; stdlib only. ``receive PORT ADDRESS`` takes one connection;
``send PORT SECONDS FROM ADDRESS`` sends to it for so long, and prints Gb/s.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time

_BLOCK = bytes(1 << 16)
_CONNECT_S = 5.0
# Of linux/tcp.h's tcp_info, since 4.2: tcpi_bytes_acked. What is still in buffers does not count,
# nor is it waited for: over a slow link it takes many times as long.
_ACKNOWLEDGED = struct.Struct("=120xQ")
# A reset instead of a close: no port of the job's range stays in TIME_WAIT when MPI wants it.
_RESET = struct.pack("ii", 1, 0)


def receive(port: str, address: str) -> None:
    """Read what one connection brings."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, int(port)), family=family) as server:
        connection, _ = server.accept()
    block = bytearray(1 << 18)
    with connection, contextlib.suppress(ConnectionResetError):
        while connection.recv_into(block):
            pass


def send(port: str, seconds: str, own: str, address: str) -> None:
    """Send, and print by what the far end has acknowledged."""
    with socket.create_connection((address, int(port)), _CONNECT_S, (own, 0)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        began = now = time.perf_counter()
        while now - began < float(seconds):
            connection.send(_BLOCK)
            now = time.perf_counter()
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.size)
        took = time.perf_counter() - began
    sys.stdout.write(f"{_ACKNOWLEDGED.unpack(info)[0] * 8e-9 / took:.4f}\n")


def run() -> None:
    """Run as a program."""
    role, *words = sys.argv[1:]
    try:
        if role == "receive":
            receive(*words)
        else:
            send(*words)
    except OSError as error:
        sys.exit(f"TCP could not be measured: {error.strerror or error}")
