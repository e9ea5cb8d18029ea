"""What stands in for ``ssh`` behind the launch agent: hands one session to mpiboot's SSH client.

Run by path, once for each remote host: ``python3 -I -S connect.py FOLDER [OPTIONS] HOST COMMAND``.
It imports little, passes its own streams on as they are, and ends with the command's status. The
connection itself is the client's, one process for all hosts, and no stream is read here.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Final, NoReturn

SOCKET: Final = "client.sock"
# ssh's own status for everything that is not the command's.
FAILED: Final = 255


def _fail(_number: int = 0, _frame: object = None) -> NoReturn:
    """End as ssh does when a signal ends it: the connection ends, and the session with it."""
    os._exit(FAILED)


def run(folder: str, words: list[str]) -> int:
    """Hand the session over; the exit status of its command."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _fail)
    # A socket's path may be 107 bytes long, and the folder's may be longer.
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(SOCKET)
        # The agent stands in front of this process, and is who the parent knows.
        request = json.dumps({"words": words, "agent": os.getppid()}).encode() + b"\n"
        sent = socket.send_fds(client, [request], [0, 1, 2])
        client.sendall(request[sent:])
        # The streams are the client's from here on: their ends must be seen by whoever reads them.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        answer = b""
        while not answer.endswith(b"\n") and (part := client.recv(64)):
            answer += part
    return int(answer) if answer.strip().isdigit() else FAILED


def main() -> NoReturn:
    """Run as a program."""
    try:
        code = run(sys.argv[1], sys.argv[2:])
    except (OSError, ValueError, IndexError) as wrong:
        sys.stderr.write(f"mpiboot: the SSH client can't be reached: {wrong}\n")
        code = FAILED
    os._exit(code)


if __name__ == "__main__":
    main()
