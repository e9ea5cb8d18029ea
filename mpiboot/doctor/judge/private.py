"""The private folder, TMPDIR and the job's key, judged. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mpiboot.core.model import Finding
from mpiboot.doctor.judge.image import ok
from mpiboot.doctor.report import FolderPart, KeyPart


def folder(seen: FolderPart) -> Iterable[Finding]:
    """Judge the private folder."""
    if seen.path:
        yield ok("runtime-folder", f"the private folder is {seen.path}")
    yield from (item for item in seen.wrong if item.check == "runtime-folder")


def tmpdir(seen: FolderPart) -> Iterable[Finding]:
    """Judge TMPDIR; where it is not set there is nothing to say."""
    yield from (item for item in seen.wrong if item.check == "tmpdir")


def key(seen: KeyPart) -> Iterable[Finding]:
    """Judge the job's key. Its mode is no trouble: roles use a copy of their own, mode 0600."""
    if seen.wrong:
        yield seen.wrong
        return
    where = f"mode {seen.mode:04o} of uid {seen.owner}{', read-only' if seen.read_only else ''}"
    yield ok("ssh-key", f"the key is {seen.path}, {seen.kind} {seen.fingerprint}, {where}")
    if seen.odd:
        yield seen.odd
