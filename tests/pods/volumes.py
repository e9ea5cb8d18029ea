"""What a kubelet mounts into a pod: ConfigMaps and Secrets, files by subPath, and empty folders."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

READ_ONLY = ("rbind", "rprivate", "ro")
READ_WRITE = ("rbind", "rprivate", "rw")


@dataclass(frozen=True)
class Mount:
    """One bind mount or tmpfs of a container, as the OCI runtime wants it."""

    destination: str
    source: str
    type: str = "bind"
    options: tuple[str, ...] = READ_WRITE


class Volume(Protocol):
    """What can be mounted: it is made once per pod, so it lives on over container restarts."""

    path: str

    def make(self, folder: Path) -> Mount:
        """Make the volume's files below a folder, and return its mount."""


def _write(path: Path, content: str | bytes, mode: int, fs_group: int | None) -> None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    if fs_group is not None:
        os.chown(path, 0, fs_group)
        mode |= 0o440
    path.chmod(mode)


@dataclass
class Files:
    """A ConfigMap or Secret volume: links to `..data`, which is replaced as a whole by `update`.

    `fs_group` does what a pod's fsGroup does to such a volume: the group may read every file.
    """

    path: str
    files: Mapping[str, str | bytes]
    mode: int = 0o644
    modes: Mapping[str, int] = field(default_factory=dict)
    fs_group: int | None = None
    _folder: Path | None = field(default=None, init=False)

    def make(self, folder: Path) -> Mount:
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        self._folder = folder
        self.update(self.files)
        return Mount(self.path, str(folder), options=READ_ONLY)

    def update(self, files: Mapping[str, str | bytes]) -> None:
        """Replaces all files at once, the way the kubelet's atomic writer does."""
        self.files = files
        if self._folder is None:  # not mounted yet
            return
        stamp = time.strftime("..%Y_%m_%d_%H_%M_%S.") + str(time.time_ns() % 10**9)
        state = self._folder / stamp
        state.mkdir()
        state.chmod(0o755)
        for name, content in files.items():
            _write(state / name, content, self.modes.get(name, self.mode), self.fs_group)
        data = self._folder / "..data"
        old = data.resolve() if data.is_symlink() else None
        fresh = self._folder / "..data_tmp"
        fresh.symlink_to(stamp)
        fresh.rename(data)
        there = {link.name for link in self._folder.iterdir() if not link.name.startswith("..")}
        for name in there - set(files):
            (self._folder / name).unlink()
        for name in set(files) - there:
            (self._folder / name).symlink_to(f"..data/{name}")
        if old is not None:
            shutil.rmtree(old)


@dataclass
class SubPath:
    """One key of a ConfigMap or Secret mounted by subPath: a plain file that never changes."""

    path: str
    content: str | bytes
    mode: int = 0o644
    fs_group: int | None = None

    def make(self, folder: Path) -> Mount:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _write(folder, self.content, self.mode, self.fs_group)
        return Mount(self.path, str(folder), options=READ_ONLY)


@dataclass
class EmptyDir:
    """An empty folder that lives as long as the pod; `host` is its path on the host.

    `name` is the volume's in the pod's spec: mounts of one volume have one folder, also those of
    init containers.
    """

    path: str
    mode: int = 0o777
    options: tuple[str, ...] = ()
    name: str = ""
    host: Path | None = field(default=None, init=False)

    def make(self, folder: Path) -> Mount:
        self.host = folder.with_name(self.name) if self.name else folder
        self.host.mkdir(parents=True, exist_ok=True)
        self.host.chmod(self.mode)
        return Mount(self.path, str(self.host), options=(*READ_WRITE, *self.options))


@dataclass
class Tmpfs:
    """A file system in memory, with a size, made anew with each container."""

    path: str
    size: int = 64 << 20
    mode: int = 0o1777
    options: tuple[str, ...] = ("nosuid", "nodev")

    def make(self, _: Path) -> Mount:
        options = (*self.options, f"mode={self.mode:o}", f"size={self.size}")
        return Mount(self.path, "tmpfs", "tmpfs", options)


@dataclass
class HostPath:
    """A folder or file of the host (hostPath), read-only unless `writable`."""

    path: str
    source: Path
    writable: bool = False

    def make(self, _: Path) -> Mount:
        return Mount(
            self.path, str(self.source), "bind", READ_WRITE if self.writable else READ_ONLY
        )
