"""Small acts on the system: programs started, a FIFO, ssh's last words."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from mpiboot.core.launch_names import KEY
from mpiboot.supervisor import agents, processes
from mpiboot.system import os_calls
from mpiboot.system.spawn import spawn

# What a program writes of itself: its group, session, signals and environment, and its stdin.
TELLS = """
import json, os, re, sys
status = open("/proc/self/status").read()
masks = [int(re.search(name + r":\\s+(\\w+)", status)[1], 16) for name in ("SigIgn", "SigBlk")]
found = {
    "leads": os.getpgid(0) == os.getpid(), "session": os.getsid(0) == os.getpid(),
    "masks": masks, "name": os.environ.get("NAME"),
}
json.dump(found, sys.stderr)
"""
PLAIN = (1 << 31) - 1  # the real-time signals belong to the C library
PIPE = 1 << (signal.SIGPIPE - 1)


def descriptors() -> int:
    gc.collect()  # what other tests left would be closed in between
    return len(list(Path("/proc/self/fd").iterdir()))


def message(reader: int) -> dict[str, Any]:
    with os.fdopen(reader, "rb") as file:
        return dict(json.load(file))


@pytest.mark.parametrize("own_group", [True, False])
def test_a_program_has_default_signals_and_a_group_where_it_is_wanted(*, own_group: bool) -> None:
    reader, writer = os.pipe()
    pid = spawn(
        (sys.executable, "-S", "-c", TELLS),
        {"NAME": "value"},
        {signal.SIGUSR2},
        own_group=own_group,
        streams={2: writer},
    )
    os.close(writer)
    found = message(reader)
    os.waitpid(pid, 0)
    assert (found["leads"], found["session"], found["name"]) == (own_group, False, "value")
    ignored, blocked = found["masks"]
    # Python ignores SIGPIPE for itself again; the signal that was to be blocked is.
    assert blocked & PLAIN == 1 << (signal.SIGUSR2 - 1)
    assert ignored & PLAIN & ~PIPE & ~(1 << (signal.SIGXFSZ - 1)) == 0


def test_a_program_without_a_path_is_looked_for_and_one_with_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "own-program"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    pid = spawn(("own-program",), {})
    assert os_calls.exit_status(os.waitpid(pid, 0)[1]) == 7
    monkeypatch.chdir(tmp_path)
    pid = spawn(("./own-program",), {})
    assert os_calls.exit_status(os.waitpid(pid, 0)[1]) == 7
    with pytest.raises(FileNotFoundError):
        spawn(("./none",), {})


def test_the_key_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / KEY).touch()
    (tmp_path / "other").touch()
    processes.remove_key(str(tmp_path))
    processes.remove_key(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


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
def test_sshs_last_words_without_what_it_says_every_time(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "w"
    path.write_text(text, "utf-8", "surrogateescape")
    assert agents.last_words(str(path)) == words
    assert agents.last_words(str(tmp_path / "none")) == ()


def test_a_process_that_has_ended_has_no_handle() -> None:
    pid = os.spawnv(os.P_NOWAIT, "/bin/true", ["true"])
    handle = os_calls.process_handle(pid)
    assert handle is not None
    assert not os.get_inheritable(handle)
    os.close(handle)
    os.waitpid(pid, 0)
    with pytest.raises(ProcessLookupError):
        os_calls.process_handle(pid)


@pytest.mark.parametrize(
    ("files", "processes", "set_to"),
    [
        ((1024, 4096), (5, 9), [("files", (4096, 4096)), ("processes", (9, 9))]),
        ((1024, 1 << 20), (9, 9), [("files", (1 << 16, 1 << 20))]),
        ((1024, -1), (9, 9), [("files", (1 << 16, -1))]),
        ((4096, 4096), (-1, -1), []),
        ((1 << 17, 1 << 20), (9, 9), []),
        ((1 << 17, -1), (9, 9), []),
        ((-1, -1), (5, -1), [("processes", (-1, -1))]),
    ],
)
def test_soft_limits_are_raised_for_mpirun_and_never_lowered(
    files: tuple[int, int],
    processes: tuple[int, int],
    set_to: list[tuple[str, tuple[int, int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert resource.RLIM_INFINITY == -1
    names = {resource.RLIMIT_NOFILE: "files", resource.RLIMIT_NPROC: "processes"}
    limits = {"files": files, "processes": processes}
    done = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[names[which]])
    monkeypatch.setattr(
        resource, "setrlimit", lambda which, value: done.append((names[which], value))
    )
    os_calls.raise_soft_limits()
    assert done == set_to


def test_a_sandbox_that_refuses_leaves_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(which: int, _: tuple[int, int]) -> None:
        asked.append(which)
        raise OSError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 2))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    os_calls.raise_soft_limits()
    assert asked == [resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC]
