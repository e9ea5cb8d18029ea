"""The gate beside a command: what the command's ssh reads of each host, and when."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import HostAnswer, Worker
from mpiboot.core.model import Decision, Source
from mpiboot.core.settings import resolve
from mpiboot.hosts.gate import GateResult
from mpiboot.hosts.hostfiles import JobHostfile
from mpiboot.launcher import logins, prepare, shims
from mpiboot.launcher.logins import CommandLogins, by_every_name, may_join
from mpiboot.launcher.setup import LauncherPod, access
from mpiboot.system.keys import JobKey
from tests.fakes import plans
from tests.fakes.sshd import Behaviour, Job, sshd
from tests.fakes.worker import HAVE_SSH
from tests.waiting import GUARD


def workers_of(listed: str, ports: tuple[int, ...], addresses: str) -> tuple[Worker, ...]:
    """Workers of these names."""
    names = listed.split()
    made = zip(plans.hosts(*[1] * len(names)), names, ports, addresses.split(), strict=False)
    return tuple(
        replace(plans.worker(replace(host, name=name), at, None), port=port, address=address)
        for at, (host, name, port, address) in enumerate(made)
    )


@pytest.mark.parametrize(
    ("listed", "addresses", "renamed", "found"),
    [
        (
            "w-0.job",
            "10.0.0.1",
            {"w-0.job": "w-0.job.ns.svc.c"},
            dict.fromkeys(("w-0.job", "w-0", "w-0.job.ns.svc.c", "10.0.0.1"), "w-0.job"),
        ),
        ("w.a w.b", "10.0.0.1 10.0.0.1", {}, {"w.a": "w.a", "w.b": "w.b"}),
        (
            "w.a w",
            "10.0.0.1 10.0.0.2",
            {},
            {"w.a": "w.a", "w": "w", "10.0.0.1": "w.a", "10.0.0.2": "w"},
        ),
        ("10.0.0.1", "10.0.0.1", {}, {"10.0.0.1": "10.0.0.1"}),
    ],
    ids=["each of its names", "ambiguous names stand for none", "the hostfile's first", "address"],
)
def test_a_host_is_known_by_each_of_its_names(
    listed: str, addresses: str, renamed: dict[str, str], found: dict[str, str]
) -> None:
    workers = workers_of(listed, (22, 22), addresses)
    named = by_every_name(workers, renamed)
    assert {name: worker.host.name for name, worker in named.items()} == found


@pytest.mark.parametrize(
    ("listed", "ports", "renamed", "found"),
    [
        ("w-0.job w-1.job", (2222, 2222), {}, [("w-*.job", "%h", 2222), ("w-*", "%h.job", 2222)]),
        (
            "a-0-1 b",
            (22, 22),
            {"a-0-1": "a-0-1.job.svc"},
            [("a-0-*.job.svc", "%h", 22), ("a-0-*", "%h.job.svc", 22)],
        ),
        # Two networks, or two ports: how a third one is reached is not known.
        ("w-0.a w-1.b", (22, 22), {}, [("w-*.a", "%h", 22), ("w-*.b", "%h", 22)]),
        ("w-0 w-1", (22, 2222), {}, []),
        ("10.0.0.1 fd00::1", (22, 22), {}, []),
    ],
)
def test_hosts_that_may_join_are_named_as_the_jobs_are_but_for_their_number(
    listed: str, ports: tuple[int, ...], renamed: dict[str, str], found: list[tuple[str, str, int]]
) -> None:
    joining = may_join(workers_of(listed, ports, "10.0.0.1 10.0.0.2"), renamed)
    assert [(item.name, item.address, item.port) for item in joining] == found
    assert {item.user for item in joining} <= {"root"}


def conf(folder: Path) -> dict[str, str]:
    """What its ssh reads."""
    lines = (line.split("=", 1) for line in (folder / "ssh.conf").read_text().splitlines())
    return {name: value.strip("'") for name, value in lines}


def ready(folder: Path) -> set[str]:
    return {path.name for path in (folder / "ready").iterdir()}


ALL = {"w-0.job.ns.svc", "w-0", "10.244.0.10", "w-1.job.ns.svc", "w-1", "10.244.0.11"}
FIRST = {name for name in ALL if name.startswith("w-0") or name.endswith(".10")}
LISTED = {name for name in ALL if name.startswith("w-")}


class Gate:
    """Two hosts at the second attempt of their job, the second of which may never be ready."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = tmp_path / "command"
        self.folder.mkdir()
        self.fails, self.key = False, True
        self.seen: list[tuple[set[str], set[str]]] = []
        self.job = Job(tmp_path)
        (tmp_path / "hosts").write_text("w-0.job.ns.svc\nw-1.job.ns.svc\n")
        self.given = {"hostfile": str(tmp_path / "hosts"), "ssh_keepalive": "30"}
        before = HostAnswer(attempts=(("a@2026-01-01T00:00:00Z@1", "it failed"),))
        self.workers = [replace(one, answer=before) for one in plans.observed().workers]

        def pod(resolved: object, environ: object, **named: Any) -> LauncherPod:  # noqa: ANN401 - its own
            assert named == {"attempt": "b", "may_disconnect": True}
            given = resolve(self.given, {})
            return LauncherPod(given, plans.POD, plans.ROOT, tmp_path, time.monotonic(), **named)

        def find_key(pod: LauncherPod, hosts: object) -> None:
            if self.key:
                pod.key = JobKey(self.job.path, "ssh-ed25519 JOB")
            else:
                pod.chosen = Decision("launch-agent", "kubectl", Source.DETECTED, "there is no key")

        async def pass_gates(
            _: LauncherPod,
            found: JobHostfile,
            reached: list[Worker],
            report: Callable[[GateResult], None],
        ) -> GateResult:
            for count in range(1, 2 if self.fails else 3):
                report(GateResult(tuple(self.workers[:count]), (), {}))
                self.seen.append((ready(self.folder), set(conf(self.folder)["hosts"].split())))
            reached += self.workers[: 1 if self.fails else 2]
            if self.fails:
                raise error("ssh-denied", "it takes no key")
            return GateResult(tuple(self.workers), (), {})

        monkeypatch.setattr(logins, "launcher_pod", pod)
        monkeypatch.setattr(logins, "find_key", find_key)
        monkeypatch.setattr(prepare, "pass_gates", pass_gates)

    def run(self) -> None:
        written = CommandLogins(self.folder, os.environ["PATH"])
        self.written = written
        asyncio.run(logins._wait_for_hosts(resolve(self.given, {}), written, "b"))


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(tmp_path, monkeypatch)


@pytest.mark.skipif(not HAVE_SSH, reason="no ssh")
def test_each_host_is_reported_as_soon_as_it_is_ready(
    gate: Gate, capfd: pytest.CaptureFixture[str]
) -> None:
    gate.run()
    assert gate.seen == [(FIRST, LISTED | FIRST), (ALL, ALL)]
    values, folder = conf(gate.folder), gate.folder / "logins"
    known = values.pop("hosts").split()
    assert {*ALL, "w-[0-9].job.ns.svc", "w-[0-9][0-9]"} <= set(known)
    assert len(known) == 6 + 2 * 4
    ssh, _, pins = values.pop("ssh").partition(" ")
    assert pins.startswith("-o StrictHostKeyChecking=yes -o UserKnownHostsFile=")
    assert values == {"plain": ssh, "dir": str(folder)}
    assert ssh == shutil.which("ssh")
    assert (folder / "key").read_bytes() == gate.job.path.read_bytes()
    assert not (folder / "requests").exists()
    text = (folder / "ssh_config").read_text()
    listed = {line.split()[1] for line in text.splitlines() if line.startswith("Host ")}
    assert listed == {*ALL, "w-*.job.ns.svc", "w-*", "*"}
    earlier = "attempt 2; the last one (a of 2026-01-01T00:00:00Z) ended: it failed"
    assert f"mpiboot: {earlier}\n" in capfd.readouterr().err


@pytest.mark.skipif(not HAVE_SSH, reason="no ssh")
def test_one_that_never_is_ready_leaves_the_others_as_they_are(gate: Gate) -> None:
    gate.fails = True
    with pytest.raises(MpibootError):
        gate.run()
    assert ready(gate.folder) == FIRST
    # No pattern: who is not ready is none that joins later.
    assert set(conf(gate.folder)["hosts"].split()) == LISTED | FIRST


async def test_without_an_ssh_its_sessions_go_over_the_gates_connections(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job, folder = Job(tmp_path), tmp_path / "a command"
    shims.write_command(folder, {}, "")
    behaviour, public = Behaviour(job), job.key.export_public_key().decode().strip()
    async with sshd(behaviour) as port:
        written = CommandLogins(folder, "/nowhere")
        written.begin(["w-0.job", "w-1.job"])
        pod = LauncherPod(resolve({}, {}), plans.POD, plans.ROOT, tmp_path, 0.0)
        pod.key = JobKey(job.path, public)
        worker = plans.worker(plans.hosts(1, domain=".job")[0], 0, None)
        worker = replace(worker, address="127.0.0.1", port=port)
        ready = GateResult((worker,), (), {})
        written.update(pod, ready)
        written.update(pod, ready)  # as when another host is ready
        words = ("-o", "BatchMode=yes", "root@w-0", "echo o; echo e >&2; exit 7")
        process = await asyncio.create_subprocess_exec(
            *(str(folder / "bin/ssh"), *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said = await asyncio.wait_for(process.communicate(), GUARD)
        assert (*said, process.returncode) == (b"o\n", b"e\n", 7)
        await access(pod).pool.close()
    message = capfd.readouterr().err
    assert message.count("ssh uses mpiboot's connections: there is no ssh on PATH") == 1


def test_where_mpirun_goes_by_kubectl_its_ssh_says_so(gate: Gate) -> None:
    gate.key = False
    with pytest.raises(MpibootError, match="by which mpirun reaches the hosts: there is no key"):
        gate.run()
    assert set(conf(gate.folder)["hosts"].split()) == LISTED


@pytest.mark.parametrize("text", [None, "localhost slots=2\n", "a pipe"])
def test_without_another_host_its_ssh_is_the_images_own(
    gate: Gate, tmp_path: Path, text: str | None
) -> None:
    """Nothing waits, for a key either; a pipe is the launch's below the command."""
    if text is None:
        del gate.given["hostfile"]
    elif text == "a pipe":
        (tmp_path / "hosts").unlink()
        os.mkfifo(tmp_path / "hosts")
    else:
        (tmp_path / "hosts").write_text(text)
    gate.run()
    assert (gate.seen, conf(gate.folder)["hosts"]) == ([], "")


async def test_ssh_is_plain_where_the_jobs_hosts_can_not_be_known(tmp_path: Path) -> None:
    shims.write_ssh(tmp_path, "/bin", "?*")
    resolved = resolve({"hostfile": "/nowhere/hosts", "timeout": "0"}, {})
    await logins.serve(resolved, CommandLogins(tmp_path, "/bin"), "")
    assert "/nowhere/hosts" in (tmp_path / "over").read_text()
    assert "\nhosts=''\n" in (tmp_path / "ssh.conf").read_text()
