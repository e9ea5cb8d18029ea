"""mpiboot's own SSH client does what ssh does behind a launch agent, with both SSH servers."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.ssh import client, client_start
from mpiboot.ssh.config import SshTimeouts
from mpiboot.system import os_calls
from tests.fakes.client import Launch
from tests.fakes.worker import HAVE_SSH, HAVE_SSHD, PATIENCE, Worker, make_key

pytestmark = pytest.mark.skipif(not HAVE_SSH, reason="no ssh-keygen")

OPENSSH = pytest.param("openssh", marks=pytest.mark.skipif(not HAVE_SSHD, reason="no sshd"))
KINDS = ("embedded", OPENSSH)
MEGABYTE = 1 << 20


@pytest.fixture(scope="module", params=KINDS)
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    folder = Path(tempfile.mkdtemp(prefix="mpiboot-test-"))
    running = Worker(folder, request.param).start()
    try:
        yield running.listens()
    finally:
        assert running.stop() == 0, running.log
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def launch(worker: Worker) -> Iterator[Launch]:
    running = Launch(worker.folder / "launch", worker, user=_user(worker)).start()
    yield running
    running.stop()


def _user(worker: Worker) -> str:
    return worker.wait_for("listens on").split(" as ")[1].split(",")[0]


@pytest.fixture
def other(worker: Worker, tmp_path: Path) -> Iterator[Launch]:
    running = Launch(tmp_path / "launch", worker, user=_user(worker))
    yield running
    running.stop()


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent, which may be this one, doesn't."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def gone(pids: list[int]) -> None:
    """Wait until processes are no more; the guard is no measure."""
    end = time.monotonic() + PATIENCE
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end, f"{pids} still run"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("words", "ended"),
    [
        (("exit 0",), (0, b"", b"")),
        (("exit 42",), (42, b"", b"")),
        (("exit 255",), (255, b"", b"")),
        (("echo out; echo err >&2; cat",), (0, b"out\nin\n", b"err\n")),
        (("A=b;", "export A;", "printf %s", '"$A  c"'), (0, b"b  c", b"")),
    ],
)
def test_a_command_ends_as_behind_ssh(
    launch: Launch, words: tuple[str, ...], ended: tuple[int, bytes, bytes]
) -> None:
    done = launch.run(*words, data=b"in\n")
    assert (done.returncode, done.stdout, done.stderr) == ended


def test_the_client_may_open_as_many_files_as_the_pod_allows(other: Launch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(hard, os_calls.MOST_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        other.start()
        # It serves, so it has begun.
        assert other.run("ulimit -Sn; exit 3").returncode == 3
        assert resource.prlimit(other.pid, resource.RLIMIT_NOFILE) == (most, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_many_hosts_need_is_counted_before_the_start() -> None:
    assert client_start.short_of_files(192, 1024) == ""
    assert "needs 1029 open files for 193 hosts" in client_start.short_of_files(193, 1024)


def test_a_command_that_dies_of_a_signal_is_no_success(launch: Launch) -> None:
    assert launch.run("ulimit -c 0; kill -SEGV $$").returncode not in (0, 1)


@pytest.mark.parametrize("worker", [OPENSSH], indirect=True)  # asyncssh's server wants UTF-8
def test_bytes_that_are_no_text_arrive(launch: Launch) -> None:
    word = os.fsdecode(b"printf %s '\xff\xfe'")
    assert launch.run(word).stdout == b"\xff\xfe"


def test_a_large_output_arrives_whole_and_is_not_kept(launch: Launch) -> None:
    size = 64 * MEGABYTE
    script = f"{sys.executable} -c 'import sys,random;r=random.Random(1);b=r.randbytes(1<<20);"
    script += f"[sys.stdout.buffer.write(b) for _ in range({size // MEGABYTE})]'"
    import random  # noqa: PLC0415 - the same bytes

    block = random.Random(1).randbytes(MEGABYTE)
    launch.run("true")
    before = launch.memory()
    done = launch.run(script)
    expected = hashlib.sha256(block * (size // MEGABYTE)).hexdigest()
    assert hashlib.sha256(done.stdout).hexdigest() == expected
    assert launch.memory() - before < 32 * 1024


def test_a_large_input_arrives_whole(launch: Launch) -> None:
    data = os.urandom(16 * MEGABYTE)
    done = launch.run("sha256sum", data=data)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


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


def test_a_reader_that_waits_holds_the_command_back(launch: Launch) -> None:
    launch.run("true")
    before = launch.memory()
    script = "sh -c 'echo $$ >&2; exec head -c 200000000 /dev/zero'; echo done >&2"
    argv = launch.argv(script)
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        total = len(running.stdout.read(1 << 16))
        assert stands_still(int(running.stderr.readline())) < 32 * MEGABYTE
        assert launch.memory() - before < 32 * 1024
        while part := running.stdout.read(1 << 20):
            total += len(part)
        assert running.stderr.read() == b"done\n"
    assert total == 200_000_000


def test_a_slow_reader_never_makes_the_client_keep_the_output(launch: Launch) -> None:
    launch.run("true")
    before, most, total = launch.memory(), 0, 0
    argv = launch.argv("head -c 100000000 /dev/zero")
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        while part := running.stdout.read1(1 << 18):  # type: ignore[attr-defined]
            total += len(part)
            time.sleep(0.002)
            most = max(most, launch.memory())
    assert total == 100_000_000
    assert most - before < 32 * 1024


def test_files_and_dev_null_are_streams_too(launch: Launch, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(os.urandom(3 * MEGABYTE))
    with source.open("rb") as reader, target.open("ab") as writer:
        writer.write(b"before\n")
        writer.flush()
        done = subprocess.run(
            launch.argv("cat"),
            stdin=reader,
            stdout=writer,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=PATIENCE,
        )
    assert done.returncode == 0
    assert target.read_bytes() == b"before\n" + source.read_bytes()


def test_the_streams_own_flags_are_left_as_they_are(launch: Launch) -> None:
    reader, writer = os.pipe()
    subprocess.run(launch.argv("echo hello"), stdin=subprocess.DEVNULL, stdout=writer, check=True)
    assert os.get_blocking(writer)
    os.close(writer)
    assert os.read(reader, 99) == b"hello\n"
    os.close(reader)


def test_a_reader_that_went_away_ends_nothing_else(launch: Launch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        launch.argv("echo hello; exit 7"), stdin=subprocess.DEVNULL, stdout=writer, check=False
    )
    os.close(writer)
    assert done.returncode == 7
    assert launch.run("echo still").stdout == b"still\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_whole_group_of_the_command_ends_with_its_agent(launch: Launch, number: int) -> None:
    script = "sleep 1000 & sleep 1000 & echo $$ $!; wait"
    with subprocess.Popen(
        launch.argv(script), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        pids = [int(word) for word in running.stdout.readline().split()]
        running.send_signal(number)
        code = running.wait(PATIENCE)
    assert code in (255, -number)
    gone(pids)


def test_many_sessions_at_once(launch: Launch) -> None:
    runs = [
        subprocess.Popen(
            launch.argv(f"echo {number}; exit {number}"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        for number in range(24)
    ]
    done = [(run.communicate(timeout=PATIENCE)[0], run.returncode) for run in runs]
    assert done == [(f"{number}\n".encode(), number) for number in range(24)]


def test_the_parent_hears_that_the_host_is_connected(launch: Launch) -> None:
    launch.told()
    assert launch.run("exit 0").returncode == 0
    assert launch.told() == f"connected w {os.getpid()}\n"


def test_options_of_ssh_are_no_host(launch: Launch) -> None:
    argv = launch.argv("echo hello", options=["-x", "-o", "ConnectionAttempts=10", "-p", "22"])
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.stdout == b"hello\n"


def test_another_host_key_is_refused_with_the_reason(other: Launch, tmp_path: Path) -> None:
    other.pinned = make_key(tmp_path / "another").with_suffix(".pub").read_text()
    assert other.start().run("echo never").returncode == 255
    assert "Host key" in (other.folder / "stderr" / "w").read_text()


def test_any_host_key_will_do_where_the_user_says_so(other: Launch) -> None:
    other.pinned = ""
    assert other.start().run("echo hello").stdout == b"hello\n"


def test_another_key_is_refused_with_the_reason(other: Launch, tmp_path: Path) -> None:
    other.key = make_key(tmp_path / "another")
    assert other.start().run("echo never").returncode == 255
    assert "Permission denied" in (other.folder / "stderr" / "w").read_text()


def test_what_the_client_writes_is_private(other: Launch) -> None:
    other.port = 1
    before = os.umask(0)  # what it makes has no other guard
    try:
        assert other.start().run("echo never").returncode == 255
    finally:
        os.umask(before)
    written = [path for path in other.folder.rglob("*") if path.is_file()]
    assert {"client.json", "w"} <= {path.name for path in written}
    assert "w: " in (other.folder / "stderr" / "w").read_text()
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in written} == dict.fromkeys(
        (path.name for path in written), "0o0"
    )


def test_an_agent_without_a_client_ends_as_ssh_would(other: Launch) -> None:
    other.folder.mkdir()
    os.mkfifo(other.folder / "events")
    other.events = os.open(other.folder / "events", os.O_RDWR)
    done = other.run("echo never")
    assert done.returncode == 255
    assert b"can't be reached" in done.stderr


def named(other: Launch, *names: str) -> client.Client:
    """A client that knows hosts by these names, all of them one worker."""
    config = client_start.ClientConfig.from_json((other.folder / "client.json").read_text())
    hosts = tuple(replace(config.hosts[0], name=name) for name in names)
    return client.Client(replace(config, hosts=hosts))


def test_a_short_name_is_its_host_where_it_is_the_only_one(other: Launch) -> None:
    known = named(other.start(), "w-0.job.ns", "w-1.job.ns", "w-1.other.ns", "w-10.job.ns", "w-2")
    assert known._find("w-0").name == "w-0.job.ns"
    assert known._find("w-2").name == "w-2"
    assert known._find("w-1.other.ns").name == "w-1.other.ns"
    for name in ("w-1", "w", "w-0.job", "10", ""):
        with pytest.raises(ValueError, match="is no host of this job"):
            known._find(name)


def test_a_host_that_stands_still_in_a_login_is_given_up_after_the_time_limit(
    other: Launch,
) -> None:
    """It answers the connection, and then says nothing: without a limit the agent never ends."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        other.port = silent.getsockname()[1]
        other.patience = SshTimeouts(1, 1, 10, 3)
        assert other.start().run("echo never").returncode == 255
    message = f"mpiboot's SSH client: w: no login at 127.0.0.1 port {other.port} within 1 s\n"
    assert (other.folder / "stderr" / "w").read_text() == message


def test_who_only_asks_a_host_has_its_own_patience(
    other: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPIBOOT_ASKS", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        other.port = silent.getsockname()[1]
        other.patience = SshTimeouts(1000, 1000, 10, 3)
        assert other.start().run("echo never").returncode == 255
    assert "within 1 s" in (other.folder / "stderr" / "w").read_text()


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
        (["-", "a@b@w"], ("a@b", "w", "")),
    ],
)
def test_the_words_of_ssh_are_read(words: list[str], expected: tuple[str, str, str]) -> None:
    assert client.read_words(words) == expected


@pytest.mark.parametrize("words", [[], ["-x"], ["-p"], ["-p", "22"]])
def test_words_without_a_host_are_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match="no host was named"):
        client.read_words(words)


@pytest.mark.full
def test_a_hundred_and_twenty_eight_sessions(launch: Launch) -> None:
    runs = [
        subprocess.Popen(
            launch.argv("read -r line; exit 3"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        for _ in range(128)
    ]
    assert [run.communicate(b"go\n", timeout=PATIENCE)[0] for run in runs] == [None] * 128
    assert [run.returncode for run in runs] == [3] * 128
