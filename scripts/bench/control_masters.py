"""OpenSSH's own way to keep connections: a master process a host, for others to go through."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

_AT_ONCE = 32
_PATIENCE = 120.0


class ControlMasters:
    """The masters of a job's hosts, logged in before the launcher starts."""

    def __init__(self, folder: Path, config: Path, hosts: Sequence[str]) -> None:
        """Start them, and wait until each can be gone through."""
        folder.mkdir()
        self._running: list[subprocess.Popen[bytes]] = []
        self.agent = folder / "over-master"
        words = f"ssh -F {config} -S {folder}/%h"
        self.agent.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        self.agent.chmod(0o755)
        end = time.monotonic() + _PATIENCE
        for number, host in enumerate(hosts):
            quiet = subprocess.DEVNULL
            argv = [*words.split(), "-M", "-N", host]
            self._running.append(subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet))
            behind = hosts[max(0, number - _AT_ONCE)]
            while number >= _AT_ONCE and not (folder / behind).exists():
                self._wait(end)
        while not all((folder / host).exists() for host in hosts):
            self._wait(end)

    def _wait(self, end: float) -> None:
        if time.monotonic() > end:
            self.stop()
            raise TimeoutError("the control masters did not log in")
        time.sleep(0.01)

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [process.pid for process in self._running]

    def stop(self) -> None:
        """End them."""
        for process in self._running:
            process.kill()
        for process in self._running:
            process.wait()
