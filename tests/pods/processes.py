"""Looks into a container's PID namespace from the host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
        namespace = Path(f"/proc/{first}/ns/pid").stat().st_ino
    except OSError:
        return []
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if (folder / "ns/pid").stat().st_ino != namespace:
                continue
            status = dict(
                line.split(":", 1) for line in (folder / "status").read_text().splitlines()
            )
            args = (folder / "cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:  # gone meanwhile
            continue
        found.append(
            Process(
                pid=int(status["NSpid"].split()[-1]),
                host_pid=int(folder.name),
                state=status["State"].split()[0],
                args=tuple(arg.decode(errors="replace") for arg in args)
                or (f"[{status['Name'].strip()}]",),
            )
        )
    return sorted(found, key=lambda process: process.pid)
