"""What a worker tells of itself after a failure, on a kernel with unified control groups (v2)."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from mpiboot.hosts import host_shell
from mpiboot.ssh.client import PodAccess
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor import evidence, workers
from mpiboot.supervisor.job import HostFacts
from mpiboot.supervisor.workers import Workers
from tests.vm.inside.machine import run, wait_for

GROUPS = Path("/run/groups")
LIMIT = 32 << 20
# What runc makes of a container: its own group is the root of what it sees.
POD = (
    "echo $$ >{group}/cgroup.procs; exec unshare --cgroup --mount sh -c "
    "'mount -t cgroup2 none /sys/fs/cgroup && echo ready && exec sleep 1000'"
)
EATER = "echo $$ >{group}/cgroup.procs; exec tail /dev/zero"


@dataclass
class Pod:
    """A pod with a memory limit, which is entered as by kubectl."""

    group: Path
    process: subprocess.Popen[bytes]

    def run(self, _pod: str) -> tuple[str, ...]:
        return ("nsenter", "-t", str(self.process.pid), "-m", "-C", "sh", "-s")

    def ask(self, command: str) -> str:
        words = self.run("w-0")
        done = subprocess.run(words, input=command, capture_output=True, text=True, check=False)
        return done.stdout

    def eat(self) -> int:
        command = EATER.format(group=self.group)
        done = subprocess.run(["sh", "-c", command], stdout=subprocess.DEVNULL, check=False)
        return done.returncode

    def before(self) -> evidence.HostSnapshot:
        answer = host_shell.read(self.ask(host_shell.gate()))
        return evidence.HostSnapshot("w-0", "localhost", "127.0.0.1", answer)

    def facts(self, before: evidence.HostSnapshot) -> HostFacts:
        pool = Pool(None, pods=cast("PodAccess", self))
        told: list[HostFacts] = []
        asyncio.run(Workers(pool, (before,), {}).after_job("", told.append))
        return told[0]


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    GROUPS.mkdir(exist_ok=True)
    run(f"mount -t cgroup2 none {GROUPS}")
    (GROUPS / "cgroup.subtree_control").write_text("+memory")
    group = GROUPS / "pod"
    group.mkdir()
    (group / "memory.max").write_text(str(LIMIT))
    command = ("sh", "-c", POD.format(group=group))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        # Without KVM everything takes its time.
        for name in ("SECONDS", "_ANSWER_S"):
            monkeypatch.setattr(workers, name, 60.0)
        yield Pod(group, process)
        (group / "cgroup.kill").write_text("1")
    wait_for(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()
    run(f"umount {GROUPS}")


def test_an_out_of_memory_kill_is_reported(pod: Pod) -> None:
    before = pod.before()
    assert before.answer.oom_kills == 0
    assert pod.eat() == -9
    start = "out of memory: the kernel killed a process of this pod since"
    assert pod.facts(before).memory.startswith(start)
    # A later launcher counts from there.
    assert pod.before().answer.oom_kills == 1
    assert pod.facts(pod.before()).memory == ""


def test_a_container_that_was_killed_as_a_whole_has_a_line_that_tells(pod: Pod) -> None:
    """As the kubelet has it since Kubernetes 1.28: one out of memory is all."""
    (pod.group / "memory.oom.group").write_text("1")
    before = pod.before()
    assert pod.eat() == -9
    assert pod.process.wait(60) == -9
    found = pod.facts(before)
    assert (found.answered, found.memory) == (False, "")
