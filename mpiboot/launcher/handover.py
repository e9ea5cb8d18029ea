"""The last act of the launcher: start mpirun, and become the small program that is its parent."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Mapping
from typing import NoReturn

from mpiboot.errors import MpibootError
from mpiboot.job.plan_builder import Paths
from mpiboot.launcher import launch_folder
from mpiboot.parent import launch_spec, mpirun_messages, os_calls
from mpiboot.system import process


def become_parent(
    argv: tuple[str, ...],
    env: Mapping[str, str],
    paths: Paths,
    way: mpirun_messages.Lead | None = None,
) -> NoReturn:
    """Start mpirun and become its parent, whose interpreter so starts beside it and not before.

    A child stays one's own over exec, and signals that are blocked wait over it. ``way`` is where
    mpirun's own messages are led.

    Raises:
        MpibootError: ``program-missing``; this interpreter can't be executed.
    """
    # A thread that still waits for a dead nameserver doesn't block signals: what one gets from now
    # on is this thread's, where it waits for the parent's program.
    own = threading.get_ident()
    for number in launch_spec.SIGNALS - {signal.SIGCHLD}:
        signal.signal(number, lambda got, _: signal.pthread_kill(own, got))
    mask = os_calls.block_signals()
    # A FIFO that nobody has open forgets what was written to it.
    events = os_calls.open_fifo(f"{paths.launch_dir}/{launch_spec.EVENTS}")
    started: launch_spec.Started | None = None
    with contextlib.suppress(OSError):  # the parent tries once more, and says why
        led = {**env, **way.environ} if way else env
        pid = os_calls.spawn(argv, led, mask, own_group=not os_calls.has_terminal())
        started = launch_spec.Started(pid, events, way.started() if way else -1)
        for handle in started[1:]:
            if handle >= 0:
                os.set_inheritable(handle, True)
    try:
        parent = launch_folder.parent(paths, started)
        process.replace(parent, env, blocked=sorted(launch_spec.SIGNALS))
    except MpibootError:
        if started:
            os.kill(started.pid, signal.SIGKILL)
        raise
