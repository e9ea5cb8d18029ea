"""Probes the network from inside a pod, by mpiboot's Python."""

from __future__ import annotations

from tests.pods.pod import Pod

PYTHON = "/opt/mpiboot/bin/python3"


def reaches(pod: Pod, address: str) -> bool:
    """Whether a packet gets there and back: a closed port refuses the connection."""
    code = (
        "import socket, sys\n"
        "try:\n"
        "    socket.create_connection((sys.argv[1], 9), 0.5)\n"
        "except ConnectionRefusedError:\n"
        "    print('yes')\n"
        "except OSError:\n"
        "    print('no')\n"
    )
    done = pod.exec(PYTHON, "-c", code, address)
    assert done.stdout in {"yes\n", "no\n"}, done.stderr
    return done.stdout == "yes\n"
