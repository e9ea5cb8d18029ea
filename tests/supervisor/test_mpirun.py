"""What ends an mpirun: signals, and a worker that reports its end; watchers only warn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mpiboot.core.launch_spec import EVENTS, LAUNCH_DIR, LAUNCH_ID, NOTICE
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor.job import MpirunEnded
from mpiboot.supervisor.mpirun import Mpirun, listen
from mpiboot.supervisor.output import OutputWriter
from mpiboot.supervisor.signals import Handles
from mpiboot.supervisor.verdict import verdict
from mpiboot.supervisor.workers import Workers, unused_hosts
from tests.fakes import launches
from tests.launcher.test_run import WAITING, Rig, ended, heard, joining, last
from tests.supervisor.answering import gone
from tests.supervisor.test_workers import fail
from tests.waiting import until_in_loop


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[Mpirun]:
    """An mpirun that launches a daemon on one host; it ends only in the test's words."""
    words, folder = ("/bin/sleep", "1000"), str(tmp_path)
    spec = launches.spec("openmpi5", folder=folder, argv=words, remote_hosts=("w-1",), ranks=1)
    os.mkfifo(tmp_path / EVENTS)
    workers = Workers(Pool(None), (), {})
    handles = Handles(print)
    made = Mpirun(spec, {LAUNCH_ID: folder, LAUNCH_DIR: folder}, handles, OutputWriter(), workers)
    handles.fail = made.fail
    made.start(())
    yield made
    await made.end_left()


@pytest.mark.parametrize("failed", ["ranks", "_name_unused"])
async def test_a_watcher_that_fails_leaves_a_good_end_good(
    job: Mpirun, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], failed: str
) -> None:
    watchers: dict[str, Any] = {"ranks": job._workers, "_name_unused": job}
    monkeypatch.setattr(watchers[failed], failed, fail)
    await job._count_ranks()
    what = {"ranks": "counting ranks", "_name_unused": "naming unused hosts"}[failed]
    assert f"[bug] {what} failed at" in capfd.readouterr().err
    job._feed(MpirunEnded(0))
    assert verdict(await job.result()).code == 0


async def test_what_fails_is_listened_to_no_more_unless_it_is_vital(
    capfd: pytest.CaptureFixture[str],
) -> None:
    # As in an image, whose other packages lie below a folder of mpiboot's name too.
    fail = partial(exec, compile("{}['x']", "/opt/mpiboot/lib/other.py", "exec"))
    wrong: list[Exception] = []
    loop, (reader, writer) = Handles(wrong.append), os.pipe()
    os.write(writer, b"x")
    loop.on(reader, fail)
    await asyncio.sleep(0.05)
    message = capfd.readouterr().err
    assert message.count("warning: [bug] an event handler failed at supervisor/signals.py:") == 1
    assert message.endswith("KeyError: 'x'; the job goes on without it\n")
    loop.on(reader, fail, vital=True)
    await until_in_loop(lambda: wrong)
    os.close(reader)
    os.close(writer)


async def test_an_mpirun_whose_executable_has_another_name_gets_its_signals(job: Mpirun) -> None:
    """Fault: a site's wrapper by ``exec -a`` was not found, and nothing that it started."""
    waiting = asyncio.ensure_future(job.result())
    await asyncio.sleep(0)
    job.receive(signal.SIGTERM, False)
    await until_in_loop(lambda: gone(job.child))
    waiting.cancel()


async def test_a_signal_that_comes_after_mpiruns_end_is_kept(job: Mpirun) -> None:
    """What is still to be written has not much time then."""
    job._feed(MpirunEnded(0))
    job.receive(signal.SIGTERM, False)
    assert job.signalled == signal.SIGTERM


MARK = "0123456789abcdef-0123456789abcdef@launcher@2026-01-01T00:00:00Z"
LOOPBACK = "127.0.0.1"
ENDING = f"ending {MARK} w-1\n".encode()


@contextlib.contextmanager
def listening(heard: Callable[[str], None], addresses: Sequence[str], *ports: int) -> Iterator[int]:
    """A launcher that listens: its port, 0 for none."""
    servers = listen(MARK, heard, addresses, ports)
    try:
        yield servers[0].getsockname()[1] if servers else 0
    finally:
        for server in servers:
            asyncio.get_running_loop().remove_reader(server)
            server.close()


@pytest.mark.parametrize(
    "message",
    [
        b"ending other w-1\n",
        b"ending\n",
        b"\x00\xff\n",
        f"begin {MARK} w-1\n".encode(),
        b"x" * 600,
        b"",
    ],
    ids=["other", "short", "binary", "begin", "long", "reset"],
)
async def test_a_worker_is_heard_and_strangers_and_noise_are_not(message: bytes) -> None:
    heard: list[str] = []
    with listening(heard.append, (LOOPBACK,), 0) as port:
        for data in (message, ENDING):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            if not data:
                reset = struct.pack("ii", 1, 0), socket.SO_LINGER
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, *reset[::-1])
            else:
                writer.write(data)
                with contextlib.suppress(ConnectionResetError):
                    # It closes the connection once it has read it.
                    assert await reader.read() == b""
            writer.close()
    assert heard == ["w-1"]


async def test_a_port_that_is_taken_makes_room_for_the_next() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with listening(print, (LOOPBACK,), port) as found:
            assert found == 0
        with listening(print, (LOOPBACK,), port, 0) as found:
            assert found not in (0, port)


async def test_only_the_addresses_by_which_workers_were_reached_are_listened_on() -> None:
    addresses = ("127.0.0.2", "127.0.0.3", "192.0.2.1", "::bad")
    with listening(print, addresses, 0) as port:
        for address in addresses[:2]:
            socket.create_connection((address, port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port))
    with listening(print, (), 0) as port:
        assert port == 0


ONE, TWO, THREE = HOSTS = ("w-0.job.ns.svc", "w-1.job.ns.svc", "w-2.job.ns.svc")


@pytest.mark.parametrize(
    ("ranks", "without_agent", "message"),
    [
        # At the end of a job whose hosts were not asked.
        ({}, [ONE], "mpirun started no daemon on 1 of 3 hosts: w-0.job.ns.svc"),
        ({}, [], ""),
        # None has started yet.
        ({ONE: 0, TWO: 0}, [], ""),
        # Of the third one nothing is known, but that mpirun has started an agent for it, or none.
        ({ONE: 2, TWO: 0}, [], "no rank runs on 1 of 3 hosts: w-1.job.ns.svc"),
        ({ONE: 2, TWO: 0}, [THREE], "no rank runs on 2 of 3 hosts: w-1.job.ns.svc, w-2.job.ns.svc"),
        # An MPI whose daemons another agent than mpiboot's has started.
        (dict.fromkeys(HOSTS, 1), HOSTS, ""),
    ],
)
def test_hosts_without_a_rank_are_named(
    ranks: dict[str, int], without_agent: list[str], message: str
) -> None:
    assert unused_hosts(HOSTS, ranks, without_agent) == message


THIS_JOB = "mark-of-this-job"
ENDS = f"trap 'exit 0' TERM; echo ${{{NOTICE}-none}}; while :; do read -t 1; done"


def send(port: int, line: str) -> bytes:
    """Write a line; the connection is closed when it was read and is being acted on."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as worker:
        worker.sendall(f"{line}\n".encode())
        return worker.recv(1)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    made.spec["set_env"][LAUNCH_ID] = THIS_JOB
    made.ssh(WAITING.format(folder=made.folder))
    yield made
    made.end()


def test_a_worker_that_reports_its_end_ends_the_job_in_its_name(rig: Rig) -> None:
    rig.remote("w-1", "w-2", addresses=("127.0.0.1",))
    process = rig.start(joining(rig, ENDS, "w-1 w-2"))
    heard(process, "all 2 remote daemons started")
    assert process.stdout is not None
    port = int(process.stdout.readline())
    for line in ("ending another w-1", f"ending {THIS_JOB} stranger", f"ending {THIS_JOB} w-2"):
        assert send(port, line) == b""
    heard(process, "w-2: its pod is being terminated: all ranks get time to save")
    (rig.folder / "over").touch()
    code, message = ended(process)
    assert code == 69
    reason = "w-2: its pod is being terminated (deleted, drained or preempted)"
    assert "[host-lost] job ended: " in last(message)
    assert reason in last(message)


# Some are sent before anybody listens, one after that; and one that is none of the launcher's.
TELLS = """
import json, os, signal
from mpiboot.supervisor import signals

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH, signal.SIGTERM])
mask = signals.block()
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGTERM)
taken = signals.Signals()
seen = []
while len(seen) < 2:
    seen += taken.read()
os.kill(os.getpid(), signal.SIGHUP)
seen += taken.read()
pid = os.spawnv(os.P_NOWAIT, "/bin/true", ["true"])
seen += taken.read()
status = os.waitpid(pid, 0)[1]
print(json.dumps([sorted(map(int, mask)), seen, status]), flush=True)
os._exit(0)
"""


def test_signals_are_taken_in_whenever_they_came() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TELLS], capture_output=True, timeout=60, check=True, text=True
    )
    mask, seen, status = json.loads(done.stdout)
    assert mask == [28], "what others had blocked, but for the parent's own, is a program's too"
    first, second, *rest = seen
    assert sorted((first, second)) == [[10, False], [15, False]]
    assert rest == [[1, False], [17, False]]
    assert status == 0
