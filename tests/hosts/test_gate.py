from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host
from mpiboot.core.setting_types import HostKeys, LogFormat
from mpiboot.core.settings import Settings, resolve
from mpiboot.hosts import gate, launches, progress
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.gate import GateResult
from mpiboot.hosts.hostfiles import JobHostfile, of_job
from mpiboot.hosts.pipeline import PipelineOptions
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Target
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor.ask_workers import in_time
from mpiboot.system.threads import end_tasks
from tests.fakes.nameserver import NXDOMAIN, Nameserver, resolv_conf, serve
from tests.fakes.sshd import HTTP, SILENT, Behaviour, Job, listener, sshd, without_ipv6
from tests.fakes.worker import free_port

LIMITS = LoginTimeouts(connect=1.0, greeting=0.3, login=10.0, command=10.0)
LONG = 600.0  # a deadline that no test reaches by waiting
DOMAIN = "ns.svc.cluster.local"


class Cluster:
    """A nameserver, and a system resolver that asks the same records."""

    def __init__(self, folder: Path) -> None:
        self.records: dict[str, str] = {}
        self.server = Nameserver({})
        self.folder = folder
        self.asked: list[str] = []
        self.search: tuple[str, ...] = (DOMAIN, "svc.cluster.local", "cluster.local")

    def publish(self, name: str, address: str) -> None:
        self.records[name] = address
        self.server.scripts[name] = [address]

    def withdraw(self, name: str) -> None:
        del self.records[name]
        self.server.scripts[name] = [NXDOMAIN]

    def system(self, name: str) -> tuple[str, ...]:
        self.asked.append(name)
        for candidate in (*(f"{name}.{domain}" for domain in self.search), name):
            if candidate in self.records:
                return (self.records[candidate],)
        return ()

    @contextlib.asynccontextmanager
    async def resolver(self) -> AsyncIterator[Resolver]:
        async with serve(self.server) as port:
            yield Resolver(
                resolv_conf(self.folder, search=self.search),
                system=self.system,
                port=port,
                families=("A",),
            )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture(autouse=True)
def plain_log() -> None:
    log.configure()


def named(*names: str) -> tuple[Host, ...]:
    return tuple(Host(name, slots=1, line=number) for number, name in enumerate(names, start=1))


def access(
    job: Job, *ports: int, hostname: str = "launcher", fqdns: Sequence[str] = ()
) -> SshAccess:
    return SshAccess("runner", Pool(job.path), hostname, ports=ports, fqdns=tuple(fqdns))


async def passing(
    cluster: Cluster,
    hosts: Sequence[Host],
    to: SshAccess,
    settings: Settings | None = None,
    hostfile: JobHostfile | None = None,
    limits: LoginTimeouts = LIMITS,
    own: str = "",
    *,
    stays: bool = False,
) -> GateResult:
    """Pass a gate; its connections end with it, unless the caller ends them (``stays``)."""
    try:
        async with cluster.resolver() as resolver:
            return await gate.wait(
                hosts,
                settings or Settings(timeout=LONG),
                to,
                PipelineOptions(limits=limits, job=own),
                resolver=resolver,
                hostfile=hostfile,
            )
    finally:
        if not stays:
            await to.pool.close()


async def failing(
    cluster: Cluster, hosts: Sequence[Host], to: SshAccess, settings: Settings | None = None
) -> MpibootError:
    with pytest.raises(MpibootError) as caught:
        await passing(cluster, hosts, to, settings)
    return caught.value


class Deadline:
    """Comes when hosts are where a test wants them: the clock is put forward then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._states: tuple[progress.HostState, ...] = ()
        self._passed = 0.0
        clock, states = time.monotonic, progress.states

        def noted(hosts: Sequence[Host]) -> tuple[progress.HostState, ...]:
            self._states = states(hosts)
            return self._states

        monkeypatch.setattr(progress, "states", noted)
        monkeypatch.setattr(time, "monotonic", lambda: clock() + self._passed)

    async def comes(self, *shown: str, after: float = LONG) -> None:
        """Let seconds be over when each of these is what some host shows."""
        missing = set(shown)
        while missing:
            await asyncio.sleep(0.02)
            texts = [f"{one.host.name} {one.stage.value} {one.detail}" for one in self._states]
            missing = {words for words in shown if not any(words in text for text in texts)}
        self._passed += after

    async def failure(
        self, cluster: Cluster, hosts: Sequence[Host], to: SshAccess, *shown: str
    ) -> MpibootError:
        """Let a gate fail at its deadline."""
        waiting = asyncio.ensure_future(failing(cluster, hosts, to, Settings(timeout=LONG)))
        await self.comes(*shown)
        return await waiting


@pytest.fixture
def deadline(monkeypatch: pytest.MonkeyPatch) -> Deadline:
    return Deadline(monkeypatch)


async def told(capfd: pytest.CaptureFixture[str], words: str) -> None:
    """Wait until the gate has said so: a server that let it in is not yet a ready host."""
    message, end = "", time.monotonic() + 60
    while words not in message:
        assert time.monotonic() < end, f"{words!r} never came: {message}"
        await asyncio.sleep(0.02)
        message += capfd.readouterr().err


async def later(action: Callable[[], object], seconds: float = 0.4) -> None:
    await asyncio.sleep(seconds)
    action()


async def test_a_ready_cluster_passes(cluster: Cluster, job: Job) -> None:
    for number in range(4):
        cluster.publish(f"w-{number}.{DOMAIN}", f"127.0.0.{number + 2}")
    async with sshd(Behaviour(job), "0.0.0.0") as port:
        result = await passing(cluster, named("w-0", "w-1", "w-2", "w-3"), access(job, port))

    assert [worker.host.name for worker in result.workers] == ["w-0", "w-1", "w-2", "w-3"]
    assert [worker.address for worker in result.workers] == [f"127.0.0.{n}" for n in range(2, 6)]
    assert {worker.port for worker in result.workers} == {port}
    assert {worker.user for worker in result.workers} == {"runner"}
    assert {worker.local_address for worker in result.workers} == {"127.0.0.1"}
    assert result.local == ()
    assert not cluster.server.asked


async def test_names_and_servers_that_come_late_are_waited_for(
    cluster: Cluster, job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure(form=LogFormat.JSON, role="launcher")
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        waiting = asyncio.ensure_future(passing(cluster, named("w-0", "w-1"), access(job, port)))
        await later(lambda: cluster.publish(f"w-1.{DOMAIN}", "127.0.0.3"))
        await asyncio.sleep(0.4)
        assert not waiting.done()
        await stack.enter_async_context(sshd(Behaviour(job), "0.0.0.0", port))
        result = await waiting

    assert len(result.workers) == 2
    told = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert (told["event"], told["ready"], told["total"]) == ("gate", 2, 2)
    assert told["seconds"] >= told["names"] > 0


async def test_names_missing_at_the_deadline_are_68_and_each_is_named(
    cluster: Cluster, job: Job, deadline: Deadline
) -> None:
    cluster.publish(f"w-9.{DOMAIN}", "127.0.0.2")
    hosts = named("w-0", "w-1", "w-9")
    shown = ("w-0 DNS NXDOMAIN", "w-1 DNS NXDOMAIN", "w-9 ready")
    async with sshd(Behaviour(job), "0.0.0.0") as port:
        wrong = await deadline.failure(cluster, hosts, access(job, port), *shown)
    assert (wrong.finding.check, wrong.code) == ("names-unresolved", 68)
    expected = "2 of 3 hosts do not resolve after 10m: waiting for DNS for w-0, w-1 (NXDOMAIN)"
    assert wrong.finding.message == expected
    assert [item.host for item in wrong.others] == ["w-0", "w-1"]
    assert all("NXDOMAIN" in item.message for item in wrong.others)


async def test_one_host_that_resolves_and_does_not_answer_makes_it_69(
    cluster: Cluster, job: Job, deadline: Deadline
) -> None:
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    port = free_port()
    shown = ("w-0 SSH connection refused", "w-1 DNS NXDOMAIN")

    wrong = await deadline.failure(cluster, named("w-0", "w-1"), access(job, port), *shown)

    assert (wrong.finding.check, wrong.code) == ("workers-unreachable", 69)
    first, second = wrong.finding.evidence
    assert first == f"w-0: SSH: connection refused on 127.0.0.2 port {port}"
    assert second.startswith("w-1: DNS: NXDOMAIN")


async def test_the_names_cap_ends_the_dns_stage_alone(
    cluster: Cluster, job: Job, deadline: Deadline
) -> None:
    settings = Settings(timeout=LONG, dns_wait=LONG / 2)
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    to = access(job, free_port())

    waiting = asyncio.ensure_future(failing(cluster, named("w-0", "w-1"), to, settings))
    await deadline.comes("w-0 SSH connection refused", "w-1 DNS NXDOMAIN", after=LONG / 2)
    wrong = await waiting

    assert (wrong.finding.check, wrong.code) == ("names-unresolved", 68)
    assert [item.host for item in wrong.others] == ["w-1"]


async def test_the_names_cap_does_not_end_the_ssh_stage(
    cluster: Cluster, job: Job, deadline: Deadline
) -> None:
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    settings = Settings(timeout=LONG, dns_wait=LONG / 2)
    port = free_port()
    waiting = asyncio.ensure_future(passing(cluster, named("w-0"), access(job, port), settings))
    await deadline.comes("w-0 SSH connection refused", after=LONG / 2)
    async with sshd(Behaviour(job), "0.0.0.0", port):
        result = await waiting

    assert len(result.workers) == 1


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (
            {"authorized": "stranger"},
            "refuses the launcher's key OWN for user runner",
        ),
        ({"public_key": False, "password": True}, "password"),
    ],
)
async def test_what_is_final_ends_the_gate_at_once_though_others_are_pending(
    cluster: Cluster, job: Job, server: dict[str, Any], message: str
) -> None:
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    given: dict[str, Any] = {
        name: job.stranger if item == "stranger" else item for name, item in server.items()
    }
    async with sshd(Behaviour(job, **given), "0.0.0.0") as port:
        to = access(job, port)
        wrong = await failing(cluster, named("w-0", "w-1"), to, Settings())

    assert (wrong.finding.check, wrong.code, wrong.finding.host) == ("ssh-denied", 77, "w-0")
    assert message.replace("OWN", job.key.get_fingerprint()) in wrong.finding.message
    if "authorized" in server:
        public = job.key.export_public_key().decode().split()[1]
        assert any(public in line for line in wrong.finding.evidence)


@pytest.mark.parametrize(
    ("authorized", "free", "message"),
    [
        ("job", 1, "of its own, STRANGER, not the job's, OWN"),
        # Every port has answered, with another key that does not accept the job's.
        ("stranger", 0, "STRANGER"),
    ],
)
async def test_another_host_key_is_an_error_at_the_deadline_alone(
    cluster: Cluster, job: Job, deadline: Deadline, authorized: str, free: int, message: str
) -> None:
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    stranger = job.stranger if authorized == "stranger" else None
    server = Behaviour(job, host_key=job.stranger, authorized=stranger)
    async with sshd(server, "0.0.0.0") as port:
        to = access(job, port, *[free_port()] * free)
        wrong = await deadline.failure(cluster, named("w-0", "w-1"), to, "w-0 SSH another host key")
    assert (wrong.finding.check, wrong.code, wrong.finding.host) == ("host-key-differs", 77, "w-0")
    own, other = job.key.get_fingerprint(), job.stranger.get_fingerprint()
    assert message.replace("OWN", own).replace("STRANGER", other) in wrong.finding.message
    assert "args: [worker]" in wrong.finding.hint
    assert [item.host for item in wrong.others] == ["w-1"]


async def test_a_name_that_leads_to_another_jobs_worker_is_waited_for(
    cluster: Cluster, job: Job, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As after a suspended job was resumed: its old addresses are given anew."""
    monkeypatch.setattr("mpiboot.hosts.pipeline._RESOLVE_AGAIN", 0.2)
    monkeypatch.setattr("mpiboot.hosts.pipeline._FOREIGN_PAUSE", 0.2)
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    other = Behaviour(job, host_key=job.stranger, authorized=job.stranger)
    async with sshd(other, "127.0.0.2") as port, sshd(Behaviour(job), "127.0.0.3", port):
        waiting = asyncio.ensure_future(passing(cluster, named("w-0"), access(job, port)))
        await told(capfd, "waiting for SSH on w-0 (another host key, not this job's)")
        cluster.publish(f"w-0.{DOMAIN}", "127.0.0.3")
        result = await waiting
    assert [worker.address for worker in result.workers] == ["127.0.0.3"]


@pytest.fixture
async def other_launch(job: Job, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    """A process of another launcher's launch, which counts as connected: it can't be seen."""
    launch = f"{launches.job_id(str(job.path))}-{'0' * 16}@pi-launcher-x@2026-01-02T03:04:05Z"
    ends = {"MPIBOOT_LAUNCH_ID": launch, "SSH_CONNECTION": "10.0.0.9 1 10.0.0.2 2"}
    monkeypatch.setattr(launches, "running_here", set[str])
    script = "echo; read -r _"  # in an exec it has no environment
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", script),
        env={"PATH": os.environ["PATH"], **ends},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    yield process
    process.kill() if process.returncode is None else None
    await process.wait()


IN_USE = "in use by launcher pi-launcher-x (10.0.0.9) since 2026-01-02T03:04:05Z"


async def test_a_host_that_another_launcher_uses_is_waited_for(
    cluster: Cluster, job: Job, other_launch: Process, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    async with sshd(Behaviour(job), "0.0.0.0") as port:
        to, own = access(job, port), str(job.path)
        waiting = asyncio.ensure_future(passing(cluster, named("w-0"), to, own=own, stays=True))
        await told(capfd, f"waiting for SSH on w-0 ({IN_USE})")
        other_launch.kill()
        (worker,) = (await waiting).workers
        assert len(to.pool.open(worker)) == 1  # the earlier ones are closed
        await to.pool.close()


async def test_a_host_that_another_launcher_keeps_is_an_error_at_the_deadline(
    cluster: Cluster, job: Job, other_launch: Process, capfd: pytest.CaptureFixture[str]
) -> None:
    assert other_launch.returncode is None
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    async with sshd(Behaviour(job), "0.0.0.0") as port:
        settings = Settings(timeout=0.5)
        while True:  # a busy machine needs more
            with pytest.raises(MpibootError) as caught:
                await passing(cluster, named("w-0"), access(job, port), settings, own=str(job.path))
            if caught.value.code == 75:
                break
            settings = Settings(timeout=settings.timeout * 2)
    assert caught.value.finding.message.startswith(f"w-0 is {IN_USE}, still after ")
    capfd.readouterr()


async def test_a_refusal_is_confirmed_before_it_counts(cluster: Cluster, job: Job) -> None:
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    behaviour = Behaviour(job, authorized=job.stranger)
    async with sshd(behaviour, "0.0.0.0") as port:
        waiting = asyncio.ensure_future(passing(cluster, named("w-0"), access(job, port)))
        await behaviour.seen.wait()
        await asyncio.sleep(0.2)
        behaviour.authorized = None
        result = await waiting

    assert len(result.workers) == 1


async def test_the_nodes_own_sshd_is_not_yet_until_ours_comes_up_beside_it(
    cluster: Cluster, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    node = Behaviour(job, host_key=job.stranger, authorized=job.stranger)
    ours = free_port()
    monkeypatch.setattr("mpiboot.hosts.pipeline._FOREIGN_PAUSE", LONG)
    async with sshd(node, "0.0.0.0") as theirs:
        waiting = asyncio.ensure_future(passing(cluster, named("w-0"), access(job, theirs, ours)))
        await node.seen.wait()
        await asyncio.sleep(0.6)
        assert not waiting.done()
        async with sshd(Behaviour(job), "0.0.0.0", ours):
            result = await waiting

    assert result.workers[0].port == ours
    assert len(node.users) == 1


async def test_accept_new_takes_the_key_and_tells_it(cluster: Cluster, job: Job) -> None:
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    settings = Settings(timeout=LONG, host_keys=HostKeys.ACCEPT_NEW)
    async with sshd(Behaviour(job, host_key=job.stranger), "0.0.0.0") as port:
        pool = Pool(job.path, host_keys=HostKeys.ACCEPT_NEW)
        to = replace(access(job, port), pool=pool)
        result = await passing(cluster, named("w-0"), to, settings)

    shown = " ".join(job.stranger.export_public_key().decode().split()[:2])
    assert result.host_keys == {"w-0": shown}


@pytest.mark.parametrize(("talk", "message"), [(SILENT, "no SSH greeting"), (HTTP, "HTTP/1.1 400")])
async def test_a_port_without_ssh_is_not_yet(
    cluster: Cluster, job: Job, talk: Callable[..., object], message: str, deadline: Deadline
) -> None:
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    async with listener(talk, "0.0.0.0") as port:  # type: ignore[arg-type]
        wrong = await deadline.failure(cluster, named("w-0"), access(job, port), message)

    assert wrong.code == 69
    assert message in wrong.finding.evidence[0]
    assert ("a service mesh's sidecar" in wrong.finding.hint) == (talk is SILENT)


async def test_the_port_that_worked_is_asked_first_for_the_others(
    cluster: Cluster, job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    names = [f"w-{number}" for number in range(12)]
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    wrong_port = Behaviour(job, host_key=job.stranger, authorized=job.stranger)
    right = Behaviour(job)
    async with sshd(wrong_port, "0.0.0.0") as first, sshd(right, "0.0.0.0") as second:
        waiting = asyncio.ensure_future(passing(cluster, named(*names), access(job, first, second)))
        await told(capfd, "1/12 hosts ready")
        for name in names[1:]:
            cluster.publish(f"{name}.{DOMAIN}", "127.0.0.2")
        result = await waiting

    assert {worker.port for worker in result.workers} == {second}
    assert len(wrong_port.users) < 2


async def test_each_worker_is_found_at_its_own_port(
    cluster: Cluster, job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    one, other = sshd(Behaviour(job), "127.0.0.3"), sshd(Behaviour(job), "127.0.0.2")
    async with one as first, other as second:
        waiting = asyncio.ensure_future(
            passing(cluster, named("w-0", "w-1"), access(job, first, second))
        )
        await told(capfd, "1/2 hosts ready")  # the port of the first is tried first from now on
        cluster.publish(f"w-1.{DOMAIN}", "127.0.0.3")
        result = await waiting

    assert [worker.port for worker in result.workers] == [second, first]


@pytest.mark.parametrize("name", ["launcher", "launcher.job", "localhost", "127.0.0.1"])
async def test_the_launchers_own_name_is_never_asked_by_ssh(
    cluster: Cluster, job: Job, name: str
) -> None:
    to = access(job, 1, fqdns=("launcher.job.ns.svc.cluster.local",))

    result = await passing(cluster, named(name), to)

    assert [host.name for host in result.local] == [name]
    assert result.workers == ()


@pytest.mark.parametrize("order", [("fd00::9", "127.0.0.2"), ("127.0.0.2", "fd00::9")])
async def test_without_ipv6_in_the_kernel_the_other_address_is_tried(
    job: Job, cluster: Cluster, order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ipv6(monkeypatch)
    monkeypatch.setattr(cluster, "system", lambda _: order)

    async with sshd(Behaviour(job), "0.0.0.0") as port:
        result = await passing(cluster, named("w-0"), replace(access(job, port), ipv6=True))

    assert [worker.address for worker in result.workers] == ["127.0.0.2"]


async def test_a_replaced_worker_is_found_at_its_new_address(
    cluster: Cluster, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpiboot.hosts.pipeline._RESOLVE_AGAIN", 0.2)
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.9")
    async with sshd(Behaviour(job), "127.0.0.2") as port:
        waiting = asyncio.ensure_future(passing(cluster, named("w-0"), access(job, port)))
        await later(lambda: cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2"))
        result = await waiting

    assert result.workers[0].address == "127.0.0.2"


async def test_a_name_that_vanishes_again_is_said_beside_the_last_reason(
    cluster: Cluster, job: Job, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    monkeypatch.setattr("mpiboot.hosts.pipeline._RESOLVE_AGAIN", 0.2)
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.9")
    to = access(job, free_port())
    waiting = asyncio.ensure_future(deadline.failure(cluster, named("w-0"), to, "any more"))
    await deadline.comes("w-0 SSH connection refused", after=0.0)
    cluster.withdraw(f"w-0.{DOMAIN}")
    wrong = await waiting

    assert wrong.code == 69
    assert "connection refused" in wrong.finding.evidence[0]
    assert "does not resolve any more: NXDOMAIN" in wrong.finding.evidence[0]


@pytest.mark.parametrize(
    ("mode", "records", "renamed"),
    [
        ("auto", {"w-0.job.ns.svc.other.domain": "127.0.0.2"}, True),
        ("off", {"w-0.job.ns.svc.cluster.local": "127.0.0.2"}, False),
    ],
)
async def test_long_names_are_used_as_the_setting_says(
    cluster: Cluster, job: Job, mode: str, records: dict[str, str], *, renamed: bool
) -> None:
    for name, address in records.items():
        cluster.publish(name, address)
    settings = Settings(
        timeout=LONG, rewrite_fqdn=resolve({"rewrite_fqdn": mode}, {}).settings.rewrite_fqdn
    )
    short = "w-0.job.ns.svc"
    async with sshd(Behaviour(job), "0.0.0.0") as port:
        to = replace(access(job, port), domain="other.domain")
        result = await passing(cluster, named(short), to, settings)

    assert result.renamed == ({short: f"{short}.other.domain"} if renamed else {})
    assert result.workers[0].dns_name == (f"{short}.other.domain" if renamed else short)
    assert result.workers[0].host.name == short


async def test_a_key_that_cannot_be_read_ends_the_gate_before_any_name_resolves(
    cluster: Cluster, job: Job, tmp_path: Path
) -> None:
    to = replace(access(job, 1), pool=Pool(tmp_path / "none"))

    wrong = await failing(cluster, named("w-0"), to)

    assert (wrong.finding.check, wrong.code) == ("ssh-key", 77)


async def test_looking_tries_once_and_has_a_finding_for_each_that_is_not_ready(
    cluster: Cluster, job: Job
) -> None:
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    cluster.publish(f"w-1.{DOMAIN}", "127.0.0.3")
    hosts = named("w-0", "w-1", "w-2", "localhost")
    async with sshd(Behaviour(job), "127.0.0.2") as port, cluster.resolver() as resolver:
        patient = replace(LIMITS, connect=60.0, greeting=60.0)  # there is one try alone
        to, options = access(job, port), PipelineOptions(limits=patient)
        result = await gate.probe_once(hosts, Settings(), to, options, resolver=resolver)
        await to.pool.close()

    assert [worker.host.name for worker in result.workers] == ["w-0"]
    assert [host.name for host in result.local] == ["localhost"]
    assert [(item.host, item.check) for item in result.findings] == [
        ("w-1", "workers-unreachable"),
        ("w-2", "names-unresolved"),
    ]


async def test_a_ready_host_that_moves_while_others_are_waited_for_is_waited_for_again(
    cluster: Cluster, job: Job, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """When all are ready their names are resolved once more."""
    monkeypatch.setattr(gate, "_REPLACED", 0.5)
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    async with sshd(Behaviour(job), "0.0.0.0") as port:
        waiting = asyncio.ensure_future(passing(cluster, named("w-0", "w-1"), access(job, port)))
        await told(capfd, "1/2 hosts ready")
        cluster.publish(f"w-0.{DOMAIN}", "127.0.0.4")
        cluster.publish(f"w-1.{DOMAIN}", "127.0.0.3")
        result = await waiting

    assert [worker.address for worker in result.workers] == ["127.0.0.4", "127.0.0.3"]
    message = "w-0 was ready at 127.0.0.2, but its name now has the address 127.0.0.4; "
    assert capfd.readouterr().err.count(message) == 1


async def test_a_ready_host_whose_connection_breaks_is_waited_for_again(
    cluster: Cluster, job: Job, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "_POLL", 0.1)
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    behaviour = Behaviour(job)
    async with sshd(behaviour, "0.0.0.0") as port:
        to = access(job, port)
        waiting = asyncio.ensure_future(passing(cluster, named("w-0", "w-1"), to, stays=True))
        await told(capfd, "1/2 hosts ready")
        (link,) = to.pool.open(Target("w-0", "127.0.0.2", port, "runner"))
        link.connection.abort()
        await told(capfd, "w-0 was ready at 127.0.0.2, but its connection broke")
        cluster.publish(f"w-1.{DOMAIN}", "127.0.0.3")
        result = await waiting
        assert all(map(to.pool.is_connected, result.workers))
        await to.pool.close()
    assert [worker.address for worker in result.workers] == ["127.0.0.2", "127.0.0.3"]
    assert behaviour.logins == 3


class Closing(Pool):
    """As with a server that closes connections itself."""

    async def log_in(self, target: Target, command: str, limits: LoginTimeouts) -> Attempt:
        found = await super().log_in(target, command, limits)
        (link,) = self.open(target)
        link.connection.abort()
        return found


async def test_a_host_whose_connections_never_stay_is_waited_for_no_third_time(
    cluster: Cluster, job: Job
) -> None:
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    behaviour = Behaviour(job)
    async with sshd(behaviour, "0.0.0.0") as port:
        to = replace(access(job, port), pool=Closing(job.path))
        await passing(cluster, named("w-0"), to)
    assert behaviour.logins == 2


@pytest.fixture
async def hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, JobHostfile]:
    """A hostfile of two hosts that is read again, more often than in a pod."""
    monkeypatch.setattr("mpiboot.hosts.gate._POLL", 0.05)
    path = tmp_path / "followed"
    path.write_text("w-0\nw-1\n")
    return path, await of_job(resolve({"hostfile": str(path)}, {}), {}, 0.0)


async def test_a_hostfile_whose_volume_hangs_delays_no_host(
    cluster: Cluster,
    job: Job,
    hostfile: tuple[Path, JobHostfile],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mpiboot.hosts.gate._HOSTFILE", 0.05)
    _, found = hostfile
    for number in range(2):
        cluster.publish(f"w-{number}.{DOMAIN}", f"127.0.0.{2 + number}")
    hangs, looks = threading.Event(), list[int]()

    def look() -> bool:
        looks.append(1)
        return hangs.wait(60)

    monkeypatch.setattr(JobHostfile, "has_changed", lambda _: look())
    async with sshd(Behaviour(job), "0.0.0.0") as port:
        hosts = found.hostfile.hosts
        result = await passing(cluster, hosts, access(job, port), hostfile=found)
    assert [item.host.name for item in result.workers] == ["w-0", "w-1"]
    assert looks == [1]
    hangs.set()


@pytest.mark.parametrize("text", ["w-0 slots=3\n", "w-2\nw-1\nw-0\n"])
async def test_a_hostfile_with_other_hosts_begins_the_wait_anew(
    cluster: Cluster,
    job: Job,
    hostfile: tuple[Path, JobHostfile],
    capfd: pytest.CaptureFixture[str],
    text: str,
) -> None:
    path, found = hostfile
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    cluster.publish(f"w-2.{DOMAIN}", "127.0.0.4")
    async with sshd(Behaviour(job), "0.0.0.0") as port:
        hosts = found.hostfile.hosts
        waiting = asyncio.ensure_future(passing(cluster, hosts, access(job, port), hostfile=found))
        await later(lambda: path.write_text(text))
        await later(lambda: cluster.publish(f"w-1.{DOMAIN}", "127.0.0.3"))
        result = await waiting
    names = [line.partition(" ")[0] for line in text.splitlines()]
    assert [item.host.name for item in result.workers] == names
    assert result.workers[0].host.slots == (3 if "slots" in text else 1)
    assert capfd.readouterr().err.count(f"the hostfile has changed: {len(names)} host") == 1


async def test_a_change_in_the_last_moment_still_counts(
    cluster: Cluster,
    job: Job,
    hostfile: tuple[Path, JobHostfile],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looked at once more when all are ready: what mpirun gets is the last version."""
    monkeypatch.setattr("mpiboot.hosts.gate._POLL", 60.0)
    path, found = hostfile
    cluster.publish(f"w-0.{DOMAIN}", "127.0.0.2")
    behaviour = Behaviour(job)
    async with sshd(behaviour, "0.0.0.0") as port:
        hosts = found.hostfile.hosts
        waiting = asyncio.ensure_future(passing(cluster, hosts, access(job, port), hostfile=found))
        await behaviour.welcomed.wait()
        path.write_text("w-1 slots=2\n")
        cluster.publish(f"w-1.{DOMAIN}", "127.0.0.3")
        result = await waiting

    assert [(item.host.name, item.host.slots) for item in result.workers] == [("w-1", 2)]


async def test_two_hundred_hosts_pass_one_server(cluster: Cluster, job: Job) -> None:
    names = [f"w-{number}" for number in range(200)]
    for number, name in enumerate(names):
        cluster.publish(f"{name}.{DOMAIN}", f"127.0.1.{number + 2}")
    behaviour = Behaviour(job)
    async with sshd(behaviour, "0.0.0.0") as port:
        settings, patient = Settings(timeout=LONG), LoginTimeouts(60.0, 60.0, 60.0, 60.0)
        to = access(job, port)  # of which this process is both ends: nobody is given up meanwhile
        result = await passing(cluster, named(*names), to, settings, limits=patient)

    assert [worker.host.name for worker in result.workers] == names
    assert behaviour.logins == 200


def test_the_gate_loads_no_ssh_client_and_no_netlink_by_itself() -> None:
    import subprocess  # noqa: PLC0415

    heavy = "{'asyncssh', 'cryptography', 'dns', 'pyroute2', 'psutil'}"
    code = f"import sys, mpiboot.hosts.gate; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


async def test_the_end_is_not_lost_with_a_cancellation_that_a_task_swallows() -> None:
    """As `wait_for` does before Python 3.12 when its result comes at that moment."""
    swallowed = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed.set()
        await asyncio.sleep(60)

    task = asyncio.ensure_future(stubborn())
    await asyncio.sleep(0)
    await end_tasks({task})
    assert swallowed.is_set()
    assert task.cancelled()
    (late,) = await in_time([stubborn()], 0.01)
    assert late.cancelled()
