"""What stands in for ``ssh`` behind the launch agent: hands one session to mpiboot's SSH client.

Run by path, once for each remote host: ``python3 -I -S connect.py FOLDER [OPTIONS] HOST COMMAND``.
It imports little, passes its own streams on as they are, and ends with the command's status. The
connection itself is the client's, one process for all hosts, and no stream is read here: a shell
waits for the status, for an interpreter costs megabytes for each host.
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
# Becomes what this one is no more; it reads the status from this descriptor.
_WAIT: Final = f"{__file__.rpartition('/')[0]}/../libexec/wait_status"
_SOCKET: Final = 3


def run(folder: str, words: list[str]) -> NoReturn:
    """Hand the session over, and become what ends with the status of its command."""
    # A socket's path may be 107 bytes long, and the folder's may be longer.
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(SOCKET)
        # The agent stands in front of this process, and is who the parent knows.
        wanted = {"words": words, "agent": os.getppid(), "asks": os.environ.get("MPIBOOT_ASKS")}
        request = json.dumps(wanted).encode() + b"\n"
        sent = socket.send_fds(client, [request], [0, 1, 2])
        client.sendall(request[sent:])
        # The streams are the client's from here on: their ends must be seen by whoever reads them.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        # Python ignores it at its start, and what is ignored stays so over exec.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if client.fileno() == _SOCKET:
            client.set_inheritable(True)
        else:
            os.dup2(client.fileno(), _SOCKET)
        os.execv("/bin/sh", ("sh", _WAIT))  # noqa: S606 - these words alone


def main() -> NoReturn:
    """Run as a program."""
    try:
        run(sys.argv[1], sys.argv[2:])
    except (OSError, ValueError, IndexError) as wrong:
        sys.stderr.write(f"mpiboot: the SSH client can't be reached: {wrong}\n")
        os._exit(FAILED)


if __name__ == "__main__":
    main()
