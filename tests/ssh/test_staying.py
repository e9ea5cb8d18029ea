"""Launch agents whose sessions run over the gate's own logins, with both SSH servers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO
from unittest.mock import patch

import pytest

import mpiboot
from mpiboot.core.launch_names import LAUNCH_DIR
from mpiboot.launcher.launch_folder import assignments
from mpiboot.ssh import client_start
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from mpiboot.supervisor import ask_workers, workers
from mpiboot.supervisor.asking import ASKS
from mpiboot.supervisor.evidence import HostSnapshot
from tests.fakes import staying
from tests.fakes.worker import HAVE_SSH, HAVE_SSHD, PATIENCE, Worker
from tests.waiting import until

pytestmark = pytest.mark.skipif(not HAVE_SSH, reason="no ssh-keygen")

ROOT = Path(mpiboot.__file__).parent
OPENSSH = pytest.param("openssh", marks=pytest.mark.skipif(not HAVE_SSHD, reason="no sshd"))
KINDS = ("embedded", OPENSSH)
SHELLS = [
    words
    for words in (["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"])
    if shutil.which(words[0])
]


@pytest.fixture(scope="module", params=KINDS)
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    folder = Path(tempfile.mkdtemp(prefix="mpiboot-test-"))
    running = Worker(folder, request.param).start()
    try:
        yield running.listens()
    finally:
        assert running.stop() == 0, running.log
        shutil.rmtree(folder)


class Launch:
    """A launch folder whose hosts are all one worker, and the client that stays.

    Each host is for one agent: the next test takes the next.
    """

    def __init__(self, folder: Path, worker: Worker, hosts: int) -> None:
        self.folder = folder
        self.names = [f"w-{number}" for number in range(hosts)]
        self.host = ""
        self.shell = ["sh"]
        for name in ("hosts", "stderr"):
            (folder / name).mkdir(parents=True)
        os.mkfifo(folder / "events", 0o600)
        self.fifo = os.open(folder / "events", os.O_RDWR | os.O_NONBLOCK)
        (folder / "agent.conf").write_text(assignments({"client": client_start.client_words()}))
        key = folder / "key"
        shutil.copyfile(worker.key, key)
        key.chmod(0o600)
        user = worker.wait_for("listens on").split(" as ")[1].split(",")[0]
        public = worker.key.with_suffix(".pub").read_text()
        config = client_start.ClientConfig(
            hosts=tuple(
                LaunchHost(name, "127.0.0.1", worker.port, user, public) for name in self.names
            ),
            key=str(key),
            patience=SshTimeouts(3, 30, 10, 3),
            events=str(folder / "events"),
            errors=str(folder / "stderr"),
            parent=os.getpid(),
        )
        self.client = subprocess.Popen(
            [sys.executable, str(staying.__file__), str(folder), json.dumps(asdict(config))],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
        )
        assert self.client.stdout is not None
        assert self.client.stdout.readline() == b"serves\n"

    def next(self, shell: list[str]) -> Launch:
        """Go to a host that no agent was started for, with a shell for its agents."""
        self.host, self.shell = self.names.pop(), shell
        self.told()
        return self

    def start(
        self,
        *command: str,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.shell, str(ROOT / "libexec" / "agent"), "-x", self.host, *command],
            env={"PATH": os.environ["PATH"], "MPIBOOT_LAUNCH_DIR": str(self.folder)},
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )

    def run(self, *command: str) -> tuple[int, bytes, bytes]:
        process = self.start(*command)
        out, error = process.communicate(timeout=PATIENCE)
        return process.returncode, out, error

    def told(self) -> list[list[str]]:
        """What the parent of mpirun has heard since the last look."""
        try:
            return [line.split() for line in os.read(self.fifo, 65536).decode().splitlines()]
        except BlockingIOError:
            return []

    def connections(self) -> int:
        """How many TCP connections the client has.

        By their sockets: while others come and go, the kernel lists some of them twice.
        """
        folder = Path(f"/proc/{self.client.pid}/fd")
        links = {link for path in folder.iterdir() if (link := _target(path))}
        rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
        return len(links & {f"socket:[{row.split()[9]}]" for row in rows})

    def has_closed_one_of(self, before: int) -> None:
        """Wait for what a bad end does to its connection: the next test counts them, too."""
        until(lambda: self.connections() == before - 1)

    def stop(self) -> None:
        os.close(self.fifo)
        self.client.kill()
        self.client.wait(PATIENCE)
        assert self.client.stdout is not None
        self.client.stdout.close()


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@pytest.fixture(scope="module")
def running(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    made = Launch(tmp_path_factory.mktemp("staying") / "launch", worker, 64)
    yield made
    made.stop()


@pytest.fixture(params=SHELLS, ids=" ".join)
def shells(running: Launch, request: pytest.FixtureRequest) -> Launch:
    return running.next(request.param)


@pytest.fixture
def launch(running: Launch) -> Launch:
    return running.next(["sh"])


@pytest.fixture
def other(worker: Worker, tmp_path: Path) -> Iterator[Launch]:
    made = Launch(tmp_path / "launch", worker, 2)
    yield made.next(["sh"])
    made.stop()


def test_a_session_runs_over_the_gates_login_and_the_agent_is_one_process(shells: Launch) -> None:
    before = shells.connections()
    process = shells.start("cat; echo said >&2; exit 7", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    data = os.urandom(1 << 15)
    process.stdin.write(data)
    process.stdin.flush()
    assert process.stdout.read(len(data)) == data
    # Nothing runs below it, and nobody has logged in again.
    assert Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text() == ""
    assert shells.connections() == before
    # What it was called as stays to be read.
    assert str(ROOT / "libexec" / "agent") in _words(process.pid)[:3]
    out, error = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, error) == (7, b"", b"said\n")
    host, pid = shells.host, str(process.pid)
    assert shells.told() == [
        ["started", host, pid],
        ["running", host, "-", pid],
        ["connected", host, pid],
        ["closed", host, pid],
        ["ended", host, "7", pid],
    ]
    shells.has_closed_one_of(before)


def test_words_arrive_as_with_ssh_behind_the_hosts_exports(shells: Launch) -> None:
    exports = "export A='1 $x';\nexport B='two';"
    file = shells.folder / "hosts" / f"{shells.host}.env"
    file.write_text(assignments({"exports": exports}))
    words = ['printf "%s,"', '"$A$B"', "'* ?'", "\\`id\\`", "'two\nlines'", "x" * 20_000]
    code, out, _ = shells.run(*words)
    assert code == 0
    assert out.decode().split(",")[:4] == ["1 $xtwo", "* ?", "`id`", "two\nlines"]
    assert len(out.decode().split(",")[4]) == 20_000


def test_a_signal_ends_the_session_and_is_told(shells: Launch) -> None:
    before = shells.connections()
    process = shells.start("echo $$; exec sleep 1000")
    assert process.stdout is not None
    remote = int(process.stdout.readline())
    number = signal.SIGHUP if shells.shell == ["dash"] else signal.SIGINT
    name = "HUP" if number == signal.SIGHUP else "TERM"
    process.send_signal(number)
    assert process.wait(PATIENCE) == 255
    assert shells.told()[-1] == ["ended", shells.host, "255", str(process.pid), name]
    until(lambda: not Path(f"/proc/{remote}").exists())
    process.communicate()
    shells.has_closed_one_of(before)


def test_a_killed_agents_session_goes_on_until_the_client_ends(other: Launch) -> None:
    process = other.start(
        "echo $$; read -r go; echo on >&2; exec sleep 1000", stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    remote = int(process.stdout.readline())
    process.kill()
    process.wait(PATIENCE)
    process.stdin.write(b"go\n")
    process.stdin.flush()
    assert process.stderr.readline() == b"on\n"
    other.client.kill()
    until(lambda: not Path(f"/proc/{remote}").exists())
    process.communicate()


def test_a_killed_agents_session_that_ends_is_told(launch: Launch) -> None:
    process = launch.start("echo; read -r go", stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    process.kill()
    process.wait(PATIENCE)
    process.communicate(b"go\n", timeout=PATIENCE)
    until(lambda: ["closed", launch.host, str(process.pid)] in launch.told())


def test_a_connection_is_kept_after_a_good_end_alone(launch: Launch) -> None:
    before = launch.connections()
    assert launch.run("exit 0")[0] == 0
    # The host's FIFO is used up: another agent hands its streams over by the socket.
    assert launch.run("echo again; exit 0") == (0, b"again\n", b"")
    assert launch.connections() == before
    assert launch.run("exit 3")[0] == 3
    launch.has_closed_one_of(before)
    assert launch.run("echo new") == (0, b"new\n", b"")


def test_streams_that_cant_be_opened_anew_are_handed_over(launch: Launch, tmp_path: Path) -> None:
    before = launch.connections()
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"skipped\nread\n")
    target.write_bytes(b"before\n")
    with source.open("rb") as reader, target.open("r+b", buffering=0) as writer:
        os.lseek(reader.fileno(), 8, os.SEEK_SET)
        os.lseek(writer.fileno(), 0, os.SEEK_END)
        process = launch.start("cat", stdin=reader, stdout=writer)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert target.read_bytes() == b"before\nread\n"
    assert launch.connections() == before


def test_a_client_that_is_killed_ends_its_agents(other: Launch) -> None:
    process = other.start("echo begun; exec sleep 1000")
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    other.client.kill()
    assert process.wait(PATIENCE) == 255
    process.communicate()
    message = (other.folder / "stderr" / other.host).read_text()
    assert message == "mpiboot's SSH client has ended\n"
    assert other.told()[-1] == ["ended", other.host, "255", str(process.pid)]


async def asked(folder: str, host: str, command: str) -> str | None:
    there = HostSnapshot(host, "", "", host)
    with patch.dict(os.environ, {LAUNCH_DIR: folder, ASKS: "60"}):
        return await ask_workers._ask(there, command, ask_workers.Throttle(1))


async def test_what_is_asked_beside_a_job_needs_no_process(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "spawn", None)
    before, folder, host = launch.connections(), str(launch.folder), launch.host
    assert workers.has_client(folder)
    assert not workers.has_client(str(launch.folder / "hosts"))
    assert await asked(folder, host, "echo said; echo no >&2; cat") == "said\n"
    # Whoever tells that it waits until it was read gets a line then.
    command = "echo mpiboot-read; read -r _ # 'when_read'"
    assert await asked(folder, host, command) == "mpiboot-read\n"
    # More than the buffers of pipe and channel hold, over the same connection.
    message = await asked(folder, host, "head -c 3000000 /dev/zero")
    assert message == "\0" * 3_000_000
    assert launch.connections() == before
    assert await asked(folder, host, "echo said; exit 3") is None
    await asyncio.to_thread(launch.has_closed_one_of, before)
    assert await asked(folder, "w-unknown", "echo said") is None
    assert launch.told() == [], "no daemon was connected"


async def test_a_question_that_is_given_up_ends_on_its_host(launch: Launch, tmp_path: Path) -> None:
    told, before = tmp_path / "pid", launch.connections()
    command = f"echo $$ > {told}.new; mv {told}.new {told}; exec sleep 1000"
    folder = str(launch.folder)
    asking = asyncio.ensure_future(asked(folder, launch.host, command))
    await asyncio.to_thread(until, told.exists)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    remote = Path("/proc", told.read_text().strip())
    await asyncio.to_thread(until, lambda: not remote.exists())
    await asyncio.to_thread(launch.has_closed_one_of, before)
