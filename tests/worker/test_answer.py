"""What a host's own mpiboot answers a launcher."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mpiboot.network import records
from mpiboot.system import processes
from mpiboot.worker import answer
from mpiboot.worker.role import write_scripts
from tests.fakes import programs
from tests.waiting import until

# A rank as far as the question sees it: a library's name among its files in memory.
RANK = """
import mmap, os, sys
library, fork = sys.argv[1:]
file = open(library, "rb")
memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
if fork:
    os.fork()
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("library", "fork"), [("libmpich.so.12", ""), ("libmpi.so.12", "a loader's"), ("libc.so.6", "")]
)
def test_ranks_are_counted_with_the_mpi_libraries_that_they_have_loaded(
    tmp_path: Path, library: str, fork: str
) -> None:
    (tmp_path / library).write_bytes(b"x")
    # Others may run this too: the folder's name is the launch's ID.
    env = {"FIRST": "1", "MPIBOOT_LAUNCH_ID": str(tmp_path), "PMI_RANK": "0"}
    daemon = socket.create_server(("127.0.0.1", 0))
    port = daemon.getsockname()[1]
    env["PMIX_SERVER_URI2"] = f"prterun-w-0-1@0.0;tcp4://127.0.0.1:{port}"
    client = socket.create_connection(("127.0.0.1", port)) if fork else daemon
    with daemon, client:
        argv = [sys.executable, "-c", RANK, str(tmp_path / library), fork]
        child = subprocess.Popen(argv, env=env, stdin=-1, stdout=-1)
        assert child.stdin is not None
        assert child.stdout is not None
        for _ in range(2 if fork else 1):
            assert child.stdout.readline() == b"\n"
        found = answer.ranks(str(tmp_path))
        child.communicate()
    assert found["ranks"] == 1
    assert answer.ranks("no-such-launch")["ranks"] is None
    named = (library,) if library.startswith("libmp") else ()
    assert found["libraries"] == [*(("connected",) if fork else ()), *named]


def test_what_keeps_a_program_from_running(tmp_path: Path) -> None:
    for name in ("train", "of-the-launchers-path"):
        programs.program(tmp_path, name)

    def lacks(program: str, folder: str = str(tmp_path)) -> str:
        return " ".join(map(" ".join, answer.lacks(program, str(tmp_path), folder)["lacks"]))

    runs = ("/bin/sh", "sh", "of-the-launchers-path", "./train")
    assert [lacks(program) for program in runs] == [""] * 4
    assert lacks("no-such") == "name no-such"
    assert lacks("/etc") == "right /etc"
    assert (lacks("/no/such"), lacks("./no-such")) == ("file /no/such", "file ./no-such")
    assert lacks("./train", "/no/folder") == "folder /no/folder"
    assert lacks("/no/such", "/no/folder") == "file /no/such"


PORT = "mlx5_1/ports/1"
FILES = {
    f"{PORT}/counters/port_xmit_data": "250\n",
    f"{PORT}/counters/port_rcv_data": "18446744073709551615\n",
    f"{PORT}/hw_counters/out_of_sequence": "N/A (no PMA)\n",
    f"{PORT}/hw_counters/packet_seq_err": "0\n",
    f"{PORT}/hw_counters/np_cnp_sent": "100\n",  # is no error
    "rxe0/ports/1/hw_counters/sent_pkts": "0\n",
    # A port whose counters this pod lacks, as of a device that is shared between namespaces.
    "mlx5_9/ports/1/state": "4: ACTIVE\n",
}


def test_ports_and_links_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "_DEVICES", tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = answer.counts(*records.COUNTERS)["counters"]
    assert found["lo"].keys() == {"rx_bytes", "tx_bytes"}
    assert {name: found[name] for name in found if ":" in name} == {
        "mlx5_1:1": {"port_xmit_data": 250, "port_rcv_data": (1 << 64) - 1, "packet_seq_err": 0},
        "rxe0:1": {"sent_pkts": 0},
    }
    assert len({*records.COUNTERS}) == len(records.COUNTERS)  # each has one meaning


def test_a_launch_has_processes_here_and_its_launcher_is_connected_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = f"test-{os.urandom(8).hex()}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours, its = socket.create_connection(server.getsockname()), server.accept()[0]
        ends = f"127.0.0.1 {ours.getsockname()[1]} 127.0.0.1 {server.getsockname()[1]}"
    env = {"MPIBOOT_LAUNCH_ID": launch, "SSH_CONNECTION": ends}
    monkeypatch.setenv("SSH_CONNECTION", ends)

    def held() -> list[tuple[str, str]]:
        found = answer.launches()
        assert launch in found["launches"]
        assert "held" not in answer.counts()  # a job's end has no time to read all processes' files
        return [item for item in found["held"] if item[0] == launch]

    with subprocess.Popen(["/bin/cat"], env=env, stdin=-1) as child, its:
        until(lambda: processes.environ(child.pid) == env)
        assert held() == [(launch, "127.0.0.1")]
        ours.close()
        assert held() == [(launch, "127.0.0.1")]  # nor is this very connection in the table
        with socket.create_server(("127.0.0.1", 0)) as server:
            near, far = server.getsockname()[1], socket.create_connection(server.getsockname())
            monkeypatch.setenv("SSH_CONNECTION", f"::1 {far.getsockname()[1]} ::1 {near}")
            assert held() == []
            far.close()
        child.communicate()


def test_a_shell_that_is_gone_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        answer.reply(tmp_path, 1 << 22)
    signal.alarm(0)
    assert list(tmp_path.iterdir()) == []
    os.mkfifo(tmp_path / "reply-7")  # of a shell that was killed
    with pytest.raises(OSError, match="No such device or address"):
        answer.write(tmp_path, 7, "")


def test_a_shell_reads_the_line_that_a_worker_writes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sessions")
    fifo = os.open(tmp_path / "sessions", os.O_RDWR)
    write_scripts(tmp_path)
    argv = ["sh", str(tmp_path / "answer"), "counts"]
    environ = {**os.environ, "MPIBOOT_WORKER_DIR": str(tmp_path)}
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True) as shell:
        assert os.read(fifo, 100) == f"query {shell.pid}\n".encode()
        answer.write(tmp_path, shell.pid, r'{"a": "\\n  b"}')
        assert shell.communicate(timeout=60)[0] == r'{"a": "\\n  b"}' + "\n"
    os.close(fifo)
    assert not list(tmp_path.glob("reply-*"))
