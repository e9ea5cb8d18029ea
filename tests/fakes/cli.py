"""mpiboot as a child process, with nothing of this process's environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
GUARD = 60.0


def environment(folder: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """A pod's environment; the termination log of the machine is never written."""
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "MPIBOOT_RUNTIME_DIR": str(folder / "run"),
        "MPIBOOT_TERMINATION_LOG": str(folder / "termination-log"),
        **(more or {}),
    }


def mpiboot(
    folder: Path, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return run(folder, [sys.executable, "-m", "mpiboot", *words], env)


def run(
    folder: Path, words: Sequence[str], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; the termination log is there, as a kubelet mounts it."""
    (folder / "termination-log").touch()
    return subprocess.run(
        words,
        env=environment(folder, env),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=GUARD,
        check=False,
    )


def message(folder: Path) -> str:
    """What the kubelet would show as the reason."""
    return (folder / "termination-log").read_text()
