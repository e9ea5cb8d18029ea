"""A worker's SSH server: what is read of it, which one runs, and its restart; a shell plays it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.model import AUTO, Auto, LogFormat, LogLevel, SshKind
from mpiboot.ssh import openssh, server
from mpiboot.ssh.openssh import LISTENING, WorkerSetup
from mpiboot.ssh.server import WorkerServer
from mpiboot.ssh.sessions import Sessions
from mpiboot.system import process, processes
from mpiboot.system.keys import JobKey
from tests.fakes import plans
from tests.fakes.programs import open_files


@pytest.fixture
def loop() -> Iterator[process.SignalLoop]:
    made = process.SignalLoop((signal.SIGCHLD,))
    yield made
    made.close()


@pytest.fixture
def setup(tmp_path: Path) -> WorkerSetup:
    key = JobKey(tmp_path / "key", "ssh-ed25519 AAAA")
    environ = {"PATH": os.environ["PATH"], "HOME": "/"}
    return WorkerSetup(plans.ROOT, tmp_path, key, "127.0.0.1", 4022, "token", 30.0, environ)


# -- what it prints --------------------------------------------------------------------------------


@pytest.fixture
def ended(
    loop: process.SignalLoop, setup: WorkerSetup, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], MpibootError | None]:
    """A server that has run a shell's script to its end; the error of its end, if it is one."""
    monkeypatch.setattr(openssh, "reason_against", lambda *_: "")

    def run(script: str) -> MpibootError | None:
        monkeypatch.setattr(openssh, "prepare", lambda *_: ["sh", "-c", script])
        before = open_files()
        server = WorkerServer(SshKind.OPENSSH, setup, loop, cast("Sessions", None))
        server.start()
        found = None
        try:
            server.child_ended(*os.waitpid(server.pid, 0))
        except MpibootError as wrong:
            found = wrong
        server.close()
        assert open_files() == before
        return found

    return run


LISTENS = f"echo '{LISTENING}127.0.0.1 port 22.'"


def test_a_server_that_never_listened_has_its_final_lines_as_evidence(
    ended: Callable[[str], MpibootError | None],
) -> None:
    lines = "; ".join(f"echo line {number}" for number in range(9))
    text = f"{lines}; printf 'a\\r\\n\\377b\\ncut off'; exit 3"
    found = ended(text)
    assert found
    assert "it ended with 3: cut off" in found.finding.message
    tail = (*(f"line {at}" for at in (6, 7, 8)), "a", r"\xffb", "cut off")
    assert found.finding.evidence == tail
    assert ended(f"{LISTENS}; {text}") is None  # it is restarted


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("error: it went wrong", "warning"),
        ("fatal: it went wrong", "warning"),
        ("Missing privilege separation directory: /run/sshd", "warning"),
        ("Connection closed by 10.0.0.1", "debug"),
        # Whoever knocks without a key, as a port scan does.
        ("fatal: Timeout before authentication [preauth]", "debug"),
        ("no error: at all", "debug"),
    ],
)
def test_what_goes_wrong_while_it_listens_is_a_warning(
    ended: Callable[[str], object], capfd: pytest.CaptureFixture[str], line: str, level: str
) -> None:
    """What it prints before is logged with the reason why it doesn't serve."""
    log.configure(level=LogLevel.DEBUG, form=LogFormat.JSON)
    ended(f"echo '{line}'; {LISTENS}; echo '{line}'")
    found = [json.loads(text) for text in capfd.readouterr().err.splitlines()]
    assert [item["level"] for item in found[:3]] == ["debug", "debug", level]
    assert found[2]["message"] == f"sshd: {line}"


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("fatal: ssh_sandbox_child: prctl(PR_SET_SECCOMP): Invalid argument [preauth]", True),
        ('fatal: chroot("/run/sshd"): Operation not permitted [preauth]', True),
        ("fatal: privsep_preauth: preauth child terminated by signal 31", True),
        ("User root not allowed because account is locked", True),
        # Of strangers and of clients that give up.
        ("fatal: Timeout before authentication for 10.0.0.9 port 4711", False),
        ("User admin from 10.0.0.9 not allowed because not listed in AllowUsers", False),
        ("error: kex_exchange_identification: Connection closed by remote host", False),
        ("Accepted publickey for root from 10.0.0.9 port 4711 ssh2: ED25519 SHA256:x", False),
    ],
)
def test_a_login_that_failed_inside_sshd(line: str, *, failed: bool) -> None:
    assert server.login_failed(line, "root") is failed


# -- which one runs; none is started here ----------------------------------------------------------


class Served:
    """A worker's server at a time of the test's own; no process of its is real."""

    def __init__(
        self, setup: WorkerSetup, loop: process.SignalLoop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.now, self.refused, self.begun = 1000.0, "", SimpleNamespace(begun=0)
        self.kinds, self.signals, self.out = list[SshKind](), list[int](), -1
        self._setup, self._loop = setup, loop
        table = {9: processes.RunningProcess(self.PID, 1, 1, 1)}
        for place, name, value in (
            (process, "start", self._start),
            (processes, "table", lambda: table),
            (os, "kill", lambda pid, number: self.signals.append(number)),
            (openssh, "prepare", lambda *_: ["sshd"]),
            (openssh, "reason_against", lambda *_: ""),
            (openssh, "can_bind", lambda *_: True),
        ):
            monkeypatch.setattr(place, name, value)
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    PID = 4711

    def _start(self, argv: list[str], *_: object, streams: dict[int, int], **__: object) -> int:
        kind = SshKind.OPENSSH if argv == ["sshd"] else SshKind.EMBEDDED
        if kind is SshKind.OPENSSH and self.refused:
            raise error("program-missing", self.refused)
        self.kinds.append(kind)
        self.out = streams[1]
        return self.PID

    def start(self, wanted: SshKind | Auto = AUTO) -> None:
        self.worker = WorkerServer(wanted, self._setup, self._loop, cast("Sessions", self.begun))
        self.worker.start()

    def prints(self, *lines: str) -> None:
        os.write(self.out, "".join(f"{line}\n" for line in lines).encode())
        self._loop.wait(0)
        self.worker.began_to_listen()

    def end(self, *lines: str) -> None:
        """Let the running server end by SIGKILL."""
        self.prints(*lines)
        self.worker.child_ended(self.PID, 9)

    def restart(self) -> float:
        """Wait until the server is started again; seconds."""
        assert self.worker.pid == 0
        assert self.worker.due is not None
        began, due = self.now, self.worker.due
        self.now = due - 0.001
        self.worker.step()
        assert self.worker.pid == 0
        self.now = due
        self.worker.step()
        assert self.worker.due is None
        return round(due - began, 3)


@pytest.fixture
def served(
    setup: WorkerSetup, loop: process.SignalLoop, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    made = Served(setup, loop, monkeypatch)
    yield made
    made.worker.close()


@pytest.mark.parametrize("wanted", [AUTO, SshKind.OPENSSH, SshKind.EMBEDDED])
def test_a_server_that_dies_is_restarted_each_time_and_later_each_time(
    served: Served, capfd: pytest.CaptureFixture[str], wanted: SshKind | Auto
) -> None:
    served.start(wanted)
    pauses = []
    for listened in (True, True, False, *(True,) * 9):  # one could not bind its port in time
        served.end(*[LISTENING] * listened, "no memory")
        pauses.append(served.restart())
    assert len(set(served.kinds)) == 1
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]
    message = "warning: the SSH server died; restarting it in 60 s: it ended with 137: no memory"
    assert message in capfd.readouterr().err
    served.now += 61  # it ran
    served.end(LISTENING)
    assert served.restart() == 0.1


def test_a_server_that_can_not_be_started_again_is_tried_later(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    served.start()
    served.end(LISTENING)
    served.refused = "Resource temporarily unavailable"
    served.now = served.worker.due or 0.0
    served.worker.step()
    assert "in 0.2 s: Resource temporarily unavailable\n" in capfd.readouterr().err
    served.refused = ""
    assert served.restart() == 0.2
    assert served.kinds == [SshKind.OPENSSH] * 2


WHY = "3 logins failed inside OpenSSH's sshd: fatal: chroot"


@pytest.mark.parametrize(
    ("wanted", "begun", "failed", "message"),
    [
        (AUTO, 0, 2, ""),
        (AUTO, 0, 3, f"using the embedded SSH server: {WHY}\n"),
        (AUTO, 1, 3, ""),
        (SshKind.OPENSSH, 0, 3, f"warning: {WHY}\n"),
        (SshKind.EMBEDDED, 0, 3, ""),
    ],
)
def test_an_sshd_in_which_three_logins_failed_is_replaced_unless_one_worked(
    served: Served,
    capfd: pytest.CaptureFixture[str],
    wanted: SshKind | Auto,
    begun: int,
    failed: int,
    message: str,
) -> None:
    served.start(wanted)
    served.begun.begun = begun
    served.prints(LISTENING, *["fatal: chroot"] * failed)
    capfd.readouterr()
    served.worker.step()
    served.worker.step()
    assert bool(served.signals) is ("embedded" in message)
    assert capfd.readouterr().err.endswith(message)
    if served.signals:
        served.end()
        assert served.kinds[-1] is SshKind.EMBEDDED
