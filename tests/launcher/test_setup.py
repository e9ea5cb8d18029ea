"""What a launcher stands on, with a real folder and a real key."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest

from mpiboot.core.checks import MpibootError, error
from mpiboot.core.model import Source
from mpiboot.core.settings import resolve
from mpiboot.hosts import dns
from mpiboot.hosts.access import choose_access, own_namespace
from mpiboot.hosts.dns import ResolvConf
from mpiboot.launcher.setup import LauncherPod, access, launcher_pod
from mpiboot.network import pod
from mpiboot.ssh.kubectl import PodAccess
from mpiboot.system import files, keys, os_calls


@pytest.fixture
def key(tmp_path: Path) -> asyncssh.SSHKey:
    """The job's key as it is mounted, beside the public half that workers let in."""
    made = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "id").write_bytes(made.export_private_key())
    (tmp_path / "authorized_keys").write_bytes(made.export_public_key())
    return made


def environment(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nothing/such", "TMPDIR": str(folder)}


@pytest.fixture(autouse=True)
def own_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a launcher completes in its own environment is taken back."""
    for name in ("HOME", "USER", "LOGNAME", "TMPDIR"):
        monkeypatch.setenv(name, os.environ.get(name, "x"))


def launcher(folder: Path, **flags: str) -> LauncherPod:
    given = {"runtime_dir": str(folder / "run"), "ssh_key": str(folder / "id"), **flags}
    environ = environment(folder)
    return launcher_pod(resolve(given, environ), environ, attempt="a", may_disconnect=True)


def test_a_launcher_has_a_private_folder_the_jobs_key_and_a_home(
    tmp_path: Path, key: asyncssh.SSHKey
) -> None:
    before = time.monotonic()
    found = launcher(tmp_path)
    assert before <= found.started <= time.monotonic()
    assert found.folder.is_relative_to(tmp_path / "run")
    assert found.folder.name == "launcher"
    assert found.key is not None
    assert found.job == found.key.public
    assert found.key.path == tmp_path / "id"
    assert found.key.public.split()[:2] == key.export_public_key().decode().split()[:2]
    assert (found.attempt, found.may_disconnect) == ("a", True)
    # mpirun and asyncssh ask for these, where this user has none that can be used.
    identity = found.identity
    assert os.environ["HOME"] in (identity.home, str(found.folder))
    assert os.environ["USER"] == identity.user


def test_a_key_that_is_not_there_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    given = {"runtime_dir": str(tmp_path / "run"), "ssh_key": str(tmp_path / "none")}
    environ = environment(tmp_path)
    with pytest.raises(MpibootError) as caught:
        launcher_pod(resolve({**given, "timeout": "600"}, environ), environ, patience=0.0)
    assert caught.value.finding.check == "ssh-key"


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PodAccess:
    """A pod with a service account, and a FAKE kubectl that is never run."""
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("jobs")
    (tmp_path / "kubectl").write_text("#!/bin/false\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setattr(choose_access, "__defaults__", (tmp_path,))
    monkeypatch.setattr(own_namespace, "__defaults__", (tmp_path,))
    return PodAccess(str(tmp_path / "kubectl"), "jobs")


def test_without_a_key_pods_are_entered_by_kubectl(tmp_path: Path, kubectl: PodAccess) -> None:
    given = {"runtime_dir": str(tmp_path / "run"), "ssh_key": str(tmp_path / "none")}
    environ = environment(tmp_path) | {"PATH": str(tmp_path)}
    found = launcher_pod(resolve(given, environ), environ, patience=0.0)
    assert (found.key, found.pods, found.job) == (None, kubectl, "namespace jobs")
    assert found.chosen is not None
    assert found.chosen.source is Source.DETECTED
    to = access(found)
    assert to.pool.pods == kubectl


def test_a_key_that_is_there_is_used_and_one_that_is_closed_is_told(
    tmp_path: Path,
    key: asyncssh.SSHKey,
    kubectl: PodAccess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del key, kubectl
    environ = environment(tmp_path) | {"PATH": str(tmp_path)}
    given = {"runtime_dir": str(tmp_path / "run"), "ssh_key": str(tmp_path / "id")}
    found = launcher_pod(resolve(given, environ), environ, patience=0.0)
    assert (found.pods, found.chosen) == (None, None)
    why = error("ssh-key", "only root may read it")
    monkeypatch.setattr(keys, "unreadable_key", lambda *_: why)
    given["ssh_key"] = str(tmp_path / "none")
    with pytest.raises(MpibootError, match="only root may read it"):
        launcher_pod(resolve(given, environ), environ, patience=0.0)


def test_without_another_process_that_stays_it_is_this_one(
    tmp_path: Path, key: asyncssh.SSHKey
) -> None:
    given = {"runtime_dir": str(tmp_path / "run"), "ssh_key": str(tmp_path / "id")}
    environ = environment(tmp_path)
    found = launcher_pod(resolve(given, environ), environ, role="doctor")
    assert (found.attempt, found.may_disconnect) == ("", False)
    assert found.folder.name == "doctor"


def test_keys_that_do_not_let_the_launcher_in_are_warned_of(
    tmp_path: Path, key: asyncssh.SSHKey, capfd: pytest.CaptureFixture[str]
) -> None:
    del key
    other = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "authorized_keys").write_bytes(other.export_public_key())
    launcher(tmp_path)
    assert "authorized_keys lacks the job's key SHA256:" in capfd.readouterr().err


@pytest.mark.parametrize(("own", "ipv6"), [("fd00::1", True), ("10.0.0.1", False), ("", None)])
def test_workers_are_logged_in_to_as_the_settings_and_this_pod_say(
    tmp_path: Path,
    key: asyncssh.SSHKey,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    ipv6: bool | None,  # noqa: FBT001 - a row of the table
) -> None:
    raised, asked = list[int](), list[object]()

    def control_address(*given: object, api: str) -> tuple[str, str]:
        asked.append((*given, api))
        return own, "so"

    monkeypatch.setattr(os_calls, "raise_soft_limits", lambda: raised.append(1))
    monkeypatch.setattr(pod, "control_address", control_address)
    monkeypatch.setattr(pod, "own_names", lambda name: (f"{name}.job.ns.svc",))
    found = launcher(tmp_path, control_ifname="net7")
    to = access(found)
    assert (raised, asked) == ([1], [("net7", socket.gethostname(), "")])
    assert found.key is not None
    assert to.user == found.identity.user
    login = to.pool._load()
    assert login.public_line == found.key.public
    assert to.hostname == socket.gethostname()
    assert to.fqdns == (f"{to.hostname}.job.ns.svc",)
    assert to.ipv6 is ipv6
    assert (to.attempt, to.may_disconnect) == ("a", True)
    assert access(launcher(tmp_path, ssh_user="mpi")).user == "mpi"


def test_a_launchers_folder_has_no_blank_that_mpirun_would_split(
    tmp_path: Path, key: asyncssh.SSHKey
) -> None:
    blank = tmp_path / "a b"
    with pytest.raises(MpibootError, match="blank") as caught:
        launcher(tmp_path, runtime_dir=str(blank))
    assert caught.value.finding.check == "runtime-folder"
    environ = environment(tmp_path)
    given = {"runtime_dir": str(blank), "ssh_key": str(tmp_path / "id")}
    assert launcher_pod(resolve(given, environ), environ, role="doctor").folder.name == "doctor"


def test_a_port_of_the_mounted_ssh_configuration_is_tried_first(
    tmp_path: Path, key: asyncssh.SSHKey
) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    pod_of = launcher(tmp_path)
    at_home = dataclasses.replace(pod_of, environ={**pod_of.environ, "HOME": str(home)})
    assert access(at_home).ports == (22, 2222, 222)
    at_home.accesses.clear()
    (home / ".ssh/config").write_text(f"Host {socket.gethostname()}\n  Port 2206\n")
    assert access(at_home).ports == (2206, 22, 2222, 222)
    at_home.accesses.clear()
    (home / ".ssh/config").write_text("Port 2222\n")
    assert access(at_home).ports == (2222, 22, 222)
    at_home.accesses.clear()
    args = {"OMPI_MCA_plm_rsh_args": "-p 2207 -l me"}  # for mpirun's own ssh
    given = access(dataclasses.replace(at_home, environ={**at_home.environ, **args}))
    assert (given.ports, given.user) == ((2207,), "me")


def test_the_domain_of_long_names_is_the_settings_or_the_search_lists(
    tmp_path: Path, key: asyncssh.SSHKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    del key
    found = launcher(tmp_path)
    for search, domain in (
        (("ns.svc.corp.example", "svc.corp.example", "corp.example"), "corp.example"),
        ((), "cluster.local"),
    ):
        conf = ResolvConf(("10.96.0.10",), search)
        monkeypatch.setattr(dns, "read_resolv_conf", lambda conf=conf: conf)
        found.accesses.clear()
        assert access(found).domain == domain
    assert access(launcher(tmp_path, cluster_domain="k8s.test")).domain == "k8s.test"


@pytest.mark.parametrize(
    ("timeout", "patience", "late", "waited"),
    [("600", None, 5.0, 600.0), ("3", None, 3.0, 3.0), ("600", 0.0, 0.0, 0.0)],
)
def test_a_secret_may_come_late_but_not_where_there_is_another_way(
    tmp_path: Path,
    key: asyncssh.SSHKey,
    monkeypatch: pytest.MonkeyPatch,
    timeout: str,
    patience: float | None,
    late: float,
    waited: float,
) -> None:
    """Five seconds where kubectl could enter the pods, else as long as all of it may take."""
    del key
    given: list[tuple[object, ...]] = []
    there: list[bool] = []
    wait = keys.wait

    def noted(setting: str, homes: tuple[str, ...], uid: int, most: float) -> Path:
        given.append((setting, homes, uid, most))
        return wait(setting, homes, uid, 0.0)

    def choose(_: object, __: object, key_is_there: Callable[[], bool]) -> None:
        there.append(key_is_there())

    monkeypatch.setattr(keys, "wait", noted)
    monkeypatch.setattr("mpiboot.launcher.setup.choose_access", choose)
    environ = environment(tmp_path)
    flags = {"runtime_dir": str(tmp_path / "run"), "timeout": timeout}
    one = {**flags, "ssh_key": str(tmp_path / "id")}
    found = launcher_pod(resolve(one, environ), environ, patience=patience)
    homes = (found.identity.home, "/nothing/such")
    same = (one["ssh_key"], homes, os.getuid())
    assert given == [(*same, late), (*same, waited)]
    none = {**flags, "ssh_key": str(tmp_path / "none")}
    with pytest.raises(MpibootError):
        launcher_pod(resolve(none, environ), environ, patience=patience)
    monkeypatch.setattr(keys, "unreadable_key", lambda *_: error("ssh-key", "closed"))
    with pytest.raises(MpibootError):
        launcher_pod(resolve(none, environ), environ, patience=patience)
    assert there == [True, False, True]


def test_a_user_without_a_home_gets_one_that_programs_below_see(
    tmp_path: Path, key: asyncssh.SSHKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    del key
    monkeypatch.setattr(pod, "user_environment", lambda *_: {"HOME": "/made/up", "USER": "me"})
    monkeypatch.setattr(files, "complete_tmpdir", lambda *_: {"TMPDIR": "/t"})
    launcher(tmp_path)
    assert [os.environ[name] for name in ("HOME", "USER", "TMPDIR")] == ["/made/up", "me", "/t"]


def test_a_temporary_folder_that_is_none_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ = environment(tmp_path) | {"TMPDIR": str(tmp_path / "file")}
    given = {"runtime_dir": str(tmp_path / "run"), "ssh_key": str(tmp_path / "none")}
    with pytest.raises(MpibootError) as caught:
        launcher_pod(resolve(given, environ), environ, patience=0.0)
    assert caught.value.finding.check == "tmpdir"
