"""Queries and their answers: both ends, and hosts that are scripts of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.launch_names import LAUNCH_ID, TRANSPORT
from mpiboot.hosts import host_shell
from mpiboot.network.counters import CountedPort
from mpiboot.supervisor import answers, evidence
from mpiboot.supervisor.asking import Queries, Question, Request
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.system.loop import EventLoop
from mpiboot.system.os_calls import socket_pair
from tests.supervisor.answering import Hosts, gone, serve
from tests.waiting import GUARD, until

RANKS = "echo mpiboot-ranks 2"


class Rig(Hosts):
    """The two ends; who answers is a thread of this process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.mark = f"test-{os.urandom(8).hex()}"
        self.loop = EventLoop()
        own, self.other = socket_pair()
        self.queries = Queries(self.loop, own)
        self.heard: list[tuple[list[str], bool]] = []
        self.serving: threading.Thread | None = None

    def hosts(self, *hosts: HostSnapshot) -> None:
        """Answer for these from now on."""
        self.write(*hosts)
        work = serve(self.other, str(self.folder), {**os.environ, LAUNCH_ID: self.mark})
        self.serving = threading.Thread(target=asyncio.run, args=(work,))
        self.serving.start()

    def begin(self, request: Request, *words: str) -> int:
        return self.queries.begin(request, *words, heard=lambda *it: self.heard.append(it))

    def ask(self, request: Request, *words: str) -> tuple[str, ...]:
        return self.queries.wait_for(request, *words, seconds=GUARD, must_end=lambda: False)

    def hear(self, *lines: str, over: bool = False) -> None:
        """Wait for what is heard next."""
        while not self.heard:
            self.loop.wait(None)
        assert self.heard.pop(0) == (list(lines), over)

    def close(self) -> None:
        self.queries.close()
        if self.serving:
            self.serving.join()
        os.close(self.other)
        self.loop.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(answers, "SECONDS", 120.0)
    made = Rig(tmp_path)
    yield made
    made.close()


def test_several_queries_are_answered_each_when_its_hosts_have_and_one_is_cancelled(
    rig: Rig,
) -> None:
    memory = "case $* in *\"mpiboot 'memory'\"*) exec sleep 300;; esac"
    rig.hosts(rig.answers("w-0", f"{memory}; {RANKS}"))
    hanging = rig.begin(Request.EVIDENCE, "", "")
    until(rig.pids)
    (pid,) = rig.pids()
    assert rig.ask(Request.RANKS) == ("w-0 2 ",)
    assert not gone(pid)
    rig.queries.cancel(hanging)
    until(lambda: gone(pid))
    assert rig.ask(Request.RANKS) == ("w-0 2 ",)
    assert rig.heard == []


def test_why_a_job_failed_is_answered_with_what_carried_its_data(rig: Rig) -> None:
    host = rig.answers("w-0", "echo mpiboot-oom 2; echo /proc/net/dev:eth0: 7 0 0 0 0 0 0 0 9 0")
    counted = (CountedPort("eth0", "eth0", data=True, rdma=False),)
    rig.hosts(replace(host, counted=counted, counters={"eth0": {"rx_bytes": 1, "tx_bytes": 7}}))
    (line,) = rig.ask(Request.EVIDENCE, "", "w-0")
    assert json.loads(line)["memory"].startswith("out of memory: ")
    assert json.loads((rig.folder / TRANSPORT).read_text())["hosts"]["w-0"]["eth0"]["sent"] == 2


def test_at_a_good_end_a_host_that_says_nothing_or_too_late_holds_up_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "SECONDS", 2.0)
    counted = (CountedPort("eth0", "eth0", data=True, rdma=False),)
    line = "echo /proc/net/dev:eth0: 7 0 0 0 0 0 0 0 9 0"
    texts = (f"{line}; echo mpiboot-read; read -r _; : > told", line, "exec sleep 300")
    made = [rig.answers(f"w-{number}", text) for number, text in enumerate(texts)]
    before = {"eth0": {"rx_bytes": 1, "tx_bytes": 7}}
    rig.hosts(*(replace(one, mpiboot=True, counted=counted, counters=before) for one in made))
    assert rig.ask(Request.COUNT, "0", "1") == ()
    assert (rig.folder / "told").exists()
    found = json.loads((rig.folder / TRANSPORT).read_text())["hosts"]
    assert found["w-0"] != found["w-1"] == found["w-2"]
    (rig.folder / "asked-w-0").unlink()
    assert rig.ask(Request.NOTIFY, "l@1@a", "60.0", "") == ()
    assert rig.asked() == dict.fromkeys(("w-1", "w-2"), host_shell.order("job_is_over"))


def test_workers_hear_why_the_job_failed(rig: Rig) -> None:
    rig.hosts(rig.before("w-0", mpiboot=True))
    rig.ask(Request.NOTIFY, "l@1@a", "60.0", "host-lost: w-1")
    assert rig.asked() == {"w-0": host_shell.job_failed("l@1@a", 60.0, "host-lost: w-1")}


def test_an_error_is_a_warning_and_an_answer_without_lines(
    rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    rig.hosts()
    (rig.folder / evidence.FILE).write_text("no JSON")
    assert rig.ask(Request.RANKS) == ()
    message = capfd.readouterr().err
    assert "[bug] what answers the query ranks failed at" in message
    assert message.count("the job goes on without it\n") == 1


SAVES = 'trap "echo took >> $0/took" TERM; : > $0/ready; until [ -e $0/end ]; do sleep 0.05; done'


def test_ranks_of_all_hosts_save_and_are_counted_until_they_have_ended(rig: Rig) -> None:
    """One rank, seen on the launcher and on a worker that are both this machine."""
    environ = {**os.environ, LAUNCH_ID: rig.mark, "PMIX_RANK": "0"}
    rank = subprocess.Popen(["sh", "-c", SAVES, rig.folder], env=environ)
    until((rig.folder / "ready").exists)
    here = replace(rig.before("me"), here=True)
    hangs = rig.answers("w-2", "exec sleep 300")
    there = rig.answers("w-0", 'echo motd; exec sh -c "$*"')
    number = rig.begin(Request.STOP_RANKS, "TERM", "600")
    # These may be read with the query, and must count all the same.
    rig.queries.send(number, "w-2")
    rig.queries.send(number, "stranger")
    rig.queries.send(number, "")
    rig.hosts(here, there, rig.before("w-1"), hangs)
    rig.hear("2 2 0")
    until((rig.folder / "took").exists)
    rig.hear("2 2 1")
    (rig.folder / "end").touch()
    assert rank.wait() == 0
    while not rig.heard or rig.heard[-1] != ([], True):
        rig.loop.wait(None)
    assert rig.heard[-2] == (["0 2 1"], False)
    # Without a worker's folder each of the two sends its own.
    assert set((rig.folder / "took").read_text().split()) == {"took"}
    assert "w-1" in rig.asked()


def test_ranks_that_nobody_waits_for_any_more_are_left_alone(rig: Rig) -> None:
    """One host has answered, and one has not yet."""
    made = (rig.answers("w-0", "echo ranks 1; exec cat"), rig.answers("w-1", "exec sleep 300"))
    rig.hosts(*made)
    number = rig.begin(Request.STOP_RANKS, "TERM", "600")
    pids = rig.folder / "pids"
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    rig.queries.cancel(number)
    until(lambda: all(map(gone, rig.pids())))
    assert rig.heard == []


def test_a_process_that_is_killed_ends_all_queries_without_lines(rig: Rig) -> None:
    program = [sys.executable, "-m", "tests.supervisor.answering", str(rig.other), str(rig.folder)]
    rig.write(rig.answers("w-0", "exec sleep 300"))
    with subprocess.Popen(program, pass_fds=(rig.other,)) as process:
        os.close(rig.other)
        answers: list[list[str]] = []
        question = Question(rig.queries, Request.RANKS, answers.append)
        question.ask()
        rig.begin(Request.EVIDENCE, "", "")
        until((rig.folder / "asked-w-0").exists)
        process.kill()
        rig.hear(over=True)
        assert answers == [[]]
    # Later ones end at once.
    assert rig.ask(Request.EVIDENCE, "", "", "") == ()
    rig.begin(Request.STOP_RANKS, "TERM", "1")
    rig.hear(over=True)
    rig.other = os.open(os.devnull, os.O_RDONLY)
    os.kill(int(rig.pids()[-1]), signal.SIGKILL)


def test_lines_come_in_pieces_and_an_answer_too(rig: Rig) -> None:
    number = rig.begin(Request.RANKS)
    for piece in (f"[{number}, fal", 'se, "w-0 1"]\n', f'[{number}, true, "w-1 2"]\n[7, true]\n[8'):
        os.write(rig.other, piece.encode())
        rig.loop.wait(None)
    assert rig.heard == [(["w-0 1"], False), (["w-1 2"], True)]


def test_a_query_comes_in_pieces(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.write(rig.answers("w-0", RANKS))
    own, other = socket_pair()
    work = serve(other, str(rig.folder), {**os.environ, LAUNCH_ID: rig.mark})
    serving = threading.Thread(target=asyncio.run, args=(work,))
    serving.start()
    for piece in (b'[1, "ra', b'nks"]\n[2, "ranks"]', b"\n"):
        os.write(own, piece)
        time.sleep(0)
    found = b""
    while found.count(b"\n") < 2:
        found += os.read(own, 100)
    assert sorted(found.splitlines()) == [b'[1, true, "w-0 2 "]', b'[2, true, "w-0 2 "]']
    # An answer that nobody reads any more is no error.
    os.write(own, b'[3, "ranks"]\n')
    until(lambda: len(rig.pids()) == 3)
    os.close(own)
    serving.join()
    os.close(other)
    assert caplog.records == []


def test_what_has_no_room_is_sent_later_and_holds_nobody_up(rig: Rig) -> None:
    """Who answers a thousand hosts may be busy, and as many hosts be lost meanwhile."""
    number = rig.begin(Request.STOP_RANKS, "TERM", "1")
    lines = [f"w-{host}" + "x" * 128 for host in range(1 << 12)]
    for line in lines:
        rig.queries.send(number, line)
    assert rig.heard == []
    text = b""
    while text.count(b"\n") <= len(lines):
        rig.loop.wait(time.monotonic())
        text += os.read(rig.other, 1 << 16)
    assert [json.loads(line) for line in text.splitlines()[1:]] == [[number, one] for one in lines]
    os.write(rig.other, json.dumps([number, True]).encode() + b"\n")
    rig.hear(over=True)


def test_who_is_told_to_end_waits_for_no_answer_and_nobody_waits_longer_than_wanted(
    rig: Rig,
) -> None:
    began = time.monotonic()
    wait = rig.queries.wait_for
    assert wait(Request.RANKS, seconds=GUARD, must_end=lambda: True) == ()
    assert wait(Request.RANKS, seconds=0.05, must_end=lambda: False) == ()
    assert 0.05 <= time.monotonic() - began < GUARD
    sent = os.read(rig.other, 1000).decode()
    assert sent == '[1, "ranks"]\n[1]\n[2, "ranks"]\n[2]\n', "both are cancelled"
