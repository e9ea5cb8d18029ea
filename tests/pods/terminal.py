"""A terminal for a container or a command in it, with a reader so that it never blocks."""

from __future__ import annotations

import os
import pty
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path


class Terminal:
    """Runs a program on a pseudo-terminal; its output goes to a file."""

    def __init__(self, argv: Sequence[str], output: Path) -> None:
        self._output = output
        self._control, inner = pty.openpty()
        self.process = subprocess.Popen(
            argv, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
        )
        os.close(inner)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def type(self, text: str) -> None:
        """Types on the terminal; Ctrl-C is the character 3."""
        os.write(self._control, text.encode())

    def screen(self) -> str:
        """All that was printed so far."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def wait(self, timeout: float = 60) -> int:
        """Waits for the program's end and for the last of what it printed."""
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    def _read(self) -> None:
        with self._output.open("ab", buffering=0) as file:
            while True:
                try:
                    chunk = os.read(self._control, 65536)
                except OSError:  # the other side is closed
                    break
                if not chunk:
                    break
                file.write(chunk)
        os.close(self._control)
