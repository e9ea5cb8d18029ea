"""Which SSH server a worker starts, and what becomes of it; none is started here."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.model import SshKind
from mpiboot.core.setting_types import AUTO, Auto
from mpiboot.ssh import openssh
from mpiboot.ssh.openssh import WorkerSetup
from mpiboot.system import process
from mpiboot.system.keys import JobKey
from mpiboot.worker import server
from mpiboot.worker.server import WorkerServer
from tests.fakes import plans

if TYPE_CHECKING:
    from mpiboot.ssh.sessions import Sessions
    from mpiboot.worker.server import SshServer


class Started:
    """Stands for a server that runs; a test says how it ends."""

    def __init__(self, kind: SshKind, *_: object) -> None:
        self.kind = kind
        self.pid = 4711
        self.listening = self.doubtful = False
        self.words: tuple[str, ...] = ()
        self.closed = False
        self.stopped = False

    def last_words(self) -> tuple[str, ...]:
        return self.words

    def close(self) -> None:
        self.closed = True

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Servers that start nothing, where OpenSSH's could serve."""
    monkeypatch.setattr(server, "SshServer", Started)
    monkeypatch.setattr(openssh, "prepare", lambda *_: ["sshd"])
    monkeypatch.setattr(server, "embedded_argv", lambda *_: ["python"])
    monkeypatch.setattr(openssh, "reason_against", lambda *_: "")
    monkeypatch.setattr(openssh, "can_bind", lambda *_: True)
    log.configure()
    yield
    log.configure()


class NoSessions:
    """No session has begun."""

    begun = False


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


@pytest.mark.parametrize(
    ("wanted", "against", "kind", "message"),
    [
        (AUTO, "", SshKind.OPENSSH, ""),
        (AUTO, "no sshd", SshKind.EMBEDDED, "the embedded SSH server is used: no sshd\n"),
        (SshKind.OPENSSH, "", SshKind.OPENSSH, ""),
        (SshKind.EMBEDDED, "", SshKind.EMBEDDED, "is used: MPIBOOT_SSHD=embedded\n"),
    ],
)
def test_openssh_serves_where_it_can_and_nobody_asks_for_the_other(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    wanted: SshKind | Auto,
    against: str,
    kind: SshKind,
    message: str,
) -> None:
    monkeypatch.setattr(openssh, "reason_against", lambda *_: against)
    worker = of(tmp_path, wanted)
    worker.start()
    assert running(worker).kind is kind
    assert capfd.readouterr().err.endswith(message)


def test_an_openssh_that_was_asked_for_and_can_not_serve_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openssh, "reason_against", lambda *_: "no sshd")
    with pytest.raises(MpibootError) as caught:
        of(tmp_path, SshKind.OPENSSH).start()
    assert caught.value.finding.check == "sshd"
    assert caught.value.finding.message == "OpenSSH's sshd can't serve this pod: no sshd"
    assert "MPIBOOT_SSHD=embedded" in caught.value.finding.hint
    monkeypatch.setattr(openssh, "can_bind", lambda *_: False)
    with pytest.raises(MpibootError) as caught:
        of(tmp_path, SshKind.OPENSSH).start()
    assert caught.value.finding.hint.startswith("port 4022 can't be used here")


@pytest.mark.parametrize(("check", "falls_back"), [("program-missing", True), ("tmpdir", False)])
def test_only_a_program_that_is_missing_makes_room_for_the_embedded_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    check: str,
    falls_back: bool,  # noqa: FBT001 - a row of the table
) -> None:

    def refuse(*_: object) -> list[str]:
        raise error(check, "so it is")

    monkeypatch.setattr(openssh, "prepare", refuse)
    worker = of(tmp_path, AUTO)
    if falls_back:
        worker.start()
        assert running(worker).kind is SshKind.EMBEDDED
    else:
        with pytest.raises(MpibootError, match="so it is"):
            worker.start()
        assert worker.running is None


def ended(worker: WorkerServer, *, listened: bool, status: int = 256, words: str = "") -> Started:
    """The running server ends; that one."""
    gone = running(worker)
    gone.listening = listened
    gone.words = (words,) if words else ()
    worker.child_ended(4711, status)
    assert gone.closed
    return gone


def test_a_server_that_listened_is_started_again_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = of(tmp_path, SshKind.OPENSSH)
    worker.start()
    first = ended(worker, listened=True)
    assert running(worker) is not first
    assert running(worker).kind is SshKind.OPENSSH
    message = "warning: the SSH server (openssh) ended by itself and is started again\n"
    assert capfd.readouterr().err.endswith(message)
    with pytest.raises(MpibootError) as caught:
        ended(worker, listened=True, words="fatal: no memory")
    assert caught.value.finding.message == (
        "the SSH server (openssh) doesn't run: it ended with 1: fatal: no memory"
    )
    assert caught.value.finding.evidence == ("fatal: no memory",)


def test_an_sshd_that_never_listened_makes_room_and_the_embedded_one_has_nobody_to(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = of(tmp_path, AUTO)
    worker.start()
    ended(worker, listened=False, status=9, words="killed")
    assert running(worker).kind is SshKind.EMBEDDED
    assert "is used: it ended with 137: killed\n" in capfd.readouterr().err
    with pytest.raises(MpibootError) as caught:
        ended(worker, listened=False)
    assert caught.value.finding.message == "the SSH server (embedded) doesn't run: it ended with 1"
    assert caught.value.finding.hint == "its own lines say why"


def test_the_end_of_another_child_or_of_one_that_was_handed_over_is_nobodys_fault(
    tmp_path: Path,
) -> None:
    worker = of(tmp_path, AUTO)
    worker.start()
    worker.helpers.add(12)
    worker.child_ended(12, 0)
    assert worker.helpers == set()
    gone = worker.release()
    assert gone is not None
    assert not cast("Started", gone).closed
    worker.child_ended(4711, 0)
    assert worker.running is None
    assert worker.release() is None


class Lines:
    """What the test login said."""

    def __init__(self, *last: str) -> None:
        self.last = last
        self.read_ = self.closed = False

    def read(self) -> None:
        self.read_ = True

    def close(self) -> None:
        self.closed = True


SAID = ("PAM says no", "bye")


@pytest.mark.parametrize(
    ("wanted", "begun", "status", "words", "stopped", "message"),
    [
        (AUTO, False, 0, SAID, False, ""),
        (AUTO, False, 256, SAID, True, ""),
        (
            AUTO,
            True,
            256,
            SAID,
            False,
            "warning: a test login to this worker fails: PAM says no; bye\n",
        ),
        (SshKind.OPENSSH, False, 256, SAID, False, "login to this worker fails: PAM says no; bye"),
        (SshKind.OPENSSH, False, 255 << 8, (), False, "fails: ssh ended with 255\n"),
    ],
)
def test_an_sshd_that_lets_nobody_in_is_replaced_unless_somebody_is_in_or_wants_it(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    wanted: SshKind | Auto,
    begun: bool,  # noqa: FBT001 - a row of the table
    status: int,
    words: tuple[str, ...],
    stopped: bool,  # noqa: FBT001
    message: str,
) -> None:
    worker = of(tmp_path, wanted)
    worker.start()
    worker._sessions = cast("Sessions", type("Some", (), {"begun": begun})())
    lines = Lines(*words)
    worker._login = (12, lines)  # type: ignore[assignment]
    worker.child_ended(12, status)
    assert (lines.read_, lines.closed) == (True, True)
    assert running(worker).stopped is stopped
    err = capfd.readouterr().err
    assert message in err if message else err == ""
    worker.child_ended(12, status)  # another process may get that number
    if stopped:
        ended(worker, listened=True)
        assert running(worker).kind is SshKind.EMBEDDED
        why = "a test login through OpenSSH's sshd fails: PAM says no; bye"
        assert capfd.readouterr().err.endswith(f"the embedded SSH server is used: {why}\n")


def test_a_login_that_the_workers_end_cuts_off_is_no_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker, lines = of(tmp_path, AUTO), Lines()
    worker.start()
    worker._login = (12, lines)  # type: ignore[assignment]
    worker.release()
    worker.child_ended(12, 255 << 8)
    assert (lines.closed, capfd.readouterr().err) == (True, "")


def test_it_is_told_once_for_each_server_that_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[SshServer] = []
    worker = of(tmp_path, AUTO)
    monkeypatch.setattr(worker, "_announce", told.append)
    assert not worker.began_to_listen()
    worker.start()
    assert not worker.began_to_listen()
    running(worker).listening = True
    assert [worker.began_to_listen() for _ in range(3)] == [True, False, False]
    ended(worker, listened=True)
    running(worker).listening = True
    assert worker.began_to_listen()
    assert [item.kind for item in told] == [SshKind.OPENSSH, SshKind.EMBEDDED]


@pytest.mark.parametrize(
    ("begun", "doubtful", "seconds", "tested"),
    [
        (False, False, 1.9, False),
        (False, False, 2.0, True),
        (False, True, 0.0, True),  # who came may not have got in
        (True, True, 9.0, False),  # somebody is in
    ],
)
def test_a_worker_tries_its_server_unless_a_launcher_has_done_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begun: bool,  # noqa: FBT001 - a row of the table
    doubtful: bool,  # noqa: FBT001
    seconds: float,
    tested: bool,  # noqa: FBT001
) -> None:
    now, logins = [100.0], [0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    worker = of(tmp_path, SshKind.OPENSSH)
    monkeypatch.setattr(worker, "_test_login", lambda: logins.append(1))
    worker.start()
    running(worker).listening = True
    assert worker.began_to_listen()
    assert worker.due == 102.0
    worker._sessions = cast("Sessions", type("Some", (), {"begun": begun})())
    running(worker).doubtful = doubtful
    now[0] += seconds
    worker.step()
    worker.step()
    assert sum(logins) == tested
    assert (worker.due is None) is (tested or begun)


def test_a_server_that_ended_is_not_tried(tmp_path: Path) -> None:
    worker = of(tmp_path, SshKind.OPENSSH)
    worker.start()
    running(worker).listening = True
    assert worker.began_to_listen()
    ended(worker, listened=True)
    assert worker.due is None
    worker.step()
