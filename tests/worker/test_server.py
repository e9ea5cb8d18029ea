"""Which SSH server a worker starts, and what becomes of it; none is started here."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from mpiboot.core import log
from mpiboot.core.checks import error
from mpiboot.core.model import SshKind
from mpiboot.core.setting_types import AUTO, Auto
from mpiboot.ssh import openssh
from mpiboot.ssh.openssh import WorkerSetup
from mpiboot.system import process
from mpiboot.system.keys import JobKey
from mpiboot.worker import server
from mpiboot.worker.server import WORKER_STATE, WorkerServer
from tests.fakes import plans

if TYPE_CHECKING:
    from mpiboot.ssh.sessions import Sessions


class Started:
    """Stands for a server that runs; a test says how it ends."""

    def __init__(self, kind: SshKind, *_: object) -> None:
        if kind is SshKind.OPENSSH and REFUSED:
            raise error("program-missing", REFUSED[0])
        self.kind = kind
        self.pid = 4711
        self.began = time.monotonic()
        self.listening = False
        self.tail: list[str] = []
        self.failed: list[str] = []
        self.closed = self.stopped = False

    def close(self) -> None:
        self.closed = True

    def stop(self) -> None:
        self.stopped = True


# Why OpenSSH's can't be started, if it can't.
REFUSED: list[str] = []
NOW = [1000.0]


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Servers that start nothing, where OpenSSH's could serve."""
    monkeypatch.setattr(server, "SshServer", Started)
    monkeypatch.setattr(openssh, "prepare", lambda *_: ["sshd"])
    monkeypatch.setattr(server, "embedded_argv", lambda *_: ["python"])
    monkeypatch.setattr(openssh, "reason_against", lambda *_: "")
    monkeypatch.setattr(openssh, "can_bind", lambda *_: True)
    monkeypatch.setattr("time.monotonic", lambda: NOW[0])
    REFUSED.clear()
    log.configure()
    yield
    log.configure()


class NoSessions:
    """No session has begun, unless a test says so."""

    begun = 0


def of(folder: Path, wanted: SshKind | Auto) -> WorkerServer:
    key = JobKey(folder / "key", "ssh-ed25519 AAAA")
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/"}
    setup = WorkerSetup(plans.ROOT, folder, key, "127.0.0.1", 4022, "token", 30.0, environ)
    loop = process.SignalLoop((signal.SIGUSR2,))
    loop.close()
    return WorkerServer(wanted, setup, loop, cast("Sessions", NoSessions()))


def running(worker: WorkerServer) -> Started:
    assert worker.running is not None
    return cast("Started", worker.running)


def ended(worker: WorkerServer, *, listened: bool, status: int = 256, words: str = "") -> Started:
    """The running server ends; that one."""
    gone = running(worker)
    gone.listening = listened
    worker.began_to_listen()
    gone.tail = [words] if words else []
    worker.child_ended(4711, status)
    assert gone.closed
    return gone


def restarted(worker: WorkerServer) -> float:
    """Seconds until the server is started again; it is then."""
    assert worker.running is None
    assert worker.due is not None
    pause = worker.due - NOW[0]
    NOW[0] = worker.due - 0.001
    worker.step()
    assert worker.running is None
    NOW[0] = worker.due
    worker.step()
    assert worker.due is None
    return round(pause, 3)


@pytest.mark.parametrize("wanted", [AUTO, SshKind.OPENSSH, SshKind.EMBEDDED])
def test_a_server_that_dies_is_restarted_each_time_and_later_each_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], wanted: SshKind | Auto
) -> None:
    worker = of(tmp_path, wanted)
    worker.start()
    kind = running(worker).kind
    pauses = []
    for listened in (True, True, False, *(True,) * 9):  # one could not bind its port in time
        ended(worker, listened=listened, status=9, words="fatal: no memory")
        pauses.append(restarted(worker))
        assert running(worker).kind is kind
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]
    message = "warning: the SSH server died; restarting it in 60 s: it ended with 137: fatal: no m"
    assert message in capfd.readouterr().err
    NOW[0] += 61  # it ran
    ended(worker, listened=True)
    assert restarted(worker) == 0.1


def test_a_server_that_can_not_be_started_again_is_tried_later(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = of(tmp_path, AUTO)
    worker.start()
    ended(worker, listened=True)
    assert worker.due is not None
    REFUSED.append("Resource temporarily unavailable")
    NOW[0] = worker.due
    worker.step()
    assert "in 0.2 s: Resource temporarily unavailable\n" in capfd.readouterr().err
    REFUSED.clear()
    assert restarted(worker) == 0.2
    assert running(worker).kind is SshKind.OPENSSH


WHY = "3 logins failed inside OpenSSH's sshd: fatal: chroot"


@pytest.mark.parametrize(
    ("wanted", "begun", "failed", "replaced", "message"),
    [
        (AUTO, 0, 2, False, ""),
        (AUTO, 0, 3, True, f"the embedded SSH server is used: {WHY}\n"),
        (AUTO, 1, 3, False, ""),
        (SshKind.OPENSSH, 0, 3, False, f"warning: {WHY}\n"),
        (SshKind.EMBEDDED, 0, 3, False, ""),
    ],
)
def test_an_sshd_in_which_three_logins_failed_is_replaced_unless_one_worked(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    wanted: SshKind | Auto,
    begun: int,
    failed: int,
    replaced: bool,  # noqa: FBT001 - a row of the table
    message: str,
) -> None:
    worker = of(tmp_path, wanted)
    worker._sessions.begun = begun
    worker.start()
    first = running(worker)
    first.listening = True
    assert worker.began_to_listen()
    capfd.readouterr()
    first.failed = ["fatal: chroot"] * failed
    worker.step()
    worker.step()
    assert first.stopped is replaced
    assert capfd.readouterr().err.endswith(message)
    if replaced:
        ended(worker, listened=True)
        assert running(worker).kind is SshKind.EMBEDDED


def test_it_is_logged_once_for_each_server_that_it_listens(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = of(tmp_path, AUTO)
    assert not worker.began_to_listen()
    worker.start()
    assert not worker.began_to_listen()
    running(worker).listening = True
    assert [worker.began_to_listen() for _ in range(3)] == [True, False, False]
    (tmp_path / WORKER_STATE).unlink()  # on a disk that is full by now it could not be written
    ended(worker, listened=True)
    restarted(worker)
    running(worker).listening = True
    assert worker.began_to_listen()
    assert not (tmp_path / WORKER_STATE).exists()
    assert capfd.readouterr().err.count("sshd (openssh) listens on 127.0.0.1:4022") == 2
