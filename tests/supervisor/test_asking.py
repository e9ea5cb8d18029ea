"""The child that asks the workers: a few seconds at most, whatever becomes of it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from mpiboot.core.launch_names import LAUNCH_DIR
from mpiboot.supervisor import ask_workers, asking
from mpiboot.system.loop import EventLoop


def child(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    program = folder / "ask.py"
    program.write_text(text)
    monkeypatch.setattr(asking, "ASK_WORKERS", str(program))


def asked(folder: Path) -> tuple[str, ...]:
    return asking.ask(str(folder), os.environ, EventLoop(), lambda: False)


def runs(pid: str) -> bool:
    try:
        status = Path("/proc", pid, "stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def test_what_has_hung_is_ended_with_its_agents_and_what_it_said_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    text = (
        "import os, subprocess, time\n"
        "print('w-1: /tmp is full', flush=True)\n"
        "agent = subprocess.Popen(['sleep', '300'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{agent.pid}}')\n"
        "time.sleep(300)\n"
    )
    child(tmp_path, monkeypatch, text)
    monkeypatch.setattr(asking, "_PATIENCE", 5.0)  # it has to come to its hang within that
    assert asked(tmp_path) == ("w-1: /tmp is full",)
    end = time.monotonic() + 60  # a guard: a killed process takes a moment to go
    while any(map(runs, pids.read_text().split())):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_child_that_fails_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(tmp_path, monkeypatch, "raise SystemExit(1)")
    assert asked(tmp_path) == ()


def test_without_an_interpreter_nothing_is_told_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    loop, fds = EventLoop(), len(list(Path("/proc/self/fd").iterdir()))
    assert asking.ask(str(tmp_path), os.environ, loop, lambda: False) == ()
    assert len(list(Path("/proc/self/fd").iterdir())) == fds


def test_hosts_have_less_time_than_the_child_that_asks_them() -> None:
    assert ask_workers._SECONDS < asking._PATIENCE <= 5


TELLS = """
import json, os, sys
json.dump([sys.argv[1:], dict(os.environ), os.getpgid(0) == os.getpid()], sys.stdout)
print(flush=True)
print(sys.stdin.readline(), end="", flush=True)
print("an error", file=sys.stderr)
print("half a li", end="")
"""


def test_what_a_child_gets_and_what_it_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "tells.py"
    program.write_text(TELLS)
    loop, heard = EventLoop(), list[list[str]]()
    reader, writer = os.pipe()
    given = asking.AskingChild(
        loop,
        str(program),
        "/launch",
        {"A": "b", LAUNCH_DIR: "another"},
        "one",
        "two",
        connect=7,
        heard=lambda: heard.append(given.take_lines()),
        stdin=reader,
    )
    os.close(reader)
    while not any(heard):
        loop.wait(None)
    os.write(writer, b"asked\n")
    while not given.over:
        loop.wait(None)
    first, *lines = [line for several in heard for line in several]
    words, environ, leads = json.loads(first)
    assert words == ["/launch", "one", "two"]
    own = {"A": "b", LAUNCH_DIR: "/launch", "MPIBOOT_ASKS": "7"}
    assert {name: environ[name] for name in own} == own
    assert leads, "its agents are ended with it"
    assert lines == ["asked"], "what has no end may be cut off"
    assert capfd.readouterr().err == ""
    os.close(writer)
    given.end()
    given.reap()
    # Who reaps all children may have done so before.
    given.end()
    given.reap()


def test_a_child_that_somebody_has_reaped_is_ended_without_a_word(tmp_path: Path) -> None:
    program = tmp_path / "ends.py"
    program.write_text("")
    child = asking.AskingChild(EventLoop(), str(program), "/launch", os.environ)
    os.waitpid(child._pid, 0)
    child.end()
    child.reap()


def test_nobody_reads_more_than_so_much(tmp_path: Path) -> None:
    program = tmp_path / "writes.py"
    program.write_text("import os\nwhile True: os.write(1, b'w-1 12345\\n' * 1000)\n")
    loop = EventLoop()
    child = asking.AskingChild(loop, str(program), "/launch", os.environ)
    while not child.over:
        loop.wait(None)
    lines = child.take_lines()
    assert set(lines) == {"w-1 12345"}, "the last one was cut off"
    assert (1 << 16) - 20 < sum(len(line) + 1 for line in lines) < 1 << 17
    child.end()
    child.reap()


def test_lines_are_given_once_and_whole(tmp_path: Path) -> None:
    program = tmp_path / "none.py"
    program.write_text("")
    child = asking.AskingChild(EventLoop(), str(program), "/launch", os.environ)
    child._data = b"one\n\ntw"
    assert child.take_lines() == ["one"]
    child._data += b"o \xff\nthree"
    assert child.take_lines() == ["two \ufffd"]
    child.over = True
    assert child.take_lines() == []
    child.end()
    child.reap()


def test_a_launcher_that_is_told_to_end_asks_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(tmp_path, monkeypatch, "import time\ntime.sleep(1000)\n")
    monkeypatch.setattr(asking, "_PATIENCE", 500)
    assert asking.ask(str(tmp_path), os.environ, EventLoop(), lambda: True) == ()
