"""The gate with real servers: names of a nameserver of the test's, and SSH on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host
from mpiboot.core.model import HostKeys, LogFormat
from mpiboot.core.settings import Settings, resolve
from mpiboot.hosts import gate, pipeline, progress, remote_commands
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.gate import GateResult
from mpiboot.hosts.hostfiles import JobHostfile, of_job
from mpiboot.hosts.pipeline import PipelineOptions, SshAccess
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Target
from mpiboot.ssh.pool import Pool
from tests.fakes.nameserver import Nameserver, resolv_conf, serve
from tests.fakes.sshd import HTTP, SILENT, Behaviour, Job, listener, sshd
from tests.fakes.worker import free_port
from tests.waiting import until_in_loop

LIMITS = LoginTimeouts(connect=1.0, greeting=0.3, login=10.0, command=10.0)
LONG = 600.0  # a deadline that no test reaches by waiting
DOMAIN = "ns.svc.cluster.local"
SEARCH = (DOMAIN, "svc.cluster.local", "cluster.local")


def named(names: str) -> tuple[Host, ...]:
    return tuple(Host(name, slots=1, line=at) for at, name in enumerate(names.split(), start=1))


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


class Rig:
    """A cluster's names, the job's key, and gates; the system's resolver has the same names."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.job = Job(folder)
        self.records: dict[str, str] = {}
        self.server = Nameserver({})
        self._conf = resolv_conf(folder, search=SEARCH)
        self._capfd = capfd

    def publish(self, *addresses: str, **named: str) -> None:
        """Give w-0 the first address, and so on; ``w_1`` is w-1."""
        found = {f"w-{at}": address for at, address in enumerate(addresses)}
        for name, address in (found | named).items():
            full = f"{name.replace('_', '-')}.{DOMAIN}"
            self.records[full], self.server.scripts[full] = address, [address]

    def system(self, name: str) -> tuple[str, ...]:
        names = (*(f"{name}.{domain}" for domain in SEARCH), name)
        return tuple(self.records[each] for each in names if each in self.records)[:1]

    @contextlib.asynccontextmanager
    async def resolver(self) -> AsyncIterator[Resolver]:
        async with serve(self.server) as port:
            given = {"system": self.system, "families": ("A",)}
            yield Resolver(self._conf, port=port, **given)  # type: ignore[arg-type]

    def access(self, *ports: int, pool: Pool | None = None, **more: Any) -> SshAccess:  # noqa: ANN401
        return SshAccess("runner", pool or Pool(self.job.path), "launcher", ports=ports, **more)

    async def passing(
        self,
        hosts: str | Sequence[Host],
        to: SshAccess | int,
        *,
        hostfile: JobHostfile | None = None,
        own: str = "",
        stays: bool = False,
        **settings: Any,  # noqa: ANN401 - as the settings have them
    ) -> GateResult:
        """Pass a gate; its connections end with it, unless the caller ends them (``stays``)."""
        to = self.access(to) if isinstance(to, int) else to
        try:
            async with self.resolver() as resolver:
                return await gate.wait(
                    named(hosts) if isinstance(hosts, str) else hosts,
                    replace(Settings(), **{"timeout": LONG, **settings}),
                    replace(to, resolver=resolver),
                    PipelineOptions(limits=LIMITS, job=own),
                    hostfile=hostfile,
                )
        finally:
            if not stays:
                await to.pool.close()

    def begin(self, *given: Any, **more: Any) -> asyncio.Future[GateResult]:  # noqa: ANN401
        return asyncio.ensure_future(self.passing(*given, **more))

    async def logged(self, words: str) -> None:
        """Wait until the gate has logged it: a server that let it in is not yet a ready host."""
        message, end = "", time.monotonic() + 60
        while words not in message:
            assert time.monotonic() < end, f"{words!r} never came: {message}"
            await asyncio.sleep(0.02)
            message += self._capfd.readouterr().err


async def error_of(waiting: Awaitable[GateResult]) -> MpibootError:
    with pytest.raises(MpibootError) as caught:
        await waiting
    return caught.value


@pytest.fixture
def rig(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Rig:
    return Rig(tmp_path, capfd)


@pytest.fixture
def deadline(monkeypatch: pytest.MonkeyPatch) -> Deadline:
    return Deadline(monkeypatch)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and foreign servers are tried again sooner."""
    monkeypatch.setattr(pipeline, "_RESOLVE_S", 0.2)
    monkeypatch.setattr(pipeline, "_FOREIGN_PAUSE_S", 0.2)


async def later(action: Callable[[], object], seconds: float = 0.4) -> None:
    await asyncio.sleep(seconds)
    action()


def addresses(found: GateResult) -> list[str]:
    return [worker.address for worker in found.workers]


async def test_a_ready_cluster_passes(rig: Rig) -> None:
    places = [f"127.0.0.{number}" for number in range(2, 6)]
    rig.publish(*places)
    async with sshd(Behaviour(rig.job), "0.0.0.0") as port:
        found = await rig.passing("w-0 w-1 w-2 w-3", port)
    assert addresses(found) == places
    assert [worker.host.name for worker in found.workers] == ["w-0", "w-1", "w-2", "w-3"]
    alike = {(worker.port, worker.user, worker.local_address) for worker in found.workers}
    assert (alike, found.local) == ({(port, "runner", "127.0.0.1")}, ())
    assert not rig.server.asked


async def test_names_and_servers_that_come_late_are_waited_for(
    rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure(form=LogFormat.JSON, role="launcher")
    rig.publish("127.0.0.2")
    port = free_port()
    waiting = rig.begin("w-0 w-1", port)
    await later(lambda: rig.publish(w_1="127.0.0.3"))
    await asyncio.sleep(0.4)
    assert not waiting.done()
    async with sshd(Behaviour(rig.job), "0.0.0.0", port):
        assert len((await waiting).workers) == 2
    line = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert (line["event"], line["ready"], line["total"]) == ("gate", 2, 2)
    assert line["seconds"] >= line["names"] > 0


async def test_names_missing_at_the_deadline_are_68_and_each_is_named(
    rig: Rig, deadline: Deadline
) -> None:
    rig.publish(w_9="127.0.0.2")
    async with sshd(Behaviour(rig.job), "0.0.0.0") as port:
        waiting = rig.begin("w-0 w-1 w-9", port)
        await deadline.comes("w-0 DNS NXDOMAIN", "w-1 DNS NXDOMAIN", "w-9 ready")
        wrong = await error_of(waiting)
    assert (wrong.finding.check, wrong.code) == ("names-unresolved", 68)
    expected = "2 of 3 hosts do not resolve after 10m: waiting for DNS for w-0, w-1 (NXDOMAIN)"
    assert wrong.finding.message == expected
    assert [item.host for item in wrong.others] == ["w-0", "w-1"]
    assert all("NXDOMAIN" in item.message for item in wrong.others)


@pytest.mark.parametrize("cap", [False, True])
async def test_one_host_that_resolves_and_does_not_answer_makes_it_69(
    rig: Rig, deadline: Deadline, *, cap: bool
) -> None:
    """But not where the cap of the names comes before the deadline."""
    rig.publish("127.0.0.2")
    port, after = free_port(), LONG / 2 if cap else LONG
    waiting = rig.begin("w-0 w-1", port, dns_wait=after if cap else None)
    await deadline.comes("w-0 SSH connection refused", "w-1 DNS NXDOMAIN", after=after)
    wrong = await error_of(waiting)
    if cap:
        assert (wrong.finding.check, wrong.code) == ("names-unresolved", 68)
        assert [item.host for item in wrong.others] == ["w-1"]
    else:
        assert (wrong.finding.check, wrong.code) == ("workers-unreachable", 69)
        first, second = wrong.finding.evidence
        assert first == f"w-0: SSH: connection refused on 127.0.0.2 port {port}"
        assert second.startswith("w-1: DNS: NXDOMAIN")


async def test_a_host_that_refuses_connections_may_lack_its_args(
    rig: Rig, deadline: Deadline
) -> None:
    rig.publish("127.0.0.2")
    talk = AsyncMock()  # and closes
    async with listener(talk, "127.0.0.2") as port:
        waiting = rig.begin("w-0", port)
        await deadline.comes("w-0 SSH connection closed", after=20.0)
        seen = talk.await_count + 2
        await until_in_loop(lambda: talk.await_count > seen)
    await deadline.comes("w-0 SSH connection refused", after=20.0)
    assert "likely" not in deadline._states[0].detail
    await rig.logged("(connection refused: likely the worker lacks `args: [worker]`)")
    waiting.cancel()
    await asyncio.wait({waiting})


@pytest.mark.parametrize("password", [False, True])
async def test_what_is_final_ends_the_gate_at_once_though_others_are_pending(
    rig: Rig, *, password: bool
) -> None:
    rig.publish("127.0.0.2")
    server = Behaviour(rig.job, authorized=rig.job.stranger)
    if password:
        server = Behaviour(rig.job, public_key=False, password=True)
    async with sshd(server, "0.0.0.0") as port:
        wrong = await error_of(rig.begin("w-0 w-1", port))
    assert (wrong.finding.check, wrong.code, wrong.finding.host) == ("ssh-denied", 77, "w-0")
    refuses = f"refuses the launcher's key {rig.job.key.get_fingerprint()} for user runner"
    assert ("password" if password else refuses) in wrong.finding.message
    public = rig.job.key.export_public_key().decode().split()[1]
    assert any(public in line for line in wrong.finding.evidence)


@pytest.mark.parametrize("stock", [True, False])
async def test_another_host_key_is_an_error_at_the_deadline_alone(
    rig: Rig, deadline: Deadline, *, stock: bool
) -> None:
    """A stock image's accepts the job's key; else every port must have answered."""
    rig.publish("127.0.0.2")
    other = rig.job.stranger
    server = Behaviour(rig.job, host_key=other, authorized=None if stock else other)
    async with sshd(server, "0.0.0.0") as port:
        waiting = rig.begin("w-0 w-1", rig.access(port, *[free_port()] * stock))
        await deadline.comes("w-0 SSH another host key")
        wrong = await error_of(waiting)
    assert (wrong.finding.check, wrong.code, wrong.finding.host) == ("host-key-differs", 77, "w-0")
    keys = other.get_fingerprint(), rig.job.key.get_fingerprint()
    assert "of its own, {}, not the job's, {}".format(*keys) in wrong.finding.message
    assert "args: [worker]" in wrong.finding.hint
    assert [item.host for item in wrong.others] == ["w-1"]


@pytest.mark.usefixtures("quick")
async def test_a_name_that_leads_to_another_jobs_worker_is_waited_for(rig: Rig) -> None:
    """As after a suspended job was resumed: its old addresses are given anew."""
    rig.publish("127.0.0.2")
    other = Behaviour(rig.job, host_key=rig.job.stranger, authorized=rig.job.stranger)
    async with sshd(other, "127.0.0.2") as port, sshd(Behaviour(rig.job), "127.0.0.3", port):
        waiting = rig.begin("w-0", port)
        await rig.logged("waiting for SSH on w-0 (another host key, not this job's)")
        rig.publish("127.0.0.3")
        assert addresses(await waiting) == ["127.0.0.3"]


@pytest.fixture
async def other_launch(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    """A process of another launcher's launch, which counts as connected: it can't be seen."""
    job = remote_commands.job_id(str(rig.job.path))
    launch = f"{job}-{'0' * 16}@pi-launcher-x@2026-01-02T03:04:05Z"
    ends = {"MPIBOOT_LAUNCH_ID": launch, "SSH_CONNECTION": "10.0.0.9 1 10.0.0.2 2"}
    monkeypatch.setattr(remote_commands, "running_here", set[str])
    words = ("sh", "-c", "echo; read -r _")  # in an exec it has no environment
    environ = {"PATH": os.environ["PATH"], **ends}
    process = await asyncio.create_subprocess_exec(*words, env=environ, stdin=-1, stdout=-1)
    assert process.stdout is not None
    await process.stdout.readline()
    yield process
    process.kill() if process.returncode is None else None
    await process.wait()


IN_USE = "in use by launcher pi-launcher-x (10.0.0.9) since 2026-01-02T03:04:05Z"


async def test_a_host_that_another_launcher_uses_is_waited_for(
    rig: Rig, other_launch: Process
) -> None:
    rig.publish("127.0.0.2")
    async with sshd(Behaviour(rig.job), "0.0.0.0") as port:
        to = rig.access(port)
        waiting = rig.begin("w-0", to, own=str(rig.job.path), stays=True)
        await rig.logged(f"waiting for SSH on w-0 ({IN_USE})")
        other_launch.kill()
        (worker,) = (await waiting).workers
        assert len(to.pool.open(worker)) == 1  # the earlier ones are closed
        await to.pool.close()


async def test_a_refusal_is_confirmed_before_it_counts(rig: Rig) -> None:
    rig.publish("127.0.0.2")
    behaviour = Behaviour(rig.job, authorized=rig.job.stranger)
    async with sshd(behaviour, "0.0.0.0") as port:
        waiting = rig.begin("w-0", port)
        await behaviour.seen.wait()
        await asyncio.sleep(0.2)
        behaviour.authorized = None
        assert len((await waiting).workers) == 1


@pytest.mark.usefixtures("quick")
async def test_the_nodes_own_sshd_is_not_yet_until_ours_comes_up_beside_it(rig: Rig) -> None:
    rig.publish("127.0.0.2")
    node = Behaviour(rig.job, host_key=rig.job.stranger, authorized=rig.job.stranger)
    ours = free_port()
    async with sshd(node, "0.0.0.0") as theirs:
        waiting = rig.begin("w-0", rig.access(theirs, ours))
        await node.seen.wait()
        await asyncio.sleep(0.6)
        assert not waiting.done()
        async with sshd(Behaviour(rig.job), "0.0.0.0", ours):
            assert (await waiting).workers[0].port == ours


async def test_accept_new_takes_the_key_and_reports_it(rig: Rig) -> None:
    rig.publish("127.0.0.2")
    async with sshd(Behaviour(rig.job, host_key=rig.job.stranger), "0.0.0.0") as port:
        to = rig.access(port, pool=Pool(rig.job.path, host_keys=HostKeys.ACCEPT_NEW))
        found = await rig.passing("w-0", to, host_keys=HostKeys.ACCEPT_NEW)
    shown = " ".join(rig.job.stranger.export_public_key().decode().split()[:2])
    assert [worker.host_key for worker in found.workers] == [shown]


@pytest.mark.parametrize(("talk", "message"), [(SILENT, "no SSH greeting"), (HTTP, "HTTP/1.1 400")])
async def test_a_port_without_ssh_is_not_yet(
    rig: Rig, talk: Callable[..., object], message: str, deadline: Deadline
) -> None:
    rig.publish("127.0.0.2")
    async with listener(talk, "0.0.0.0") as port:  # type: ignore[arg-type]
        waiting = rig.begin("w-0", port)
        await deadline.comes(message)
        wrong = await error_of(waiting)
    assert wrong.code == 69
    assert message in wrong.finding.evidence[0]
    assert ("a service mesh's sidecar" in wrong.finding.hint) == (talk is SILENT)


@pytest.mark.parametrize("name", ["launcher", "launcher.job", "localhost", "127.0.0.1"])
async def test_this_pod_itself_is_never_logged_in_to(rig: Rig, name: str) -> None:
    to = rig.access(1, fqdns=("launcher.job.ns.svc.cluster.local",))
    found = await rig.passing(name, to)
    assert ([host.name for host in found.local], found.workers) == ([name], ())


async def test_a_key_that_cannot_be_read_ends_the_gate_before_any_name_resolves(
    rig: Rig, tmp_path: Path
) -> None:
    wrong = await error_of(rig.begin("w-0", rig.access(1, pool=Pool(tmp_path / "none"))))
    assert (wrong.finding.check, wrong.code) == ("ssh-key", 77)


async def test_a_ready_host_that_moves_while_others_are_waited_for_is_waited_for_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """When all are ready their names are resolved once more."""
    monkeypatch.setattr(gate, "_REPLACED_S", 0.5)
    rig.publish("127.0.0.2")
    async with sshd(Behaviour(rig.job), "0.0.0.0") as port:
        waiting = rig.begin("w-0 w-1", port)
        await rig.logged("1/2 hosts ready")
        rig.publish("127.0.0.4", "127.0.0.3")
        assert addresses(await waiting) == ["127.0.0.4", "127.0.0.3"]
    message = "w-0 was ready at 127.0.0.2, but its name now has the address 127.0.0.4; "
    assert capfd.readouterr().err.count(message) == 1


async def test_a_ready_host_whose_connection_breaks_is_waited_for_once_more(
    rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    """Some servers close each connection."""

    class Closing(Pool):
        async def log_in(self, target: Target, command: str, limits: LoginTimeouts) -> Attempt:
            found = await super().log_in(target, command, limits)
            (link,) = self.open(target)
            link.connection.abort()
            return found

    rig.publish("127.0.0.2")
    behaviour = Behaviour(rig.job)
    async with sshd(behaviour, "0.0.0.0") as port:
        waiting = rig.begin("w-0", rig.access(port, pool=Closing(rig.job.path)))
        await rig.logged("w-0 was ready at 127.0.0.2, but its connection broke")
        assert addresses(await waiting) == ["127.0.0.2"]
    assert behaviour.logins == 2
    assert "waiting for it again" not in capfd.readouterr().err


@pytest.fixture
async def hostfile(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, JobHostfile]:
    """A hostfile of two hosts that is read again, more often than in a pod."""
    monkeypatch.setattr(gate, "_POLL_S", 0.05)
    rig.publish("127.0.0.2", w_2="127.0.0.4")
    path = tmp_path / "followed"
    path.write_text("w-0\nw-1\n")
    return path, await of_job(resolve({"hostfile": str(path)}, {}), {}, 0.0)


async def test_a_hostfile_whose_volume_hangs_delays_no_host(
    rig: Rig, hostfile: tuple[Path, JobHostfile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_HOSTFILE_S", 0.05)
    rig.publish(w_1="127.0.0.3")
    hangs, reads = threading.Event(), list[int]()

    def read(_: JobHostfile) -> bool:
        reads.append(1)
        return hangs.wait(60)

    monkeypatch.setattr(JobHostfile, "has_changed", read)
    async with sshd(Behaviour(rig.job), "0.0.0.0") as port:
        found = await rig.passing("w-0 w-1", port, hostfile=hostfile[1])
    assert (addresses(found), reads) == (["127.0.0.2", "127.0.0.3"], [1])
    hangs.set()


@pytest.mark.parametrize("text", ["w-0 slots=3\n", "w-2\nw-1\nw-0\n"])
async def test_a_hostfile_with_other_hosts_begins_the_wait_anew(
    rig: Rig, hostfile: tuple[Path, JobHostfile], capfd: pytest.CaptureFixture[str], text: str
) -> None:
    path, found = hostfile
    async with sshd(Behaviour(rig.job), "0.0.0.0") as port:
        waiting = rig.begin(found.hostfile.hosts, port, hostfile=found)
        await later(lambda: path.write_text(text))
        await later(lambda: rig.publish(w_1="127.0.0.3"))
        workers = (await waiting).workers
    names = [line.partition(" ")[0] for line in text.splitlines()]
    assert [item.host.name for item in workers] == names
    assert workers[0].host.slots == (3 if "slots" in text else 1)
    assert (
        capfd.readouterr().err.count(f"the hostfile changed: now waiting for {len(names)} host")
        == 1
    )


async def test_a_change_in_the_last_moment_still_counts(
    rig: Rig, hostfile: tuple[Path, JobHostfile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read once more when all are ready: what mpirun gets is the last version."""
    monkeypatch.setattr(gate, "_POLL_S", 60.0)
    path, found = hostfile
    behaviour = Behaviour(rig.job)
    async with sshd(behaviour, "0.0.0.0") as port:
        waiting = rig.begin(found.hostfile.hosts, port, hostfile=found)
        await behaviour.welcomed.wait()
        path.write_text("w-1 slots=2\n")
        rig.publish(w_1="127.0.0.3")
        workers = (await waiting).workers
    assert [(item.host.name, item.host.slots) for item in workers] == [("w-1", 2)]
