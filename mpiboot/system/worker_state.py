"""What a running worker tells the processes of its pod: a file in its private folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

STATE: Final = "worker.json"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What a running worker tells the processes around it.

    ``pid`` is the worker's own; ``because`` is why its SSH server is the embedded one.
    """

    pid: int
    sshd: str
    address: str
    port: int
    because: str


def worker_state(folder: Path) -> WorkerState | None:
    """Read what the worker of this runtime folder has written; None where none has."""
    try:
        value = json.loads((folder / STATE).read_text("utf-8"))
        return WorkerState(**{item.name: value[item.name] for item in fields(WorkerState)})
    except (OSError, ValueError, KeyError, TypeError):
        return None
