"""Workers are asked, let go or told to save by the real launch agent, whose ssh is this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mpiboot.core.launch_names import TRANSPORT
from mpiboot.hosts import host_shell
from mpiboot.network.counters import QUESTION, CountedPort
from mpiboot.supervisor import ask_workers, evidence, stop_ranks, workers
from mpiboot.supervisor.workers import Workers
from mpiboot.system.loop import EventLoop
from mpiboot.system.spawn import spawn
from tests.waiting import until

Answer = TypeVar("Answer")
OOM = "out of memory: the kernel killed a process of this pod"


class Ssh:
    """A program named ssh: what each host answers is a line of shell; one without is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents: dict[int, tuple[str, ...]] = {}
        program = folder / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(
            f"#!/bin/sh\ncd {shlex.quote(str(folder))}\nhost=$1; shift\n"
            'printf "%s" "$*" > "asked-$host"\n[ -e "$host" ] || exit 255\n. "./$host"\n'
        )
        program.chmod(0o755)

    def answers(self, host: str, text: str) -> evidence.HostSnapshot:
        (self.folder / host).write_text(text)
        return self.before(host)

    def before(self, host: str, *, mpiboot: bool = False, dns: str = "") -> evidence.HostSnapshot:
        return evidence.HostSnapshot(host, dns, "10.0.0.2", host, oom_kills=1, mpiboot=mpiboot)

    def write(self, *hosts: evidence.HostSnapshot) -> str:
        (self.folder / evidence.FILE).write_text(json.dumps([asdict(host) for host in hosts]))
        return str(self.folder)

    def asked(self) -> dict[str, str]:
        return {
            path.name.removeprefix("asked-"): path.read_text()
            for path in self.folder.glob("asked-*")
        }

    def run(self, asks: Awaitable[Answer]) -> Answer:
        """Run to the end, and that of every agent."""

        async def whole() -> Answer:
            return await asks

        found = asyncio.run(whole())
        self.no_agent_is_left()
        return found

    def no_agent_is_left(self) -> None:
        for pid in self.agents:
            with contextlib.suppress(ChildProcessError):
                until(lambda pid=pid: os.waitpid(pid, os.WNOHANG)[0])  # type: ignore[misc]

    def workers(self, *hosts: evidence.HostSnapshot) -> Workers:
        """The launcher's process is at its job's end."""
        return Workers(EventLoop(), self.write(*hosts), os.environ, lambda: False)


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    made = Ssh(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.delenv("MPIBOOT_LAUNCH_DIR", raising=False)
    for module in (ask_workers, workers):
        monkeypatch.setattr(module, "_SECONDS", 120.0)  # the machines are shared

    def noted(argv: tuple[str, ...], *rest: Any, **streams: Any) -> int:  # noqa: ANN401
        pid = spawn(argv, *rest, **streams)
        made.agents[pid] = argv
        return pid

    monkeypatch.setattr(workers, "spawn", noted)
    return made


def test_agents_leave_the_jobs_input_alone(ssh: Ssh) -> None:
    host = ssh.answers("w-0", "read -r line && exit 255; echo mpiboot-oom 2")
    own, (there, to) = os.dup(0), os.pipe()
    os.write(to, b"for the program\n")
    os.close(to)
    os.dup2(there, 0)
    try:
        (memory,) = ssh.run(ask_workers.gather((host,)))
    finally:
        os.dup2(own, 0)
        for number in (own, there):
            os.close(number)
    assert memory == f"rank-memory\tw-0\t{OOM}"


def test_what_explains_the_most_comes_first_and_the_first_rank_has_its_signal(ssh: Ssh) -> None:
    hosts = (
        ssh.answers("w-0", "echo mpiboot-disk 65536 0 /tmp"),
        ssh.answers("w-1", "echo mpiboot-oom 1"),
        ssh.before("w-2"),
        ssh.answers("w-3", "echo mpiboot-oom 1"),
        ssh.answers("w-4", "echo mpiboot-oom 2"),
    )
    memory, disk, killed = ssh.run(ask_workers.gather(hosts, killed=("w-3", "SIGKILL")))
    assert memory == f"rank-memory\tw-4\t{OOM}"
    assert disk == "w-0: /tmp is full (0 bytes of 64 MiB free)"
    assert killed.startswith("w-3: not an out-of-memory kill")
    assert set(ssh.asked()) == {"w-0", "w-1", "w-2", "w-3", "w-4"}


def test_the_first_ranks_host_that_cannot_be_reached_has_a_line_and_others_have_none(
    ssh: Ssh,
) -> None:
    hosts = (ssh.before("w-0"), ssh.before("w-1"))
    (line,) = ssh.run(ask_workers.gather(hosts, killed=("w-1", "")))
    assert line.startswith("host-gone\tw-1\tit could not be asked")
    assert "kubectl get pod w-1 " in line


def test_hosts_are_asked_for_the_program(ssh: Ssh) -> None:
    host = ssh.answers("w-0", 'exec sh -c "$*"')
    found = ssh.run(ask_workers.gather((host,), "/no/such"))
    assert "program-missing\tw-0\tthe program /no/such does not exist" in found


def test_a_host_that_hangs_is_left_out_and_its_agent_ends(
    ssh: Ssh, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (ask_workers, workers):
        monkeypatch.setattr(module, "_SECONDS", 1.0)
    hosts = (ssh.answers("w-0", "exec sleep 300"), ssh.answers("w-1", "exec sleep 300"))
    (line,) = ssh.run(ask_workers.gather(hosts, killed=("w-0", "SIGKILL")))
    assert line.startswith("host-gone\tw-0\tit could not be asked")
    ssh.workers(*(replace(host, mpiboot=True) for host in hosts)).tell("", "", 0)
    ssh.no_agent_is_left()


def test_a_host_whose_name_has_gone_is_not_waited_for(
    ssh: Ssh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer would take 300 s; the agent that asks for it ends."""
    ssh.answers("w-0", ": > began; exec sleep 300")

    def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        until((ssh.folder / "began").exists)
        raise socket.gaierror(socket.EAI_NONAME, "no")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    (line,) = ssh.run(ask_workers.gather((ssh.before("w-0", dns="w-0.job"),)))
    assert line.startswith("host-gone\tw-0\tits name does not resolve any more")


def test_a_host_whose_name_is_gone_at_once_leaves_no_agent(
    ssh: Ssh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told before its agent has quite started."""

    async def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "no")

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    ssh.answers("w-0", "exec sleep 300")
    (line,) = ssh.run(ask_workers.gather((ssh.before("w-0", dns="w-0.job"),)))
    assert line.startswith("host-gone\tw-0\tits name does not resolve any more")
    assert ssh.agents


def test_a_name_that_leads_to_the_same_address_leaves_the_answer(
    ssh: Ssh, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh.answers("w-0", "echo mpiboot-oom 2")
    same = [(2, 1, 6, "", ("10.0.0.2", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: same)
    found = ssh.run(ask_workers.gather((ssh.before("w-0", dns="w-0.job"),)))
    assert found == [f"rank-memory\tw-0\t{OOM}"]


def test_those_that_the_evidence_points_at_are_asked_first_and_all_in_the_end(
    ssh: Ssh, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ask_workers, "AT_ONCE", 1)
    note = 'echo "$host" >> order; echo mpiboot-oom 1'
    folder = ssh.write(*(ssh.answers(f"w-{number}", note) for number in range(6)))
    ask_workers.main(folder, "evidence", "w-3", "", "", "w-5", "state_base", "w-2")
    assert (ssh.folder / "order").read_text().split() == ["w-3", "w-2", "w-5", "w-0", "w-1", "w-4"]
    assert capsys.readouterr().out == ""


def test_it_is_said_how_many_were_not_asked_in_time(
    ssh: Ssh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask_workers, "AT_ONCE", 2)
    monkeypatch.setattr(ask_workers, "_SECONDS", 1.0)
    hosts = tuple(ssh.answers(f"w-{number}", "exec sleep 300") for number in range(5))
    found = ssh.run(ask_workers.gather(hosts))
    assert found == ["3 of 5 hosts could not be asked in time"]


def test_a_thousand_workers_are_told_of_the_end(ssh: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one once, and never more at a time than the launcher has room for."""
    running, most, told = 0, 0, list[str]()

    class Session:
        output = b""

        def __init__(self, *words: Any) -> None:  # noqa: ANN401
            nonlocal running, most
            running += 1
            most = max(most, running)
            told.append(words[2].name)
            self.handle, writer = os.pipe()
            os.close(writer)

        def read(self) -> bool:
            return True

        def end(self) -> None:
            nonlocal running
            running -= 1
            os.close(self.handle)

    monkeypatch.setattr(workers, "HostSession", Session)
    hosts = tuple(ssh.before(f"w-{number}", mpiboot=True) for number in range(1000))
    ssh.workers(*hosts).tell("", "", 0)
    assert sorted(told) == sorted(host.name for host in hosts)
    assert (running, most) == (0, workers.AT_ONCE)


def test_a_session_without_a_free_descriptor_keeps_none(ssh: Ssh) -> None:
    host, limits = ssh.before("w-0"), resource.getrlimit(resource.RLIMIT_NOFILE)
    before = set(Path("/proc/self/fd").iterdir())
    lowest = os.dup(0)
    os.close(lowest)
    for room in range(5):  # of the five that it takes
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + room, limits[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                workers.HostSession(str(ssh.folder), os.environ, host, "exit 0")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_what_is_found_is_written_while_a_name_still_does_not_resolve(
    ssh: Ssh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a nameserver that is away: the parent waits less long than the system's resolver."""
    written = threading.Event()
    lines: list[str] = []
    first: list[asyncio.Future[bool]] = []

    async def gather(*_: object) -> list[str]:
        first.append(asyncio.get_running_loop().run_in_executor(None, written.wait, 60))
        return ["w-1: /tmp is full"]

    def write(line: str, *, flush: bool) -> None:
        assert flush
        lines.append(line)
        written.set()

    monkeypatch.setattr(ask_workers, "gather", gather)
    monkeypatch.setattr(ask_workers, "print", write, raising=False)
    ask_workers.main(ssh.write(ssh.before("w-0")), "evidence")
    assert lines == ["w-1: /tmp is full"]
    assert first[0].result()


@pytest.mark.parametrize(
    ("why", "order"),
    [
        ("", host_shell.order("job_is_over")),
        ("no", host_shell.job_failed("l@1@a", 60, "no")),
    ],
)
def test_workers_that_run_mpiboot_are_told_of_the_end_and_no_others(
    ssh: Ssh, why: str, order: str
) -> None:
    for name in ("w-0", "w-1", "w-2"):
        ssh.answers(name, "echo mpiboot-oom 2")
    hosts = (ssh.before("w-0", mpiboot=True), ssh.before("w-1"), ssh.before("w-2", mpiboot=True))
    ssh.workers(*hosts).tell("l@1@a", why, 60)
    assert ssh.asked() == {"w-0": order, "w-2": order}


COUNTED = (CountedPort("eth0", "eth0", data=True, rdma=False),)


def test_a_worker_whose_counters_were_read_learns_of_the_end_by_the_same_session(ssh: Ssh) -> None:
    """It may end at once, and its session with it: nothing of what it said is lost."""
    line = "echo /proc/net/dev:eth0: 7 0 0 0 0 0 0 0 9 0; echo mpiboot-read"
    for name in ("w-0", "w-1", "w-2"):
        ssh.answers(name, f"{line}; read -r _ && : > over-{name}; exit 255")
    before = {"eth0": {"rx_bytes": 1, "tx_bytes": 7}}
    hosts = [
        replace(ssh.before(name, mpiboot=True), counted=COUNTED, counters=before)
        for name in ("w-0", "w-1")
    ]
    hosts.append(ssh.before("w-2", mpiboot=True))
    ssh.workers(*hosts).count(strict=False, over=True)
    assert len(list(ssh.folder.glob("over-w-*"))) == 3
    asked = {
        name: host_shell.order(QUESTION, "when_read", "job_is_over") for name in ("w-0", "w-1")
    }
    assert ssh.asked() == asked | {"w-2": host_shell.order("when_read", "job_is_over")}
    told = json.loads((ssh.folder / TRANSPORT).read_text())["hosts"]
    assert told.keys() == {"w-0", "w-1"}
    assert all(ports["eth0"]["sent"] == 2 for ports in told.values())


def test_a_worker_that_was_not_told_with_the_others_is_told_alone(ssh: Ssh) -> None:
    ssh.answers("w-0", "echo mpiboot-read; read -r _")
    hosts = [replace(ssh.before(name, mpiboot=True), counted=COUNTED) for name in ("w-0", "w-1")]
    there = ssh.workers(*hosts)
    there.count(strict=False, over=True)
    (ssh.folder / "asked-w-0").unlink()
    there.tell("l@1@a", "", 0)
    assert ssh.asked() == {"w-1": host_shell.order("job_is_over")}


def test_a_launcher_that_must_end_starts_no_session(ssh: Ssh) -> None:
    folder = ssh.write(ssh.before("w-0", mpiboot=True))
    Workers(EventLoop(), folder, os.environ, lambda: True).tell("l@1@a", "", 0)
    assert not ssh.agents


def test_what_waits_until_it_was_read_goes_on_then_alone(tmp_path: Path) -> None:
    fifo = tmp_path / "sessions"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    command = host_shell.order("count a b", "when_read", "job_is_over")
    environ = {**os.environ, "MPIBOOT_WORKER_DIR": str(tmp_path)}
    for given, status, said in (b"", 1, b""), (b"\n", 0, b"over\n"):
        words = ["/bin/sh", "-c", command]
        done = subprocess.run(words, input=given, capture_output=True, env=environ, check=False)
        assert (done.returncode, done.stdout) == (status, b"2\nmpiboot-read\n")
        with contextlib.suppress(BlockingIOError):
            assert os.read(held, 100) == said
    os.close(held)


def test_where_no_worker_runs_mpiboot_nobody_is_told(ssh: Ssh) -> None:
    ssh.workers(ssh.before("w-0")).tell("", "", 0)
    assert ssh.asked() == {}


def test_ranks_of_all_hosts_are_asked_to_save_and_counted_until_they_ended(ssh: Ssh) -> None:
    """One rank, seen on the launcher and on a worker that are both this machine."""
    ssh.answers("w-0", 'echo motd; exec sh -c "$*"')
    folder = ssh.write(ssh.before("w-0"), ssh.before("w-1"))
    mark = {"MPIBOOT_LAUNCH_ID": f"test-{os.urandom(8).hex()}"}
    takes = (
        'trap "echo took >> $0/took" TERM; : > $0/ready; until [ -e $0/end ]; do sleep 0.05; done'
    )
    rank = subprocess.Popen(
        ["sh", "-c", takes, folder], env={**os.environ, **mark, "PMIX_RANK": "0"}
    )
    until((ssh.folder / "ready").exists)
    with subprocess.Popen(
        [sys.executable, "-I", "-S", stop_ranks.__file__, folder, "TERM", "60"],
        env={**os.environ, **mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as asks:
        assert asks.stdin
        assert asks.stdout
        assert asks.stdout.readline() == "ranks 2 2 0\n"
        until((ssh.folder / "took").exists)
        asks.stdin.write("\n")
        asks.stdin.flush()
        while (line := asks.stdout.readline()) == "ranks 2 2 0\n":
            pass
        assert line == "ranks 2 2 1\n"
        (ssh.folder / "end").touch()
        assert rank.wait() == 0
        assert asks.stdout.read().splitlines()[-1] == "ranks 0 2 1"
    assert asks.returncode == 0
    # Without a worker's folder each of the two sends its own.
    assert set((ssh.folder / "took").read_text().split()) == {"took"}
    assert "w-1" in ssh.asked()


def test_who_counts_ranks_ends_though_a_login_hangs(ssh: Ssh) -> None:
    ssh.answers("w-0", "exec sleep 300")
    folder = ssh.write(ssh.before("w-0"))
    with subprocess.Popen(
        [sys.executable, "-I", "-S", stop_ranks.__file__, folder, "TERM", "60"],
        env={**os.environ, "MPIBOOT_LAUNCH_ID": f"test-{os.urandom(8).hex()}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as asks:
        until((ssh.folder / "asked-w-0").exists)
        assert asks.communicate("w-0\n", timeout=120)[0] == "ranks 0 0 0\n"
    os.killpg(asks.pid, signal.SIGKILL)  # as the parent does


def test_a_host_whose_login_shell_says_too_much_keeps_no_others_from_saving(ssh: Ssh) -> None:
    ssh.answers("w-0", "head -c 200000 /dev/zero")
    ssh.answers("w-1", "echo ranks 1; head -c 200000 /dev/zero")
    ssh.answers("w-2", "echo ranks 1; echo ranks 0")
    folder = ssh.write(*(ssh.before(f"w-{number}") for number in range(3)))
    with subprocess.Popen(
        [sys.executable, "-I", "-S", stop_ranks.__file__, folder, "TERM", "60"],
        env={**os.environ, "MPIBOOT_LAUNCH_ID": f"test-{os.urandom(8).hex()}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as asks:
        assert asks.communicate(timeout=120)[0] == "ranks 2 2 0\nranks 0 2 0\n"
    assert asks.returncode == 0


def test_a_launchers_rank_is_known_by_both_names_of_the_launcher_and_by_no_other(ssh: Ssh) -> None:
    here = replace(ssh.before("me"), here=True)
    assert ask_workers._is(here, "me")
    assert ask_workers._is(here, "me.ns.svc")
    assert not ask_workers._is(here, "w-0")
    assert ask_workers._is(ssh.before("w-0"), "w-0")
    assert not ask_workers._is(ssh.before("w-0"), "w-0.other.svc")


def test_the_launcher_itself_is_asked_by_its_own_shell(ssh: Ssh) -> None:
    here = (replace(ssh.before("me"), here=True),)
    ssh.run(ask_workers.unanswered(here, frozenset()))
    ssh.run(ask_workers.gather(here))
    assert [argv[:2] for argv in ssh.agents.values()] == [("/bin/sh", "-c")] * 2
    assert ssh.asked() == {}


def test_while_the_job_runs_some_are_asked_and_a_far_end_may_be_any_host(
    ssh: Ssh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask_workers, "_HOSTS", 1)
    told = "echo mpiboot-connecting 0300000A:0401 5 99 7"
    first, second = ssh.answers("w-0", told), ssh.answers("w-1", told)
    hosts = (first, replace(second, address="10.0.0.3"))
    (line,) = ssh.run(ask_workers.unanswered(hosts, frozenset(("w-0/99",))))
    assert line.startswith("dropped w-0/99 rank 7 on w-0 gets no answer from w-1 (10.0.0.3 port 10")


def test_hosts_are_asked_for_ranks_in_mpi(ssh: Ssh) -> None:
    some, none = "echo mpiboot-in-mpi; echo mpiboot-in-mpi", "echo"
    hosts = (ssh.answers("w-0", some), ssh.answers("w-1", none), ssh.before("x"))
    assert ssh.run(ask_workers.in_mpi(hosts)) == ["w-0 2"]


FULL = "echo TcpExt: SyncookiesSent ListenOverflows; echo TcpExt: 1 9"


@pytest.mark.parametrize(
    ("answer", "kind", "why"),
    [
        ("echo mpiboot-to-accept 0; echo mpiboot-listener x", "dropped", "a process listens there"),
        ("echo mpiboot-ok", "dropped", "nobody listens there"),
        ("exit 1", "dropped", "did not tell whether it listens there"),
        ("echo mpiboot-to-accept 2; echo mpiboot-listener x", "slow", "accept: 2 wait for it"),
        # It has accepted since; the kernel that tries waits twice as long each time.
        (f"{FULL}; echo mpiboot-listener x", "slow", "and 9 found a full backlog"),
        (FULL, "dropped", "nobody listens there"),
    ],
)
def test_the_far_end_of_a_connection_that_lasts_is_asked_before_anybody_is_blamed(
    ssh: Ssh, answer: str, kind: str, why: str
) -> None:
    """A full backlog answers nobody either: then the network is not to blame."""
    asks = "case $* in *listener*1025*) ;; *) "
    told = (
        "echo mpiboot-connecting 0300000A:0401 5 99 7; echo mpiboot-connecting 0900000A:0007 4 98"
    )
    hosts = (ssh.answers("w-0", told), ssh.answers("w-1", f"{asks} exit 0;; esac; {answer}"))
    named = tuple(replace(host, address=f"10.0.0.{at}") for at, host in enumerate(hosts, start=2))

    assert ssh.run(ask_workers.unanswered(named, frozenset())) == ["new w-0/99", "new w-0/98"]
    assert "listener" not in ssh.asked()["w-1"].partition("for question")[2]
    first, second = ssh.run(ask_workers.unanswered(named, frozenset(("w-0/99", "w-0/98"))))

    text = "rank 7 on w-0 gets no answer from w-1 (10.0.0.3 port 1025): tried 6 times by TCP; "
    assert first.startswith(f"{kind} w-0/99 {text}")
    assert why in first
    text = "a process of the job on w-0 gets no answer from 10.0.0.9 port 7: tried 5 times by TCP"
    assert second == f"elsewhere w-0/98 {text}"
