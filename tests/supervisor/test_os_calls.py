"""Small acts on the system: programs started, limits, ssh's last words."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

import pytest

from mpiboot.supervisor import agents
from mpiboot.system import process
from mpiboot.system.spawn import spawn

# What a program writes of itself: its group, session, signals and environment.
REPORTS = """
import json, os, re, sys
status = open("/proc/self/status").read()
masks = [int(re.search(name + r":\\s+(\\w+)", status)[1], 16) for name in ("SigIgn", "SigBlk")]
leads = os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()
json.dump([*leads, os.environ.get("NAME"), *masks], sys.stderr)
"""
PLAIN = (1 << 31) - 1  # the real-time signals belong to the C library


@pytest.mark.parametrize("own_group", [True, False])
def test_a_program_has_default_signals_and_a_group_where_it_is_wanted(*, own_group: bool) -> None:
    reader, writer = os.pipe()
    words = (sys.executable, "-S", "-c", REPORTS)
    streams: dict[int, int | None] = {2: writer}
    how = {signal.SIGUSR2}
    pid = spawn(words, {"NAME": "value"}, how, own_group=own_group, streams=streams)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        leads, session, name, ignored, blocked = json.load(file)
    os.waitpid(pid, 0)
    assert (leads, session, name) == (own_group, False, "value")
    assert blocked & PLAIN == 1 << (signal.SIGUSR2 - 1)
    # Python ignores SIGPIPE and SIGXFSZ for itself again.
    own = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    assert ignored & PLAIN & ~own == 0


def test_a_program_without_a_path_is_searched_and_one_with_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "own-program"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.chdir(tmp_path)
    for word in ("own-program", "./own-program"):
        assert process.exit_status(os.waitpid(spawn((word,), {}), 0)[1]) == 7
    with pytest.raises(FileNotFoundError):
        spawn(("./none",), {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        ("one\n", ("one",)),
        ("\n one \n\ntwo\nthree\nfour", ("two", "three", "four")),
        ("Warning: Permanently added 'w' to the list\nBytes per second: 1\nlost", ("lost",)),
        ("debug1: x\nAuthenticated to w\nTransferred: 1\nkex \udcff", ("kex \ufffd",)),
        ("gone\n" + "x" * 4096, ("x" * 4096,)),
    ],
)
def test_sshs_last_words_without_what_it_writes_every_time(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "w"
    path.write_text(text, "utf-8", "surrogateescape")
    assert agents.last_words(str(path)) == words
    assert agents.last_words(str(tmp_path / "none")) == ()


def test_a_process_that_has_ended_has_no_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.spawnv(os.P_NOWAIT, "/bin/true", ["true"])
    handle = process.process_handle(pid)
    assert handle is not None
    assert not os.get_inheritable(handle)
    os.close(handle)
    os.waitpid(pid, 0)
    with pytest.raises(ProcessLookupError):
        process.process_handle(pid)
    # An old kernel or a sandbox has none, nor has a Python that was built for them.
    monkeypatch.setattr(os, "pidfd_open", lambda _: os.open("/none", 0))
    assert process.process_handle(1) is None
    monkeypatch.delattr(os, "pidfd_open")
    assert process.process_handle(1) is None


@pytest.mark.parametrize(
    ("files", "processes", "set_to"),
    [
        ((1024, 4096), (5, 9), {"files": (4096, 4096), "processes": (9, 9)}),
        ((1024, 1 << 20), (9, 9), {"files": (1 << 16, 1 << 20)}),
        ((1024, -1), (9, 9), {"files": (1 << 16, -1)}),
        ((4096, 4096), (-1, -1), {}),
        ((1 << 17, 1 << 20), (9, 9), {}),
        ((1 << 17, -1), (9, 9), {}),
        ((-1, -1), (5, -1), {"processes": (-1, -1)}),
    ],
)
@pytest.mark.parametrize("refused", [False, True])
def test_soft_limits_are_raised_for_mpirun_and_never_lowered(
    files: tuple[int, int],
    processes: tuple[int, int],
    set_to: dict[str, tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    refused: bool,
) -> None:
    """A sandbox may refuse it."""
    assert resource.RLIM_INFINITY == -1
    names = {resource.RLIMIT_NOFILE: "files", resource.RLIMIT_NPROC: "processes"}
    limits, done = {"files": files, "processes": processes}, dict[str, tuple[int, int]]()

    def change(which: int, value: tuple[int, int]) -> None:
        done[names[which]] = value
        if refused:
            raise OSError

    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[names[which]])
    monkeypatch.setattr(resource, "setrlimit", change)
    process.raise_soft_limits()
    assert done == set_to
