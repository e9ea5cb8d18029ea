from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.facts import PodFacts, Worker, facts_to_json
from mpiboot.core.model import Mpi, MpiFamily
from tests.fakes import workers as w
from tests.fakes.cli import mpiboot

NO_MPI = {"PATH": "/nowhere"}


def job(folder: Path, hosts: int = 2) -> list[str]:
    """A hostfile; the arguments that name it."""
    text = "".join(f"w-{number}.job.ns.svc slots=2\n" for number in range(hosts))
    (folder / "hostfile").write_text(text)
    return ["plan", "--offline", "--hostfile", str(folder / "hostfile")]


def of_openmpi5(folder: Path, *more: str) -> list[str]:
    return [*job(folder), "--mpi", "openmpi5", *more, "--", "mpirun", "./train"]


def saved(folder: Path, *pods: PodFacts) -> tuple[str, str]:
    """Facts in files, and the option that names them."""
    place = folder / "facts"
    place.mkdir()
    for number, facts in enumerate(pods):
        (place / f"{number}.json").write_text(facts_to_json(facts))
    return "--facts", str(place)


def facts_of(worker: Worker) -> PodFacts:
    assert worker.facts is not None
    return worker.facts


def test_a_plan_is_made_without_key_hosts_or_an_mpi(tmp_path: Path) -> None:
    words = of_openmpi5(tmp_path)
    done = mpiboot(tmp_path, *words, env=NO_MPI)
    assert done.returncode == 0, done.stderr
    assert "mpirun -n 4 " in done.stdout
    assert "warn " not in done.stdout  # the version is not known here, which is no other series
    assert "no name was resolved, no host was asked" in done.stdout
    assert "no facts of 2 hosts (w-0.job.ns.svc, w-1.job.ns.svc)" in done.stdout
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


def test_the_hosts_of_a_stateful_set_or_a_volcano_job_need_no_hostfile(tmp_path: Path) -> None:
    volcano = {
        "VC_MASTER_HOSTS": "train-master-0.train",
        "VC_MASTER_NUM": "1",
        "VC_WORKER_HOSTS": "train-worker-0.train,train-worker-1.train",
        "VC_WORKER_NUM": "2",
        "MPI_HOST": "train-worker-0.train,train-worker-1.train",
        "MPIBOOT_SLOTS": "4",
    }
    words = ["plan", "--offline", "--json", "--mpi", "openmpi5"]
    set_of = ["--slots", "2", "--replicas", "4", "--service", "my-hpc-cluster", "--name", "node"]
    for more, environ, named, source in (
        (set_of, {}, "node-[0-3].my-hpc-cluster", "flag"),
        ([], volcano, "VC_WORKER_HOSTS", "platform"),
    ):
        line = [*words, *more, "--", "mpirun", "./train"]
        done = mpiboot(tmp_path, *line, env={**NO_MPI, **environ})
        assert done.returncode == 0, done.stderr
        made = {item["name"]: item for item in json.loads(done.stdout)["decisions"]}
        assert (made["hostfile"]["value"], made["hostfile"]["source"]) == (named, source)
        assert made["ranks"]["value"] == "8"
    third = {**volcano, **NO_MPI, "MPI_HOST": "", "VC_PS_HOSTS": "ps-0.train", "VC_PS_NUM": "1"}
    for option, code in (([], 66), (["--worker-task", "worker"], 0)):
        done = mpiboot(tmp_path, *words, *option, "--", "mpirun", "./train", env=third)
        assert done.returncode == code, done.stderr
        assert ("nothing says whose pods get the ranks" in done.stderr) is bool(code)


def test_saved_facts_decide_the_data_network(tmp_path: Path) -> None:
    mpi = Mpi(MpiFamily.OPENMPI5, "5.0.7", "/usr/bin/mpirun", "5.0.7")
    option = saved(tmp_path, *(replace(facts_of(w.sriov(n)), mpi=mpi) for n in range(2)))
    words = [*job(tmp_path), "--json", *option, "--", "mpirun", "./train"]
    done = mpiboot(tmp_path, *words, env=NO_MPI)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    made = {item["name"]: item["value"] for item in plan["decisions"]}
    assert made["data-network"] == "RoCE"
    assert made["UCX_NET_DEVICES"] == "mlx5_3:1"
    assert not [item for item in plan["findings"] if "no facts of 2 hosts" in item["message"]]
    (launcher,) = [item for item in plan["findings"] if "launcher's pod" in item["message"]]
    assert launcher["hint"].startswith("save them with `kubectl exec POD -- mpiboot facts --json")
    assert launcher["level"] == "unknown"


def test_the_launchers_file_decides_and_this_shells_variables_do_not(tmp_path: Path) -> None:
    facts = facts_of(w.plain(9))
    own = replace(
        facts,
        hostname="job-launcher",
        sshd="",
        environment=("MY_DATA", "NCCL_IB_GID_INDEX"),
        fabric=replace(facts.fabric, settings=(("NCCL_IB_GID_INDEX", "5"),)),
    )
    option = saved(tmp_path, facts_of(w.sriov(0)), facts_of(w.sriov(1)), own)
    laptop = {"NCCL_IB_GID_INDEX": "7", "OMPI_MCA_btl": "self", "EDITOR": "vi", "UCX_TLS": "tcp"}
    done = mpiboot(tmp_path, *of_openmpi5(tmp_path, *option), env={**NO_MPI, **laptop})
    assert done.returncode == 0, done.stderr
    assert not [name for name in ("EDITOR", "OMPI_MCA_btl ", "UCX_TLS") if name in done.stdout]
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    (link,) = [line for line in lines if line.startswith("control-link ")]
    assert link.startswith("control-link eth0 ")
    assert "NCCL_IB_GID_INDEX=5: mlx5_3:1 has no entry 5" in done.stdout


@pytest.mark.parametrize("uid", [0, 1000])
def test_the_launchers_own_facts_say_who_it_is(tmp_path: Path, uid: int) -> None:
    """Not this shell: Open MPI asks root alone whether it is sure."""
    facts = facts_of(w.sriov(0))
    own = replace(facts, hostname="launcher", identity=replace(facts.identity, uid=uid))
    words = of_openmpi5(tmp_path, "--json", *saved(tmp_path, own))
    done = mpiboot(tmp_path, *words, env=NO_MPI)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    made = {item["name"] for item in plan["decisions"]}
    assert any("ALLOW_RUN_AS_ROOT" in name for name in made) == (uid == 0)
    assert "no facts of the launcher's pod" not in done.stdout


@pytest.mark.parametrize(
    ("folder", "text", "message"),
    [
        ("facts", None, "no file *.json in it"),
        ("facts", "{}", "not what `mpiboot facts --json`"),
        ("gone", None, "gone: No such file or directory"),
    ],
)
def test_a_folder_of_facts_that_is_none_is_named(
    tmp_path: Path, folder: str, text: str | None, message: str
) -> None:
    (tmp_path / "facts").mkdir()
    if text:
        (tmp_path / "facts/x.json").write_text(text)
    done = mpiboot(tmp_path, *of_openmpi5(tmp_path, "--facts", str(tmp_path / folder)), env=NO_MPI)
    assert (done.returncode, message in done.stderr) == (2, True)
    words = ("plan", "--facts", str(tmp_path), "--", "mpirun", "./train")
    alone = mpiboot(tmp_path, *words, env=NO_MPI)
    assert (alone.returncode, "--facts needs --offline" in alone.stderr) == (2, True)


def test_the_port_is_the_settings_and_the_mpi_the_flags_before_that_of_saved_facts(
    tmp_path: Path,
) -> None:
    """Two pods with one address, as no others are told by their port."""
    pods = [replace(facts_of(w.sriov(n)), control_address="10.0.0.7") for n in range(2)]
    mpich = Mpi(MpiFamily.MPICH, "4.0.2", "/usr/bin/mpirun", "")
    facts = saved(tmp_path, *(replace(one, mpi=mpich) for one in pods))
    for more, words in (
        (("--ssh-port", "2206"), "10.0.0.7 port 2206"),
        ((), "10.0.0.7 port 22"),
    ):
        done = mpiboot(tmp_path, *of_openmpi5(tmp_path, "--json", *facts, *more), env=NO_MPI)
        plan = json.loads(done.stdout)
        (found,) = [
            one["message"] for one in plan["findings"] if "one and the same" in one["message"]
        ]
        assert found.partition(" server, ")[2].startswith(words)
        assert plan["argv"][0] == "mpirun"
        assert "openmpi5 (--mpi)" in json.dumps(plan)
    done = mpiboot(tmp_path, *job(tmp_path), *facts, "--", "mpirun", "./train", env=NO_MPI)
    assert "MPICH" in done.stdout
