"""What stands in for ``ssh`` behind the launch agent: hands one session to mpiboot's SSH client.

Run by path, once for each remote host: ``python3 -I -S connect.py FOLDER [OPTIONS] HOST COMMAND``.
It passes its own streams on as they are and ends with the command's status. The connection itself
is the client's, one process for all hosts, and no stream is read here: a shell waits for the
status, for an interpreter costs megabytes for each host.
"""

# Only modules in C: socket, json, signal and typing would take twice as long as all the rest.
from __future__ import annotations

import _signal  # type: ignore[import-not-found] # typeshed lacks it
import _socket
import os
import sys

try:
    from _json import encode_basestring_ascii as quoted
except ImportError:  # an interpreter without CPython's accelerator
    from json.encoder import encode_basestring_ascii as quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

SOCKET = "client.sock"
# ssh's own status for everything that is not the command's.
FAILED = 255
# Becomes what this one is no more; it reads the status from this descriptor. A signal ends it, and
# with its end of the socket the connection and the session.
_SOCKET = 3
_WAIT = ("sh", "-c", f'read -r status <&{_SOCKET} && exit "$status"; exit {FAILED}', "wait_status")
_STREAMS = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))


def request(words: list[str]) -> bytes:
    """Write the client's request as a line of JSON.

    The agent stands in front of this process, and is who the parent knows.
    """
    limit = os.environ.get("MPIBOOT_ASKS")
    asks = quoted(limit) if limit else "null"
    text = (
        f'{{"words": [{", ".join(map(quoted, words))}], "agent": {os.getppid()}, "asks": {asks}}}'
    )
    return text.encode() + b"\n"


def run(folder: str, words: list[str]) -> NoReturn:
    """Hand the session over, and become what ends with the status of its command."""
    # A socket's path may be 107 bytes long, and the folder's may be longer.
    os.chdir(folder)
    client = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    client.connect(SOCKET)
    line = request(words)
    sent = client.sendmsg([line], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _STREAMS)])
    # Not of nothing: a client that has served this already, and closed its end, would be an error.
    if line[sent:]:
        client.sendall(line[sent:])
    # The streams are the client's from here on: their ends must be seen by whoever reads them.
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    # Python ignores it at its start, and what is ignored stays so over exec.
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    if client.fileno() == _SOCKET:
        os.set_inheritable(_SOCKET, True)
    else:
        os.dup2(client.fileno(), _SOCKET)
    os.execv("/bin/sh", _WAIT)  # noqa: S606 - these words alone


def main() -> NoReturn:
    """Run as a program."""
    try:
        run(sys.argv[1], sys.argv[2:])
    except (OSError, ValueError, IndexError) as wrong:
        sys.stderr.write(f"mpiboot: the SSH client can't be reached: {wrong}\n")
        os._exit(FAILED)


if __name__ == "__main__":
    main()
