"""The child that waits for hosts, as the parent sees it: a program and what it hands over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mpiboot.parent.launch_spec import Failure, from_line

GUARD = 60.0

# A nameserver that doesn't answer holds a thread for as long as it likes.
HELD = """
import asyncio, os, sys, threading
os.dup2(int(sys.argv[1]), 3)
from mpiboot.errors import error
from mpiboot.launcher import child, observation

async def wait(pod, program):
    asyncio.ensure_future(asyncio.to_thread(threading.Event().wait))
    raise error("usage", "the hosts are ready")

child.launcher_pod = lambda *args, **named: None
observation.wait = wait
child.main('{"flags": {}, "attempt": ""}', "true")
"""


def test_a_thread_that_never_ends_delays_nothing(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-c", HELD, str(writer)]
    with subprocess.Popen(
        command, pass_fds=(writer,), stderr=subprocess.PIPE, cwd=tmp_path
    ) as process:
        os.close(writer)
        try:
            with open(reader, "rb", closefd=False) as result:
                handed = from_line(result.readline())
            assert isinstance(handed, Failure)
            assert handed.reference == "usage"
            # It ends when nobody reads any more, and says nothing of what it leaves.
            os.close(reader)
            _, said = process.communicate(timeout=GUARD)
        finally:
            process.kill()
    first, hint = said.decode().splitlines()
    assert first == "mpiboot: error: [usage] the hosts are ready"
    assert hint.startswith("mpiboot:   ->")
