"""A pod's own user namespace (`hostUsers: false`): no uid in it is a uid of the node.

runc here maps no mounts (1.2 does), so the rig does what a runtime does with `uidMappings` on a
mount: it clones the mount with another map of owners (mount_setattr(2), idmapped mounts).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.pods import idmap
from tests.pods.network import Node
from tests.pods.volumes import Mount

# As the kubelet hands them out: 65,536 numbers for a pod, none of them the node's own.
FIRST, COUNT = 100_000, 65_536
MAP = [{"containerID": 0, "hostID": FIRST, "size": COUNT}]

# The namespaces live by the file that is mounted on them; the process only makes them.
_HOLDER = "echo ready; read -r _ || true"


@dataclass
class UserNamespace:
    """One pod's namespace; `path` is where the rig's commands find it."""

    node: Node
    folder: Path

    def __post_init__(self) -> None:
        self.path = f"{self.folder}/user-namespace"
        self._mapped = 0
        argv = [*self.node.prefix(), "unshare", "--user", "--net", "sh", "-c", _HOLDER]
        self._holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self._holder.stdout is None or not self._holder.stdout.readline():
            raise RuntimeError("this machine doesn't let the rig make user namespaces")
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{self.pid}/{kind}").write_text(f"0 {FIRST} {COUNT}\n")
        script = 'mkdir -p "$1"; touch "$2"; mount --bind "/proc/$3/ns/user" "$2"'
        self.node.run("sh", "-ec", script, "sh", str(self.folder), self.path, str(self.pid))

    @property
    def pid(self) -> int:
        """The process whose network namespace belongs to this user namespace."""
        return self._holder.pid

    def made(self) -> None:
        self._holder.communicate()

    def mapped(self, sources: Sequence[str]) -> list[str]:
        """The same files and folders as this namespace's users are to see them."""
        targets = []
        for _ in sources:
            self._mapped += 1
            targets.append(f"{self.folder}/mapped-{self._mapped}")
        words = [word for pair in zip(sources, targets, strict=True) for word in pair]
        self.node.run(sys.executable, "-I", str(idmap.__file__), self.path, *words)
        return targets

    def mounts(self, mounts: Sequence[Mount]) -> list[Mount]:
        """A pod's mounts with every bind mount mapped."""
        bound = [mount.source for mount in mounts if mount.kind == "bind"]
        targets = iter(self.mapped(bound))
        return [
            replace(mount, source=next(targets)) if mount.kind == "bind" else mount
            for mount in mounts
        ]
