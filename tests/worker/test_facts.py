"""What is gathered of a pod and where it goes: each fact from the place that tells it."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot import __version__
from mpiboot.core import log, records_json
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import (
    Attachment,
    AttachmentSource,
    Fabric,
    Gpus,
    Link,
    MpiParameter,
    PodFacts,
)
from mpiboot.core.settings import resolve
from mpiboot.network import netlink, platform_hints, pod, rdma, sysfs
from mpiboot.system import files, programs
from mpiboot.worker import facts
from mpiboot.worker.state import WORKER_STATE
from tests.fakes import plans

MPI = plans.MPIS["openmpi4"]
SAID = Attachment(AttachmentSource.MULTUS, "net1")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Link:
    """A pod of which everything is known, by the places that are asked; its link."""

    def address(wanted: str, _: str, *, api: str) -> tuple[str, str]:
        return f"address of {wanted} {api}", "so"

    link = plans.link("eth0", "10.0.0.5/24")
    monkeypatch.setattr(netlink, "observe", lambda: ((link,), ("a link",)))
    monkeypatch.setattr(pod, "control_address", address)
    monkeypatch.setattr(pod, "started", lambda pid: pid + 0.5)
    monkeypatch.setattr(pod, "spec_names", lambda pid: (f"OF_{pid}",))
    monkeypatch.setattr(pod, "memlock", lambda: -1)
    monkeypatch.setattr(pod, "shm_size", lambda: 7)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(3 if pid == 0 else 5)})
    monkeypatch.setattr(facts, "memory_refused", lambda: "EPERM")
    monkeypatch.setattr(sysfs, "gpus", lambda: Gpus(8))
    seen = Fabric(netns_mode="shared", unreadable=("a device",))
    monkeypatch.setattr(rdma, "observe", lambda: seen)
    monkeypatch.setattr(platform_hints, "attachments", lambda _: ((SAID,), ("a file",)))
    return link


def test_each_fact_is_asked_where_it_is_known(world: Link) -> None:
    environ = {
        "PATH": "/a:/b",
        "MPIBOOT_WORKER_DIR": "/run/worker",
        "NCCL_IB_HCA": "mlx5",
        "SECRET": "x",
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    }
    resolved = resolve({"control_ifname": "eth0"}, {})
    found = facts.gather(resolved, environ, sshd="openssh", pid=4711, mpi=MPI)
    assert (found.mpiboot, found.sshd, found.mpi) == (__version__, "openssh", MPI)
    assert (found.runtime_dir, found.control_address) == (
        "/run/worker",
        "address of eth0 10.96.0.1",
    )
    assert (found.started, found.environment) == (4711.5, ("OF_4711",))
    assert (found.cores, found.memlock, found.shm) == (3, -1, 7)
    assert found.memory_refused == "EPERM"
    assert (found.gpus, found.links) == (Gpus(8), (world,))
    assert found.identity == pod.identity(environ)
    assert found.fabric == Fabric(
        netns_mode="shared",
        attachments=(SAID,),
        unreadable=("a link", "a device", "a file"),
        settings=(("NCCL_IB_HCA", "mlx5"),),
    )


@pytest.mark.usefixtures("world")
def test_secrets_in_the_files_of_an_mpi_do_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "OMPI_MCA_mca_base_env_list"
    found = (MpiParameter(name, "A;B_TOKEN=x", "/f"), MpiParameter("OMPI_MCA_pml", "ucx", "/f"))
    monkeypatch.setattr(facts, "find_parameters", lambda *_: found)
    seen = facts.gather(resolve({}, {}), {}, sshd="", pid=1, mpi=MPI).parameters
    assert seen == (MpiParameter(name, "A;B_TOKEN=(hidden)", "/f"), found[1])


@pytest.mark.usefixtures("world")
def test_nccls_own_files_count_where_the_environment_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "site.conf"
    path.write_text("NCCL_IB_TC=106\nNCCL_IB_HCA=mlx5_1\nNCCL_IB_TC=0\n")
    environ = {"NCCL_CONF_FILE": str(path), "NCCL_IB_HCA": "=mlx5_2"}
    seen = facts.gather(resolve({}, {}), environ, sshd="", pid=1, mpi=MPI).fabric
    assert seen.nccl_files == (MpiParameter("NCCL_IB_TC", "106", str(path)),)
    shown = facts.as_tables(facts.gather(resolve({}, {}), environ, sshd="", pid=1, mpi=MPI))
    (row,) = [line.split() for line in shown.splitlines() if "NCCL_IB_TC" in line]
    assert row[-3:] == ["NCCL_IB_TC", "106", str(path)]


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """For which server and process facts were gathered."""
    asked: list[tuple[str, int]] = []
    base = plans.worker(plans.hosts(1)[0], 0, None).facts
    assert base is not None

    def gather(_: object, __: object, *, sshd: str, pid: int, mpi: object) -> PodFacts:
        assert mpi == MPI
        asked.append((sshd, pid))
        return replace(base, sshd=sshd, environment=("OF_POD",))

    monkeypatch.setattr(facts, "gather", gather)
    monkeypatch.setattr(programs, "detect_mpi", lambda _, patience: MPI)
    return asked


def worker(folder: Path, pid: int) -> Path:
    """The folder of a worker that has told of itself."""
    folder.mkdir()
    state = {"pid": pid, "sshd": "embedded", "address": "10.0.0.1", "port": 2206, "reason": "so"}
    (folder / WORKER_STATE).write_text(json.dumps(state))
    return folder


def test_a_workers_facts_are_written_for_the_launcher_with_the_names_of_its_sessions(
    tmp_path: Path, gathered: list[tuple[str, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure()
    path = worker(tmp_path / "worker", 4711) / "facts.json"
    facts.run(resolve({}, {}), {"OF_PROFILE": "x"}, as_json=False, path=str(path))
    assert gathered == [("embedded", 4711)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = records_json.facts_from_json(path.read_text())
    assert found is not None
    assert found.environment == ("OF_POD", "OF_PROFILE")
    assert (found.sshd, found.sshd_reason) == ("embedded", "so")
    assert capfd.readouterr() == ("", "")


def test_without_a_worker_the_caller_is_the_pods_first_process(
    tmp_path: Path, gathered: list[tuple[str, int]], capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure()
    facts.run(resolve({}, {}), {}, as_json=True, path=str(tmp_path / "facts.json"))
    assert gathered == [("", os.getppid())]
    assert capfd.readouterr().err == ""
    found = records_json.facts_from_json((tmp_path / "facts.json").read_text())
    assert found is not None
    assert (found.sshd_reason, found.environment) == ("", ("OF_POD",))
    with pytest.raises(MpibootError) as caught:
        facts.run(resolve({}, {}), {}, as_json=True, path=str(tmp_path / "none" / "facts.json"))
    assert caught.value.finding.check == "runtime-folder"
    assert caught.value.finding.hint.startswith("name a file in a folder that this user may write")


@pytest.mark.parametrize("runs", [True, False])
def test_on_a_terminal_they_are_those_of_the_worker_that_runs_here(
    tmp_path: Path,
    gathered: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    runs: bool,  # noqa: FBT001 - a row of the table
) -> None:
    pid = os.getpid() if runs else 1 << 30
    folder = worker(tmp_path / "worker", pid)
    asked: list[object] = []

    def find_role(*given: object) -> Path:
        asked.append(given)
        return folder

    monkeypatch.setattr(files, "find_role", find_role)
    resolved = resolve({"runtime_dir": "/r"}, {})
    facts.run(resolved, {"TMPDIR": "/t"}, as_json=True, path=None)
    assert asked == [("/r", os.getuid(), "worker", "/t")]
    assert gathered == [("embedded", pid) if runs else ("", 1)]
    found = records_json.facts_from_json(capsys.readouterr().out)
    assert found is not None
    assert found.sshd_reason == ("so" if runs else "")
    facts.run(resolved, {}, as_json=False, path=None)
    assert capsys.readouterr().out.startswith("fact ")
