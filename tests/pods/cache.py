"""Where what the rig built is kept, and how two at once make one thing."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("MPIBOOT_CACHE", "/var/cache/mpiboot"))


def folders(layer: Path, folder: Path) -> None:
    """Makes parent folders with the mode that a merged root needs, whatever the umask is."""
    for part in reversed([folder, *folder.parents]):
        if layer in part.parents and not part.exists():
            part.mkdir()
            part.chmod(0o755)


def once(target: Path, make: Callable[[Path], None]) -> Path:
    """Makes a folder of the cache unless it is there; who needs it meanwhile waits for it."""
    locks = CACHE / "locks"
    for folder in (locks, target.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with (locks / target.name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            part = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
            part.chmod(0o755)
            try:
                make(part)
                part.rename(target)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
    os.utime(target)  # scripts/images deletes what nobody used for days
    return target


def hash_of(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                # Checkouts of the same code share what was made of it.
                name = file.relative_to(REPOSITORY)
                digest.update(f"{name} {os.access(file, os.X_OK)}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
