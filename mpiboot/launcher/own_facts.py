"""This pod's own facts, gathered by a child that is forked before the launcher has a thread.

What reads netlink is heavy (pyroute2), and of no use afterwards: with the child its memory goes.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Mapping
from contextlib import suppress

from mpiboot.core.facts import PodFacts, facts_from_json, facts_to_json
from mpiboot.core.settings import Resolved
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.system.threads import in_thread

# A shell in this pod takes milliseconds.
_PATIENCE = 30.0  # seconds


def gather(resolved: Resolved, environ: Mapping[str, str], pid: int) -> tuple[str, str]:
    """Gather this pod's facts as JSON, and what it answers as a worker does."""
    # Loaded late: in the launcher its child alone needs them.
    from mpiboot.network import records  # noqa: PLC0415
    from mpiboot.system import programs  # noqa: PLC0415
    from mpiboot.worker import facts  # noqa: PLC0415

    found = facts.gather(resolved, environ, sshd="", pid=pid, mpi=None)
    question = host_shell.ask("memory", records.QUESTION)
    answer = programs.run(("/bin/sh", "-c", question), _PATIENCE)
    return facts_to_json(found), answer.stdout if answer else ""


def read(text: str, answer: str) -> tuple[PodFacts, HostAnswer]:
    """Read what ``gather`` gave."""
    found = facts_from_json(text)
    if found is None:
        raise RuntimeError(f"this pod's facts can't be read: {text.strip()[-500:]}")
    return found, host_shell.read(answer)


class OwnFacts:
    """A child that gathers them."""

    def __init__(self, resolved: Resolved, environ: Mapping[str, str]) -> None:
        """Fork it; there must be no other thread.

        Raises:
            OSError: it can't be started.
        """
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            _be_child(resolved, environ, writer)
        os.close(writer)
        self._reader = reader

    async def read(self) -> tuple[PodFacts, HostAnswer]:
        """Wait for them.

        Raises:
            RuntimeError: they could not be gathered.
        """
        text, _, answer = (await in_thread(self._text)).partition("\0")
        return read(text, answer)

    def _text(self) -> str:
        with os.fdopen(self._reader, encoding="utf-8", errors="replace") as file:
            return file.read()


def _be_child(resolved: Resolved, environ: Mapping[str, str], writer: int) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    text = ""
    try:
        text = "\0".join(gather(resolved, environ, os.getppid()))
    except BaseException:  # noqa: BLE001 - the boundary of this process
        text = traceback.format_exc()
    with suppress(OSError), os.fdopen(writer, "w", encoding="utf-8") as file:
        file.write(text)
    os._exit(0)
