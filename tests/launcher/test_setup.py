"""What a launcher stands on, with a real folder and a real key."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import cast

import asyncssh
import pytest

from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Host
from mpiboot.core.model import Source
from mpiboot.core.settings import resolve
from mpiboot.hosts.pipeline import choose_access
from mpiboot.launcher import setup
from mpiboot.launcher.setup import LauncherPod, access, find_key, launcher_pod, remote
from mpiboot.ssh.client import PodAccess
from mpiboot.system import keys

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
