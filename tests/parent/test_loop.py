"""What the parent sleeps on, where a pod lacks what it would ask with."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import time

import pytest

from mpiboot.parent import os_calls, processes
from mpiboot.parent.loop import EventLoop, HostChecks

Answer = tuple[str, bool | None, str]


def checks() -> tuple[EventLoop, HostChecks, list[Answer]]:
    loop, answers = EventLoop(), list[Answer]()
    return loop, HostChecks(loop, lambda *given: answers.append(given)), answers


def test_what_is_forgotten_wakes_nobody() -> None:
    loop, called = EventLoop(), list[int]()
    reader, writer = os.pipe()
    os.write(writer, b"x")
    loop.on(reader, lambda: called.append(1))
    loop.wait(None)
    loop.off(reader)
    until = time.monotonic() + 0.05
    loop.wait(until)
    assert time.monotonic() >= until
    loop.off(reader)  # no more than once
    os.close(reader)
    os.close(writer)
    assert called == [1]


def test_a_host_that_answers_and_one_that_does_not() -> None:
    loop, asked, answers = checks()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked.ask("w-0", "127.0.0.1", listener.getsockname()[1])
        while not answers:
            loop.wait(min(asked.deadlines()))
    assert answers == [("w-0", True, os.strerror(0))]
    asked.ask("w-1", "127.0.0.1", 1)
    while len(answers) == 1:
        loop.wait(min(asked.deadlines()))
    assert answers[1] == ("w-1", False, os.strerror(errno.ECONNREFUSED))


def test_a_host_that_is_silent_is_given_up() -> None:
    _, asked, answers = checks()
    asked.ask("w-0", "192.0.2.1", 22)
    asked.give_up(time.monotonic() + 60)
    assert [(host, reachable) for host, reachable, _ in answers] == [("w-0", False)]


def test_where_no_socket_can_be_made_nobody_knows() -> None:
    _, asked, answers = checks()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        asked.ask("w-0", "127.0.0.1", 22)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert answers == [("w-0", None, "")]


def test_of_what_is_no_address_nobody_knows() -> None:
    _, asked, answers = checks()
    asked.ask("w-0", "1.2.3.4.5", 22)
    assert answers == [("w-0", None, "")]


@pytest.mark.parametrize("way", ["kernel", "python"])
def test_without_process_handles_the_end_is_waited_for_all_the_same(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def refused(_pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if way == "kernel":
        monkeypatch.setattr(os, "pidfd_open", refused)
    else:
        monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["sleep", "300"]) as child:
        assert os_calls.process_handle(child.pid) is None
        child.kill()
        processes.wait_gone([child.pid], 60)
        with pytest.raises(ChildProcessError):
            os.waitpid(child.pid, 0)
