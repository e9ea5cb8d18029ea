from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Worker
from mpiboot.core.launch_spec import ScriptSpec, from_line, to_line
from mpiboot.core.model import Decision, Source
from mpiboot.core.settings import resolve
from mpiboot.hosts.gate import GateResult
from mpiboot.launcher import child, observation
from mpiboot.launcher.child import ChildLoop, ReachedWorkers, by_every_name, that_may_join
from mpiboot.launcher.setup import LauncherPod, launcher_pod
from mpiboot.ssh import client_start
from mpiboot.ssh.client_start import ClientConfig
from mpiboot.supervisor import evidence
from mpiboot.system import os_calls
from mpiboot.system.keys import JobKey
from tests.fakes import plans
from tests.fakes.worker import HAVE_SSH

T = TypeVar("T")


def names(*listed: str, addresses: tuple[str, ...], renamed: dict[str, str]) -> dict[str, str]:
    """The hostfile's name of the host that each name stands for."""
    workers = tuple(
        replace(plans.worker(replace(host, name=name), number, None), address=address)
        for number, (host, name, address) in enumerate(
            zip(plans.hosts(*[1] * len(listed)), listed, addresses, strict=True)
        )
    )
    return {name: worker.host.name for name, worker in by_every_name(workers, renamed).items()}


def test_a_host_is_known_by_each_of_its_names() -> None:
    found = names("w-0.job", addresses=("10.0.0.1",), renamed={"w-0.job": "w-0.job.ns.svc.c"})
    assert set(found) == {"w-0.job", "w-0", "w-0.job.ns.svc.c", "10.0.0.1"}


def test_a_name_that_two_hosts_have_stands_for_neither() -> None:
    found = names("w.a", "w.b", addresses=("10.0.0.1", "10.0.0.1"), renamed={})
    assert found == {"w.a": "w.a", "w.b": "w.b"}


def test_the_hostfiles_own_name_comes_before_anothers_short_one() -> None:
    found = names("w.a", "w", addresses=("10.0.0.1", "10.0.0.2"), renamed={})
    assert found == {"w.a": "w.a", "w": "w", "10.0.0.1": "w.a", "10.0.0.2": "w"}


def test_a_host_that_is_named_by_its_address_has_this_one_name() -> None:
    assert names("10.0.0.1", addresses=("10.0.0.1",), renamed={}) == {"10.0.0.1": "10.0.0.1"}


def test_hosts_that_may_join_are_named_as_the_jobs_are_but_for_their_number() -> None:
    def joining(
        *listed: str, ports: tuple[int, ...] = (22, 22), renamed: dict[str, str] | None = None
    ) -> list[tuple[str, str, int, str]]:
        workers = (
            replace(plans.worker(replace(host, name=name), number, None), port=port)
            for number, (host, name, port) in enumerate(
                zip(plans.hosts(*[1] * len(listed)), listed, ports, strict=True)
            )
        )
        found = that_may_join(tuple(workers), renamed or {})
        return [(item.name, item.address, item.port, item.user) for item in found]

    assert joining("w-0.job", "w-1.job", ports=(2222, 2222)) == [
        ("w-*.job", "%h", 2222, "root"),
        ("w-*", "%h.job", 2222, "root"),
    ]
    assert joining("a-0-1", "b", renamed={"a-0-1": "a-0-1.job.svc"}) == [
        ("a-0-*.job.svc", "%h", 22, "root"),
        ("a-0-*", "%h.job.svc", 22, "root"),
    ]
    # Two networks, or two ports: how a third one is reached can't be told.
    assert joining("w-0.a", "w-1.b") == [("w-*.a", "%h", 22, "root"), ("w-*.b", "%h", 22, "root")]
    assert joining("w-0", "w-1", ports=(22, 2222)) == []
    assert joining("10.0.0.1", "fd00::1") == []


def test_a_parent_reads_what_the_child_wrote() -> None:
    spec = ScriptSpec(("sh", "a b"), "/run/logins", {"PATH": "/x:/y"}, ("python", "-c"), "2nd")
    assert from_line(to_line(spec)) == spec


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two hosts that are ready, at the second attempt of their job; the launcher's folder."""
    seen = plans.observed().workers
    before = (("a@2026-01-01T00:00:00Z@1", "it failed"),)
    workers = tuple(replace(worker, attempts=before) for worker in seen)
    (tmp_path / "id").write_text("PRIVATE\n")
    folder = tmp_path / "launcher"
    folder.mkdir()

    def pod(resolved: object, environ: object, **named: Any) -> LauncherPod:  # noqa: ANN401 - its own
        assert named.pop("needs_key")
        assert named == {"pid": os.getpid(), "attempt": "b", "may_disconnect": True}
        key = JobKey(tmp_path / "id", "ssh-ed25519 JOB")
        os.environ["HOME"] = "/found/by/mpiboot"
        return LauncherPod(
            resolve({"ssh_keepalive": "30"}, {}),
            plans.POD,
            plans.ROOT,
            folder,
            key,
            time.monotonic(),
            **named,
        )

    monkeypatch.setenv("MPIBOOT_ATTEMPT", "b")
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setattr(child, "launcher_pod", pod)

    async def pass_gates(_: LauncherPod, reached: list[Worker]) -> GateResult:
        reached += workers
        return GateResult(workers, (), {}, {})

    monkeypatch.setattr(observation, "pass_gates", pass_gates)
    return folder


class Loop(ChildLoop):
    """Without the handlers of signals, which are this test's own."""

    def __init__(self) -> None:
        return

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)


def prepared(*program: str) -> ScriptSpec:
    reached = ReachedWorkers()
    spec = child.prepare_script(resolve({}, {}), program, os.getpid(), Loop(), reached)
    assert reached.launcher is not None
    assert reached.launcher.attempt == "b"
    assert len(reached.workers) == 2
    return spec


@pytest.mark.skipif(not HAVE_SSH, reason="no ssh")
def test_a_program_gets_an_ssh_in_front_that_knows_its_hosts(
    ready: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure()
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    over = ready / f"logins-{ended.pid}"  # of a process that is no more
    over.mkdir()
    path = os.environ["PATH"]
    ssh = shutil.which("ssh")
    assert ssh
    spec = prepared("horovodrun", "x")
    assert not over.exists()
    assert spec.argv == ("horovodrun", "x")
    folder = Path(spec.folder)
    assert folder.parent == ready
    assert spec.set_env == {"HOME": "/found/by/mpiboot", "PATH": f"{folder}/bin:{path}"}
    assert spec.client == ()
    assert (folder / "bin/ssh").resolve().name == "ssh"
    assert (folder / "key").read_text() == "PRIVATE\n"
    names = ["w-0.job.ns.svc", "w-0", "10.244.0.10", "w-1.job.ns.svc", "w-1", "10.244.0.11"]
    names += ["w-*.job.ns.svc", "w-*"]
    values = dict(line.split("=", 1) for line in (folder / "ssh.conf").read_text().splitlines())
    assert sorted(values.pop("hosts").strip("'").split()) == sorted(names)
    assert Path(values.pop("words")).name == "ssh_words"
    assert values.pop("pins").startswith("'-o StrictHostKeyChecking=yes -o UserKnownHostsFile=")
    assert values == {"ssh": ssh, "client": "''"}
    listed = [
        line.split()[1]
        for line in (folder / "ssh_config").read_text().splitlines()
        if line.startswith("Host ")
    ]
    assert sorted(listed) == sorted([*names, "*"])
    before = evidence.from_json((folder / evidence.FILE).read_text())
    assert [(item.name, item.dns) for item in before] == [
        ("w-0.job.ns.svc", ""),
        ("w-1.job.ns.svc", ""),
    ]
    message = capfd.readouterr().err
    assert spec.earlier == "attempt 2; the last one (a of 2026-01-01T00:00:00Z) ended: it failed"
    assert f"mpiboot: {spec.earlier}\n" in message
    assert "starting horovodrun" in message


def test_without_an_ssh_mpiboots_own_client_is_behind_it(
    ready: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure()
    monkeypatch.setenv("PATH", str(ready))
    files: list[tuple[int, int]] = []

    def short_of_files(most: int, limit: int) -> str:
        files.append((most, limit))
        return ""

    monkeypatch.setattr(client_start, "short_of_files", short_of_files)
    spec = prepared("./train")
    assert files == [(4, os_calls.most_open_files())]  # two sessions at once for each of two hosts
    config = ClientConfig.from_json(Path(spec.client[-1]).read_text())
    assert config.parent == os.getpid()
    assert {host.key for host in config.hosts} == {"ssh-ed25519 JOB"}
    assert config.patience.interval == 10
    assert "client=''" not in (Path(spec.folder) / "ssh.conf").read_text()
    assert "its ssh is mpiboot's own client: there is no ssh on PATH" in capfd.readouterr().err


@pytest.mark.usefixtures("ready")
def test_a_program_that_logs_in_by_itself_needs_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Callable[..., LauncherPod] = vars(child)["launcher_pod"]

    def pod(*given: Any, **named: Any) -> LauncherPod:  # noqa: ANN401 - its own
        chosen = Decision("launch-agent", "kubectl", Source.DETECTED, "there is no key")
        return replace(made(*given, **named), key=None, chosen=chosen)

    monkeypatch.setattr(child, "launcher_pod", pod)
    with pytest.raises(MpibootError, match="horovodrun logs in to the hosts by itself") as told:
        child.prepare_script(
            resolve({}, {}), ("horovodrun",), os.getpid(), Loop(), ReachedWorkers()
        )
    assert told.value.code == 78
    assert "there is no key" in str(told.value)
    assert told.value.finding.hint.startswith("mount the job's key Secret")


@pytest.mark.usefixtures("ready")
def test_in_a_job_of_this_pod_alone_a_program_starts_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits for a key that nobody needs, and its ssh is the image's own."""
    monkeypatch.setattr(child, "launcher_pod", launcher_pod)
    for name in ("HOME", "USER", "LOGNAME", "TMPDIR"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=2\n")
    given = {
        "hostfile": str(hosts),
        "runtime_dir": str(tmp_path / "run"),
        "ssh_key": str(tmp_path / "none"),
    }
    spec = child.prepare_script(
        resolve(given, {}), ("horovodrun", "x"), os.getpid(), Loop(), ReachedWorkers()
    )
    assert (spec.argv, spec.folder, spec.client) == (("horovodrun", "x"), "", ())
    assert spec.set_env["PATH"] == os.environ["PATH"]
