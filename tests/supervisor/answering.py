"""Hosts that are scripts here: what they answer to a launcher's queries."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mpiboot.core.facts import HostAnswer
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.job import HostFacts
from mpiboot.supervisor.workers import Workers
from tests.waiting import until, until_in_loop

if TYPE_CHECKING:
    from mpiboot.ssh.client import PodAccess

T = TypeVar("T")


class Carrier:
    """Runs a script on a host as kubectl would: the folder's ``ssh`` reads it."""

    def __init__(self, folder: object) -> None:
        self._program = f"{folder}/ssh"

    def run(self, pod: str) -> tuple[str, ...]:
        return ("env", "QUERY=1", "/bin/sh", self._program, pod)


def pool_for(folder: object, environ: Mapping[str, str] = os.environ) -> Pool:
    found = Pool(None, pods=cast("PodAccess", Carrier(folder)))
    found.environ = environ
    return found


def left() -> int:
    """What this process has of commands: pipes, and threads that wait for their ends."""
    found = sum("(_wait)" in thread.name for thread in threading.enumerate())
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += str(path.readlink()).startswith("pipe:")
    return found


class Hosts:
    """What each host answers is a line of shell; one without can't be reached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ssh").write_text(
            f"""cd {folder}
host=$1 script=
echo $$ >> pids
# To its last line: what follows is for the script to read.
while read -r line; do
    script="$script
$line"
    case $line in *"exit 0; }}") break ;; esac
done
printf "%s" "$line" > "asked-$host"
[ -e "$host" ] || exit 255
. "./$host"
"""
        )

    def answers(self, host: str, text: str) -> HostSnapshot:
        (self.folder / host).write_text(text)
        return self.before(host)

    def before(self, host: str, *, mpiboot: bool = False, dns: str = "") -> HostSnapshot:
        return HostSnapshot(host, dns, "10.0.0.2", HostAnswer(oom_kills=1), mpiboot=mpiboot)

    def asked(self) -> dict[str, str]:
        """The last line of each host's script, which calls its functions."""
        return {
            path.name.removeprefix("asked-"): path.read_text()
            for path in self.folder.glob("asked-*")
        }

    def facts(self, hosts: Sequence[HostSnapshot], program: str = "") -> dict[str, HostFacts]:
        """What hosts answer after the job, by their names."""
        told: list[HostFacts] = []
        self.run(self.workers(*hosts).after_job(program, told.append))
        assert len(told) == len(hosts)
        return {host.name: host for host in told}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end, and that of every command; nothing of one stays open."""

        async def whole() -> T:
            before = left()
            found = await work
            await until_in_loop(lambda: left() <= before)
            return found

        found = asyncio.run(whole())
        until(lambda: all(map(gone, self.pids())))
        return found

    def pids(self) -> list[str]:
        path = self.folder / "pids"
        return path.read_text().split() if path.exists() else []

    def workers(self, *hosts: HostSnapshot) -> Workers:
        return Workers(pool_for(self.folder), hosts, os.environ)


def state(pid: str | int) -> str:
    """The kernel's letter for a process's state; X for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "X"


def gone(pid: str | int) -> bool:
    """Whether a process has ended; a zombie is its parent's concern."""
    return state(pid) in "ZX"
