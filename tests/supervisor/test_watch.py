from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from mpiboot.supervisor.processes import Processes, find_mpiruns, unread


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
            (found,) = find_mpiruns(process.pid, Processes())
            assert found in (process.pid, *Processes().children(process.pid))
        finally:
            os.killpg(process.pid, 9)


def test_children_are_found_with_and_without_the_kernels_own_list(tmp_path: Path) -> None:
    for pid, parent in ((1, 0), (2, 1), (3, 1), (4, 3)):
        folder = tmp_path / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (a) b (c)) S {parent} 1 1 0")
    table = Processes(str(tmp_path))
    assert sorted(table.descendants(1)) == [2, 3, 4]
    (tmp_path / "1" / "task" / "1" / "children").write_text("3 ")
    assert Processes(str(tmp_path)).children(1) == [3]
