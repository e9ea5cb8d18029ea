"""Which SSH client the launch agents use, and what the plan says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.core.model import Decision, Mpi, MpiFamily, Source
from mpiboot.job.mpirun_line import read
from mpiboot.launcher import observation
from mpiboot.ssh import config
from mpiboot.system import os_calls
from tests.fakes import plans
from tests.launcher.test_observation import pod

ARGS, AGENT = "OMPI_MCA_plm_rsh_args", "OMPI_MCA_plm_rsh_agent"
MANY = config.KEPT_FROM


def path(folder: Path, ssh: bytes = b"\x7fELF") -> str:
    """A PATH with an ssh."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "ssh").write_bytes(ssh)
    (folder / "bin" / "ssh").chmod(0o755)
    return f"{folder}/bin"


@pytest.mark.parametrize(
    ("hosts", "given", "environ", "kind", "reason"),
    [
        (MANY, {}, {}, "embedded", "16 hosts: the gate's logins carry the sessions"),
        (MANY - 1, {}, {}, "openssh", "bin/ssh"),
        (MANY, {"ssh_client": "openssh"}, {}, "openssh", "MPIBOOT_SSH_CLIENT"),
        (MANY, {"supervise": "0"}, {}, "openssh", "bin/ssh"),
        # The MPI Operator's own arguments are what mpiboot's client does anyhow.
        (MANY, {}, {ARGS: "-o ConnectionAttempts=10"}, "embedded", "16 hosts"),
        (MANY, {}, {ARGS: "-o ProxyJump=a"}, "openssh", f"does what {ARGS}=-o ProxyJump=a asks"),
        (MANY, {}, {ARGS: "-F /my/config"}, "openssh", f"{ARGS}=-F /my/config"),
        (MANY, {}, {AGENT: "/etc/mpi/kubexec.sh"}, "openssh", f"{AGENT}=/etc/mpi/kubexec.sh"),
        (MANY, {}, {AGENT: "ssh -v"}, "openssh", f"{AGENT}=ssh -v"),
        (MANY, {}, {AGENT: "ssh"}, "embedded", "16 hosts"),
        (2, {"ssh_client": "embedded"}, {ARGS: "-v"}, "embedded", "MPIBOOT_SSH_CLIENT"),
    ],
)
def test_many_hosts_are_served_by_the_gates_logins_unless_ssh_itself_is_asked_for(
    tmp_path: Path,
    hosts: int,
    given: dict[str, str],
    environ: dict[str, str],
    kind: str,
    reason: str,
) -> None:
    launcher = pod(tmp_path, {**plans.POD, "PATH": path(tmp_path), **environ}, **given)
    mpi = plans.observed().mpi
    found = observation.choose_client(launcher, hosts, mpi, read(["mpirun", "./train"], mpi.family))
    assert (found.value, reason in found.reason) == (kind, True), found.reason
    assert (observation._keep_logins(launcher, found) is not None) == (kind == "embedded")


@pytest.mark.parametrize(
    ("ssh", "given", "kind", "source"),
    [
        ("ssh", {}, "openssh", Source.DETECTED),
        ("", {}, "embedded", Source.DETECTED),
        ("ssh", {"ssh_client": "embedded"}, "embedded", Source.FLAG),
        ("", {"ssh_client": "openssh"}, "openssh", Source.FLAG),
    ],
)
def test_few_hosts_have_what_the_setting_says_and_what_is_here(
    tmp_path: Path, ssh: str, given: dict[str, str], kind: str, source: Source
) -> None:
    launcher = pod(tmp_path, {**plans.POD, "PATH": path(tmp_path) if ssh else "/nowhere"}, **given)
    mpi = plans.observed().mpi
    found = observation.choose_client(launcher, 2, mpi, read(["mpirun", "./train"], mpi.family))
    assert (found.value, found.source) == (kind, source)


def test_arguments_on_the_line_are_for_ssh(tmp_path: Path) -> None:
    launcher = pod(tmp_path, {**plans.POD, "PATH": path(tmp_path)})
    mpi = plans.observed().mpi
    line = read(["mpirun", "--mca", "plm_rsh_args", "-v", "./train"], mpi.family)
    found = observation.choose_client(launcher, MANY, mpi, line)
    assert found.value == "openssh"
    assert "does what --mca plm_rsh_args=-v asks for" in found.reason


def test_an_ssh_that_is_a_script_and_an_mpi_that_nobody_knows_keep_ssh(tmp_path: Path) -> None:
    mpi = plans.observed().mpi
    line = read(["mpirun", "./train"], mpi.family)
    launcher = pod(tmp_path, {**plans.POD, "PATH": path(tmp_path, b"#!/bin/sh\n")})
    found = observation.choose_client(launcher, MANY, mpi, line)
    assert found.value == "openssh"
    assert found.reason.endswith("bin/ssh: a script, which may do what only it knows")
    launcher = pod(tmp_path, {**plans.POD, "PATH": path(tmp_path)})
    unknown = Mpi(MpiFamily.UNKNOWN, "", "/usr/bin/mpirun", "")
    assert observation.choose_client(launcher, MANY, unknown, line).value == "openssh"


def test_intel_mpi_whose_agents_have_sockets_keeps_ssh_unless_the_own_client_is_asked_for(
    tmp_path: Path,
) -> None:
    mpi = Mpi(MpiFamily.INTEL, "2021.18", "/opt/mpi/bin/mpirun", "")
    environ = {**plans.POD, "PATH": path(tmp_path)}
    line = read(["mpirun", "./train"], mpi.family)
    found = observation.choose_client(pod(tmp_path, environ), 256, mpi, line)
    assert (found.value, "gives its agents sockets" in found.reason) == ("openssh", True)
    launcher = pod(tmp_path, environ, ssh_client="embedded")
    assert observation.choose_client(launcher, 256, mpi, line).value == "embedded"


def test_where_too_few_files_may_be_open_each_host_has_an_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os_calls, "most_open_files", lambda: 128)
    launcher = pod(tmp_path, {**plans.POD, "PATH": path(tmp_path)})
    mpi = plans.observed().mpi
    found = observation.choose_client(launcher, MANY, mpi, read(["mpirun", "./train"], mpi.family))
    assert found.value == "openssh"
    assert "needs 144 open files for 16 hosts, and this pod's hard limit is 128" in found.reason


def test_what_is_embedded_for_want_of_supervision_keeps_no_login(tmp_path: Path) -> None:
    launcher = pod(tmp_path, supervise="0")
    client = Decision("ssh-client", "embedded", Source.DETECTED, "there is no ssh on PATH")
    assert observation._keep_logins(launcher, client) is None
