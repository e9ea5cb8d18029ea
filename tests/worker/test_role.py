"""Whole workers with real ssh clients: the same rules hold for both SSH servers."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from mpiboot.core.facts import HostAnswer
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.hosts import host_shell
from tests.fakes.programs import program
from tests.fakes.worker import HAVE_SSH, HAVE_SSHD, PATIENCE, Worker, can_mount, make_key
from tests.supervisor.answering import gone as ended
from tests.waiting import until

pytestmark = pytest.mark.skipif(not HAVE_SSH, reason="no ssh client")

OPENSSH = pytest.param(
    "openssh", marks=pytest.mark.skipif(not HAVE_SSHD, reason="no sshd is installed")
)
BOTH = (OPENSSH, "embedded")
ODD = {
    "BLANKS": "  a  b ",
    "QUOTES": 'it\'s "quoted" `$(exit 9)` \\ \\\\ $HOME ${x}',
    "LINES": "one\ntwo\n\n",
    "UTF8": "grüße ☃",
    "BYTES": bytes(number for number in range(1, 256)).decode("utf-8", "surrogateescape"),
    "EMPTY": "",
    "LONG": "x" * 100_000,
    "command": "not the wrapper's",
    "folder": "not the wrapper's",
    "mark": "not the wrapper's",
    "IFS": "abc",
}

# As the launch agent begins each command of an MPI's.
LAUNCH = f"export {LAUNCH_ID}=x; "

Start = Callable[..., Worker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Worker] = []

    def begin(kind: str, *program: str, **options: object) -> Worker:
        folder = tmp_path / f"worker {len(started)}"
        worker = Worker(folder, kind, program, **options)  # type: ignore[arg-type]
        started.append(worker)
        return worker.start()

    yield begin
    for worker in started:
        worker.stop()


@pytest.fixture(scope="module", params=BOTH)
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    """One worker for the tests that leave it as it is."""
    folder = Path(tempfile.mkdtemp(prefix="mpiboot-test-"))
    running = Worker(folder, request.param, environ=ODD).start()
    try:
        yield running.listens()
    finally:
        assert running.stop() == 0, running.log
        shutil.rmtree(folder)


def gone(*pids: int) -> None:
    until(lambda: all(map(ended, pids)))


def patched(folder: Path, *statements: str, **environ: str) -> dict[str, str]:
    """The environment of a worker that runs statements before anything else."""
    (folder / "sitecustomize.py").write_text("\n".join(statements))
    return {"PYTHONPATH": str(folder), **environ}


GRACE = "import mpiboot.ssh.sessions as sessions; sessions.GRACE = {}"


def stand_in(folder: Path, text: str, name: str = "sshd") -> dict[str, str]:
    """The environment of a worker for which another program stands in."""
    program(folder / "bin", name, text)
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}"}


# -- a session -------------------------------------------------------------------------------------


SESSIONS: dict[str, tuple[str, dict[str, Any], tuple[int | None, bytes, bytes | None]]] = {
    "success": ("exit 0", {}, (0, b"", b"")),
    "failure": ("exit 3", {}, (3, b"", b"")),
    "ssh's own status": ("exit 255", {}, (255, b"", b"")),
    "a signal": ("kill -SEGV $$", {}, (255, b"", None)),
    "three streams": (
        *("cat; echo more; echo less >&2", {"data": b"\x00\xff\r\nbytes"}),
        (0, b"\x00\xff\r\nbytesmore\n", b"less\n"),
    ),
    "input unread": ("exec true", {"data": b"x" * (1 << 22)}, (0, b"", b"")),
    "another user": ("true", {"user": "daemon"}, (255, b"", b"Permission denied (publickey)")),
    "no terminal": ("true", {"options": ("-tt",)}, (255, b"", b"PTY allocation request failed")),
    "no login shell": ("", {"data": b"echo inside\n"}, (None, b"", b"shell")),
    "no agent": ('echo "${SSH_AUTH_SOCK-none}"', {"options": ("-A",)}, (0, b"none\n", b"")),
    "no variables of the client": (
        *('echo "${FOREIGN-none}"', {"options": ("-o", "SetEnv=FOREIGN=1")}, (0, b"none\n", b"")),
    ),
}


@pytest.mark.parametrize(("command", "options", "expected"), SESSIONS.values(), ids=SESSIONS)
def test_how_a_session_ends(
    worker: Worker,
    command: str,
    options: dict[str, Any],
    expected: tuple[int | None, bytes, bytes | None],
) -> None:
    """Every session checks the worker's host key strictly against the job's public half."""
    done = worker.ssh(*filter(None, [command]), **options)
    code, out, err = expected
    assert done.stdout == out
    assert done.returncode == code or (code is None and done.returncode != 0)
    assert err is None or err in done.stderr
    assert err != b"" or done.stderr == b""


def test_files_are_served_from_the_users_home(worker: Worker) -> None:
    """SSH_FXP_INIT, and SSH_FXP_REALPATH of the current folder."""
    data = b"\0\0\0\x05\x01\0\0\0\x03" + b"\0\0\0\x0a\x10\0\0\0\x01\0\0\0\x01."
    argv, found = worker.argv("sftp", options=("-s",)), b""
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(data)
        while os.fsencode(worker.home) not in found:
            piece = client.stdout.read(1 << 16)
            assert piece, found
            found += piece


@pytest.mark.parametrize("name", [name for name in ODD if name != "IFS"])
def test_the_pods_environment_arrives_byte_for_byte(worker: Worker, name: str) -> None:
    done = worker.ssh(
        f"tr '\\0' '\\n' </dev/null; cat /proc/$$/environ | LC_ALL=C grep -az '^{name}='"
    )
    assert done.stdout == os.fsencode(f"{name}={ODD[name]}") + b"\0", done.stderr


def test_a_session_is_the_users_own_and_its_command_leads_it(worker: Worker) -> None:
    done = worker.ssh('echo "$HOME|$USER|$LOGNAME|$PWD|${SSH_CONNECTION##* }|${OLDPWD-}"')
    home, user, logname, folder, port, old = done.stdout.decode().strip("\n").split("|")
    assert (user, home, port, old) == (logname, folder, str(worker.port), "")
    # Read by the shell itself: while it starts another program, all signals are blocked in it.
    status = 'while IFS= read -r line; do printf "%s\\n" "$line"; done < /proc/$$/status; '
    done = worker.ssh(status + 'echo "$$ $(ps -o sid= -p $$) $(ps -o pgid= -p $$)"')
    lines = done.stdout.decode().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert len(set(lines[-1].split())) == 1
    assert int(fields["SigIgn"], 16) & 0x7FFFFFFF == 0  # 32 and 33 are the C library's own
    assert int(fields["SigBlk"], 16) == 0


def test_many_sessions_at_once(worker: Worker) -> None:
    with contextlib.ExitStack() as stack:
        commands = (f"echo ready; cat; exit {number}" for number in range(48))
        clients = [stack.enter_context(worker.client(command)) for command in commands]
        for client in clients:
            assert client.stdout.readline() == b"ready\n"
        assert {client.finish(b"hello") for client in clients} == {b"hello"}
        assert [client.process.returncode for client in clients] == list(range(48))


def descriptors(worker: Worker) -> list[int]:
    """How many files the worker and its server have open, and how many processes they are."""
    own = psutil.Process(worker.process.pid)
    until(lambda: len(own.children()) == 1)  # the facts are gathered
    (server,) = own.children()
    return [own.num_fds(), server.num_fds(), len(own.children(recursive=True))]


@pytest.mark.full
def test_nothing_stays_of_two_hundred_sessions(worker: Worker) -> None:
    assert worker.ssh("true").returncode == 0
    over(worker)
    before = descriptors(worker)
    with ThreadPoolExecutor(10) as pool:
        command = LAUNCH + "setsid sleep 0.2 & echo {0}; exit {0}"
        done = list(pool.map(lambda at: worker.ssh(command.format(at)), range(200)))
    assert [int(one.stdout) for one in done] == [one.returncode for one in done] == [*range(200)]
    over(worker)
    until(lambda: descriptors(worker) == before)


# -- who may come in, and for what -----------------------------------------------------------------


@pytest.mark.parametrize("flag", ["-R", "-W"])
def test_another_key_is_refused_and_nothing_is_forwarded(
    worker: Worker, flag: str, tmp_path: Path
) -> None:
    done = worker.ssh("true", key=make_key(tmp_path / "other", "-t", "ed25519"))
    assert done.returncode == 255
    assert b"Permission denied (publickey)" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as target:
        host = f"127.0.0.1:{target.getsockname()[1]}"
        given = (flag, host if flag == "-W" else f"0:{host}", "-o", "ExitOnForwardFailure=yes")
        command = () if flag == "-W" else ("true",)
        assert worker.ssh(*command, options=given).returncode == 255
        target.setblocking(False)
        with pytest.raises(BlockingIOError):
            target.accept()


# -- the end of a session --------------------------------------------------------------------------

# What an MPI's daemon and its ranks may have started: deaf to TERM, without the environment.
TREE = (
    "setsid sh -c 'trap \"\" TERM HUP; echo $$; exec sleep 1000' & "
    "env -i sleep 1000 & echo $!; sleep 1000 & echo $!; echo $$; "
    "while :; do sleep 1000; done"
)


def test_all_of_an_mpi_daemons_session_ends_with_its_client_and_others_live(worker: Worker) -> None:
    stopped = "sleep 1000 & kill -STOP $!; echo $!; "
    with worker.client("echo $$; exec cat") as other, worker.client(LAUNCH + stopped + TREE) as one:
        (lives,), pids = other.numbers(1), one.numbers(5)
        assert not any(map(ended, pids))
        one.kill()
        gone(*pids)
        assert not ended(lives)
        assert other.finish(b"still here") == b"still here"


def over(worker: Worker) -> None:
    """Wait until the worker checks none of its sessions any more."""
    until(lambda: worker.log.count(" begins") == worker.log.count(" has ended"))


# What `ray start` does, and what lacks setsid: with plain sshd the second one would live, too.
DAEMON = (
    "setsid nohup sleep 1000 >/dev/null 2>&1 & echo $!; nohup sleep 1000 >/dev/null 2>&1 & echo $!"
)


@pytest.mark.parametrize("end", ["", "; echo $$; sleep 1000"], ids=["a login", "a lost client"])
def test_setsid_makes_a_users_process_free(worker: Worker, end: str) -> None:
    with worker.client(DAEMON + end) as client:
        free, *others = client.numbers(3 if end else 2)
        if end:
            client.kill()
        else:
            client.finish()
        gone(*others)
    over(worker)
    assert not ended(free)
    os.kill(free, signal.SIGKILL)


def test_what_begins_when_its_client_is_gone_ends(start: Start, tmp_path: Path) -> None:
    """The shell is an orphan by then, which sshd has left to the container's first process."""
    if not (HAVE_SSHD and can_mount()):
        pytest.skip("needs sshd and an own view of /etc/passwd")
    text = f'[ ! -e {tmp_path}/came ] || exec sh "$@"\n: > {tmp_path}/came\n'
    text += 'while kill -0 $PPID; do sleep 0.05; done 2>&-\nexec sh "$@"'
    late = program(tmp_path, "late", text)
    worker = start("openssh", shell=str(late)).listens()
    command = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 1000"
    with worker.client(command) as client:
        until((tmp_path / "came").exists)
        client.kill()
        until((tmp_path / "pid").exists)
        gone(int((tmp_path / "pid").read_text()))
        over(worker)


# -- the worker's own life -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOTH)
def test_a_term_signal_ends_a_worker_and_its_sessions(kind: str, start: Start) -> None:
    worker = start(kind).listens()
    with worker.client("sleep 1000 & echo $!; echo $$; wait") as client:
        pids = client.numbers(2)
        worker.signal()
        assert worker.wait() == 0
        assert all(map(ended, pids))
    # Nothing of the job's key stays behind.
    assert (worker.runtime / "authorized_keys").exists() == (kind == "openssh")
    left = [item for item in worker.runtime.rglob("*") if item.is_file()]
    assert [item for item in left if b"PRIVATE KEY-----" in item.read_bytes()] == []
    modes = {item.name: item.stat().st_mode & 0o077 for item in worker.runtime.rglob("*")}
    assert modes
    assert not any(modes.values()), modes


LEAVES = "setsid sleep 1000 & echo $!; echo $$; wait"
STUBBORN = "trap '' TERM; sleep 1000 & echo $!; echo $$; while :; do wait; done"


def test_a_second_signal_ends_sessions_that_ignore_the_first_at_once(
    start: Start, tmp_path: Path
) -> None:
    """Were there any grace left, the worker would not end within the test."""
    worker = start("embedded", environ=patched(tmp_path, GRACE.format(1e6))).listens()
    with worker.client(STUBBORN) as client:
        pids = client.numbers(2)
        worker.signal()
        worker.wait_for("SIGTERM: worker stops")
        worker.signal()
        assert worker.wait() == 0
        assert all(map(ended, pids))


def test_a_worker_whose_program_has_ended_leaves_no_session(start: Start, tmp_path: Path) -> None:
    """However long the ranks of a job may save: were it waited for, the worker would not end."""
    end = "import mpiboot.worker.role as role; role._END = 1e6"
    environ = patched(tmp_path, GRACE.format(0.1), end, MPIBOOT_GRACE="1000000")
    script = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 6"
    worker = start("embedded", "sh", "-c", script, environ=environ).listens()
    with worker.client(STUBBORN) as client:
        pids = client.numbers(2)
        (tmp_path / "go").touch()
        assert worker.wait() == 6
        assert all(map(ended, pids))


def test_ranks_that_ignore_the_signal_have_their_grace_and_no_more(start: Start) -> None:
    """The first signal asks them to save, the second ends them with their session."""
    rank = "n=''; trap 'n=x$n' TERM; echo $$; until [ \"$n\" = xx ]; do sleep 0.05; done"
    worker = start("embedded", environ={"MPIBOOT_GRACE": "1"}).listens()
    with worker.client(f"PMIX_RANK=0 sh -c {shlex.quote(rank)}") as client:
        (pid,) = client.numbers(1)
        worker.signal()
        assert worker.wait() == 0
        assert ended(pid)
    assert "ranks did not end within MPIBOOT_GRACE; stopping them" in worker.log


# It needs seconds to save; in Python, for a shell's own sleep would be told to end too.
SAVES = """
import os, pathlib, signal, sys, time
def save(number, frame):
    time.sleep(int(sys.argv[1]))
    pathlib.Path(sys.argv[2]).touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.mark.parametrize(("grace", "seconds"), [("1000", 1), ("0", 1000)])
def test_what_a_lost_connection_leaves_has_the_grace_to_save(
    start: Start, tmp_path: Path, grace: str, seconds: int
) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    environ = patched(tmp_path, GRACE.format(0.1), MPIBOOT_GRACE=grace)
    worker = start("embedded", environ=environ).listens()
    words = f"exec {sys.executable} -S {tmp_path}/saves.py {seconds} {tmp_path}/saved"
    with worker.client(words) as client:
        pids = client.numbers(1)
    gone(*pids)
    assert (tmp_path / "saved").exists() == (seconds == 1)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("signalled", [True, False], ids=["by a signal", "on its own"])
def test_ranks_save_while_a_program_beside_the_server_has_ended(
    kind: str, start: Start, tmp_path: Path, *, signalled: bool
) -> None:
    """Its end was that of the ranks, 5 s later, whatever MPIBOOT_GRACE said."""
    (tmp_path / "saves.py").write_text(SAVES)
    environ = patched(tmp_path, GRACE.format(0.1), MPIBOOT_GRACE="1000")
    script = f"trap 'exit 5' TERM; until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 5"
    worker = start(kind, "sh", "-c", script, environ=environ).listens()
    words = f"PMIX_RANK=0 {sys.executable} -S {tmp_path}/saves.py 1 {tmp_path}/saved"
    with worker.client(words) as client:
        (pid,) = client.numbers(1)
        if signalled:
            worker.signal()
        else:
            (tmp_path / "go").touch()
        assert worker.wait() == 5
        assert ended(pid)
    assert (tmp_path / "saved").exists()
    assert "did not end within" not in worker.log


def test_a_signal_before_the_program_has_started_ends_the_worker(
    start: Start, tmp_path: Path
) -> None:
    environ = stand_in(tmp_path, "echo starting >&2; exec sleep 1000")
    worker = start("openssh", "sh", "-c", "echo the program runs", environ=environ)
    worker.wait_for("sshd: starting")
    worker.signal(signal.SIGINT)
    assert worker.wait() == 130
    assert "SIGINT: worker stops" in worker.log
    assert "the program runs" not in worker.log


@pytest.mark.parametrize("kind", BOTH)
def test_a_worker_ends_when_no_launcher_comes_after_a_failed_one(kind: str, start: Start) -> None:
    environ = {"MPIBOOT_WORKER_EXIT": "after-job", "MPIBOOT_LAUNCHER_AWAY": "0"}
    worker = start(kind, environ=environ).listens()
    assert worker.run(host_shell.gate(attempt="l@1@a")).returncode == 0
    with worker.client("echo here; cat") as other:
        assert other.stdout.readline() == b"here\n"
        worker.run(host_shell.job_failed("l@1@a", 0, "host-lost: w-1"))
        until(lambda: b"host-lost" in (worker.runtime / "attempts").read_bytes())
        told = host_shell.read(worker.run(host_shell.gate(attempt="l@2@b")).stdout.decode())
        assert told.attempts == (("l@1@a", "host-lost: w-1"),)
        assert told.counters.keys() >= {"lo"}
        for word in ("no 'such\n* program", "grüße"):
            query = host_shell.ask(host_shell.lacks(word, "", ""))
            found = host_shell.read(worker.run(query).stdout.decode())
            assert found.lacks == (("name", word),)
        worker.run(host_shell.job_failed("l@2@b", 0, "again"))
        assert worker.process.poll() is None  # somebody is connected
    assert worker.wait() == 0
    assert "no launcher for 0s; worker stops" in worker.log


def test_a_worker_gathers_its_facts_anew_or_reports_why_not(worker: Worker) -> None:
    def look() -> HostAnswer:
        query = host_shell.ask("run_script look", "facts")
        return host_shell.read(worker.run(query).stdout.decode())

    path = worker.runtime / "facts.json"
    until(path.exists)
    path.write_text("older")
    found = look()
    assert json.loads(found.facts or "")["hostname"]
    assert found.facts_error == ""
    path.unlink()
    path.mkdir()
    assert "facts.json" in look().facts_error
    path.rmdir()


def test_a_second_worker_is_refused_and_changes_nothing_of_the_first(worker: Worker) -> None:
    """As a mistyped command of `kubectl exec` begins one."""
    other = copy(worker).start()
    with other.process:
        assert other.wait() == 2
    assert "this container's worker runs already" in other.log
    other.program = ("echo", "as without mpiboot")
    with other.start().process:
        assert other.wait() == 0
    assert "\nas without mpiboot" in other.log
    query = host_shell.ask("run_script look", "facts")
    assert host_shell.read(worker.run(query).stdout.decode()).facts


@pytest.mark.parametrize("wanted", ["never", "with-job"])
def test_a_worker_that_does_not_end_after_a_failed_job(wanted: str, start: Start) -> None:
    environ = {"MPIBOOT_WORKER_EXIT": wanted, "MPIBOOT_LAUNCHER_AWAY": "0"}
    worker = start("embedded", environ=environ).listens()
    worker.run(host_shell.gate(attempt="l@1@a"))
    worker.run(host_shell.job_failed("l@1@a", 0, "host-lost: w-1"))
    assert worker.ssh("exit 4").returncode == 4
    worker.run(host_shell.ask(host_shell.JOB_IS_OVER))
    if wanted == "never":
        assert worker.ssh("exit 4").returncode == 4
    else:
        assert worker.wait() == 0
        assert "job succeeded; worker stops" in worker.log


def test_without_pidfd_a_worker_serves_and_ends_what_is_left(start: Start, tmp_path: Path) -> None:
    """As on kernels before 5.3 and in some sandboxes; a vendor's profile runs as well."""
    (tmp_path / "profile").write_text("export OF_PROFILE=here\n")
    profile = str(tmp_path / "profile")
    environ = patched(tmp_path, "import os; del os.pidfd_open", MPIBOOT_ENV_PROFILE=profile)
    worker = start("auto", environ=environ).listens()
    assert "no pidfd" in worker.wait_for("using the embedded SSH server")
    assert worker.ssh('echo "$OF_PROFILE"').stdout == b"here\n"
    with worker.client(LAUNCH + LEAVES) as client:
        pids = client.numbers(2)
        client.kill()
        gone(*pids)
    assert worker.stop() == 0


@pytest.mark.parametrize("kind", BOTH)
def test_a_terminals_ctrl_c_is_the_workers_alone(kind: str, start: Start, tmp_path: Path) -> None:
    """The server would end by it too, and be started again for sessions that still save."""
    rank = f"trap '' TERM; echo $$; until [ -e {tmp_path}/saved ]; do sleep 0.05; done"
    environ = {"MPIBOOT_GRACE": "1000"}
    worker = start(kind, environ=environ, own_session=True).listens()
    with worker.client(f"PMIX_RANK=0 sh -c {shlex.quote(rank)}") as client:
        client.numbers(1)
        os.killpg(worker.process.pid, signal.SIGINT)
        worker.wait_for("SIGINT: worker stops")
        assert worker.ssh("echo still here").stdout == b"still here\n"
        (tmp_path / "saved").touch()
        assert worker.wait() == 130
    assert "started again" not in worker.log


@pytest.mark.parametrize("kind", BOTH)
def test_who_listens_and_where_is_logged_and_written(kind: str, start: Start) -> None:
    worker = start(kind)
    argv = ["ssh-keygen", "-l", "-f", str(worker.key)]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[1]
    line = worker.wait_for("listens on")
    assert f"sshd ({kind}) listens on 127.0.0.1:{worker.port} as " in line
    assert shown in line
    assert json.loads((worker.runtime / "worker.json").read_text()) == {
        "pid": worker.process.pid,
        "sshd": kind,
        "address": "127.0.0.1",
        "port": worker.port,
        "reason": "MPIBOOT_SSHD=embedded" if kind == "embedded" else "",
    }
    with pytest.raises(ConnectionRefusedError):  # at the control address alone
        socket.create_connection(("127.0.0.2", worker.port), timeout=PATIENCE)


LOOP = "echo ready; while :; do sleep 0.1; done"


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("script", "number", "code"),
    [
        ("exit 7", 0, 7),
        ("kill -USR1 $$; sleep 1000", 0, 128 + signal.SIGUSR1),
        (f"trap 'exit 5' TERM; {LOOP}", signal.SIGTERM, 5),
        (f"trap '' TERM; {LOOP}", signal.SIGTERM, 128 + signal.SIGKILL),
        (f"trap 'exit 3' USR1; {LOOP}", signal.SIGUSR1, 3),
    ],
    ids=["its status", "its signal", "TERM is passed on", "killed after the grace", "USR1 too"],
)
def test_how_the_program_ends_is_how_the_worker_does(
    kind: str, script: str, number: int, code: int, start: Start
) -> None:
    worker = start(kind, "sh", "-c", script, environ={"MPIBOOT_GRACE": "0.2"})
    if number:
        worker.wait_for("ready")
        worker.signal(number)
    assert worker.wait() == code


def test_a_program_that_is_missing_is_an_error(start: Start) -> None:
    worker = start("auto", "nothing-such")
    assert worker.wait() == 127
    assert "nothing-such is not on PATH" in worker.log
    # Its sshd, which listened already, ends with it.
    until(lambda: not listens(worker.port))


def test_a_key_that_is_mounted_late_is_waited_for(start: Start) -> None:
    worker = start("auto", with_key=False)
    worker.wait_for("waiting for the job's SSH key")
    make_key(worker.key, "-t", "ed25519")
    assert worker.listens().ssh("exit 4").returncode == 4
    worker = start("auto", with_key=False, environ={"MPIBOOT_TIMEOUT": "0.2"})
    assert worker.wait() == 77
    assert "no private SSH key in" in worker.log


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_wait_for_the_key(start: Start, number: int, code: int) -> None:
    worker = start("auto", with_key=False)
    worker.wait_for("waiting for the job's SSH key")
    worker.signal(number)
    assert worker.wait() == code
    assert f"{signal.Signals(number).name}: worker stops" in worker.log


@pytest.mark.parametrize("kind", BOTH)
def test_a_worker_waits_for_months_where_it_is_to(kind: str, start: Start) -> None:
    """An epoll waits for 24.8 days at most, and raised above."""
    names = ("GRACE", "TIMEOUT", "LAUNCHER_AWAY", "SSH_KEEPALIVE")
    environ = {f"MPIBOOT_{name}": "800h" for name in names} | {"MPIBOOT_WORKER_EXIT": "after-job"}
    worker = start(kind, environ=environ).listens()
    assert worker.run(host_shell.gate(attempt="l@1@a")).returncode == 0
    with worker.client("PMIX_RANK=0 sh -c 'echo $$; exec sleep 1000'") as client:
        (pid,) = client.numbers(1)
        worker.signal()
        assert worker.wait() == 0
        assert ended(pid)


@pytest.mark.parametrize("kind", BOTH)
def test_a_line_that_can_not_be_noted_makes_no_worker_deaf(kind: str, start: Start) -> None:
    """As on a full disk: the sessions behind those lines still end with their connections."""
    worker = start(kind).listens()
    (worker.runtime / "attempts" / "in the way").mkdir(parents=True)
    assert worker.run(host_shell.gate(attempt="l@1@a")).returncode == 0
    worker.wait_for("earlier attempts can't be noted")
    with worker.client(LAUNCH + LEAVES) as client:
        pids = client.numbers(2)
        client.kill()
        gone(*pids)


def test_the_embedded_server_ends_with_a_killed_worker_whose_facts_are_still_gathered(
    start: Start, tmp_path: Path
) -> None:
    note = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid"
    environ = stand_in(tmp_path, f"{note}\nexec sleep 1000", "mpirun")
    worker = start("embedded", environ=environ).listens()
    until((tmp_path / "pid").exists)
    pid, server = int((tmp_path / "pid").read_text()), child(worker, "python")
    try:
        worker.signal(signal.SIGKILL)
        gone(server)
        assert not ended(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["auto", *BOTH])
def test_a_port_that_is_taken_is_an_error(kind: str, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        worker = start(kind, port=number)
        assert worker.wait() == 69
    assert "in use" in worker.log
    assert "name a free one with MPIBOOT_SSH_PORT" in worker.log


@pytest.mark.parametrize("kind", BOTH)
def test_a_server_that_dies_is_restarted_and_its_sessions_live(kind: str, start: Start) -> None:
    """Those of the embedded server end with it, and what left them."""
    name = "sshd" if kind == "openssh" else "python"
    worker = start(kind).listens()

    def listened(times: int) -> bool:
        return worker.log.count(" listens on ") == times

    with worker.client(LAUNCH + "setsid sleep 1000 >&- 2>&- & echo $!; cat") as client:
        (free,) = client.numbers(1)
        for times in (2, 3, 4):
            os.kill(child(worker, name), signal.SIGKILL)
            until(partial(listened, times))
            assert worker.ssh("exit 6").returncode == 6
        if kind == "embedded":
            gone(free)
        assert client.finish(b"alive") == (b"alive" if kind == "openssh" else b"")
    assert worker.log.count("the SSH server died; restarting it in") == 3


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def child(worker: Worker, name: str) -> int:
    children = psutil.Process(worker.process.pid).children()
    return next(process.pid for process in children if name in process.name())


def test_an_sshd_that_cannot_start_makes_room_for_the_embedded_server(
    start: Start, tmp_path: Path
) -> None:
    environ = stand_in(tmp_path, "echo 'fatal: no such luck' >&2\nexit 255")
    worker = start("auto", environ=environ).listens()
    assert "using the embedded SSH server: it ended with 255: fatal: no such luck" in worker.log
    assert worker.ssh("exit 8").returncode == 8
    other = start("openssh", environ=environ)
    assert other.wait() == 69
    assert "fatal: no such luck" in other.log


def test_bash_reads_its_start_file_once_and_with_the_pods_environment(start: Start) -> None:
    if not (can_mount() and shutil.which("bash")):
        pytest.skip("needs bash and an own view of /etc/passwd")
    for kind in (kind for kind in ("openssh", "embedded") if HAVE_SSHD or kind == "embedded"):
        worker = start(kind, shell="/bin/bash", environ={"GOOD": "pod"})
        (worker.home / ".bashrc").write_text('COUNT=x$COUNT; GOOD="$GOOD and user"; export GOOD\n')
        worker.listens()
        # Debian's bash reads it for commands over SSH, as it does for a stock worker.
        out = worker.ssh("echo $COUNT $GOOD").stdout.decode()
        assert out in ("x pod and user\n", "pod\n")
        assert worker.ssh("echo $0").stdout == b"/bin/bash\n"


@pytest.mark.parametrize("kind", BOTH)
def test_as_first_process_it_leaves_no_zombie(kind: str, tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("needs root and unshare")
    space = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    worker = Worker(tmp_path / "worker", kind)
    worker.wrap = (*worker.wrap, *space)
    worker.start()
    try:
        worker.listens()
        orphan = "(sleep 0.1 & sleep 0.2 &) >/dev/null 2>&1 </dev/null; exit 3"
        for _ in range(5):
            assert worker.ssh(orphan).returncode == 3
        # Every orphan has ended when the last of its session's marks is gone.
        until(lambda: worker.log.count(" has ended") >= 5)
        states = "cat /proc/[0-9]*/stat | sed 's/.*) //'"
        assert worker.ssh(states).stdout.count(b"\n") > 3
        until(lambda: b"\nZ " not in worker.ssh(states).stdout)
        os.kill(psutil.Process(worker.process.pid).children()[0].pid, signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        worker.stop()
