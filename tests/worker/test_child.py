"""The SSH server as a child: a shell plays it, and says what it is to say."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import SshKind
from mpiboot.core.setting_types import LogFormat, LogLevel
from mpiboot.ssh.openssh import LISTENING, WorkerSetup
from mpiboot.system import process
from mpiboot.system.keys import JobKey
from mpiboot.worker import server as child
from tests.fakes import plans

GUARD = 60.0
SETUP = WorkerSetup(
    *(plans.ROOT, Path("/"), JobKey(Path("/key"), "x"), "127.0.0.1", 22, "token", 30.0),
    environ={"PATH": os.environ["PATH"]},
)


@pytest.fixture
def loop() -> Iterator[process.SignalLoop]:
    made = process.SignalLoop((signal.SIGCHLD,))
    yield made
    made.close()


def until(loop: process.SignalLoop, check: Callable[[], object]) -> None:
    end = time.monotonic() + GUARD
    while not check():
        assert time.monotonic() < end, "it never came true"
        loop.wait(0.05)


def server(loop: process.SignalLoop, script: str) -> child.SshServer:
    return child.SshServer(SshKind.OPENSSH, ["sh", "-c", script], SETUP, loop)


def ended(started: child.SshServer) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1])


def runs(pid: int) -> bool:
    """Whether a process runs; one that only waits for its parent doesn't."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def test_a_server_listens_when_it_says_so_and_has_last_words(loop: process.SignalLoop) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    message = "; ".join(f"echo line {number}" for number in range(9))
    listens = f"echo '{LISTENING}127.0.0.1 port 22.'"
    running = server(loop, f"echo starts; read go; {listens}; {message}; printf 'cut off'; exit 3")
    until(loop, lambda: list(running.last) == ["starts"])
    assert not running.listening
    # Its standard input ends with this process, and by that it knows.
    os.close(running._life)
    assert ended(running) == 3
    running._life = os.open(os.devnull, os.O_RDONLY)
    running.close()
    assert running.listening
    assert list(running.last) == [*(f"line {number}" for number in range(4, 9)), "cut off"]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


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
    loop: process.SignalLoop, capfd: pytest.CaptureFixture[str], line: str, level: str
) -> None:
    log.configure(level=LogLevel.DEBUG, form=LogFormat.JSON)
    running = server(loop, "exec sleep 1000")
    try:
        for text in (line, f"{LISTENING} 127.0.0.1 port 22.", line):
            running._read_line(text.encode())
    finally:
        running.stop()
        assert ended(running) == -signal.SIGTERM
        running.close()
    told = [json.loads(text) for text in capfd.readouterr().err.splitlines()]
    # What it says before is told with the reason why it doesn't serve.
    assert [item["level"] for item in told] == ["debug", "debug", level]
    assert told[-1]["message"] == f"sshd: {line}"


def test_its_connections_end_with_it_and_one_that_is_gone_is_no_matter(
    loop: process.SignalLoop,
) -> None:
    running = server(loop, "trap 'exit 0' TERM; sh -c 'echo $$; exec sleep 1000' & wait")
    until(loop, lambda: running.last)
    connection = int(running.last[0])
    running.stop()
    assert ended(running) == 0
    until(loop, lambda: not runs(connection))
    running.stop()
    running.close()


def test_a_server_that_can_not_be_started_leaves_nothing_open(loop: process.SignalLoop) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(MpibootError, match="/no/sshd doesn't exist"):
        child.SshServer(SshKind.OPENSSH, ["/no/sshd"], SETUP, loop)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_any_bytes_that_it_writes_are_lines(loop: process.SignalLoop) -> None:
    running = server(loop, r"printf 'a\r\n\377b\n'")
    assert ended(running) == 0
    running.close()
    assert list(running.last) == ["a", r"\xffb"]


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("fatal: ssh_sandbox_child: prctl(PR_SET_SECCOMP): Invalid argument [preauth]", True),
        ('fatal: chroot("/run/sshd"): Operation not permitted [preauth]', True),
        ("fatal: privsep_preauth: preauth child terminated by signal 31", True),
        ("fatal: initgroups: root: Operation not permitted", True),
        ("User root not allowed because account is locked", True),
        # Of strangers and of clients that give up.
        ("fatal: Timeout before authentication for 10.0.0.9 port 4711", False),
        ("User admin from 10.0.0.9 not allowed because not listed in AllowUsers", False),
        ("error: kex_exchange_identification: Connection closed by remote host", False),
        ("Unable to negotiate with 10.0.0.9 port 4711: no matching cipher found.", False),
        ("Connection closed by authenticating user root 10.0.0.9 port 4711 [preauth]", False),
        ("Accepted publickey for root from 10.0.0.9 port 4711 ssh2: ED25519 SHA256:x", False),
    ],
)
def test_a_login_that_failed_inside_sshd(line: str, failed: bool) -> None:  # noqa: FBT001
    assert child.login_failed(line, "root") is failed
