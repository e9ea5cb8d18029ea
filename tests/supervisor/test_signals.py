"""Signals as the launcher takes them in: in a process of its own, for they are blocked there."""

from __future__ import annotations

import json
import subprocess
import sys

# Some are sent before anybody listens, one after that; and one that is none of the launcher's.
TELLS = """
import json, os, signal
from mpiboot.supervisor import signals

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH, signal.SIGTERM])
mask = signals.block()
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGTERM)
taken = signals.Signals()
seen = []
while len(seen) < 2:
    seen += taken.read()
os.kill(os.getpid(), signal.SIGHUP)
seen += taken.read()
pid = os.spawnv(os.P_NOWAIT, "/bin/true", ["true"])
seen += taken.read()
status = os.waitpid(pid, 0)[1]
print(json.dumps([sorted(map(int, mask)), seen, status]), flush=True)
os._exit(0)
"""


def test_signals_are_taken_in_whenever_they_came() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TELLS], capture_output=True, timeout=60, check=True, text=True
    )
    mask, seen, status = json.loads(done.stdout)
    assert mask == [28], "what others had blocked, but for the parent's own, is a program's too"
    first, second, *rest = seen
    assert sorted((first, second)) == [[10, False], [15, False]]
    assert rest == [[1, False], [17, False]]
    assert status == 0
