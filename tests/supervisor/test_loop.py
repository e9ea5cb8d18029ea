"""What a process sleeps on, where a pod lacks what it would ask with."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from functools import partial

import pytest

from mpiboot.supervisor import processes
from mpiboot.system import os_calls
from mpiboot.system.processes import find
from tests.supervisor.loops import Loop


def test_what_fails_is_listened_to_no_more_unless_it_is_vital(
    capfd: pytest.CaptureFixture[str],
) -> None:
    # As in an image, whose other packages lie below a folder of mpiboot's name too.
    other = "/opt/mpiboot/lib/other.py"
    fail = partial(exec, compile("raise ValueError(\"no number: 'x'\")", other, "exec"), {})
    loop = Loop()
    reader, writer = os.pipe()
    os.write(writer, b"x")
    loop.on(reader, fail)
    loop.wait(None)
    loop.wait(time.monotonic())
    message = capfd.readouterr().err
    assert message.count("warning: [bug] an event handler failed at supervisor/handles.py:") == 1
    assert message.endswith("ValueError: no number: 'x'; the job goes on without it\n")
    loop.on(reader, fail, vital=True)
    with pytest.raises(ValueError, match="no number"):
        loop.wait(None)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("way", ["kernel", "python"])
def test_without_process_handles_the_end_is_waited_for_all_the_same(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def refused(_pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refused)
    if way == "python":
        monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["sleep", "300"]) as child:
        assert os_calls.process_handle(child.pid) is None
        child.kill()
        threading.Thread(target=child.wait).start()
        processes.wait_gone([child.pid], 60)
        assert find(child.pid) is None
