"""Programs of a shell that stand in for real ones, and what this process has open."""

from __future__ import annotations

from pathlib import Path


def program(folder: Path, name: str, text: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
