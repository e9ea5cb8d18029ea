"""A worker's part of the check that workers reach each other: it listens, and dials the others.

Run as ``python3 -I -S``, alone, for the moment in which the launcher asks, with the words ADDRESS
FIRST-LAST; stdlib only, and little of it. It listens at ADDRESS on a port of that range (0-0: any),
tells whoever connects from which address that came, and prints ``mpiboot-pairs PORT``. Each line on
stdin, ``ADDRESS PORT SSH-PORT SECONDS``, is dialled and answered by one line, ``RESULT OWN SEEN
SSH``: the address from which it dialled, the one that the far end saw, and the result of the SSH
port, which is only tried where the first one can't be reached (``-``: not known, not tried). A line
with port 0 has it listen at that ADDRESS of its own, too: ``listens PORT - -``. It ends with its
stdin.
"""

# Its start on the last host is waited for; socket and threading would double that.
from __future__ import annotations

import _socket as socket
import _thread
import struct
import sys
import time

_PAUSE = 0.2  # seconds, where a connection can't be accepted now
_WORD = 64  # bytes; the longest address has 45
# A reset instead of a close: no port of the job's range stays in TIME_WAIT when MPI wants it.
_RESET = struct.pack("ii", 1, 0)


def listen(address: str, first: int, last: int) -> socket.socket | None:
    """Listen on the last port of a range that is free: MPI's daemons take the first ones."""
    for port in range(last, first - 1, -1):
        listener = socket.socket(_family(address), socket.SOCK_STREAM)
        try:
            listener.bind((address, port))
            listener.listen()
        except OSError:
            listener.close()
        else:
            return listener
    return None


def listen_too(address: str, first: int, last: int) -> tuple[str, str, str, str]:
    """Listen at a further address, as one on the data network."""
    listener = listen(address, first, last)
    if listener is None:
        return "refused", "-", "-", "-"
    _thread.start_new_thread(answer, (listener,))
    return "listens", str(listener.getsockname()[1]), "-", "-"


def answer(listener: socket.socket) -> None:
    """Tell everybody who connects the address that is seen here."""
    while True:
        try:
            handle, peer = listener._accept()  # type: ignore[attr-defined] # noqa: SLF001 - as socket
            connection = socket.socket(fileno=handle)
            try:
                connection.sendall(f"{peer[0]}\n".encode())
            finally:
                connection.close()
        except ConnectionError:  # noqa: PERF203 - each connection fails alone
            continue  # whoever has gone before the answer needs none
        except OSError:
            time.sleep(_PAUSE)  # no descriptor is left, say: whoever connected is still there


def dial(address: str, port: int, seconds: float) -> tuple[str, str, str]:
    """Connect once; how that went, our own address and the one that the far end saw.

    Returns:
        ``answered``; ``connected`` where the far end says nothing, as a proxy or another server
        does; ``silent``, ``refused`` or ``no-route``.
    """
    own = "-"
    sock = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        try:
            sock.connect((address, port))
        except TimeoutError:
            return "silent", own, "-"
        except ConnectionRefusedError:
            return "refused", own, "-"
        except OSError:
            return "no-route", own, "-"
        try:
            own = sock.getsockname()[0]
            seen = sock.recv(_WORD)
        except OSError:
            seen = b""
    finally:
        sock.close()
    message = seen.decode("ascii", "replace").strip()
    known = message and all(c in "0123456789abcdef.:%" for c in message)
    return ("answered", own, message) if known else ("connected", own, "-")


def reach(address: str, port: int, ssh: int, seconds: float) -> tuple[str, str, str, str]:
    """Dial a host; one that can't be reached once more, as packets are lost, and its SSH port."""
    found, beside = dial(address, port, seconds), "-"
    if found[0] not in ("answered", "connected"):
        answers: list[str] = []
        done = _thread.allocate_lock()
        done.acquire()

        def other() -> None:
            try:
                answers.append(dial(address, ssh, seconds)[0])
            finally:
                done.release()

        _thread.start_new_thread(other, ())
        found = dial(address, port, seconds)
        done.acquire()
        beside = answers[0]
    return (*found, beside)


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def main(address: str, ports: str) -> None:
    """Serve until stdin ends."""
    first, last = map(int, ports.split("-"))
    listener = listen(address, first, last)
    if listener is None:
        sys.exit(f"mpiboot: no port of {ports} is free at {address}")
    _thread.start_new_thread(answer, (listener,))
    sys.stdout.write(f"mpiboot-pairs {listener.getsockname()[1]}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        to, port, ssh, seconds = line.split()
        if port == "0":
            words = listen_too(to, first, last)
        else:
            words = reach(to, int(port), int(ssh), float(seconds))
        sys.stdout.write(" ".join(words) + "\n")
        sys.stdout.flush()


def run() -> None:
    """Run as a program."""
    main(*sys.argv[1:])
