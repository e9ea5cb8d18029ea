"""What is gathered of a pod, and where it goes; the pod is this machine."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot import __version__
from mpiboot.core.facts import MpiParameter, PodFacts, facts_from_json
from mpiboot.core.model import Mpi, MpiFamily
from mpiboot.core.settings import resolve
from mpiboot.network import pod
from mpiboot.ssh.server import WORKER_STATE, WorkerState
from mpiboot.system import files
from mpiboot.worker import facts
from tests.fakes import plans
from tests.fakes.programs import program

MPI = plans.MPIS["openmpi4"]


def gathered(**environ: str) -> PodFacts:
    resolved = resolve({"control_ifname": "127.0.0.1"}, {})
    environ = {"PATH": os.environ["PATH"], "HOME": "/nowhere", **environ}
    state = WorkerState(os.getpid(), "openssh", "", 22, "")
    return facts.gather(resolved, environ, mpi=MPI, pid=1, state=state)


def test_what_this_pod_is(tmp_path: Path) -> None:
    """Secrets in the files of an MPI do not travel; NCCL's count where the environment has none."""
    path, conf = tmp_path / ".openmpi" / "mca-params.conf", tmp_path / "site.conf"
    path.parent.mkdir()
    path.write_text("mca_base_env_list = A;B_TOKEN=x\npml = ucx\n")
    conf.write_text("NCCL_IB_TC=106\nNCCL_IB_HCA=mlx5_1\nNCCL_IB_TC=0\n")
    home = str(tmp_path)
    found = gathered(HOME=home, NCCL_CONF_FILE=str(conf), NCCL_IB_HCA="=mlx5_2", SECRET="x")
    assert (found.mpiboot, found.sshd, found.mpi) == (__version__, "openssh", MPI)
    assert found.control_address == "127.0.0.1"
    assert found.environment == pod.spec_names(os.getpid())
    assert "lo" in {link.name for link in found.links}
    checked = {"NCCL_IB_HCA": "=mlx5_2", "NCCL_CONF_FILE": str(conf)}
    assert dict(found.fabric.settings) == checked
    assert found.fabric.nccl_files == (MpiParameter("NCCL_IB_TC", "106", str(conf)),)
    assert found.parameters[:2] == (
        MpiParameter("OMPI_MCA_mca_base_env_list", "A;B_TOKEN=(hidden)", str(path)),
        MpiParameter("OMPI_MCA_pml", "ucx", str(path)),
    )


def written(path: Path) -> PodFacts:
    facts.write(resolve({}, {}), {"PATH": "/bin", "OF_PROFILE": "x"}, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = facts_from_json(path.read_text())
    assert found is not None
    return found


def write_state(folder: Path, pid: int) -> None:
    state = {"pid": pid, "sshd": "embedded", "address": "", "port": 1, "reason": "so"}
    (folder / WORKER_STATE).write_text(json.dumps(state))


def test_a_workers_facts_have_its_own_start_and_the_names_of_its_sessions(tmp_path: Path) -> None:
    """Without a worker the caller is the pod's first process."""
    assert written(tmp_path / "facts.json").sshd == ""
    write_state(tmp_path, os.getpid())
    found = written(tmp_path / "facts.json")
    assert (found.sshd, found.sshd_reason) == ("embedded", "so")
    assert set(found.environment) == {"PATH", "OF_PROFILE", *pod.spec_names(os.getpid())}


@pytest.mark.parametrize(
    ("pid", "reason"), [(os.getpid(), "so"), (1 << 30, "")], ids=["alive", "gone"]
)
def test_on_a_terminal_they_are_those_of_the_worker_that_runs_here(
    tmp_path: Path, pid: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_state(files.runtime_dir(str(tmp_path), os.getuid(), "worker"), pid)
    resolved = resolve({"runtime_dir": str(tmp_path)}, {})
    facts.run(resolved, {"PATH": "/bin"}, as_json=True)
    found = facts_from_json(capsys.readouterr().out)
    assert found is not None
    assert found.sshd_reason == reason
    facts.run(resolved, {"PATH": "/bin"}, as_json=False)
    assert capsys.readouterr().out.startswith("{\n")


# -- whether the kernel lets the ranks of a pod read each other's memory ---------------------------

# Refuses process_vm_readv (310 on x86-64, 270 elsewhere) with EPERM, as a seccomp profile does.
SECCOMP = """
import ctypes, platform, struct, sys
from mpiboot.worker import facts
number = 310 if platform.machine() == "x86_64" else 270
rows = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x00050001), (6, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
filter = ctypes.create_string_buffer(struct.pack("H6xP", len(rows), ctypes.addressof(program)))
c = ctypes.CDLL(None)
assert c.prctl(38, 1, 0, 0, 0) == 0 and c.prctl(22, 2, filter, 0, 0) == 0
print(facts.memory_refused())
"""


def test_a_filter_of_system_calls_is_named_by_its_error() -> None:
    assert facts.memory_refused() == ""
    argv = [sys.executable, "-c", SECCOMP]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "Operation not permitted\n"


# -- the files of an Open MPI, in folders made for it ----------------------------------------------


def test_the_users_file_comes_before_the_installations(tmp_path: Path) -> None:
    mpirun = program(tmp_path / "ompi/bin", "mpirun")
    mpi = Mpi(MpiFamily.OPENMPI4, "4.1.4", str(mpirun), "")
    home = {"HOME": str(tmp_path / "home")}
    assert facts.find_parameters(mpi, home) == ()
    elsewhere = tmp_path / "elsewhere/openmpi-mca-params.conf"
    own = tmp_path / "home/.openmpi/mca-params.conf"
    etc = tmp_path / "ompi/etc/openmpi-mca-params.conf"
    texts = {elsewhere: "btl = sm\n", own: "pml = ucx\n", etc: "pml = ob1\nbtl = tcp\n\xff\n"}
    for path, text in texts.items():
        path.parent.mkdir(parents=True)
        path.write_text(text, "latin-1")
    users = MpiParameter("OMPI_MCA_pml", "ucx", str(own))
    assert facts.find_parameters(mpi, home) == (
        users,
        MpiParameter("OMPI_MCA_pml", "ob1", str(etc)),
        MpiParameter("OMPI_MCA_btl", "tcp", str(etc)),
    )
    etc.unlink()  # an installation that was moved names the folder itself
    program(tmp_path / "ompi/bin", "ompi_info", f"echo path:sysconfdir:{elsewhere.parent}")
    moved = MpiParameter("OMPI_MCA_btl", "sm", str(elsewhere))
    assert facts.find_parameters(mpi, {**home, "A": "1"}) == (users, moved)
    assert facts.find_parameters(replace(mpi, family=MpiFamily.MPICH), home) == ()
