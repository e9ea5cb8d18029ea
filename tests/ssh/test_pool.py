"""Launch agents whose sessions run over the gate's own logins, with both SSH servers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import asdict, replace
from io import FileIO
from pathlib import Path
from typing import IO, Any, cast

import asyncssh
import pytest

import mpiboot
from mpiboot.core.launch_spec import EVENTS, REQUESTS, SESSIONS
from mpiboot.launcher.setup import assignments
from mpiboot.ssh import agents
from mpiboot.ssh.agents import AgentRequests, read_words, take
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from mpiboot.ssh.login import receive, send
from mpiboot.ssh.pool import Pool, PooledConnection
from mpiboot.system.programs import in_thread
from tests.fakes import pool
from tests.fakes.pool import PoolConfig, agents_in, pool_of
from tests.fakes.programs import open_files
from tests.fakes.sshd import SILENT, Behaviour, Job, listener, sshd
from tests.fakes.worker import (
    HAVE_SSH,
    HAVE_SSHD,
    PATIENCE,
    SHELLS,
    Worker,
    free_port,
    make_key,
    serving,
)
from tests.supervisor.answering import gone
from tests.waiting import until

pytestmark = pytest.mark.skipif(not HAVE_SSH, reason="no ssh-keygen")
ROOT = Path(mpiboot.__file__).parent
OPENSSH = pytest.param("openssh", marks=pytest.mark.skipif(not HAVE_SSHD, reason="no sshd"))
KINDS = ("embedded", OPENSSH)
MEGABYTE = 1 << 20
PIPE = subprocess.PIPE
TIMEOUTS = SshTimeouts(3, 30, 10, 3)


@pytest.fixture(scope="module", params=KINDS)
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    with serving(request.param) as running:
        yield running


def config_for(worker: Worker, folder: Path, hosts: int) -> PoolConfig:
    """A launch folder for hosts that are all one worker."""
    for name in ("hosts", "stderr"):
        (folder / name).mkdir(parents=True)
    shutil.copyfile(worker.key, folder / "key")
    (folder / "key").chmod(0o600)
    user = worker.wait_for("listens on").split(" as ")[1].split(",")[0]
    public = worker.key.with_suffix(".pub").read_text()
    names = (f"w-{number}" for number in range(hosts))
    remote = tuple(LaunchHost(name, "127.0.0.1", worker.port, user, public) for name in names)
    return PoolConfig(remote, str(folder / "key"), TIMEOUTS, str(folder))


class Agent(subprocess.Popen[bytes]):
    """A launch agent, with the streams that a test makes pipes of."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]


class Launch:
    """A launch folder whose hosts are all one worker, and the process with the connections.

    Each host's own FIFO is for one agent: the next test takes the next host.
    """

    def __init__(self, folder: Path, worker: Worker, hosts: int, logins: int) -> None:
        self.folder = folder
        config = config_for(worker, folder, hosts)
        self.names = [host.name for host in config.hosts]
        os.mkfifo(folder / EVENTS, 0o600)
        self.fifo = os.open(folder / EVENTS, os.O_RDWR | os.O_NONBLOCK)
        (folder / "agent.conf").touch()
        self.pool = subprocess.Popen(
            [sys.executable, str(pool.__file__), json.dumps(asdict(config)), str(logins)],
            stdout=PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
        )
        assert self.pool.stdout is not None
        assert self.pool.stdout.readline() == b"serves\n"

    def next(self, shell: list[str]) -> Launch:
        """Go to a host that no agent was started for, with a shell for its agents."""
        self.host, self.shell = self.names.pop(), shell
        self.told()
        return self

    def start(self, *command: str, **streams: int | IO[bytes]) -> Agent:
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": PIPE, "stderr": PIPE}
        env = {"PATH": os.environ["PATH"], "MPIBOOT_LAUNCH_DIR": str(self.folder)}
        words = [*self.shell, str(ROOT / "libexec" / "agent"), "-x", self.host, *command]
        return Agent(words, env=env, **(pipes | streams))

    def run(self, *command: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
        running = self.start(*command, stdin=PIPE)
        out, error = running.communicate(data, timeout=PATIENCE)
        return running.returncode, out, error

    def told(self) -> list[list[str]]:
        """What the parent of mpirun has heard since the last look."""
        try:
            return [line.split() for line in os.read(self.fifo, 65536).decode().splitlines()]
        except BlockingIOError:
            return []

    def connections(self) -> int:
        """How many sockets the pool has: its connections, and always two of its loop's.

        Of /proc/net/tcp the kernel leaves rows out while other connections come and go.
        """
        folder = Path(f"/proc/{self.pool.pid}/fd")
        return sum("socket:" in os.path.realpath(path) for path in folder.iterdir())

    def has_closed_one_of(self, before: int) -> None:
        """Wait for what a bad end does to its connection."""
        until(lambda: self.connections() == before - 1)

    def memory(self) -> int:
        """Kilobytes that the pool's process holds."""
        text = Path(f"/proc/{self.pool.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])

    def error(self) -> str:
        return (self.folder / "stderr" / self.host).read_text()

    def kill_the_pool(self) -> None:
        self.pool.kill()
        self.pool.wait(PATIENCE)

    def stop(self) -> None:
        os.close(self.fifo)
        self.kill_the_pool()
        assert self.pool.stdout is not None
        self.pool.stdout.close()


@pytest.fixture(scope="module")
def running(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    made = Launch(tmp_path_factory.mktemp("pool") / "launch", worker, 99, 40)
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
    made = Launch(tmp_path / "launch", worker, 25, 2)
    yield made.next(["sh"])
    made.stop()


def test_a_session_runs_over_the_gates_login_and_the_agent_is_one_process(shells: Launch) -> None:
    before = shells.connections()
    agent = shells.start("cat; echo said >&2; exit 7", stdin=PIPE)
    data = os.urandom(1 << 15)
    agent.stdin.write(data)
    agent.stdin.flush()
    assert agent.stdout.read(len(data)) == data
    # Nothing runs below it, and nobody has logged in again.
    assert Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text() == ""
    assert shells.connections() == before
    # What it was called as stays to be read.
    words = Path(f"/proc/{agent.pid}/cmdline").read_text().split("\0")
    assert str(ROOT / "libexec" / "agent") in words[:3]
    out, error = agent.communicate(timeout=PATIENCE)
    assert (agent.returncode, out, error) == (7, b"", b"said\n")
    host, pid = shells.host, str(agent.pid)
    assert shells.told() == [
        ["started", host, pid],
        ["running", host, "-", pid],
        ["connected", host],
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
    agent = shells.start("echo $$; exec sleep 1000")
    remote = int(agent.stdout.readline())
    number = signal.SIGHUP if shells.shell == ["dash"] else signal.SIGINT
    name = "HUP" if number == signal.SIGHUP else "TERM"
    agent.send_signal(number)
    assert agent.wait(PATIENCE) == 255
    assert shells.told()[-1] == ["ended", shells.host, "255", str(agent.pid), name]
    until(lambda: gone(remote))
    agent.communicate()
    shells.has_closed_one_of(before)


def test_a_hosts_second_agent_has_a_fifo_and_a_connection_of_its_own(shells: Launch) -> None:
    first = shells.start("echo $$; exec sleep 1000")
    remote = int(first.stdout.readline())
    second = shells.start("echo b; read -r word; echo $word", stdin=PIPE)
    assert second.stdout.readline() == b"b\n"
    first.terminate()
    assert first.wait(PATIENCE) == 255
    first.communicate()
    until(lambda: gone(remote))
    assert second.communicate(b"c\n", PATIENCE) == (b"c\n", b"")
    assert second.returncode == 0


def test_streams_that_cant_be_opened_anew_are_copied_to_the_end(
    shells: Launch, tmp_path: Path
) -> None:
    """A file has a place in it; Intel's mpiexec gives its agents sockets."""
    before = shells.connections()
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"skipped\nread\n")
    target.write_bytes(b"before\n")
    near, far = socket.socketpair()
    with near, source.open("rb") as reader, target.open("r+b", buffering=0) as writer:
        os.lseek(reader.fileno(), 8, os.SEEK_SET)
        os.lseek(writer.fileno(), 0, os.SEEK_END)
        with far:
            command = f"cat; head -c {MEGABYTE} /dev/zero >&2"
            agent = shells.start(command, stdin=reader, stdout=writer, stderr=far.fileno())
        with near.makefile("rb") as complaints:
            assert complaints.read() == bytes(MEGABYTE)
        assert agent.wait(PATIENCE) == 0
    assert target.read_bytes() == b"before\nread\n"
    assert shells.connections() == before


def test_a_killed_pool_ends_its_agents_and_those_to_come(other: Launch) -> None:
    agent = other.start("echo begun; exec sleep 1000")
    assert agent.stdout.readline() == b"begun\n"
    other.kill_the_pool()
    assert agent.wait(PATIENCE) == 255
    agent.communicate()
    assert other.error() == "the process with the SSH connections has ended\n"
    assert other.told()[-1] == ["ended", other.host, "255", str(agent.pid)]
    for shell in SHELLS:
        assert other.next(shell).run("true")[0] == 255
        other.told()
        # An agent with its own FIFO waits for a signal.
        agent = other.start("true")
        until((other.folder / SESSIONS / f"{other.host}.{agent.pid}.request").exists)
        until(lambda: any(event[0] == "running" for event in other.told()))
        agent.terminate()
        assert agent.wait(PATIENCE) == 255
        agent.communicate()


@pytest.mark.parametrize("last", ["the pool", "the session"])
def test_a_killed_agents_session_goes_on_until_it_or_the_pool_ends(
    other: Launch, last: str
) -> None:
    command = "echo $$; read -r go; echo on >&2; read -r go"
    agent = other.start(command, stdin=PIPE)
    remote = int(agent.stdout.readline())
    agent.kill()
    agent.wait(PATIENCE)
    agent.stdin.write(b"go\n")
    agent.stdin.flush()
    assert agent.stderr.readline() == b"on\n"
    assert not gone(remote)
    if last == "the pool":
        other.kill_the_pool()
    agent.communicate(b"go\n", timeout=PATIENCE)
    until(lambda: gone(remote))


def test_a_connection_is_kept_after_a_good_end_alone(launch: Launch) -> None:
    before = launch.connections()
    assert launch.run("exit 0")[0] == 0
    assert launch.run("echo again; exit 0") == (0, b"again\n", b"")
    assert launch.connections() == before
    assert launch.run("exit 3")[0] == 3
    launch.has_closed_one_of(before)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("exit 42",), (42, b"", b"")),
        (("exit 255",), (255, b"", b"")),
        (("ulimit -c 0; kill -SEGV $$",), (255, b"", b"")),
        (("echo out; echo err >&2; cat",), (0, b"out\nin\n", b"err\n")),
        (("A=b;", "export A;", "printf %s", '"$A  c"'), (0, b"b  c", b"")),
        (
            (os.fsdecode(b"printf '%s\\n' \"\xff% \xfe\" \xc3\xa9; exit 7"),),
            (7, b"\xff% \xfe\n\xc3\xa9\n", b""),
        ),
    ],
)
def test_a_command_ends_as_behind_ssh(
    launch: Launch, words: tuple[str, ...], expected: tuple[int, bytes, bytes]
) -> None:
    assert launch.run(*words, data=b"in\n") == expected


def test_large_streams_arrive_whole(launch: Launch) -> None:
    count = 32
    script = f"{sys.executable} -c 'import sys,random;r=random.Random(1);b=r.randbytes(1<<20);"
    script += f"[sys.stdout.buffer.write(b) for _ in range({count})]'; sha256sum >&2"
    data = os.urandom(16 * MEGABYTE)
    code, out, error = launch.run(script, data=data)
    expected = random.Random(1).randbytes(MEGABYTE) * count
    assert (code, hashlib.sha256(out).digest()) == (0, hashlib.sha256(expected).digest())
    assert error.split()[0].decode() == hashlib.sha256(data).hexdigest()


def stands_still(pid: int) -> int:
    """Bytes that a process had written when it wrote no more; all of them, where it has ended."""
    written, looks = 0, 0
    while looks < 20:
        time.sleep(0.02)
        try:
            text = Path(f"/proc/{pid}/io").read_text()
        except OSError:
            return 1 << 62
        now = int(text.partition("wchar: ")[2].split()[0])
        written, looks = now, looks + 1 if now == written > 0 else 0
    return written


def test_a_reader_that_waits_or_is_slow_holds_the_command_back(launch: Launch) -> None:
    launch.run("true")
    before, most, total = launch.memory(), 0, 0
    script = "sh -c 'echo $$ >&2; exec head -c 100000000 /dev/zero'; echo done >&2"
    with launch.start(script) as running:
        assert stands_still(int(running.stderr.readline())) < 32 * MEGABYTE
        while part := running.stdout.read1(1 << 18):  # type: ignore[attr-defined]
            total += len(part)
            time.sleep(0.002)
            most = max(most, launch.memory())
        assert running.stderr.read() == b"done\n"
    assert total == 100_000_000
    assert most - before < 32 * 1024


def test_a_command_that_does_not_read_holds_its_input_back(launch: Launch) -> None:
    before = launch.memory()
    with subprocess.Popen(["head", "-c", "100000000", "/dev/zero"], stdout=PIPE) as source:
        agent = launch.start("exec sleep 1000", stdin=source.stdout or PIPE)
        assert stands_still(source.pid) < 32 * MEGABYTE
        assert launch.memory() - before < 32 * 1024
        agent.terminate()
        agent.communicate()


def test_a_command_that_writes_no_more_still_reads(launch: Launch, tmp_path: Path) -> None:
    command = f"exec >&- 2>&-; touch {tmp_path}/closed; read -r status; exit $status"
    agent = launch.start(command, stdin=PIPE)
    until((tmp_path / "closed").exists)
    time.sleep(0.2)  # for the end of its output to arrive
    agent.communicate(b"7\n", PATIENCE)
    assert agent.returncode == 7


def test_output_that_can_not_be_written_is_no_good_end(launch: Launch) -> None:
    with Path("/dev/full").open("wb") as full:
        agent = launch.start("echo lost", stdout=full, stderr=subprocess.DEVNULL)
        assert agent.wait(PATIENCE) == 255
    assert "its output can't be written: No space left on device" in launch.error()


def test_a_streams_flags_are_left_and_a_reader_that_goes_ends_nothing_else(launch: Launch) -> None:
    reader, writer = os.pipe()
    assert launch.start("echo hello", stdout=writer, stderr=writer).wait(PATIENCE) == 0
    assert os.get_blocking(writer)
    assert os.read(reader, 99) == b"hello\n"
    os.close(reader)
    assert launch.start("echo hello; exit 7", stdout=writer, stderr=writer).wait(PATIENCE) == 7
    os.close(writer)
    assert launch.run("echo still")[1] == b"still\n"


def streams(output: int = -1) -> list[FileIO]:
    """An agent's: no input, and a pipe or nothing for its outputs."""
    outputs = [os.open(os.devnull, os.O_WRONLY) if output < 0 else os.dup(output) for _ in "12"]
    return [FileIO(os.devnull), *(FileIO(one, "w") for one in outputs)]


@pytest.mark.parametrize("other_one", ["host key", "key", "nothing"])
async def test_another_key_is_refused_with_the_reason(
    worker: Worker, tmp_path: Path, other_one: str
) -> None:
    config, another = config_for(worker, tmp_path, 1), make_key(tmp_path / "another")
    if other_one == "key":
        config = replace(config, key=str(another))
    else:
        # Where nothing is pinned any host key will do.
        public = another.with_suffix(".pub").read_text() if other_one == "host key" else ""
        config = replace(config, hosts=(replace(config.hosts[0], key=public),))
    refused = {"host key": "host key verification failed", "key": "key refused"}.get(other_one, "")
    async with pool_of(config) as pool:
        assert await agents_in(tmp_path).run(pool, ["w-0", "exit 3"], streams()) == (
            255 if refused else 3
        )
    if refused:
        assert refused in (tmp_path / "stderr" / "w-0").read_text()


def config_of(job: Job, port: int, *names: str) -> PoolConfig:
    """A pool's, for hosts with one port and any host key."""
    (job.folder / "stderr").mkdir()
    hosts = tuple(LaunchHost(name, "127.0.0.1", port, "me") for name in names)
    return PoolConfig(hosts, str(job.path), SshTimeouts(1, int(PATIENCE), 10, 3), str(job.folder))


UNKNOWN = "is no host of this job"


@pytest.mark.parametrize(
    ("host", "user", "reason"),
    [
        # A short name is its host where it is the only one.
        *((name, "me", "connection refused at 127.0.0.1 port {}") for name in ("w-0", "w-2")),
        ("w-1.other.ns", "me", "connection refused at 127.0.0.3 port {}"),
        ("w-1", "me", UNKNOWN),
        # One that ranks add is reached as all others are, if these are alike.
        ("127.0.0.2", "me", "connection refused at 127.0.0.2 port {}"),
        ("localhost", "me", "connection refused at localhost port {}"),
        *((name, "root", UNKNOWN) for name in ("127.0.0.2", "w", "w-0.job", "../a b")),
        ("", "me", "no host was named"),
    ],
)
async def test_why_there_is_no_session_stands_where_the_parent_looks_for_it(
    tmp_path: Path, host: str, user: str, reason: str
) -> None:
    names = ("w-0.job.ns", "w-1.job.ns", "w-1.other.ns", "w-10.job.ns")
    port = free_port()
    config = config_of(Job(tmp_path), port, *names)
    last = replace(config.hosts[0], name="w-2", user=user)
    other = replace(config.hosts[2], address="127.0.0.3")
    before = os.umask(0)  # what it makes has no other guard
    try:
        async with pool_of(replace(config, hosts=(*config.hosts, other, last))) as pool:
            assert (
                await agents_in(tmp_path).run(pool, [host, "true"] if host else [], streams())
                == 255
            )
    finally:
        os.umask(before)
    (path,) = (tmp_path / "stderr").iterdir()
    assert path.name == {"": "unknown", "../a b": ".._a_b"}.get(host, host)
    assert reason.format(port) in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_host_that_stands_still_in_a_login_is_given_up_after_the_time_limit(
    tmp_path: Path,
) -> None:
    """It answers the connection, and then says nothing: without a limit the agent never ends."""
    async with listener(SILENT) as port:
        config = replace(config_of(Job(tmp_path), port, "w-0"), timeouts=SshTimeouts(1, 1, 10, 3))
        pool = config.pool()
        assert await agents_in(tmp_path).run(pool, ["w-0", "true"], streams()) == 255
        with pytest.raises(ConnectionError, match=r"no SSH greeting at .*: within 0.1 s"):
            await pool.start("w-0", "true", 0.1)
    message = f"w-0: connected, but no SSH greeting at 127.0.0.1 port {port}: within 1 s\n"
    assert (tmp_path / "stderr" / "w-0").read_text() == message


async def test_a_command_beside_a_session_needs_no_login(tmp_path: Path) -> None:
    behaviour = Behaviour(Job(tmp_path))
    async with sshd(behaviour) as port, pool_of(config_of(behaviour.job, port, "w-0"), 1) as pool:
        session = await pool.start("w-0", "exec sleep 1000", PATIENCE)
        good = await pool.run("w-0", "echo said; echo no >&2", PATIENCE)
        assert (good.answer, good.error) == ("said\n", "no\n")
        bad = await pool.run("w-0", "echo said; exit 3", PATIENCE)
        assert (bad.answer, bad.status, bad.output) == (None, 3, "said\n")
        # A session's bad end closes it once commands have ended.
        waits = f"until [ -e {tmp_path}/go ]; do sleep 0.1; done; echo still; echo no >&2"
        beside = await pool.start("w-0", waits, PATIENCE)
        assert await agents_in(tmp_path).run(pool, ["w-0", "exit 3"], streams()) == 3
        (tmp_path / "go").touch()
        still = await beside.finish()
        assert (still.output, still.error) == ("still\n", "")
        assert behaviour.logins == 1
        for command in (beside, session, session):
            command.end()
        assert (await pool.run("w-0", "echo new", PATIENCE)).output == "new\n"
    assert behaviour.logins == 2


class Sessions(asyncssh.SSHServer):
    """Has so many sessions for each connection; each says its lines back behind a script's two."""

    logins = 0

    def begin_auth(self, username: str) -> bool:
        type(self).logins += 1
        self.free = 1
        return False

    def session_requested(self) -> object:  # type: ignore[override]
        self.free -= 1
        return self.free >= 0 and self.answer

    async def answer(
        self,
        stdin: asyncssh.SSHReader[str],
        stdout: asyncssh.SSHWriter[str],
        _stderr: asyncssh.SSHWriter[str],
    ) -> None:
        for _ in range(2):
            await stdin.readline()
        while line := await stdin.readline():
            stdout.write(f"heard {line}")
        self.free += 1
        stdout.channel.exit(0)  # type: ignore[attr-defined]


@asynccontextmanager
async def with_few_sessions(folder: Path) -> AsyncIterator[Pool]:
    key = asyncssh.generate_private_key("ssh-ed25519")
    async with (
        asyncssh.listen(
            "127.0.0.1", 0, server_factory=Sessions, server_host_keys=[key], config=None
        ) as server,
        pool_of(config_of(Job(folder), server.get_port(), "w-0")) as made,
    ):
        yield made


async def test_a_server_that_refuses_a_second_session_is_logged_in_to_once_more(
    tmp_path: Path,
) -> None:
    async with with_few_sessions(tmp_path) as pool:
        session = await pool.start("w-0", "a session", PATIENCE)
        for word in ("one", "two"):
            beside = await pool.start("w-0", "a query", PATIENCE)
            beside.write(word)
            assert (await beside.finish()).output == f"heard {word}\n"
        # Its answers come in turn.
        both = await asyncio.gather(session.ask("three"), session.ask("four"))
        assert tuple(both) == ("heard three", "heard four")
        assert (await session.finish()).output == ""
        assert await session.ask("five") == ""
    assert Sessions.logins == 2


async def test_a_server_that_takes_no_session_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sessions, "session_requested", lambda _: False)
    async with with_few_sessions(tmp_path) as pool:
        end = await pool.run("w-0", "a query", PATIENCE)
    assert (end.status, end.error) == (None, "can't open an SSH session: Session refused")


# A keep-alive's interval: with a short one a busy machine's host is silent, too.
INTERVALS = (1, 4, 16)


async def test_a_connection_that_is_silent_is_lost(worker: Worker, tmp_path: Path) -> None:
    config = config_for(worker, tmp_path, 1)
    for interval in INTERVALS:
        reader, writer = os.pipe()
        given = streams(writer)
        os.close(writer)
        patience = SshTimeouts(1, int(PATIENCE), interval, 1)
        async with pool_of(replace(config, timeouts=patience), 1) as pool:
            session = asyncio.ensure_future(
                agents_in(tmp_path).run(pool, ["w-0", "echo $PPID; exec sleep 99"], given)
            )
            server = await asyncio.to_thread(os.read, reader, 99)
            os.close(reader)
            if not server:
                continue
            os.kill(int(server), signal.SIGSTOP)
            try:
                assert await session == 255
            finally:
                os.kill(int(server), signal.SIGCONT)
        break
    assert "w-0: the connection is lost: " in (tmp_path / "stderr" / "w-0").read_text()


async def test_a_loop_that_stands_still_loses_no_session(worker: Worker, tmp_path: Path) -> None:
    """As by SIGSTOP or a slow disk: what the servers have answered meanwhile is read first."""
    config = config_for(worker, tmp_path, 1)
    for interval in INTERVALS:
        patience = SshTimeouts(1, int(PATIENCE), interval, 1)
        async with pool_of(replace(config, timeouts=patience), 1) as pool:
            waits = f"until [ -e {tmp_path}/go ]; do sleep 0.1; done; exit 7"
            session = asyncio.ensure_future(
                agents_in(tmp_path).run(pool, ["w-0", waits], streams())
            )
            command = await pool.start("w-0", "read -r word; echo $word", PATIENCE)
            await asyncio.sleep(1.2 * interval)  # a keep-alive is on its way
            time.sleep(3 * interval)  # noqa: ASYNC251 - longer than a silent host has
            (tmp_path / "go").touch()
            command.write("there")
            if (await command.finish()).output == "there\n" and await session == 7:
                return
            (tmp_path / "go").unlink()
    pytest.fail("a session was lost")


async def test_a_connection_is_for_its_address_and_user_alone(tmp_path: Path) -> None:
    behaviour = Behaviour(Job(tmp_path))
    names = ("w-0", "w-1")
    async with sshd(behaviour) as port, pool_of(config_of(behaviour.job, port, *names), 1) as pool:
        for host, status in (("w-0", 0), ("you@w-0", 1), ("w-1", 0)):
            assert (
                await agents_in(tmp_path).run(pool, [host, f"exit {status}"], streams()) == status
            )
    assert behaviour.users == ["me", "you"]


def test_what_agents_ask_by_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        AgentRequests(tmp_path, ("a",))
    finally:
        os.umask(before)
    paths = [tmp_path / SESSIONS, tmp_path / SESSIONS / "a", tmp_path / REQUESTS]
    assert [oct(path.stat().st_mode) for path in paths] == ["0o40700", "0o10600", "0o10600"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["w", "a", "b"], ("", "w", "a b")),
        # What `ssh -G` of OpenSSH makes of them.
        (["-x", "-l", "me", "u@w", "a"], ("me", "w", "a")),
        (["-oBatchMode=yes", "-p2222", "w"], ("", "w", "")),
        (["-v", "w", "-p", "22", "-i", "key", "a", "-p", "b"], ("", "w", "a -p b")),
        (["w", "-lme", "-qTp", "22", "a"], ("me", "w", "a")),
        (["u@w", "-l", "me"], ("u", "w", "")),
        (["-xl", "me", "w", "--", "-a"], ("me", "w", "-a")),
        (["-x", "--", "w", "-a", "b"], ("", "w", "-a b")),
        (["a@b@w"], ("a@b", "w", "")),
        *((words, None) for words in ([], ["-x"], ["-p"], ["-p", "22"], ["--"], ["-Z", "w"])),
    ],
)
def test_the_words_of_ssh_are_read(words: list[str], expected: tuple[str, str, str] | None) -> None:
    refused = pytest.raises(ValueError, match=r"no host was named|option -")
    with nullcontext() if expected else refused:
        assert read_words(words) == expected


async def test_a_command_that_was_sent_is_not_sent_over_another_connection() -> None:
    class Connection:
        async def create_session(
            self, factory: Callable[[], object], *_: object, **__: object
        ) -> None:
            factory()
            raise asyncssh.ChannelOpenError(4, "")

        def get_extra_info(self, _: str) -> str:
            return "OpenSSH"

    link = PooledConnection(cast("Any", Connection()), users=1)
    with pytest.raises(asyncssh.ChannelOpenError):
        await link.start("orted", None, env={})


@contextmanager
def holding(output: int) -> Iterator[int]:
    """A process that has /dev/null as 3, and an output as 4 and 5; its number."""
    words = ["sh", "-c", "exec 3<&0 4>&1 5>&2; kill -STOP $$"]
    made = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    os.waitpid(made.pid, os.WUNTRACED)
    try:
        yield made.pid
    finally:
        made.kill()
        made.wait()


@pytest.mark.parametrize("root", [True, False])
async def test_what_the_launcher_has_itself_is_shared_and_no_agent_copies_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, root: bool
) -> None:
    """A container's own pipes, which only root opens; a file, `mpirun > log`, has one place."""
    log, real = tmp_path / "log", os.open
    log.touch()
    reader, own = os.pipe() if root else (real(log, os.O_RDONLY), real(log, os.O_WRONLY))
    os.write(own, b"before\n")
    os.set_inheritable(own, True)
    monkeypatch.setattr(agents, "_OWN", (own,))

    def closed(path: str, flags: int, *more: int, **names: Any) -> int:  # noqa: ANN401
        if root and str(path).endswith(("fd/4", "fd/5")):
            raise PermissionError
        return real(path, flags, *more, **names)

    monkeypatch.setattr(os, "open", closed)
    with holding(own) as pid, ExitStack() as streams:
        stdout = [streams.enter_context(stream) for stream in take(pid)][1]
        source = asyncio.StreamReader()
        source.feed_data(bytes(MEGABYTE))
        source.feed_eof()
        writing = asyncio.ensure_future(receive(cast("Any", source), stdout))
        await asyncio.sleep(0.1)  # nobody reads: the loop goes on
        assert writing.done() != root
        got = b""
        while len(got) < MEGABYTE + 7:
            got += await in_thread(os.read, reader, MEGABYTE)
        assert (got, await writing) == (b"before\n" + bytes(MEGABYTE), "")
    assert os.get_blocking(own)
    os.close(own)
    os.close(reader)


@pytest.mark.parametrize("stream", ["a file with a place in it", "of one that is gone"])
def test_streams_that_can_not_be_taken_leave_nothing_open(tmp_path: Path, stream: str) -> None:
    with (tmp_path / "log").open("wb") as file, holding(file.fileno()) as pid:
        if stream == "of one that is gone":
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        before = open_files()
        with pytest.raises((ValueError, OSError), match=f"stream 4|{pid}"):
            take(pid)
        assert open_files() == before


async def test_a_terminal_that_is_gone_is_at_its_end() -> None:
    leader, follower = os.openpty()
    os.close(leader)  # EIO
    with FileIO(follower) as source:
        await send(source, cast("Any", None))
        assert source.closed
