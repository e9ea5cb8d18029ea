"""What is gathered of a pod, and where it goes; the pod is this machine."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from mpiboot import __version__
from mpiboot.core import log, records_json
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import MpiParameter, PodFacts
from mpiboot.core.settings import resolve
from mpiboot.network import pod
from mpiboot.system import files
from mpiboot.worker import facts
from mpiboot.worker.state import WORKER_STATE
from tests.fakes import plans

MPI = plans.MPIS["openmpi4"]


def gathered(**environ: str) -> PodFacts:
    resolved = resolve({"control_ifname": "127.0.0.1"}, {})
    environ = {"PATH": os.environ["PATH"], "HOME": "/nowhere", **environ}
    return facts.gather(resolved, environ, sshd="openssh", pid=os.getpid(), mpi=MPI)


def test_what_this_pod_is() -> None:
    found = gathered(NCCL_IB_HCA="mlx5", SECRET="x")
    assert (found.mpiboot, found.sshd, found.mpi) == (__version__, "openssh", MPI)
    assert found.control_address == "127.0.0.1"
    assert found.environment == pod.spec_names(os.getpid())
    assert "lo" in {link.name for link in found.links}
    assert found.fabric.settings == (("NCCL_IB_HCA", "mlx5"),)


def test_secrets_in_the_files_of_an_mpi_do_not_travel(tmp_path: Path) -> None:
    path = tmp_path / ".openmpi" / "mca-params.conf"
    path.parent.mkdir()
    path.write_text("mca_base_env_list = A;B_TOKEN=x\npml = ucx\n")
    assert gathered(HOME=str(tmp_path)).parameters[:2] == (
        MpiParameter("OMPI_MCA_mca_base_env_list", "A;B_TOKEN=(hidden)", str(path)),
        MpiParameter("OMPI_MCA_pml", "ucx", str(path)),
    )


def test_nccls_own_files_count_where_the_environment_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "site.conf"
    path.write_text("NCCL_IB_TC=106\nNCCL_IB_HCA=mlx5_1\nNCCL_IB_TC=0\n")
    found = gathered(NCCL_CONF_FILE=str(path), NCCL_IB_HCA="=mlx5_2")
    assert found.fabric.nccl_files == (MpiParameter("NCCL_IB_TC", "106", str(path)),)


def written(path: Path) -> PodFacts:
    facts.run(resolve({}, {}), {"PATH": "/bin", "OF_PROFILE": "x"}, as_json=False, path=str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = records_json.facts_from_json(path.read_text())
    assert found is not None
    return found


def test_a_workers_facts_have_its_own_start_and_the_names_of_its_sessions(tmp_path: Path) -> None:
    """Without a worker the caller is the pod's first process."""
    log.configure()
    alone = written(tmp_path / "facts.json")
    assert alone.sshd == ""
    state = {"pid": os.getpid(), "sshd": "embedded", "address": "", "port": 1, "reason": "so"}
    (tmp_path / WORKER_STATE).write_text(json.dumps(state))
    found = written(tmp_path / "facts.json")
    assert (found.sshd, found.sshd_reason) == ("embedded", "so")
    assert set(found.environment) == {"PATH", "OF_PROFILE", *pod.spec_names(os.getpid())}
    with pytest.raises(MpibootError) as caught:
        written(tmp_path / "none" / "facts.json")
    assert caught.value.finding.check == "runtime-folder"
    assert caught.value.finding.hint.startswith("name a file in a folder that this user may write")


@pytest.mark.parametrize(
    ("pid", "reason"), [(os.getpid(), "so"), (1 << 30, "")], ids=["alive", "gone"]
)
def test_on_a_terminal_they_are_those_of_the_worker_that_runs_here(
    tmp_path: Path, pid: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = files.runtime_dir(str(tmp_path), os.getuid(), "worker")
    state = {"pid": pid, "sshd": "embedded", "address": "", "port": 1, "reason": "so"}
    (folder / WORKER_STATE).write_text(json.dumps(state))
    resolved = resolve({"runtime_dir": str(tmp_path)}, {})
    facts.run(resolved, {"PATH": "/bin"}, as_json=True, path=None)
    found = records_json.facts_from_json(capsys.readouterr().out)
    assert found is not None
    assert found.sshd_reason == reason
    facts.run(resolved, {"PATH": "/bin"}, as_json=False, path=None)
    assert capsys.readouterr().out.startswith("fact ")
