"""What the client takes of an agent's streams: real pipes and files of a process that has them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mpiboot.ssh import streams

Agent = Callable[..., int]
HOLDS = "exec 3<&0 4>&1 5>&2; kill -STOP $$"


@pytest.fixture
def agent() -> Iterator[Agent]:
    """A process that has the streams given as its 3, 4 and 5; its number."""
    with ExitStack() as left:

        def start(stdin: int, stdout: int, stderr: int) -> int:
            words = ["sh", "-c", HOLDS]
            made = subprocess.Popen(words, stdin=stdin, stdout=stdout, stderr=stderr)
            left.callback(made.wait)
            left.callback(made.kill)
            assert os.WIFSTOPPED(os.waitpid(made.pid, os.WUNTRACED)[1])
            return made.pid

        yield start


def opened(path: Path, flags: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)


def written(descriptors: list[int], data: bytes) -> None:
    for descriptor in descriptors:
        os.write(descriptor, data)
        os.close(descriptor)


def test_pipes_are_opened_anew_with_flags_of_their_own(agent: Agent) -> None:
    reader, writer = os.pipe()
    null, *outputs = streams.take(agent(subprocess.DEVNULL, writer, writer))
    assert not os.get_blocking(outputs[0])
    assert os.get_blocking(writer)
    written(outputs, b"a")
    os.close(writer)
    os.close(null)
    assert os.read(reader, 9) == b"aa"
    os.close(reader)


def test_the_launchers_own_file_goes_on_where_it_is(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `mpiboot launcher > log 2>&1`: one place in the file for all who write."""
    path = tmp_path / "log"
    own = opened(path, 0)
    os.write(own, b"before\n")
    monkeypatch.setattr(streams, "_OWN", (own,))
    null, *outputs = streams.take(agent(subprocess.DEVNULL, own, own))
    written(outputs, b"said\n")
    os.write(own, b"after\n")
    os.close(own)
    os.close(null)
    assert path.read_text() == "before\nsaid\nsaid\nafter\n"


def test_the_launchers_own_socket_is_shared(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = socket.socketpair()
    with own, other:
        monkeypatch.setattr(streams, "_OWN", (own.fileno(),))
        null, *outputs = streams.take(agent(subprocess.DEVNULL, own.fileno(), own.fileno()))
        written(outputs, b"a")
        os.close(null)
        assert other.recv(9) == b"aa"


def test_what_is_appended_to_is_opened_anew(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    theirs = opened(path, os.O_APPEND)
    null, *outputs = streams.take(agent(subprocess.DEVNULL, theirs, theirs))
    os.write(theirs, b"theirs\n")
    written(outputs, b"said\n")
    os.close(theirs)
    os.close(null)
    assert path.read_text() == "before\ntheirs\nsaid\nsaid\n"


@pytest.mark.parametrize("elsewhere", ["another file", "another place"])
def test_another_file_with_a_place_in_it_is_refused_and_nothing_stays_open(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    path = tmp_path / "log"
    own = opened(path, 0)
    theirs = opened(tmp_path / "else" if elsewhere == "another file" else path, 0)
    os.write(theirs, b"x")
    monkeypatch.setattr(streams, "_OWN", (own,))
    pid = agent(subprocess.DEVNULL, theirs, theirs)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ValueError, match="stream 4"):
        streams.take(pid)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    os.close(own)
    os.close(theirs)


def test_a_pipe_that_only_root_may_open_is_the_launchers_own(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container runtime makes a pod's pipes; a launcher of another user can't open these."""
    reader, writer = os.pipe()
    pid = agent(subprocess.DEVNULL, writer, writer)
    real = os.open

    def closed(path: str, flags: int, *more: int) -> int:
        if path.endswith(("/4", "/5")):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", closed)
    monkeypatch.setattr(streams, "_OWN", (writer,))
    null, *outputs = streams.take(pid)
    written(outputs, b"a")
    os.close(writer)
    os.close(null)
    assert os.read(reader, 9) == b"aa"
    os.close(reader)


def test_an_agent_that_is_gone_has_no_streams(agent: Agent) -> None:
    pid = agent(subprocess.DEVNULL, subprocess.DEVNULL, subprocess.DEVNULL)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with pytest.raises(OSError, match=str(pid)):
        streams.take(pid)
