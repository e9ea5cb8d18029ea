from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from mpiboot.supervisor.processes import find_mpiruns, unread


def test_what_a_process_has_not_read_is_seen() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as other,
        server.accept()[0] as own,
    ):
        assert not unread([os.getpid()])
        other.sendall(b"something")
        while not unread([os.getpid()]):
            pass
        own.recv(64)
        assert not unread([os.getpid()])
    assert not unread([2**22 + 1])


def test_mpirun_is_found_below_a_wrapper(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    shutil.copy(shutil.which("bash") or "", mpirun)
    agent = tmp_path / "libexec" / "agent"
    agent.parent.mkdir()
    agent.write_text("#!/bin/sh\necho agent; read line\n")
    agent.chmod(0o755)
    script = f"{mpirun} -c '{agent} w-1 <&0 & read line; sleep 300 & echo rank; wait'; exit 0"
    with subprocess.Popen(
        ["/bin/sh", "-c", script],  # a wrapper above it is not mpirun
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.stdout.readline() == b"agent\n"
            (found,) = find_mpiruns(process.pid)
            assert Path(f"/proc/{found}/exe").readlink() == mpirun
        finally:
            os.killpg(process.pid, 9)
