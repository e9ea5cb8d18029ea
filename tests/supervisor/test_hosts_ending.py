"""A worker that tells of its end, and ranks that are told to save: one launch, from its port on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.core.launch_spec import LAUNCH_ID, NOTICE
from tests.launcher.test_run import WAITING, Rig, ended, heard, joining, last

MARK = "mark-of-this-job"
ENDS = f"trap 'exit 0' TERM; echo ${{{NOTICE}-none}}; while :; do read -t 1; done"


def send(port: int, line: str) -> bytes:
    """Write a line; the connection is closed when it was read and is being acted on."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as worker:
        worker.sendall(f"{line}\n".encode())
        return worker.recv(1)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    made.spec["set_env"][LAUNCH_ID] = MARK
    made.ssh(WAITING.format(folder=made.folder))
    yield made
    made.end()


def test_a_worker_that_reports_its_end_ends_the_job_in_its_name(rig: Rig) -> None:
    rig.remote("w-1", "w-2", addresses=("127.0.0.1",))
    process = rig.start(joining(rig, ENDS, "w-1 w-2"))
    heard(process, "all 2 remote daemons started")
    assert process.stdout is not None
    port = int(process.stdout.readline())
    for line in ("ending another w-1", f"ending {MARK} stranger", f"ending {MARK} w-2"):
        assert send(port, line) == b""
    heard(process, "w-2: its pod is being ended: all ranks of the job get time to save")
    (rig.folder / "over").touch()
    code, message = ended(process)
    assert code == 69
    reason = "w-2: its pod is being terminated (deleted, drained or preempted)"
    assert "[host-lost] job ended: " in last(message)
    assert reason in last(message)
