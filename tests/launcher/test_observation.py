"""What is asked of this pod and its MPI, after the hosts are known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host, Worker
from mpiboot.core.model import Mpi, MpiFamily
from mpiboot.core.settings import resolve
from mpiboot.hosts import gate
from mpiboot.job.mpirun_line import read
from mpiboot.launcher import prepare, role
from mpiboot.launcher.setup import LauncherPod, access
from mpiboot.system.keys import JobKey
from tests.fakes import plans, programs
from tests.fakes.sshd import Behaviour, Job, sshd


def pod(folder: Path, environ: Mapping[str, str] = plans.POD, **flags: str) -> LauncherPod:
    key = JobKey(folder / "id", "ssh-ed25519 AAAA")
    resolved, now = resolve(flags, environ), time.monotonic()
    deadline = now + resolved.settings.timeout
    return LauncherPod(resolved, environ, plans.ROOT, folder, deadline, key=key)


def test_own_facts_that_can_not_be_gathered_are_an_error_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role, "gather_facts", Mock(side_effect=KeyError("no link")))
    launcher = pod(tmp_path)
    with role.fork_facts(launcher.resolved, launcher.environ) as own:
        text = own.read()
    with pytest.raises(RuntimeError, match="KeyError: 'no link'"):
        role.read_facts(text)


def program(folder: Path, version: str) -> str:
    return str(programs.program(folder, "mpirun", f"echo 'mpirun (Open MPI) {version}'"))


def test_the_mpi_is_that_of_the_mpirun_that_the_line_calls(tmp_path: Path) -> None:
    on_path, called = program(tmp_path / "a", "4.1.6"), program(tmp_path / "b", "5.0.8")
    launcher = pod(tmp_path, {**plans.POD, "PATH": f"{tmp_path}/a:/usr/bin:/bin"})
    plain = prepare._mpi(launcher, ("./train",))
    assert (plain.family, plain.version, plain.path) == (MpiFamily.OPENMPI4, "4.1.6", on_path)
    other = prepare._mpi(launcher, (called, "-n", "2", "./train"))
    assert (other.family, other.version, other.path) == (MpiFamily.OPENMPI5, "5.0.8", called)
    for line, message in (
        (("/no/mpirun",), "/no/mpirun is no"),
        (("./a",), "no mpirun or mpiexec"),
    ):
        with pytest.raises(MpibootError, match=message) as caught:
            prepare._mpi(pod(tmp_path, {"PATH": "/a"}), line)
        none = caught.value.finding
        assert (none.check, none.evidence) == ("program-missing", ("PATH=/a",))
        assert none.hint.startswith("install an MPI in the launcher's image")


def test_hosts_are_queried_for_the_mpirun_beside_which_their_daemons_are(tmp_path: Path) -> None:
    real, line = program(tmp_path / "bin", "4.1.6"), read(["mpirun", "./p"], MpiFamily.OPENMPI4)
    (tmp_path / "mpirun").symlink_to(real)

    def queried(path: str, family: MpiFamily = MpiFamily.OPENMPI4) -> str:
        return prepare._queried(line, Mpi(family, "4.1.6", path, ""))

    assert queried(str(tmp_path / "mpirun")) == real
    assert queried("/usr/bin/mpirun") == queried(real, MpiFamily.OPENMPI5) == ""
    line = read(["/opt/o/bin/mpirun", "./p"], MpiFamily.OPENMPI4)
    assert queried(real) == "/opt/o/bin/mpirun"


@pytest.mark.parametrize(
    ("line", "own", "found"),
    [
        ("mpirun ./p", "/data", "/data"),
        ("mpirun -n 2 ./p -wdir /x", "/", ""),  # every host has that
        ("mpirun -wdir /x ./p", "/data", "/x"),
        ("mpirun --wd sub ./p", "/data", "/data/sub"),
        ("mpirun --wdir sub ./p", "", ""),
        ("mpirun ./p", "", ""),
        # Not known.
        ("mpirun -wdir /x ./p : -wdir /y ./q", "/data", ""),
        ("mpirun -no-such-option -wdir /x ./p", "/data", ""),
        ("mpirun -set-cwd-to-session-dir ./p", "/data", ""),
    ],
)
def test_ranks_start_where_the_line_or_mpirun_itself_does(line: str, own: str, found: str) -> None:
    assert prepare.workdir(read(line.split(), MpiFamily.OPENMPI4), own) == found
    equals = read(["mpirun", "--wdir=/x", "./p"], MpiFamily.OPENMPI5)
    assert prepare.workdir(equals, "/data") == "/x"


def test_the_family_that_is_set_counts_whatever_mpirun_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = program(tmp_path / "a", "4.1.6")
    launcher = pod(tmp_path, {**plans.POD, "PATH": f"{tmp_path}/a:/usr/bin:/bin"}, mpi="openmpi5")
    found = prepare._mpi(launcher, ("./train",))
    assert (found.family, found.version, found.path) == (MpiFamily.OPENMPI5, "4.1.6", path)
    message = f"--mpi=openmpi5 is followed, though {path} says that it is {found.banner}"
    assert capfd.readouterr().err.splitlines() == [
        f"mpiboot: warning: [mpi-versions] {message}",
        "mpiboot:   -> remove --mpi=openmpi5",
    ]
    same = pod(tmp_path, {**plans.POD, "PATH": f"{tmp_path}/a:/usr/bin:/bin"}, mpi="openmpi4")
    assert prepare._mpi(same, ("./train",)).family is MpiFamily.OPENMPI4
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("family", "renamed"),
    [
        (MpiFamily.OPENMPI4, {}),
        (MpiFamily.OPENMPI5, {"w.a": "w-a", "w.b": "w-b"}),
        (MpiFamily.MPICH, {}),
    ],
)
def test_each_mpi_gets_the_names_that_it_would_not_mistake(
    family: MpiFamily, renamed: dict[str, str]
) -> None:
    """5.0 cuts names at a dot; each knows its own host by that one's name, on its line too."""
    seen = plans.observed()
    listed = tuple(Host(name) for name in ("w.a", "w.b", "here.job", "localhost"))
    hostfile, mpi = replace(seen.hostfile, hosts=listed), Mpi(family, "", "", "")
    line = read(("mpirun", "-H", "launcher,127.0.0.1,w.a", "true"), MpiFamily.OPENMPI4)
    found = prepare._for_mpirun(hostfile, line, mpi, listed[2:], "launcher")
    own = dict.fromkeys(("here.job", "localhost", "127.0.0.1"), "launcher")
    assert found == {**renamed, **own}


async def test_a_launch_is_planned_from_the_hosts_of_the_hostfiles_last_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real login to one host; another one never comes, and is taken out meanwhile."""
    monkeypatch.setattr(gate, "_POLL_S", 0.05)
    job, hostfile = Job(tmp_path), tmp_path / "hostfile"
    hostfile.write_text("localhost slots=2\n127.0.0.2 slots=1\n127.0.0.3\n")
    program(tmp_path / "bin", "4.1.6")
    environ = {**plans.POD, "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    behaviour = Behaviour(job)
    async with sshd(behaviour, "127.0.0.2") as port:
        flags = {"hostfile": str(hostfile), "ssh_port": str(port), "ssh_key": str(job.path)}
        launcher = replace(pod(tmp_path, environ, timeout="60", **flags), attempt="me@now@1")
        line = ("mpirun", "--frobnicate", "-n", "2", "./train")
        reached: list[Worker] = []
        own = role.fork_facts(launcher.resolved, launcher.environ)
        waiting = asyncio.ensure_future(prepare.observe(launcher, line, own.read, reached))
        welcome = asyncio.ensure_future(behaviour.welcomed.wait())
        await asyncio.wait({waiting, welcome}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        welcome.cancel()
        hostfile.write_text("localhost slots=2\n127.0.0.2 slots=4\n")
        found = await asyncio.wait_for(waiting, 60)
        own.close()
        (worker,), pool = found.observed.workers, access(launcher).pool
        assert pool.open(worker)  # for agents
        await pool.close()
    seen = found.observed
    assert [item.host.name for item in reached] == ["127.0.0.2"]
    assert [(host.name, host.slots) for host in seen.hostfile.hosts] == [
        ("localhost", 2),
        ("127.0.0.2", 4),
    ]
    assert [(item.host.slots, item.address, item.port) for item in seen.workers] == [
        (4, "127.0.0.2", port)
    ]
    assert [host.name for host in seen.local] == ["localhost"]
    assert (seen.mpi.family, seen.mpi.path) == (MpiFamily.OPENMPI4, f"{tmp_path}/bin/mpirun")
    assert seen.line.argv == line
    assert seen.own is not None
    assert (seen.links, seen.environ) == (seen.own.links, environ)
    assert found.pairs is not None
    assert "me@now@1" in behaviour.commands[-1]
    # Nothing is to be ended there, and no facts are late: each gate has one command.
    assert len(behaviour.commands) <= 2
