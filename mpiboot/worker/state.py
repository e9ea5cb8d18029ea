"""What a running worker writes for the other processes of its container."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mpiboot.core.records_json import read_record
from mpiboot.system import files

WORKER_STATE: Final = "worker.json"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What a running worker writes for the processes around it.

    ``pid`` is the worker's own; ``reason`` is why its SSH server is the embedded one.
    """

    pid: int
    sshd: str
    address: str
    port: int
    reason: str


def worker_state(folder: Path) -> WorkerState | None:
    """Read what the worker of this runtime folder has written; None where none has."""
    try:
        return read_record(WorkerState, json.loads((folder / WORKER_STATE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def worker_folder(wanted: str, environ: Mapping[str, str]) -> Path | None:
    """Find the private folder of this container's worker: a session's own, else where it may be."""
    given = environ.get("MPIBOOT_WORKER_DIR")
    return (
        Path(given)
        if given
        else files.find_role(wanted, os.getuid(), "worker", environ.get("TMPDIR", ""))
    )


def running_worker(wanted: str, environ: Mapping[str, str]) -> WorkerState | None:
    """Read what the worker that runs in this container has written; None where none runs."""
    folder = worker_folder(wanted, environ)
    state = worker_state(folder) if folder else None
    return state if state and os.path.exists(f"/proc/{state.pid}") else None  # noqa: PTH110
