from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import asyncssh
import pytest

from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Host, HostAnswer
from mpiboot.core.model import Decision, ProveTransport, Source
from mpiboot.core.settings import resolve
from mpiboot.hosts.pipeline import SshAccess, choose_access
from mpiboot.job.plan_input import Observed
from mpiboot.launcher import setup, shims
from mpiboot.launcher.setup import LauncherPod, access, find_key, launcher_pod, remote
from mpiboot.ssh.client import OpensshClient, PodAccess
from mpiboot.ssh.config import LaunchHost, read_args
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor import evidence
from mpiboot.system import keys
from tests.fakes import plans
from tests.fakes.worker import HAVE_SSH
from tests.fakes.workers import sriov

needs_ssh = pytest.mark.skipif(not HAVE_SSH, reason="no ssh")


def test_mpirun_calls_the_agent_by_its_path_or_by_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert setup.paths(tmp_path, 1).launch_dir == f"{tmp_path}/launch"
    assert setup.paths(tmp_path, 57).launch_dir == f"{tmp_path}/launch-57"
    agent = Path(setup.paths(tmp_path).agent)
    assert agent.parts[-2:] == ("libexec", "agent")
    assert os.access(agent, os.X_OK)
    monkeypatch.setattr(shims, "AGENT", tmp_path / "agent")
    (tmp_path / "agent").touch(0o644)  # its execute bit is lost
    assert setup.paths(tmp_path).agent == f"/bin/sh {tmp_path}/agent"


RENAMED = {"w-1.job.ns.svc": "ip-w-1"}
SHOWN = {"w-1.job.ns.svc": "ssh-ed25519 SHOWN"}


def made(
    folder: Path, seen: Observed | None = None, flags: Mapping[str, str] | None = None
) -> setup.Launch:
    """A launch on two hosts, of which mpirun calls one by another name."""
    (folder / "id").write_text("PRIVATE\n")
    key = keys.JobKey(folder / "id", "ssh-ed25519 JOB")
    seen = seen or plans.observed(renamed=RENAMED)
    workers = [replace(one, host_key=SHOWN.get(one.host.name, "")) for one in seen.workers]
    environ = {**seen.environ, "PATH": os.environ["PATH"]}
    seen = replace(seen, environ=environ, workers=tuple(workers))
    where = setup.paths(folder)
    resolved = resolve(flags or {}, seen.environ)
    plan = replace(plans.planned(seen=seen), per_host={"w-0": {"A": "b"}})
    pod = LauncherPod(resolved, seen.environ, plans.ROOT, folder, 0.0, key=key)
    return setup.Launch(plan, seen, resolved, where, pod)


@needs_ssh
@pytest.mark.parametrize("own_agent", [False, True])
def test_a_host_that_only_ssh_gets_in_to_is_left_to_it(tmp_path: Path, *, own_agent: bool) -> None:
    client = OpensshClient("/usr/bin/ssh", read_args(""), "me", folder=lambda: tmp_path)
    launch = made(tmp_path)
    launch.pod.ssh_access = SshAccess("me", Pool(None, client=client), "here")
    client.carried.add(launch.observed.workers[0].host.name)
    plan = replace(launch.plan, user_agent="/opt/agent" if own_agent else "")
    replace(launch, plan=plan).write()
    folder = Path(launch.where.launch_dir)
    env = folder / "hosts" / "w-0.job.ns.svc.env"
    assert env.exists() == (not own_agent)
    assert own_agent or "user_agent=exec_ssh\n" in env.read_text()
    assert [host.by_ssh for host in launch.logins.pool_hosts()] == [True, False]
    first, second = (folder / "ssh_config").read_text().split("Host ")[1:3]
    assert ("IdentitiesOnly" in first, "IdentitiesOnly" in second) == (False, True)
    assert f"LocalCommand sh -c '[ -p {folder}/events ] && echo connected %n" in first


@needs_ssh
def test_every_file_of_a_launch_is_private(tmp_path: Path) -> None:
    launch = made(tmp_path, flags={"host_keys": "accept-new"})
    left = Path(launch.where.launch_dir) / "hosts" / "w-9.env"
    left.parent.mkdir(parents=True)
    left.touch()
    before = os.umask(0)  # nothing else guards them
    try:
        launch.write()
    finally:
        os.umask(before)
    folder = Path(launch.where.launch_dir)
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}
    assert {"hosts", "w-0.env", "agent.conf", "ssh_config", "known_hosts", "key"} <= modes.keys()
    assert {"events", "stderr"} <= modes.keys()
    open_to_others = {name: oct(mode) for name, mode in modes.items() if mode & 0o077}
    assert open_to_others == {}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not left.exists()  # of an earlier launch
    # A host key of its own is pinned by address where it may differ.
    first, second = (folder / "ssh_config").read_text().split("Host ")[1:3]
    assert "HostKeyAlias mpiboot-job\n" in first
    assert "HostKeyAlias [10.244.0.11]:22\n" in second


@needs_ssh
def test_ssh_reaches_each_host_by_mpiruns_name_where_the_gate_found_it(tmp_path: Path) -> None:
    launch = made(tmp_path)
    launch.write()
    folder = Path(launch.where.launch_dir)

    def read(name: str) -> dict[str, str]:
        argv = ["ssh", "-G", "-F", str(folder / "ssh_config"), name]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        lines = reversed(done.stdout.splitlines())
        return dict(line.split(" ", 1) for line in lines if " " in line)

    first, second = read("w-0.job.ns.svc"), read("ip-w-1")
    assert (first["hostname"], second["hostname"]) == ("10.244.0.10", "10.244.0.11")
    assert (first["port"], first["user"]) == ("22", "root")
    assert first["identityfile"] == f"{launch.where.launch_dir}/key"
    assert read("w-9")["hostkeyalias"] == "mpiboot-job"
    assert first["userknownhostsfile"] == str(folder / "known_hosts")
    assert first["stricthostkeychecking"] == "true"
    assert launch.pod.key is not None
    public = launch.pod.key.public
    assert (folder / "known_hosts").read_text().splitlines() == [
        f"mpiboot-job {public}",
        "[10.244.0.11]:22 ssh-ed25519 SHOWN",
    ]
    assert Path(launch.where.launch_dir, "key").read_bytes() == (tmp_path / "id").read_bytes()
    assert Path(launch.where.hostfile).read_text() == launch.plan.hostfile
    conf = (folder / "agent.conf").read_text()
    known = folder / "known_hosts"
    assert f"ssh='{shutil.which('ssh')} -o StrictHostKeyChecking=yes -o UserKnown" in conf
    assert f" -o UserKnownHostsFile={known} -o GlobalKnownHostsFile=/dev/null -o " in conf


@pytest.mark.parametrize(
    ("plan", "supervise", "carrier"),
    [
        ({}, "on", "pool"),
        ({}, "off", "ssh"),
        ({"user_agent": "rsh"}, "on", ""),
        ({"user_agent": "rsh"}, "off", ""),
        ({"remote_hosts": ()}, "on", ""),
        ({"remote_hosts": ()}, "off", ""),
    ],
)
def test_agents_use_the_pool_and_need_ssh_where_nobody_stays(
    tmp_path: Path, plan: dict[str, Any], supervise: str, carrier: str
) -> None:
    launch = made(tmp_path, flags={"supervise": supervise})
    environ = {**launch.observed.environ, "PATH": str(tmp_path)}
    bare = replace(launch, observed=replace(launch.observed, environ=environ))
    bare = replace(bare, plan=replace(bare.plan, **plan))
    assert bare.by_pool == (carrier == "pool")
    if carrier != "ssh":
        bare.write()
        return
    with pytest.raises(MpibootError, match="no ssh on PATH, and MPIBOOT_SUPERVISE=") as caught:
        bare.write()
    assert caught.value.finding.evidence == (f"PATH={tmp_path}",)


def test_the_pool_knows_each_host_with_the_key_that_it_must_show(tmp_path: Path) -> None:
    assert made(tmp_path).logins.pool_hosts() == (
        LaunchHost("w-0.job.ns.svc", "10.244.0.10", 22, "root", "ssh-ed25519 JOB"),
        LaunchHost("ip-w-1", "10.244.0.11", 22, "root", "ssh-ed25519 SHOWN"),
    )
    unchecked = made(tmp_path, flags={"host_keys": "off"}).logins.pool_hosts()
    assert {host.key for host in unchecked} == {""}


@needs_ssh
def test_a_launch_has_its_hosts_and_what_each_was_at_the_gate(tmp_path: Path) -> None:
    launch = made(tmp_path)
    launch.write()
    seen = launch.observed
    workers = (replace(seen.workers[0], answer=HostAnswer(oom_kills=5)), *seen.workers[1:])
    own = HostAnswer(oom_kills=2)
    launch = replace(launch, observed=replace(seen, workers=workers, own_answer=own))
    assert launch.all_hosts == ("w-0.job.ns.svc", "ip-w-1")
    assert (launch.hosts, launch.remote) == (2, "ssh")
    here, one, other = launch.snapshots()
    name = socket.gethostname()
    assert here == evidence.HostSnapshot(name, answer=own, here=True, may_idle=True)
    assert (one.name, one.dns, one.address) == ("w-0.job.ns.svc", "w-0.job.ns.svc", "10.244.0.10")
    assert (one.answer.oom_kills, other.name, other.address) == (5, "ip-w-1", "10.244.0.11")


def test_where_kubectl_enters_pods_there_is_no_key_and_no_ssh(tmp_path: Path) -> None:
    launch = made(tmp_path)
    client = Decision("launch-agent", "kubectl", Source.DEFAULT, "so")
    environ = {**launch.observed.environ, "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    workers = tuple(replace(one, dns_name="") for one in launch.observed.workers)
    seen = replace(launch.observed, client=client, environ=environ, workers=workers)
    pod = replace(launch.pod, key=None, pods=PodAccess("/opt/kubectl", "jobs"))
    launch = replace(launch, observed=seen, pod=pod)
    launch.write()
    assert launch.by_pool is False
    folder = Path(launch.where.launch_dir)
    names = {path.name for path in folder.rglob("*")}
    assert not names & {"key", "ssh_config", "known_hosts"}
    assert stat.S_ISFIFO((folder / "stdin").stat().st_mode)
    assert stat.S_ISFIFO((folder / "events").stat().st_mode)
    assert (folder / "hostfile").read_text() == launch.plan.hostfile
    text = (folder / "agent.conf").read_text()
    assert "\nexport KUBERNETES_SERVICE_HOST=10.96.0.1;\n" in text
    read = dict(line.split("=", 1) for line in text.splitlines())
    assert (read["kubectl"], read["namespace"]) == ("/opt/kubectl", "jobs")
    assert launch.remote == "kubectl"  # as messages have it
    # Nobody has asked for the names, and they may lead nowhere.
    assert {item.dns for item in launch.snapshots()} == {""}


@needs_ssh
@pytest.mark.parametrize("own_value", ["", "=mlx5_3:1"], ids=["planned", "named by the user"])
def test_the_hosts_are_kept_with_their_counters(tmp_path: Path, own_value: str) -> None:
    seen = plans.observed(renamed=RENAMED)
    environ = {**seen.environ, **({"NCCL_IB_HCA": own_value} if own_value else {})}
    counters = {"mlx5_3:1": {"port_xmit_data": 7}, "eth0": {"tx_bytes": 8}, "lo": {"tx_bytes": 9}}
    found = tuple(
        replace(worker, facts=sriov(place).facts, answer=HostAnswer(counters=counters))
        for place, worker in enumerate(seen.workers)
    )
    launch = made(tmp_path, replace(seen, environ=environ, workers=found))
    launch.write()
    assert launch.prove is ProveTransport.WARN
    own, *hosts = launch.snapshots()
    assert own.counted == ()
    for host in hosts:
        assert [port.name for port in host.counted] == ["mlx5_3:1", "eth0", "net1"]
        assert host.answer.counters == counters
    # One host moves nothing between hosts.
    launch = replace(launch, plan=replace(launch.plan, remote_hosts=("ip-w-1",)))
    assert launch.prove is ProveTransport.OFF
    assert all(not host.counted for host in launch.snapshots())


# What a launcher stands on, with a real folder and a real key


REMOTE = (Host("w-0"),)


@pytest.fixture
def key(tmp_path: Path) -> asyncssh.SSHKey:
    """The job's key as it is mounted, beside the public half that workers let in."""
    made = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "id").write_bytes(made.export_private_key())
    (tmp_path / "authorized_keys").write_bytes(made.export_public_key())
    return made


@pytest.fixture(autouse=True)
def own_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a launcher completes in its own environment is taken back."""
    for name in ("HOME", "USER", "LOGNAME", "TMPDIR"):
        monkeypatch.setenv(name, os.environ.get(name, "x"))


def bare(
    folder: Path, role: str = "launcher", path: str = "", *, waits: bool = False, **flags: str
) -> LauncherPod:
    """A launcher without its key."""
    given = {"runtime_dir": str(folder / "run"), "ssh_key": str(folder / "id"), **flags}
    environ = {"PATH": path or os.environ["PATH"], "HOME": "/nothing/such", "TMPDIR": str(folder)}
    resolved = resolve(given, environ)
    return launcher_pod(resolved, environ, role, "a", may_disconnect=True, waits=waits)


def launcher(folder: Path, **flags: str) -> LauncherPod:
    made = bare(folder, "launcher", "", waits=False, **flags)
    find_key(made, REMOTE)
    return made


def test_a_launcher_has_a_private_folder_the_jobs_key_and_a_home(
    tmp_path: Path, key: asyncssh.SSHKey
) -> None:
    found = launcher(tmp_path)
    assert found.folder.is_relative_to(tmp_path / "run")
    assert found.folder.name == "launcher"
    assert found.key is not None
    assert found.job == found.key.public
    assert found.key.path == tmp_path / "id"
    assert found.key.public.split()[:2] == key.export_public_key().decode().split()[:2]
    assert (found.attempt, found.may_disconnect) == ("a", True)
    # mpirun and asyncssh ask for these, where this user has none that can be used.
    assert os.environ["HOME"] in (found.identity.home, str(found.folder))
    assert os.environ["USER"] == found.identity.user
    assert bare(tmp_path, "doctor").folder.name == "doctor"


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PodAccess:
    """A pod with a service account, and a FAKE kubectl that is never run."""
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("jobs")
    (tmp_path / "kubectl").write_text("#!/bin/false\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setattr(choose_access, "__defaults__", (tmp_path,))
    return PodAccess(str(tmp_path / "kubectl"), "jobs")


def test_pods_are_entered_by_kubectl_where_there_is_no_key(
    tmp_path: Path, kubectl: PodAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bare(tmp_path, path=str(tmp_path))
    find_key(made, REMOTE)
    assert (made.key, made.pods, made.job) == (None, kubectl, "namespace jobs")
    assert made.chosen is not None
    assert made.chosen.source is Source.DETECTED
    assert access(made).pool.pods == kubectl
    # One that is there and closed is an error.
    monkeypatch.setattr(keys, "unreadable_key", lambda *_: error("ssh-key", "only root may"))
    with pytest.raises(MpibootError, match="only root may"):
        find_key(bare(tmp_path, path=str(tmp_path)), REMOTE)


@pytest.mark.usefixtures("key", "kubectl")
def test_a_key_that_is_there_is_used(tmp_path: Path) -> None:
    made = bare(tmp_path, path=str(tmp_path))
    find_key(made, REMOTE)
    assert (made.key is None, made.pods, made.chosen) == (False, None, None)


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize("comes", [True, False])
def test_a_key_may_come_late_but_not_for_long_where_kubectl_enters_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, comes: bool
) -> None:
    monkeypatch.setattr(setup, "_KEY_WAIT_S", 60.0 if comes else 0.1)
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(tmp_path / "new")
    made, before = bare(tmp_path, path=str(tmp_path), waits=True, timeout="60"), time.monotonic()
    if comes:
        threading.Timer(0.3, (tmp_path / "new").rename, (tmp_path / "id",)).start()
    find_key(made, REMOTE)
    assert (made.key is None, made.pods is None) == (not comes, comes)
    assert time.monotonic() - before < 30  # seconds


def test_a_hostfile_of_this_pod_alone_needs_no_key(tmp_path: Path) -> None:
    assert remote((Host("localhost"), *REMOTE, Host(socket.gethostname()))) == ["w-0"]
    made = bare(tmp_path)
    find_key(made, (Host("localhost"),))
    assert (made.key, made.pods) == (None, None)


@pytest.mark.usefixtures("key")
def test_the_deadline_is_how_long_a_key_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[float]()

    def noted(*place: object) -> Path:
        given.append(cast("float", place[-1]))
        return tmp_path / "id"

    monkeypatch.setattr(keys, "wait", noted)
    for waits, seconds in ((True, 600.0), (False, 0.0)):
        find_key(bare(tmp_path, timeout="600", waits=waits), REMOTE)
        assert given[-1] == pytest.approx(seconds, abs=30)


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    ("config", "environ", "ports", "user"),
    [
        ("", {}, (22, 2222, 222), ""),
        (f"Host {socket.gethostname()}\n  Port 2206\n", {}, (2206, 22, 2222, 222), ""),
        ("Port 2222\n", {"OMPI_MCA_plm_rsh_args": "-p 2207 -l me"}, (2207,), "me"),
        ("", {"MPIBOOT_SSH_USER": "mpi"}, (22, 2222, 222), "mpi"),
    ],
    ids=["none", "this host's", "of mpirun's own ssh", "the setting"],
)
def test_a_port_of_the_mounted_ssh_configuration_is_tried_first(
    tmp_path: Path, config: str, environ: dict[str, str], ports: tuple[int, ...], user: str
) -> None:
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/config").write_text(config)
    flags = {"ssh_user": environ.get("MPIBOOT_SSH_USER", ""), "cluster_domain": "k8s.test"}
    made = launcher(tmp_path, **flags)
    made.environ = {**made.environ, "HOME": str(tmp_path / "home"), **environ}
    found = access(made)
    assert (found.ports, found.user) == (ports, user or made.identity.user)
    assert (found.domain, found.attempt, found.may_disconnect) == ("k8s.test", "a", True)
