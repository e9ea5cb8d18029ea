"""``mpiboot plan`` and ``mpiboot wait`` where this pod is the one host, as a user calls them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import asyncssh
import pytest

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.facts import PodFacts
from mpiboot.core.settings import resolve
from mpiboot.hosts import remote_commands
from mpiboot.launcher import look
from mpiboot.network import worker_network
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.worker import facts
from tests.fakes import workers as w
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
    assert "hosts and keys not checked" in done.stdout
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
        (["sh", "x"], "it runs once, in this pod; `mpirun sh ...` runs it on the job's hosts"),
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


# ``mpiboot exec``: as a process, and its wait for the network with a clock of its own


SHOW = "echo gloo=$GLOO_SOCKET_IFNAME tp=$TP_SOCKET_IFNAME nccl=$NCCL_SOCKET_IFNAME; exit 5"


def test_without_a_name_it_becomes_the_program_at_once(tmp_path: Path) -> None:
    own = {"NCCL_SOCKET_IFNAME": "=mine0"}
    done = mpiboot(tmp_path, "exec", "--", "/bin/sh", "-c", SHOW, env=own)
    gloo, tensorpipe, nccl = (word.partition("=")[2] for word in done.stdout.split())
    assert done.returncode == 5
    assert nccl == "=mine0"
    assert gloo == tensorpipe
    assert (tmp_path / "run").exists() is False
    assert "no rendezvous host is named" in done.stderr
    assert 'NCCL_SOCKET_IFNAME="=mine0" fits nothing here' in done.stderr
    assert "set for the program: " in done.stderr
    assert (f" GLOO_SOCKET_IFNAME={gloo} " in done.stderr) == bool(gloo)
    assert done.stderr.splitlines()[-1] == "mpiboot: starting /bin/sh"


@pytest.mark.parametrize(
    ("words", "code", "said", "never"),
    [
        ("--data-network off -- /bin/true", 0, "set for the program: nothing", "SOCKET_IFNAME"),
        # Its own name is not waited for; and what is no program is said before any wait.
        ("-- /bin/true --rdzv_endpoint=localhost:29500", 0, "starting /bin/true", "localhost"),
        ("-- no-such-program --master-addr=no.such.host", 127, "is not on PATH", "no.such.host"),
        ("--timeout 0 -- /bin/true --master-addr no.invalid", 68, "no.invalid: DNS: ", "starting"),
        ("--data-network require --timeout 0 -- /bin/true", 72, "[rdma-missing]", "starting"),
    ],
)
def test_what_it_waits_for_and_what_ends_it(
    tmp_path: Path, words: str, code: int, said: str, never: str
) -> None:
    done = mpiboot(tmp_path, "exec", *words.split(), env={"MASTER_ADDR": ""})
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert never not in done.stderr


async def test_a_network_that_does_not_come_in_time_is_decided_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own, gathered = w.plain(0).facts, list[int]()
    assert own is not None
    pending = WorkerNetwork("here", None, 1, None, Transport.UNKNOWN, pending=("port x is INIT",))

    def gather(*_: object, pid: int, **__: object) -> PodFacts:
        gathered.append(pid)
        return own

    monkeypatch.setattr(remote_commands, "_MIN_PAUSE_S", 0.01)
    monkeypatch.setattr(facts, "gather", gather)
    monkeypatch.setattr(worker_network, "choose", lambda *_: pending)
    found = await look._network(resolve({"timeout": "0.1"}, {}), {"NCCL_SOCKET_IFNAME": "mine"})
    assert "NCCL_SOCKET_IFNAME" not in found.common  # the user's own
    assert gathered[2:]
    assert set(gathered) == {os.getpid()}
    message = capfd.readouterr().err
    assert f"waiting for the data network of {own.hostname} (port x is INIT)" in message
    assert "the data network of 1 host is not ready after " in message
