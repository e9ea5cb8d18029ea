from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.system import process
from mpiboot.system.process import exit_status
from tests.fakes.cli import mpiboot
from tests.fakes.programs import open_files, program

REPLACE = (
    "import os, signal, sys\n"
    "from mpiboot.system import process\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])\n"
    "signal.signal(signal.SIGINT, lambda *a: None)\n"
    "process.replace(sys.argv[1:], os.environ)\n"
)
ENVIRON = {"PATH": "/usr/bin:/bin"}


def replaced(*argv: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", REPLACE, *argv]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def test_the_working_directory_has_the_name_that_leads_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, link = tmp_path / "own", tmp_path / "link"
    own.mkdir()
    link.symlink_to(own)
    monkeypatch.chdir(own)
    for path, found in ((link, link), (tmp_path, own), (tmp_path / "gone", own), ("", own)):
        assert process.working_directory({"PWD": str(path)}) == str(found)
    own.rmdir()
    assert process.working_directory({"PWD": str(link)}) == ""


def signals(status: str) -> dict[str, int]:
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return {name: int(fields[name], 16) for name in ("SigIgn", "SigBlk", "SigCgt")}


def test_a_program_finds_signals_as_they_were(tmp_path: Path) -> None:
    done = replaced("cat", "/proc/self/status")
    assert signals(done.stdout) == {"SigIgn": 0, "SigBlk": 0, "SigCgt": 0}
    with (tmp_path / "out").open("w") as out:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        try:
            pid = process.start(["cat", "/proc/self/status"], ENVIRON, streams={1: out.fileno()})
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert os.waitpid(pid, 0)[1] == 0
    found = signals((tmp_path / "out").read_text())
    assert found["SigBlk"] == 0
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert found["SigIgn"] & (1 << (number - 1)) == 0


@pytest.mark.parametrize(("script", "code"), [("exit 255", 255), ("kill -TERM $$", 143)])
def test_a_childs_status_is_as_shells_count_it(script: str, code: int) -> None:
    pid = process.start(["sh", "-c", script], ENVIRON)
    assert exit_status(os.waitpid(pid, 0)[1]) == code


def test_arguments_and_environment_arrive_byte_for_byte(tmp_path: Path) -> None:
    odd = "a b'\"$x`\\\n\tü\udcff"
    with (tmp_path / "out").open("wb") as out:
        argv = ["sh", "-c", 'printf "%s|%s" "$1" "$ODD"', "sh", odd]
        pid = process.start(argv, {**ENVIRON, "ODD": odd}, streams={1: out.fileno()})
        os.waitpid(pid, 0)
    assert (tmp_path / "out").read_bytes() == os.fsencode(odd + "|" + odd)


@pytest.mark.parametrize("path", ["{}", ":/usr/bin", "/usr/bin::/bin", "/usr/bin:"])
def test_the_program_is_looked_up_on_the_path_of_its_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """An empty entry is the current folder, as for a shell."""
    monkeypatch.chdir(tmp_path)
    program(tmp_path, "tool", "exit 7")
    pid = process.start(["tool"], {"PATH": path.format(tmp_path)})
    assert exit_status(os.waitpid(pid, 0)[1]) == 7


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (None, 0, "doesn't exist"),
        ("", 0, "no permission, or a folder"),
        ("#!/bin/sh\n", 0o644, "no permission"),
        ("#!/nothing/such\n", 0o755, "names an interpreter or loader that doesn't exist"),
        ("plain text\n", 0o755, "neither a program for this machine nor a script"),
    ],
)
def test_a_program_that_cannot_run_is_an_error_with_its_reason(
    content: str | None, mode: int, message: str, tmp_path: Path
) -> None:
    tool = tmp_path / "tool"
    if content:
        tool.write_text(content)
        tool.chmod(mode)
    elif content is not None:
        tool.mkdir()
    with pytest.raises(MpibootError, match=message) as caught:
        process.start([str(tool)], ENVIRON)
    assert caught.value.code == 127
    assert message in replaced(str(tool)).stderr
    with pytest.raises(MpibootError, match="nothing-such is not on PATH") as caught:
        process.start(["nothing-such"], ENVIRON)
    assert caught.value.finding.evidence == ("PATH=/usr/bin:/bin",)
    with pytest.raises(MpibootError, match="doesn't exist") as caught:
        process.start(["mpirun -n 2 ./train"], ENVIRON)
    assert caught.value.finding.hint == "write each word as an argument of its own"


def test_mpiboots_modules_are_not_those_of_the_current_folder_or_another_mpiboot(
    tmp_path: Path,
) -> None:
    (tmp_path / "mpiboot").mkdir()
    for name in ("json.py", "mpiboot/__init__.py"):
        (tmp_path / name).write_text("raise SystemExit(9)\n")
    argv = process.python("import json; from mpiboot.core import log; sys.exit(len(sys.argv))", "a")
    assert subprocess.run(argv, cwd=tmp_path, check=False, timeout=60).returncode == 2
    (tmp_path / "json.py").unlink()
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert subprocess.run(argv, env=environ, check=False, timeout=60).returncode == 2


def test_the_loop_wakes_for_signals_and_readable_descriptors(
    capfd: pytest.CaptureFixture[str],
) -> None:
    reader, writer = os.pipe()
    before = open_files()
    loop = process.SignalLoop([signal.SIGUSR1])
    read: list[bytes] = []

    def fail() -> None:
        raise ValueError("no number")

    try:
        loop.on(reader, lambda: read.append(os.read(reader, 10)))
        os.write(writer, b"x")
        assert loop.wait(60) == ()
        assert read == [b"x"]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert loop.wait(60) == (signal.SIGUSR1,)
        loop.on(reader, fail)
        os.write(writer, b"x")
        assert loop.wait(60) == loop.wait(0) == ()
        assert capfd.readouterr().err.count("[bug] an event handler failed") == 1
        loop.on(reader, fail, vital=True)
        with pytest.raises(ValueError, match="no number"):
            loop.wait(60)
        loop.off(reader)
        assert loop.wait(0) == ()
    finally:
        loop.close()
        after = open_files()
        os.close(reader)
        os.close(writer)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert after == before


ENTRY = "bash\0-m\0/usr/local/bin/start.sh\0"


# Process and parent, the first process's name and line, and whether it is the container's own.
OWN = (
    (1, 0, None, "", True),
    (7, 1, "tini\n", "tini\0--\0mpiboot\0worker\0", True),
    (7, 1, "bash\n", "bash\0", False),
    (7, 1, "bash\n", f"{ENTRY}mpiboot\0./train\0a b\0", True),
    (7, 1, "bash\n", f"{ENTRY}/opt/mpiboot/bin/mpiboot\0./train\0a b\0", True),
    (7, 1, "bash\n", f"{ENTRY}mpiboot\0./train\0a\0b\0", False),
    (7, 1, "bash\n", f"{ENTRY}./other\0./train\0a b\0", False),
    (7, 1, "mpiboot\n", "mpiboot\0./train\0a b\0", False),
    # What follows it in the script would find no workers.
    (7, 1, "sh\n", 'sh\0-ec\0mpiboot "$@"; more\0mpiboot\0./train\0a b\0', False),
    (7, 1, None, "", False),
    (7, 6, "tini\n", "", False),
)


@pytest.mark.parametrize(("pid", "parent", "first", "line", "own"), OWN)
def test_a_containers_own_is_its_first_process_or_what_that_was_given_to_run(
    pid: int,
    parent: int,
    first: str | None,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    own: bool,
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: pid)
    monkeypatch.setattr(os, "getppid", lambda: parent)
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/mpiboot", "./train", "a b"])
    if first is not None:
        (tmp_path / "1").mkdir()
        (tmp_path / "1/comm").write_text(first)
        (tmp_path / "1/cmdline").write_text(line)
    assert process.is_containers_own(tmp_path) is own


def test_a_copy_does_its_work_with_signals_of_its_own() -> None:
    loop = process.SignalLoop((signal.SIGTERM,))
    here = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        done = loop.fork(lambda: os._exit(0 if os.getpid() != here else 3))
        ended = loop.fork(lambda: os.kill(os.getpid(), signal.SIGTERM))
        failed = loop.fork(lambda: sys.exit("never printed"))
        found = [exit_status(os.waitpid(pid, 0)[1]) for pid in (done, ended, failed)]
        assert found == [0, 128 + signal.SIGTERM, 1]
        assert loop.wait(0) == ()  # the signal to the copy was not this process's
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
        os.kill(here, signal.SIGTERM)
        assert loop.wait(30) == (signal.SIGTERM,)
    finally:
        loop.close()


def test_a_limit_that_lets_no_thread_begin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    process.check_threads()
    full = Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(MpibootError, match=re.escape("new thread (pids.max, ulimit -u")) as caught:
        process.check_threads()
    assert caught.value.finding.check == "launcher-limits"


# -- what a process may have open, and what a program gets -----------------------------------------

NO_LIMIT = resource.RLIM_INFINITY
RAISE = """
import json, resource, sys
from mpiboot.system import process
resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:])))
process.raise_file_limit()
print(json.dumps(resource.getrlimit(resource.RLIMIT_NOFILE)))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "most"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, 1 << 16),
        (1 << 18, 1 << 20, 1 << 18),  # never less than it was
        (1024, NO_LIMIT, 1 << 16),
        (NO_LIMIT, NO_LIMIT, 1 << 16),
    ],
)
def test_as_many_files_as_the_hard_limit_allows_and_no_job_needs_more(
    soft: int, hard: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    assert process.max_open_files() == most


@pytest.mark.parametrize(("soft", "hard"), [("64", "512"), ("512", "512")])
def test_the_soft_limit_is_raised_to_that(soft: str, hard: str) -> None:
    argv = [sys.executable, "-c", RAISE, soft, hard]
    done = subprocess.run(argv, capture_output=True, check=True)
    assert json.loads(done.stdout) == [512, 512]


@pytest.mark.parametrize("words", ["env", "rank -- env", "launcher -- env"])
@pytest.mark.parametrize("given", ["", "C.UTF-8"])
def test_a_program_gets_the_locale_that_python_sets_only_where_it_was_set(
    tmp_path: Path, words: str, given: str
) -> None:
    role = {} if words.startswith("launcher") else {"MPIBOOT_ROLE": "none"}
    numbers = {"RANK": "0", "LOCAL_RANK": "0", "SIZE": "1", "LOCAL_SIZE": "1"}
    rank = {f"OMPI_COMM_WORLD_{name}": value for name, value in numbers.items()}
    rank = {**rank, "MASTER_ADDR": "rank-0", "MASTER_PORT": "1"} if "rank" in words else {}
    locale = {"LC_CTYPE": given} if given else {}
    done = mpiboot(tmp_path, *words.split(), env={**role, **rank, **locale})
    assert "PATH=" in done.stdout
    assert ("LC_CTYPE" in done.stdout) == bool(given)
