"""One launcher that a benchmark runs: its log with the time, what its mpirun is told and tells."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from processes import below

from mpiboot.supervisor.processes import find_mpiruns

GUARD = 240.0


class Control:
    """The end of a stand-in's control socket; what it said, with the time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.message: dict[str, float] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._heard = threading.Condition()
        self._peer: socket.socket | None = None
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        self._peer, _ = self._listener.accept()
        with suppress(ConnectionResetError), self._peer.makefile() as lines:
            for line in lines:
                what, at = line.split()
                with self._heard:
                    self.message.setdefault(what, float(at))
                    self._heard.notify_all()

    def wait_for(self, what: str, launcher: Launcher) -> float:
        """Wait until the stand-in has said so; when that was (monotonic seconds)."""
        end = time.monotonic() + GUARD
        with self._heard:
            while not self._heard.wait_for(lambda: what in self.message, 0.5):
                if time.monotonic() > end or launcher.process.poll() is not None:
                    raise TimeoutError(f"the stand-in for mpirun never said {what}: {self.message}")
        return self.message[what]

    def end(self) -> None:
        """Let it end."""
        if self._peer is not None:
            self._peer.sendall(b"end\n")


class Program:
    """What a real mpirun starts on every host: it says that it runs, and waits for its end."""

    def __init__(self, folder: Path) -> None:
        self._up, self._gate = folder / "up", folder / "gate"
        self._up.touch()
        os.mkfifo(self._gate)
        self.argv = ["/bin/sh", "-c", f"echo up >> {self._up}; cat {self._gate}"]

    def wait_for(self, count: int) -> float:
        """Wait until so many run; when that was (monotonic seconds)."""
        end = time.monotonic() + GUARD
        while len(self._up.read_text().splitlines()) < count:
            if time.monotonic() > end:
                raise TimeoutError("the ranks never started")
            time.sleep(0.02)
        return time.monotonic()

    def end(self) -> None:
        """Let all of them end."""
        os.close(os.open(self._gate, os.O_WRONLY))


class Launcher:
    """A launcher that runs, and what its log has said, with the time."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            argv, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[tuple[float, str]] = []
        self._heard = threading.Condition()
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        for line in self.process.stderr or ():
            with self._heard:
                self.lines.append((time.monotonic(), line))
                self._heard.notify_all()
        with self._heard:
            self.lines.append((time.monotonic(), "the end"))
            self._heard.notify_all()

    def _find(self, words: str) -> float | None:
        return next((at for at, line in self.lines if words in line or line == "the end"), None)

    def wait_for(self, words: str) -> float:
        """Wait until the log has these words; when they came."""
        with self._heard:
            self._heard.wait_for(lambda: self._find(words) is not None, GUARD)
        found = self._find(words)
        if found is None or self.lines[-1][1] == "the end":
            raise RuntimeError("".join(line for _, line in self.lines[-30:]))
        return found

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for what it brings about; RuntimeError where it ends before."""
        end = time.monotonic() + GUARD
        while not holds():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("".join(line for _, line in self.lines[-30:]))
            time.sleep(0.01)

    def wait(self, *, any_status: bool = False) -> int:
        """Wait for its end; KiB that the largest of all its processes had resident.

        Raises:
            RuntimeError: it has failed, and that counts.
        """
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode and not any_status:
            lines = "".join(line for _, line in self.lines[-30:])
            raise RuntimeError(f"exit {self.process.returncode}: {lines}")
        return usage.ru_maxrss

    def pids(self) -> tuple[list[int], list[int]]:
        """The processes of the launcher without mpirun itself, and mpirun's."""
        mpirun = list(find_mpiruns(self.process.pid))
        return [pid for pid in below(self.process.pid) if pid not in mpirun], mpirun
