from __future__ import annotations

import contextlib
import json
import os
import pickle
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import mpiboot
from mpiboot.core.facts import HostAnswer
from mpiboot.core.launch_spec import (
    EVENTS,
    KEY,
    LAUNCH_DIR,
    LAUNCH_ID,
    LAUNCHES,
    LOGINS,
    PASSED_BY,
    TIMED,
)
from mpiboot.core.model import LogFormat, write_records
from mpiboot.network.records import CountedPort, Transport
from mpiboot.supervisor import evidence
from mpiboot.supervisor.job import LaunchSpec, Verdict
from tests.fakes import launches
from tests.supervisor.answering import gone
from tests.waiting import until

PACKAGE = Path(mpiboot.__file__).parent
AGENT = PACKAGE / "libexec" / "agent"
LAUNCHER = [sys.executable, "-m", "tests.launcher.launching"]
GUARD = 200.0
# What a worker's address answers from: another loopback address, where somebody may listen.
WORKER = "127.0.0.2"

pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="bash plays mpirun")


class Rig:
    """A launch whose mpirun is a script, run by a bash that is called mpirun."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "launch"
        for name in ("hosts", "stderr"):
            (self.folder / name).mkdir(parents=True)
        os.mkfifo(self.folder / EVENTS)
        self.mpirun = folder / "mpirun"
        shutil.copy(shutil.which("bash") or "", self.mpirun)
        self.log = folder / "termination-log"
        self.log.touch()
        self.started: list[subprocess.Popen[bytes]] = []
        self.spec: dict[str, Any] = {
            "folder": str(self.folder),
            "hosts": 1,
            "ranks": 2,
            "set_env": {LAUNCH_DIR: str(self.folder), LAUNCH_ID: f"of-{self.folder}"},
        }
        self.flags = {"termination_log": str(self.log), "launch_timeout": "30"}
        self.attempt = ""
        # Scripts: what comes before mpirun, and how workers are told that it is not started.
        self.prepares = self.notifies = ""
        self.unset: tuple[str, ...] = ()
        self.environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PACKAGE.parent),
            "AGENT": str(AGENT),
        }
        self.ssh("exit 0")

    def ssh(self, body: str) -> None:
        """Say what a session does; ``$log`` is the file of its own words, ``$*`` what it was told.

        It is an agent's, as the user's own program, or a query's, where ``$QUERY`` is set.
        """
        path = self.folder / "ssh"
        path.write_text(
            f'while [ "${{1#w-}}" = "$1" ]; do shift; done\n'
            f"cd {self.folder}\nlog=stderr/$1\n{body}\n"
        )
        (self.folder / "agent.conf").write_text(f"user_agent='sh {path}'\n")

    def remote(self, *names: str, **changes: object) -> None:
        """Let the line use remote hosts."""
        self.spec |= {"remote_hosts": names, "hosts": len(names) or 1, **changes}

    def write(self, script: str) -> None:
        argv = {"argv": (str(self.mpirun), "-c", script)}
        self.hand_over(launches.spec(**argv | self.spec, flags=self.flags))

    def hand_over(self, result: LaunchSpec | Verdict) -> None:
        (self.folder / "result").write_bytes(pickle.dumps(result))

    def argv(self, launcher: Sequence[str] = LAUNCHER, **more: object) -> list[str]:
        given = {"flags": self.flags, "folder": str(self.folder), "unset": self.unset, **more}
        given |= {"prepares": self.prepares, "notifies": self.notifies, "attempt": self.attempt}
        return [*launcher, "command" if more else "launch", json.dumps(given)]

    def start(self, script: str, stdin: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        self.write(script)
        return self.start_launcher(stdin)

    def start_launcher(self, stdin: int = subprocess.PIPE, **how: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
        """Start it; of a pipe that stays open a script's ``read -t`` waits, and doesn't spin."""
        given: dict[str, Any] = {"stdin": stdin, "stdout": subprocess.PIPE, "args": self.argv()}
        given |= {"stderr": subprocess.PIPE, "env": self.environ, **how}
        process: subprocess.Popen[bytes] = subprocess.Popen(**given)
        self.started.append(process)
        return process

    def end(self) -> None:
        """End what a failed test has left: the guard of a killed parent ends its mpirun."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate(timeout=GUARD)

    def run(self, script: str, data: bytes | None = None) -> tuple[int, bytes, str]:
        process = self.start(script, subprocess.DEVNULL if data is None else subprocess.PIPE)
        out, err = process.communicate(data, timeout=GUARD)
        return process.returncode, out, err.decode()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.end()


def ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, err = process.communicate(timeout=GUARD)
    return process.returncode, err.decode()


def last(message: str) -> str:
    """The first line of the last record; evidence and hint stand below it."""
    lines = message.strip().splitlines()
    return next(line for line in reversed(lines) if not line.startswith("mpiboot:   "))


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("exit 0", 0, "s, 4 hosts, 8 ranks, exit 0"),
        ("exit 3", 3, "s, 4 hosts, 8 ranks, exit 3: mpirun ended with 3, and no rank is"),
        ("exit 127", 127, "mpirun ended with 127"),
        ("exit 255", 255, "mpirun ended with 255"),
        ("kill -9 $$", 137, "mpirun itself was killed by SIGKILL"),
        # 5.0.7 ends its messages with a NUL byte where a peer of a dead rank aborted.
        ("printf 'done\\n\\0' >&2; exit 139", 139, "exit 139: "),
    ],
)
@pytest.mark.parametrize("form", LogFormat)
def test_the_programs_own_code_is_the_end_in_one_line_or_in_fields(
    rig: Rig, script: str, code: int, said: str, form: LogFormat
) -> None:
    rig.spec |= {"hosts": 4, "ranks": 8}
    record = rig.folder / "job.json"
    record.write_text("of an earlier job")
    rig.flags |= {"log_format": form.value, "job_record": str(record)}
    status, _, message = rig.run(script)
    assert status == code
    assert json.loads(record.read_text())["exit"] == code
    if form is LogFormat.HUMAN:
        assert "[mpirun] job ended: " in last(message) or code in (0, 139)
        assert said in message
        return
    end = json.loads(last(message))
    assert said in end["message"]
    assert (end["event"], end["exit"]) == ("ended", code)
    assert (end["hosts"], end["ranks"], end["role"]) == (4, 8, "launcher")
    assert end["seconds"] >= 0


@pytest.mark.parametrize("code", [0, 3, 127])
def test_the_key_is_removed_at_the_end(rig: Rig, code: int) -> None:
    key = rig.folder / KEY
    if code == 127:
        rig.spec["argv"] = ("/nowhere/mpirun",)
    key.write_text("secret")
    assert rig.run(f"[ -e {key} ] || exit 9; exit {code}")[0] == code
    assert not key.exists()


def test_on_a_terminal_mpirun_reads_it_and_ctrl_c_reaches_it_once(rig: Rig) -> None:
    rig.write("trap 'echo got-int; exit' INT; read l; echo read:$l; while :; do read -t 1; done")
    terminal, inner = pty.openpty()
    argv, seen = ["setsid", "--ctty", *rig.argv()], b""
    process = rig.start_launcher(inner, args=argv, stdout=inner, stderr=inner)
    os.close(inner)
    for typed, words in ((b"typed\n", b"read:typed"), (b"\x03", b"never")):
        os.write(terminal, typed)
        with contextlib.suppress(OSError):  # the terminal is gone with its last process
            while words not in seen:
                seen += os.read(terminal, 4096)
    os.close(terminal)
    assert (process.wait(GUARD), seen.count(b"got-int")) == (130, 1)


def test_streams_pass_untouched_and_stdout_is_the_programs_alone(rig: Rig) -> None:
    data = bytes(range(256)) * 4000
    code, out, message = rig.run("cat; echo own words >&2", data)
    assert (code, out) == (0, data)
    assert "own words\n" in message
    assert last(message).startswith("mpiboot: job ended: ")


def test_mpiruns_own_words_go_on_and_name_the_rank_that_ended_first(rig: Rig) -> None:
    """The real ones are in the rig; here is what the parent does with them."""
    rig.spec["family"] = "openmpi5"
    table = "(rank, host, exe, pid) = (3, w-7, ./a, 16)"
    state = "[h:1] [p@0,0] [1.2] ACTIVATE PROC [p@1,3] STATE ABORTED BY SIGNAL AT x:1"
    code, out, message = rig.run(
        f"exec 9>&$PMIX_OUTPUT_STDERR_FD; echo to the program; echo '{state}' >&9; "
        f"echo '{table}' >{rig.folder}/placement; printf 'help\nme' >&9; exit 139"
    )
    assert (code, out) == (139, b"to the program\n")
    assert "help\nme" in message
    assert "ACTIVATE" not in message
    assert "exit 139: w-7: rank 3 was ended by SIGSEGV" in last(message)
    assert rig.log.read_text().startswith("program: w-7: rank 3 was ended by SIGSEGV\n")


@pytest.mark.parametrize("supervise", [True, False])
def test_mpirun_gets_its_environment_and_default_signals(rig: Rig, *, supervise: bool) -> None:
    rig.environ |= {"GONE": "once", "KEPT": "a b"}
    rig.spec["set_env"]["ADDED"] = "a \u00e9 'b'"
    rig.flags["supervise"] = "on" if supervise else "off"
    rig.unset = ("GONE",)
    process = rig.start(
        'echo $$; echo "$ADDED|$KEPT|${GONE-none}"; exec grep -E "^Sig(Ign|Blk)" /proc/self/status'
    )
    out, message = process.communicate(timeout=GUARD)
    pid, words, *masks = out.decode().splitlines()
    assert (process.returncode, words) == (0, "a \u00e9 'b'|a b|none")
    # Without supervision this process has become mpirun.
    assert (int(pid) != process.pid, b"job ended" in message) == (supervise, supervise)
    # The real-time signals belong to the C library, and may be ignored from the start.
    plain = (1 << 31) - 1
    assert [int(line.split()[1], 16) & plain for line in masks] == [0, 0]


@pytest.mark.parametrize(
    ("path", "supervise"),
    [
        ("/nonexistent/mpirun", True),
        ("/nonexistent/mpirun", False),
        ("no-such-mpirun", True),
        ("/etc/passwd", True),
    ],
)
def test_an_mpirun_that_can_not_be_started_is_127_in_a_clear_line(
    rig: Rig, path: str, *, supervise: bool
) -> None:
    rig.spec["argv"] = (path, "-n", "2")
    rig.flags["supervise"] = "on" if supervise else "off"
    code, out, message = rig.run("")
    assert (code, out) == (127, b"")
    assert last(message).startswith("mpiboot: error: [program-missing] job ended: ")
    assert f"exit 127: {path}: " in last(message)
    assert "Traceback" not in message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_is_forwarded_and_never_ends_in_0(rig: Rig, number: signal.Signals) -> None:
    name = number.name[3:]
    process = rig.start(
        f"trap 'echo got >&2; exit 0' {name}; echo ready; while :; do read -t 1; done"
    )
    ready(process)
    process.send_signal(number)
    code, message = ended(process)
    assert code == 128 + number, message
    assert message.count("got\n") == 1
    assert f"ended by {number.name} (mpirun itself returned 0)" in last(message)
    assert rig.log.read_text().startswith("signal: ended by ")


def test_an_mpirun_that_ignores_signals_is_killed_with_all_that_it_started(rig: Rig) -> None:
    process = rig.start("trap '' TERM INT; sleep 300 & echo ready $!; while :; do read -t 1; done")
    assert process.stdout
    child = int(process.stdout.readline().split()[1])
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        # Blocked signals of one number are one: the next is sent when this one was taken in.
        heard(process, "got SIGTERM")
    code, message = ended(process)
    assert code == 143
    assert "mpirun had to be killed" in last(message)
    assert gone(child)


def heard(process: subprocess.Popen[bytes], words: str) -> None:
    assert process.stderr
    for line in iter(process.stderr.readline, b""):
        if words in line.decode():
            return
    raise AssertionError(words)


def full_pipe() -> tuple[int, int]:
    """A pipe that nobody reads, and that takes no byte more."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 512)
    os.set_blocking(writer, True)
    return reader, writer


@pytest.mark.parametrize(
    "to",
    ["", ">&$PMIX_OUTPUT_STDERR_FD", ">&2"],
    ids=["own lines", "mpirun's messages", "mpirun's stderr"],
)
def test_a_reader_of_stderr_that_stands_still_stops_no_signal(rig: Rig, to: str) -> None:
    rig.spec["family"] = "openmpi5"
    flood = f"yes 'a message of mpirun' {to} & " if to else ""
    rig.write(f"{flood}trap 'exit 0' TERM; echo ready; while :; do read -t 1; done")
    reader, writer = full_pipe()
    process = rig.start_launcher(subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    ready(process)
    process.terminate()
    process.communicate(timeout=GUARD)
    os.close(reader)
    assert process.returncode == 143
    assert rig.log.read_text().startswith("signal: ended by SIGTERM")


def test_an_error_in_mpiboot_leaves_no_mpirun_without_a_parent(rig: Rig) -> None:
    rig.write("trap '' TERM; sleep 300 >&- 2>&- & echo ready $! $$; while :; do read -t 1; done")
    fault = (
        "from mpiboot.supervisor import mpirun\n"
        "from tests.launcher import launching\n"
        "def fail(*_): raise KeyError('odd')\n"
        "mpirun.Mpirun._feed = fail\n"
        "launching.main()\n"
    )
    process = rig.start_launcher(args=rig.argv([sys.executable, "-c", fault]), cwd=PACKAGE.parent)
    assert process.stdout
    started = [int(word) for word in process.stdout.readline().split()[1:]]
    process.send_signal(signal.SIGUSR1)
    code, message = ended(process)
    assert code == 70
    assert "[bug] the launcher failed: KeyError: 'odd'" in message
    assert all(map(gone, started))


def test_a_launcher_that_is_killed_by_the_first_thing_that_mpirun_does_takes_it_along(
    rig: Rig,
) -> None:
    started = rig.folder / "pid"
    process = rig.start(f"echo $$ > {started}; kill -KILL $PPID; while :; do sleep 1; done")
    code, message = ended(process)
    assert code == -signal.SIGKILL
    assert "the launcher was killed: ended " in message
    assert gone(int(started.read_text()))


ADOPTS = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
subprocess.run(sys.argv[1:], check=True)
print(os.waitpid(-1, os.WNOHANG))
"""


def test_a_launcher_that_ends_leaves_no_guard(rig: Rig) -> None:
    """Not even a zombie, which a first process such as `sleep` would keep for ever."""
    rig.write("exit 0")
    adopter = [sys.executable, "-c", ADOPTS, *rig.argv()]
    done = subprocess.run(
        adopter, capture_output=True, text=True, env=rig.environ, timeout=GUARD, check=False
    )
    assert "ChildProcessError" in done.stderr, "it was left a process"


def test_what_mpirun_leaves_is_ended_whoever_its_parent_is(rig: Rig) -> None:
    _, out, _ = rig.run(
        "setsid sleep 300 >&- 2>&- & echo $!; trap '' TERM; sleep 300 >&- 2>&- & echo $!"
    )
    for pid in out.split():
        assert gone(int(pid))


WAITING = "while [ ! -e {folder}/over ]; do sleep 0.05; done"


def joining(rig: Rig, then: str, hosts: str = "w-1") -> str:
    """Make an mpirun whose agents are connected, and that then does something."""
    started = "\n".join(f"$AGENT -x {host} orted &" for host in hosts.split())
    lines = "".join(f"connected {host}\\n" for host in hosts.split())
    return f"{started}\nprintf '{lines}' 1<> {rig.folder}/{EVENTS}\n{then}"


def test_an_mpirun_that_uses_no_remote_host_is_not_ended_and_its_hosts_are_named(rig: Rig) -> None:
    rig.remote("w-1", obstacles=(("OMPI_MCA_plm", "not ssh"),))
    rig.flags["launch_timeout"] = "0.3"
    code, _, message = rig.run("sleep 1 & wait")
    assert code == 0
    assert "mpirun started no daemon on 1 of 1 host: w-1; OMPI_MCA_plm: not ssh" in message
    assert rig.run("exit 4")[0] == 4


@pytest.mark.parametrize("ssh", ["exit 0", "exec sleep 300"], ids=["lies", "hangs"])
def test_an_agent_that_lies_or_hangs_ends_by_the_launch_timeout_of_the_user(
    rig: Rig, ssh: str
) -> None:
    rig.remote("w-1")
    rig.flags["launch_timeout"] = "2"  # it has to come to its start within that
    worker = evidence.HostSnapshot("w-1", "", WORKER, mpiboot=True)
    (rig.folder / "hosts.json").write_text(write_records((worker,)))
    none = """echo 'mpiboot-answer {"version": 1}'"""
    rig.ssh(f'if [ -n "$QUERY" ]; then {none}; exit 0; fi\n{ssh}')
    code, _, message = rig.run("$AGENT -x w-1 orted & wait; sleep infinity & wait")
    assert code == 69
    assert last(message).startswith("mpiboot: error: [launch-timeout] job ended: ")
    assert (
        "exit 69: w-1 (1 of 1 remote hosts): no orted runs there 2 s after mpirun's start"
        in last(message)
    )


def test_hosts_of_which_nothing_is_known_end_no_job(rig: Rig) -> None:
    rig.remote("w-1")
    rig.flags["launch_timeout"] = "0.1"
    rig.ssh(WAITING.format(folder=rig.folder))
    process = rig.start("$AGENT -x w-1 orted & wait; exit 0")
    heard(process, "not every host reports if mpirun's daemon runs there; the job")
    (rig.folder / "over").touch()
    assert ended(process)[0] == 0


# Before mpirun


MISSING = Verdict(68, "names-unresolved", "names-unresolved: w-1: NXDOMAIN\n")


@pytest.mark.parametrize("form", LogFormat)
def test_a_failure_before_mpirun_is_the_launchers_end(rig: Rig, form: LogFormat) -> None:
    record = rig.folder / "job.json"
    rig.flags |= {"log_format": form.value, "job_record": str(record)}
    rig.hand_over(MISSING)
    code, message = ended(rig.start_launcher())
    assert code == 68
    assert rig.log.read_text() == MISSING.message
    found = json.loads(record.read_text())
    assert (found["exit"], found["reference"]) == (68, "names-unresolved")
    if form is LogFormat.HUMAN:  # the preparation itself has logged why
        line = r"mpiboot: error: job did not start: [0-9.]+ s, exit 68 \(names-unresolved\)\n"
        assert re.fullmatch(line, message)
        return
    end = json.loads(last(message))
    told = [end[name] for name in ("event", "level", "exit", "reference")]
    assert told == ["ended", "error", 68, "names-unresolved"]


@pytest.mark.parametrize("started", [True, False])
def test_a_failed_launcher_is_held_until_it_is_told_to_go(rig: Rig, *, started: bool) -> None:
    rig.flags["hold_on_failure"] = "300"
    rig.hand_over(MISSING)
    process = rig.start("exit 9") if started else rig.start_launcher()
    heard(process, "keeping the pod for 5m")
    assert rig.log.read_text().startswith("mpirun: " if started else "names-unresolved: ")
    process.send_signal(signal.SIGUSR1)
    heard(process, "SIGUSR1 is not forwarded: no program runs yet")
    process.terminate()
    assert ended(process)[0] == (9 if started else 68)
    assert rig.run("exit 0")[0] == 0


def test_a_failed_command_is_held_too(rig: Rig) -> None:
    rig.flags["hold_on_failure"] = "300"
    process = beside(rig, "/bin/false")
    heard(process, "keeping the pod for 5m")
    process.terminate()
    assert ended(process)[0] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_who_was_reached_hears_of_the_signal(
    rig: Rig, number: signal.Signals, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    rig.prepares, rig.notifies = "echo ready; exec sleep 300", f"echo it > {told}"
    process = rig.start_launcher()
    ready(process)
    process.send_signal(number)
    code, message = ended(process)
    assert code == 128 + number, message
    assert f"{number.name} while waiting for hosts: nothing was started" in message
    assert last(message).startswith("mpiboot: job did not start: ")
    assert last(message).endswith(f" s, exit {code} (signal)")
    assert rig.log.read_text().startswith(f"signal: {number.name} while waiting")
    assert told.read_text() == "it\n"


def test_who_was_reached_hears_of_a_failure_and_a_signal_ends_that(
    rig: Rig, tmp_path: Path
) -> None:
    """The reason and the code stay those of the failure; nobody holds the launcher any more."""
    rig.flags["hold_on_failure"] = "300"
    rig.hand_over(MISSING)
    told = tmp_path / "told"
    rig.notifies = f"echo it > {told}; echo ready; exec sleep 300"
    process = rig.start_launcher()
    ready(process)
    heard(process, "job did not start")
    process.terminate()
    assert ended(process)[0] == 68
    assert told.read_text() == "it\n"
    assert rig.log.read_text() == MISSING.message


def answer(sent: int, moved: int = 0) -> str:
    """What a worker would answer of its ports: no machine here has such."""
    rail = {"port_xmit_data": sent // 4, "port_rcv_data": sent // 4}
    counters = {"mlx5_1:1": rail, "eth0": {"tx_bytes": moved, "rx_bytes": moved}}
    return f"echo 'mpiboot-answer {json.dumps({'version': 1, 'counters': counters})}'"


def counted_hosts(rig: Rig, *names: str, mpiboot: bool = False) -> None:
    """Write what the gate saw of workers whose counters all stood at 0."""
    ports = (
        CountedPort("mlx5_1:1", "net1", data=True, rdma=True),
        CountedPort("eth0", "eth0", data=False, rdma=False),
    )
    before = {
        "mlx5_1:1": {"port_xmit_data": 0, "port_rcv_data": 0},
        "eth0": {"tx_bytes": 0, "rx_bytes": 0},
    }
    hosts = [
        evidence.HostSnapshot(name, "", WORKER, HostAnswer(counters=before), mpiboot, counted=ports)
        for name in names
    ]
    (rig.folder / "hosts.json").write_text(write_records(hosts))
    rig.spec |= {"transport": Transport.ROCE, "prove_transport": True, "hosts": 2}


USED, UNUSED = (
    "mlx5_1 on net1 sent 1 GiB per worker (RDMA); eth0 1 GiB\n",
    "RDMA was planned, but no",
)


@pytest.mark.parametrize(
    ("prove", "sent", "ends", "code", "verdict", "said"),
    [
        ("warn", 1 << 30, 0, 0, "ok", USED),
        ("warn", 0, 0, 0, "unused", f"warning: [transport] {UNUSED} byte went"),
        ("fail", 1 << 30, 0, 0, "ok", USED),
        ("fail", 0, 0, 76, "unused", "error: [transport] job ended: "),
        ("fail", None, 0, 0, "unknown", "MPIBOOT_PROVE_TRANSPORT=fail can't be applied: w-0, w-1"),
        ("", 0, 0, 0, "none", ""),
        # A job that failed keeps its own verdict.
        ("fail", 0, 3, 3, "unused", f"warning: [transport] {UNUSED} byte went"),
        ("fail", 1 << 30, 3, 3, "ok", USED),
    ],
)
def test_what_carried_the_data_is_logged_and_may_fail_the_job(
    rig: Rig, prove: str, sent: int | None, ends: int, code: int, verdict: str, said: str
) -> None:
    counted_hosts(rig, "w-0", "w-1")
    rig.ssh("exit 0" if sent is None else answer(sent, 1 << 30))
    record = rig.folder / "job.json"
    rig.flags["job_record"] = str(record)
    rig.flags["prove_transport"] = prove or "off"
    status, _, message = rig.run(f"exit {ends}")
    assert status == code, message
    assert said in message
    assert ("data: " in message) == bool(prove)
    told = json.loads(record.read_text())["transport"]
    assert (told["planned"], told["verdict"]) == ("RoCE", verdict)
    assert told.keys() == {"planned", "verdict", "message", "hosts", "moved"}
    reason = {76: "transport: RDMA was planned, but no byte went ", 3: "mpirun: "}.get(code, "")
    assert rig.log.read_text().startswith(reason)


# Reads a query's script, whose last line calls its functions.
SCRIPT = 'until [ "${line#\'{ \'}" != "$line" ]; do IFS= read -r line; done\n'


def test_a_measurement_whose_time_is_over_ends_well_and_is_counted(rig: Rig) -> None:
    counted_hosts(rig, "w-0", mpiboot=True)
    rig.ssh(
        f"{SCRIPT}case $line in *' notify_worker over;'*) echo over >> sessions ;; esac\n"
        f"{answer(16)}"
    )
    rig.attempt = "l@1@a"
    rig.environ[TIMED] = "1"
    process = rig.start("trap 'exit 1' HUP; echo ready; while :; do read -t 1; done")
    ready(process)
    process.send_signal(signal.SIGHUP)
    code, message = ended(process)
    assert code == 0, message
    assert "mpiboot: data: mlx5_1 on net1 sent 16 bytes per worker (RDMA)" in message
    assert last(message).endswith("exit 0: time is up")
    assert (rig.folder / "sessions").read_text() == "over\n"


def test_nothing_wakes_it_while_a_job_runs(rig: Rig) -> None:
    rig.spec["family"] = "openmpi5"  # with two pipes to read
    process = rig.start("echo ready; while :; do read -t 60; done")
    ready(process)
    status = Path(f"/proc/{process.pid}/status")

    def switches() -> int:
        words = status.read_text().split()
        return int(words[words.index("voluntary_ctxt_switches:") + 1])

    def more() -> int:
        before = switches()
        time.sleep(1.5)
        return switches() - before

    # On a loaded machine it takes a while until all is done that comes with the start.
    assert any(more() <= 1 for _ in range(20))
    process.terminate()
    ended(process)


def test_a_signal_while_workers_are_notified_of_no_start_goes_to_nobody(rig: Rig) -> None:
    """There is no mpirun to send it to: 0 would be the process group of mpiboot itself."""
    rig.attempt = "launcher 7"
    rig.remote("w-1")
    worker = evidence.HostSnapshot("w-1", "", WORKER, mpiboot=True)
    (rig.folder / "hosts.json").write_text(write_records((worker,)))
    rig.ssh(": > asked; exec sleep 1000")
    rig.spec["argv"] = ("/nonexistent/mpirun",)
    rig.write("")
    process = rig.start_launcher(start_new_session=True)
    until((rig.folder / "asked").exists)
    process.terminate()
    code, message = ended(process)
    assert code == 127, message
    assert "exit 127: /nonexistent/mpirun: " in last(message)


def test_a_process_that_keeps_mpiruns_stderr_delays_no_end(rig: Rig, tmp_path: Path) -> None:
    """It has left the launch, as a server that a rank starts with an environment of its own."""
    rig.spec["family"] = "openmpi5"
    pid = tmp_path / "pid"
    left = f"""sh -c 'trap "" PIPE; echo $$ > {pid}; while :; do echo more >&2; done'"""
    process = rig.start(
        f"env -i PATH=$PATH setsid {left} >&- & until [ -s {pid} ]; do sleep 0.05; done; "
        "echo the last of mpirun >&2; exit 7"
    )
    try:
        code, message = ended(process)
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)  # it is still there
    assert code == 7
    before, _, after = message.rpartition("mpiboot: error: [mpirun] job ended")
    assert after
    assert "the last of mpirun\n" in before


# A command that is no launch, and the launcher's process that stays beside it


def beside(rig: Rig, *words: str, **more: object) -> subprocess.Popen[bytes]:
    """Start it beside a command."""
    given = {"flags": rig.flags, "program": words, "folder": str(rig.folder), **more}
    argv = [*LAUNCHER, "command", json.dumps(given)]
    return rig.start_launcher(subprocess.DEVNULL, args=argv)


HINT = "-> it called no mpirun (sudo, su, env -i hide one): `mpirun /bin/sh ..."


@pytest.mark.parametrize(
    ("launches", "code", "said", "termination"),
    [
        (None, 0, f"ended with 0\n  {HINT}", ""),
        (None, 5, f"ended with 5\n  {HINT}", f"program: /bin/sh ended with 5\n{HINT}"),
        ([], 0, "ended with 0\n", ""),
        ([], 5, "[program] /bin/sh ended with 5\n", "program: /bin/sh ended with 5\n"),
        ([("mpirun a", 3)], 0, "warning: [launch] /bin/sh ended with 0, but its mpirun ended", ""),
        ([("mpirun a", 3), ("mpirun a", 0)], 0, "ended with 0\n", ""),
        ([("mpirun a", 3), ("mpiexec a", 0)], 0, "but its mpirun ended with 3", ""),
        ([("mpirun a", 3), ("/bin/orterun b", 4)], 0, "but its orterun ended with 4", ""),
    ],
)
def test_its_end_is_told_with_what_its_launches_did(
    rig: Rig, launches: list[tuple[str, int]] | None, code: int, said: str, termination: str
) -> None:
    rig.flags["job_record"] = str(rig.folder / "record")
    if launches is not None:
        lines = (json.dumps((line.split(), code, ())) + "\n" for line, code in launches)
        (rig.folder / LAUNCHES).write_text("".join(lines) + '[["mpirun", "./a')  # a full disk
    process = beside(rig, "/bin/sh", "-c", f"exit {code}")
    out, err = process.communicate(timeout=60)
    text = err.decode().replace("mpiboot:  ", " ")
    assert (process.returncode, out) == (code, b"")
    assert said in text
    assert termination in rig.log.read_text()
    record = json.loads((rig.folder / "record").read_text())
    failed = "its " in said
    assert record["exit"] == code
    assert record["reason"].startswith(f"/bin/sh ended with {code}")
    assert (", but its " in record["reason"]) is failed
    assert rig.log.read_text().startswith("launch: /bin/sh ended with 0, but its ") is failed


@pytest.mark.parametrize("launch", [False, True])
def test_an_mpirun_that_was_not_mpiboots_is_told_where_no_other_was(
    rig: Rig, *, launch: bool
) -> None:
    (rig.folder / PASSED_BY).touch()
    if launch:
        (rig.folder / LAUNCHES).touch()
    code, message = ended(beside(rig, "/bin/true"))
    assert code == 0
    assert ("its mpirun was not mpiboot's" in message) is not launch
    assert "it called no mpirun" not in message


def test_a_script_removes_the_key_of_its_logins(rig: Rig) -> None:
    key = rig.folder / LOGINS / KEY
    key.parent.mkdir()
    key.write_text("secret")
    assert ended(beside(rig, "/bin/sh", "-c", f"[ -e {key} ] && exit 4"))[0] == 4
    assert not key.exists()


BAD = '[["mpirun"], 3, []]\n[["mpirun"], 0, []]'


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ("exit 0", 0, ""),
        ("echo accuracy > LOG", 0, "accuracy\n"),
        (f"echo launch: why > LOG; echo '{BAD}' > BELOW", 0, ""),  # a later launch was good
        ("exit 7", 7, "program: /bin/sh ended with 7\n"),
        ("kill -KILL $$", 137, "program: /bin/sh ended with 137\n"),
        ("kill -TERM $PPID; wait", 143, "signal: /bin/sh ended with 143\n"),
        # As an mpirun below it writes.
        ("echo host-lost: w-1 > LOG; exit 69", 69, "host-lost: w-1\n"),
    ],
)
def test_a_script_that_failed_is_the_reason_where_nothing_below_it_wrote_a_better_one(
    rig: Rig, script: str, code: int, message: str
) -> None:
    rig.log.write_text("before\n")  # of another command in this container
    (rig.folder / LAUNCHES).touch()
    script = script.replace("LOG", str(rig.log)).replace("BELOW", str(rig.folder / LAUNCHES))
    process = beside(rig, "/bin/sh", "-c", script)
    assert ended(process)[0] == code
    assert rig.log.read_text() == message


def test_all_signals_are_passed_on_and_sigterm_ends_it(rig: Rig) -> None:
    """A program may handle any other, and go on."""
    trap = 'trap "echo hup >&2" HUP; trap "exit 0" TERM; trap "echo usr >&2" USR1'
    process = beside(rig, "/bin/sh", "-c", f"{trap}; echo ready; while :; do sleep 0.1; done")
    ready(process)
    for number, word in ((signal.SIGUSR1, "usr"), (signal.SIGHUP, "hup")):
        process.send_signal(number)
        heard(process, word)
    process.send_signal(signal.SIGTERM)
    code, message = ended(process)
    assert code == 143
    assert last(message) == "mpiboot: /bin/sh ended with 143"


def test_a_program_that_does_not_end_is_killed_when_its_time_is_over(rig: Rig) -> None:
    text = "trap '' TERM; sleep 1000 & echo $!; echo ready; while :; do sleep 1; done"
    rig.flags["grace"] = "0"
    process = beside(rig, "/bin/sh", "-c", text)
    assert process.stdout is not None
    below = int(process.stdout.readline())
    ready(process)
    process.send_signal(signal.SIGTERM)
    code, message = ended(process)
    assert code == 143
    assert "warning: /bin/sh did not end in time; killing it" in message
    while not gone(below):
        os.sched_yield()
