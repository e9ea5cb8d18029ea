"""Lists a container's processes from the host, and makes PID namespaces that containers share."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.pods.network import Node

TINI = "/usr/bin/tini-static"


class SharedProcesses:
    """The process table of a pod with shareProcessNamespace; its first process stands for `pause`.

    It reaps what has lost its parent and does nothing else; it ends with the test at the latest.
    """

    def __init__(self, node: Node) -> None:
        first = [TINI, "--", "sh", "-c", "echo ready; read -r _"]
        argv = [*node.prefix(), "unshare", "--pid", "--fork", *first]
        self._holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self._holder.stdout is None or not self._holder.stdout.readline():
            raise RuntimeError("this machine doesn't let the rig make process tables")
        self.path = f"/proc/{self._holder.pid}/ns/pid_for_children"

    def close(self) -> None:
        """Ends every process that is in it."""
        if self._holder.poll() is None:
            self._holder.communicate()


@dataclass(frozen=True)
class Process:
    """One process of a container: its number there and on the host, its state and command line."""

    pid: int
    host_pid: int
    state: str
    args: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.pid} {self.state} {' '.join(self.args)}"


def processes_of(first: int) -> list[Process]:
    """All processes that share the PID namespace of a container's first one."""
    try:
        namespace = os.stat(f"/proc/{first}/ns/pid").st_ino  # noqa: PTH116
    except OSError:
        return []
    found = []
    # Tests ask this again and again while they wait: pathlib would take half of a core for it.
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        try:
            if os.stat(f"/proc/{name}/ns/pid").st_ino != namespace:  # noqa: PTH116
                continue
            folder = Path("/proc", name)
            status = dict(
                line.split(":", 1) for line in (folder / "status").read_text().splitlines()
            )
            args = (folder / "cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:  # gone meanwhile
            continue
        found.append(
            Process(
                pid=int(status["NSpid"].split()[-1]),
                host_pid=int(name),
                state=status["State"].split()[0],
                args=tuple(arg.decode(errors="replace") for arg in args)
                or (f"[{status['Name'].strip()}]",),
            )
        )
    return sorted(found, key=lambda process: process.pid)
