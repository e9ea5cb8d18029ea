"""What the parent sleeps on, where a pod lacks what it would ask with."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import time
from functools import partial

import pytest

from mpiboot.supervisor import processes
from mpiboot.supervisor.host_checks import PATIENCE, HostChecks
from mpiboot.system import os_calls
from mpiboot.system.loop import EventLoop

Answer = tuple[str, bool | None, str]


def checks() -> tuple[EventLoop, HostChecks, list[Answer]]:
    loop, answers = EventLoop(), list[Answer]()
    return loop, HostChecks(loop, lambda *given: answers.append(given)), answers


def test_what_fails_is_listened_to_no_more_unless_it_is_vital(
    capfd: pytest.CaptureFixture[str],
) -> None:
    # As in an image, whose other packages lie below a folder of mpiboot's name too.
    other = "/opt/mpiboot/lib/other.py"
    fail = partial(exec, compile("raise ValueError(\"no number: 'x'\")", other, "exec"), {})
    loop = EventLoop()
    reader, writer = os.pipe()
    os.write(writer, b"x")
    loop.on(reader, fail)
    loop.wait(None)
    loop.wait(time.monotonic())
    message = capfd.readouterr().err
    assert message.count("warning: [bug] what listened to a handle failed at system/loop.py:") == 1
    assert message.endswith("ValueError: no number: 'x'; the job goes on without it\n")
    loop.on(reader, fail, vital=True)
    with pytest.raises(ValueError, match="no number"):
        loop.wait(None)
    os.close(reader)
    os.close(writer)


def test_each_of_very_many_that_are_ready_at_once_has_its_turn() -> None:
    loop, called = EventLoop(), set[int]()
    reader, writer = os.pipe()
    os.write(writer, b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    handles = [os.dup(reader) for _ in range(2000)]
    try:
        for handle in handles:
            loop.on(handle, partial(called.add, handle))
        while len(called) < len(handles):
            loop.wait(None)
    finally:
        for handle in (*handles, reader, writer):
            loop.off(handle)
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_host_is_asked_once_at_a_time_and_nothing_stays_open() -> None:
    _, asked, answers = checks()
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone
    begun = time.monotonic()
    asked.ask("w-0", "192.0.2.1", 22)
    asked.ask("w-0", "192.0.2.1", 22)
    asked.ask("w-1", "192.0.2.1", 22)
    if answers:
        pytest.skip("this machine knows at once that there is no such network")
    first, second = asked.deadlines()
    assert begun + PATIENCE <= first <= second
    asked.give_up(first - 0.001)
    assert answers == []
    asked.give_up(second)
    assert answers == [(host, False, os.strerror(errno.ETIMEDOUT)) for host in ("w-0", "w-1")]
    assert asked.deadlines() == []
    assert set(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


def test_a_host_with_an_ipv6_address_is_asked_by_that() -> None:
    loop, asked, answers = checks()
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener:
        asked.ask("w-0", "::1", listener.getsockname()[1])
        while not answers:
            loop.wait(min(asked.deadlines()))
    assert answers == [("w-0", True, os.strerror(0))]


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


def test_nobody_knows_of_a_host_without_an_ssh_port() -> None:
    """As where kubectl enters its pod."""
    _, asked, answers = checks()
    asked.ask("w-0", "127.0.0.1", 0)
    assert answers == [("w-0", None, "")]
    assert asked.deadlines() == []


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
