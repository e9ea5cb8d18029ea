"""The SSH server as a child: a shell plays it, and prints what it is to print."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.core import log
from mpiboot.core.model import SshKind
from mpiboot.core.setting_types import LogFormat, LogLevel
from mpiboot.ssh.openssh import LISTENING, WorkerSetup
from mpiboot.system import process
from mpiboot.system.keys import JobKey
from mpiboot.worker import server as child
from tests.fakes import plans

SETUP = WorkerSetup(
    *(plans.ROOT, Path("/"), JobKey(Path("/key"), "x"), "127.0.0.1", 22, "token", 30.0),
    environ={"PATH": os.environ["PATH"]},
)


@pytest.fixture
def loop() -> Iterator[process.SignalLoop]:
    made = process.SignalLoop((signal.SIGCHLD,))
    yield made
    made.close()


def ended(loop: process.SignalLoop, script: str, code: int = 0) -> child.SshServer:
    """A server that has run to its end, with all that it has printed."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    started = child.SshServer(SshKind.OPENSSH, ["sh", "-c", script], SETUP, loop)
    assert os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1]) == code
    started.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    return started


def test_a_server_listens_when_it_says_so_and_has_last_words(loop: process.SignalLoop) -> None:
    listens = f"echo '{LISTENING}127.0.0.1 port 22.'"
    lines = "; ".join(f"echo line {number}" for number in range(9))
    found = ended(loop, f"{listens}; {lines}; printf 'a\\r\\n\\377b\\ncut off'; exit 3", 3)
    assert found.listening
    assert list(found.tail) == [*(f"line {at}" for at in (6, 7, 8)), "a", r"\xffb", "cut off"]
    assert not ended(loop, lines).listening


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
    """What it prints before is logged with the reason why it doesn't serve."""
    log.configure(level=LogLevel.DEBUG, form=LogFormat.JSON)
    ended(loop, f"echo '{line}'; echo '{LISTENING}127.0.0.1 port 22.'; echo '{line}'")
    log.configure()
    told = [json.loads(text) for text in capfd.readouterr().err.splitlines()]
    assert [item["level"] for item in told] == ["debug", "debug", level]
    assert told[-1]["message"] == f"sshd: {line}"


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
def test_a_login_that_failed_inside_sshd(line: str, failed: bool) -> None:  # noqa: FBT001
    assert child.login_failed(line, "root") is failed
