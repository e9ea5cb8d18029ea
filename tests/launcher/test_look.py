"""``mpiboot plan`` and ``mpiboot wait`` where this pod is the one host, as a user calls them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import asyncssh
import pytest

from mpiboot.core.checks import BY_REFERENCE
from tests.fakes.cli import mpiboot
from tests.fakes.programs import program


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A hostfile of this pod alone, the job's key, and an mpirun that only says what it is."""
    private = asyncssh.generate_private_key("ssh-ed25519").export_private_key()
    (tmp_path / "id").write_bytes(private)
    (tmp_path / "hostfile").write_text("localhost slots=2\n")
    program(tmp_path / "bin", "mpirun", "echo 'mpirun (Open MPI) 4.1.6'")
    return {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "MPIBOOT_SSH_KEY": str(tmp_path / "id"),
        "MPIBOOT_HOSTFILE": str(tmp_path / "hostfile"),
        "MPIBOOT_CONTROL_IFNAME": "lo",
    }


def test_the_plan_of_a_job_in_one_pod(tmp_path: Path, env: dict[str, str]) -> None:
    done = mpiboot(tmp_path, "plan", "--json", "--", "mpirun", "-n", "2", "./train", "-x", env=env)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["argv"][0].endswith("mpirun")
    assert made["argv"][-2:] == ["./train", "-x"]
    assert made["argv"][made["argv"].index("-n") + 1] == "2"
    text = mpiboot(tmp_path, "plan", "--", "mpirun", "./train", env=env)
    assert (text.returncode, "./train" in text.stdout) == (0, True)


def test_a_plan_that_can_not_be_started_has_the_launchers_code(
    tmp_path: Path, env: dict[str, str]
) -> None:
    """Open MPI 5.0 takes no list of links."""
    words = ("--mpi", "openmpi5", "--control-ifname", "eth0,eth1")
    done = mpiboot(tmp_path, "plan", "--json", *words, "--", "mpirun", "./train", env=env)
    failed = [item for item in json.loads(done.stdout)["findings"] if item["level"] == "fail"]
    (check,) = [item["check"] for item in failed]
    assert done.returncode == BY_REFERENCE[check].code != 0


def test_hosts_that_are_ready_or_not_are_told_as_json(tmp_path: Path, env: dict[str, str]) -> None:
    told = json.loads(mpiboot(tmp_path, "wait", "--json", env=env).stdout)
    here = {"host": "localhost", "address": "", "port": None}
    assert told == {"ready": True, "hosts": [here], "findings": []}
    (tmp_path / "hostfile").write_text("localhost\nno-such-host.invalid\n")
    done = mpiboot(tmp_path, "wait", "--json", "--timeout", "0", env=env)
    told = json.loads(done.stdout)
    assert (done.returncode, told["ready"], told["hosts"]) == (68, False, [])
    assert {item["check"] for item in told["findings"]} == {"names-unresolved"}
    assert "no-such-host.invalid" in {item["host"] for item in told["findings"]}


def test_a_plan_waits_for_no_key(tmp_path: Path, env: dict[str, str]) -> None:
    env["MPIBOOT_SSH_KEY"] = str(tmp_path / "none")
    (tmp_path / "hostfile").write_text("w-0.invalid\n")
    done = mpiboot(tmp_path, "plan", "--timeout", "600", "--", "mpirun", "./train", env=env)
    assert (done.returncode, "[ssh-key]" in done.stderr) == (77, True)


# Without any host


NO_MPI = {"PATH": "/nowhere"}


def job(folder: Path, hosts: int = 2) -> list[str]:
    """A hostfile; the arguments that name it."""
    text = "".join(f"w-{number}.job.ns.svc slots=2\n" for number in range(hosts))
    (folder / "hostfile").write_text(text)
    return ["plan", "--offline", "--hostfile", str(folder / "hostfile")]


def of_openmpi5(folder: Path, *more: str) -> list[str]:
    return [*job(folder), "--mpi", "openmpi5", *more, "--", "mpirun", "./train"]


def test_a_plan_is_made_without_key_hosts_or_an_mpi(tmp_path: Path) -> None:
    words = of_openmpi5(tmp_path)
    done = mpiboot(tmp_path, *words, env=NO_MPI)
    assert done.returncode == 0, done.stderr
    assert "mpirun -n 4 " in done.stdout
    assert "warn " not in done.stdout  # the version is not known here, which is no other series
    assert "no host was asked, no key was read" in done.stdout
    assert not (tmp_path / "run").exists()
    assert "no worker is known: nothing is set" in done.stdout
    assert "not pinned: no worker whose route would show it" in done.stdout
    assert "reached" not in done.stdout
    assert "OMPI_MCA_pml" not in done.stdout  # whether MPI carries the data is not known
    # A plan that would stop the launcher has its code.
    words = of_openmpi5(tmp_path, "--control-ifname", "eth0,eth1")
    assert mpiboot(tmp_path, *words, env=NO_MPI).returncode == 78
    unknown = mpiboot(tmp_path, *job(tmp_path), "--", "mpirun", "./train", env=NO_MPI)
    assert unknown.returncode == 127
    assert "-> say which one the image has: --mpi openmpi4" in unknown.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["mpirun", "-info"], "it prints something and starts nothing: no host is waited for"),
        (["sh", "x"], "it runs once, in this pod; `mpirun sh x` runs it on the job's hosts"),
    ],
)
def test_what_is_no_launch_has_no_plan_of_hosts(
    tmp_path: Path, words: list[str], reason: str
) -> None:
    line = ["plan", "--offline", "--mpi", "mpich", "--json", "--", *words]
    done = mpiboot(tmp_path, *line, env=NO_MPI)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["argv"], plan["findings"]) == (words, [])
    (decision,) = plan["decisions"]
    assert decision["reason"] == reason
