"""The hosts that settings or a platform name, from files and variables as it writes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from mpiboot.core.checks import ExitCode, MpibootError
from mpiboot.core.model import Source
from mpiboot.core.settings import resolve
from mpiboot.hosts import hostfiles
from mpiboot.hosts.hostfiles import HostfilePath, JobHostfile, of_job
from mpiboot.job import platforms
from mpiboot.job.hostfile import parse

# Volcano v1.15.1: svc.go (GenerateHosts) and mpi.go (generateTaskHosts) for the job of its guide,
# docs/user-guide/how_to_use_mpi_plugin.md, with a task whose name has a hyphen.
MASTER = "lm-mpi-job-mpi-master-0.lm-mpi-job"
WORKERS = ("lm-mpi-job-mpi-worker-0.lm-mpi-job", "lm-mpi-job-mpi-worker-1.lm-mpi-job")
FILES = {"mpi_master.host": MASTER, "mpi_worker.host": "\n".join(WORKERS)}
ENVIRON = {
    "VC_MPI_MASTER_HOSTS": MASTER,
    "VC_MPI_MASTER_NUM": "1",
    "VC_MPI_WORKER_HOSTS": ",".join(WORKERS),
    "VC_MPI_WORKER_NUM": "2",
}
MPI_PLUGIN = {"MPI_HOST": ",".join(WORKERS)}
THIRD = {"VC_PS_HOSTS": "lm-mpi-job-ps-0.lm-mpi-job", "VC_PS_NUM": "1"}
OWN = "lm-mpi-job-mpi-master-0"
ALONE = "the only task of this Volcano job without this pod"


@pytest.fixture
def mounted(tmp_path: Path) -> str:
    """What the svc plugin mounts; its files have no final newline."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for key, value in ENVIRON.items():  # its ConfigMap has these keys too
        (tmp_path / key).write_text(value)
    return str(tmp_path)


def by_platform(environ: dict[str, str], folder: str = "/nowhere") -> HostfilePath:
    found = hostfiles.hosts_by_platform(environ, OWN, folder)
    assert found is not None
    return found


@pytest.mark.parametrize("environ", [ENVIRON, {}])
def test_the_hosts_are_the_other_tasks_file(mounted: str, environ: dict[str, str]) -> None:
    found = by_platform(environ, mounted)
    assert found == HostfilePath(f"{mounted}/mpi_worker.host", ALONE, Source.PLATFORM)


def test_without_the_files_they_are_the_variables() -> None:
    found = by_platform(ENVIRON)
    assert found == HostfilePath(
        "VC_MPI_WORKER_HOSTS", ALONE, Source.PLATFORM, "\n".join((*WORKERS, ""))
    )


def test_the_mpi_plugins_word_comes_before_a_guess(mounted: str) -> None:
    reason = "MPI_HOST of Volcano's mpi plugin"
    environ = {**ENVIRON, **THIRD, **MPI_PLUGIN}
    found = by_platform(environ, mounted)
    assert (found.path, found.by) == (f"{mounted}/mpi_worker.host", reason)
    # A job whose controller updates no file.
    assert by_platform(MPI_PLUGIN) == HostfilePath(
        "MPI_HOST", reason, Source.PLATFORM, "\n".join((*WORKERS, ""))
    )


def test_workers_that_came_later_are_in_the_file_alone(mounted: str) -> None:
    more = Path(mounted) / "mpi_worker.host"
    more.write_text(f"{FILES['mpi_worker.host']}\nlm-mpi-job-mpi-worker-2.lm-mpi-job")
    assert by_platform({**ENVIRON, **MPI_PLUGIN}, mounted).path == str(more)


def test_of_several_tasks_all_others_have_the_hosts_by_name() -> None:
    first = {"VC_A_HOSTS": "lm-mpi-job-a-0.lm-mpi-job", "VC_A_NUM": "1"}
    found = by_platform({**THIRD, **ENVIRON, **first})
    hosts = [first["VC_A_HOSTS"], *WORKERS, THIRD["VC_PS_HOSTS"]]
    assert found == HostfilePath(
        "VC_A_HOSTS, VC_MPI_WORKER_HOSTS, VC_PS_HOSTS",
        "the 3 tasks of this Volcano job without this pod",
        Source.PLATFORM,
        "".join(f"{host}\n" for host in hosts),
    )


def test_where_the_launchers_own_task_is_not_known_none_is_guessed() -> None:
    """As on the node's network: its own task may be one of them."""
    with pytest.raises(MpibootError) as wrong:
        hostfiles.hosts_by_platform(ENVIRON, "node-7", "/nowhere")
    assert wrong.value.code == ExitCode.HOSTFILE_MISSING
    assert "it has 2 (mpi_master, mpi_worker)" in wrong.value.finding.message
    assert "MPIBOOT_WORKER_TASK=" in wrong.value.finding.hint


def test_a_task_without_pods_is_none_of_several() -> None:
    empty = {"VC_PS_HOSTS": "", "VC_PS_NUM": "0"}
    assert by_platform({**ENVIRON, **empty}).path == "VC_MPI_WORKER_HOSTS"


def test_a_jobs_only_task_has_the_hosts_though_this_pod_is_one_of_them() -> None:
    environ = {name: value for name, value in ENVIRON.items() if "MASTER" in name}
    found = by_platform(environ)
    assert (found.text.strip(), found.by) == (MASTER, "the only task of this Volcano job")


def test_elsewhere_no_hosts_are_found() -> None:
    assert hostfiles.hosts_by_platform({"PATH": "/bin", "MY_HOSTS": "a,b"}, OWN, "/nowhere") is None


@pytest.mark.parametrize("wanted", ["mpi-worker", "mpi_worker"])
def test_a_setting_says_which_task(mounted: str, wanted: str) -> None:
    resolved = resolve({}, {"MPIBOOT_WORKER_TASK": wanted})
    found = hostfiles.hosts_by_setting(resolved, {**ENVIRON, **THIRD}, mounted)
    by = "MPIBOOT_WORKER_TASK"
    assert found == HostfilePath(f"{mounted}/mpi_worker.host", by, Source.ENVIRONMENT)


def test_a_setting_gives_several_tasks_their_order_and_slots(mounted: str) -> None:
    resolved = resolve({"worker_task": "ps:1,mpi-worker:8"}, {})
    found = hostfiles.hosts_by_setting(resolved, {**ENVIRON, **THIRD}, mounted)
    assert found == HostfilePath(
        f"VC_PS_HOSTS, {mounted}/mpi_worker.host",
        "--worker-task",
        Source.FLAG,
        f"{THIRD['VC_PS_HOSTS']} slots=1\n{WORKERS[0]} slots=8\n{WORKERS[1]} slots=8\n",
    )


@pytest.mark.parametrize("wrong", ["gpu:", "gpu:0", "gpu:many"])
def test_slots_of_a_task_are_a_number(wrong: str) -> None:
    with pytest.raises(MpibootError) as raised:
        resolve({}, {"MPIBOOT_WORKER_TASK": f"cpu,{wrong}"})
    assert raised.value.code == ExitCode.USAGE
    assert "expected a whole number from 1" in raised.value.finding.message


@pytest.mark.parametrize(
    ("environ", "have"),
    [(ENVIRON, "have the tasks mpi_master, mpi_worker"), ({}, "have no task's hosts")],
)
def test_a_task_that_the_job_lacks_is_no_guess(environ: dict[str, str], have: str) -> None:
    resolved = resolve({"worker_task": "worker"}, {})
    with pytest.raises(MpibootError) as wrong:
        hostfiles.hosts_by_setting(resolved, environ, "/nowhere")
    assert wrong.value.code == ExitCode.HOSTFILE_MISSING
    assert wrong.value.finding.message.startswith("--worker-task=worker: ")
    assert have in wrong.value.finding.message


async def test_a_launcher_reads_them_where_nothing_names_a_hostfile(
    mounted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostfile that is mounted or named comes first; a task's file is read again."""
    by_files = partial(hostfiles.hosts_by_platform, folder=mounted)
    monkeypatch.setattr(hostfiles, "hosts_by_platform", by_files)
    path, none = tmp_path / "hostfile", str(tmp_path / "none" / "hostfile")
    path.write_text("w-0 slots=2\n")

    async def find(default: str, hostfile: str = "", line: Sequence[str] = ()) -> JobHostfile:
        monkeypatch.setattr(platforms, "HOSTFILE", default)
        flags = {"hostfile": hostfile} if hostfile else {}
        return await of_job(resolve(flags, {}), {}, 0.0, line, OWN)

    found = await find(none)
    assert [(host.name, host.slots) for host in found.hostfile.hosts] == [
        (name, 1) for name in WORKERS
    ]
    assert (found.hostfile.named_by, found.hostfile.source) == (ALONE, Source.PLATFORM)
    assert not found.has_changed()
    (tmp_path / "mpi_worker.host").write_text(WORKERS[0])
    assert found.has_changed()
    assert [host.name for host in found.hostfile.hosts] == [WORKERS[0]]
    assert found.hostfile.source is Source.PLATFORM
    for found in (
        await find(str(path)),
        await find(none, str(path)),
        await find(none, "", [str(path)]),
    ):
        assert (found.hostfile.hosts[0].name, found.hostfile.source) == ("w-0", None)


async def test_a_list_by_setting_comes_before_what_the_operator_names(tmp_path: Path) -> None:
    """It is never read again."""
    path = tmp_path / "hostfile"
    path.write_text("other\n")
    environ = {"HYDRA_HOST_FILE": str(path), "VC_W_HOSTS": "w-0,w-1", "VC_W_NUM": "2"}
    listed = await of_job(resolve({"worker_task": "w"}, {}), environ, 0.0)
    assert [host.name for host in listed.hostfile.hosts] == ["w-0", "w-1"]
    assert (listed.hostfile.named_by, listed.hostfile.source) == ("--worker-task", Source.FLAG)
    assert (listed.is_file, listed.has_changed()) == (False, False)
    assert "HYDRA_HOST_FILE" in listed.warnings[0].message
    flags = {"worker_task": "w", "hostfile": str(path)}
    found = await of_job(resolve(flags, {}), {"VC_W_HOSTS": "w-0", "VC_W_NUM": "1"}, 0.0)
    assert ([host.name for host in found.hostfile.hosts], found.is_file) == (["other"], True)
    assert "--worker-task=VC_W_HOSTS differs" in found.warnings[0].message


SET = {"replicas": "3", "service": "my-hpc-cluster", "name": "my-cnode"}


def test_a_stateful_set_is_listed_from_its_settings() -> None:
    assert hostfiles.hosts_by_setting(resolve(SET, {}), {}) == HostfilePath(
        "my-cnode-[0-2].my-hpc-cluster",
        "--replicas",
        Source.FLAG,
        "my-cnode-0.my-hpc-cluster\nmy-cnode-1.my-hpc-cluster\nmy-cnode-2.my-hpc-cluster",
    )
    environ = {f"MPIBOOT_{name.upper()}": value for name, value in SET.items()}
    found = hostfiles.hosts_by_setting(resolve({}, environ), environ)
    assert found is not None
    assert (found.by, found.source) == ("MPIBOOT_REPLICAS", Source.ENVIRONMENT)


@pytest.mark.parametrize("missing", SET)
def test_a_stateful_set_by_halves_is_refused(missing: str) -> None:
    flags = {name: value for name, value in SET.items() if name != missing}
    with pytest.raises(MpibootError) as wrong:
        hostfiles.hosts_by_setting(resolve(flags, {}), {})
    assert wrong.value.code == ExitCode.CONFLICT
    assert f"without --{missing}: " in wrong.value.finding.message


def test_a_task_and_a_stateful_set_are_not_both_the_hosts() -> None:
    with pytest.raises(MpibootError) as wrong:
        hostfiles.hosts_by_setting(resolve({**SET, "worker_task": "w"}, {}), ENVIRON)
    assert wrong.value.finding.message == "--worker-task and --replicas both name the job's hosts"


# "Using Platform LSF HPC" 7.3: a line for each slot in the file; host and slots in the variable.
LSF = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "hostB 2 hostA 1 "}


def test_lsfs_file_has_a_line_for_each_slot(tmp_path: Path) -> None:
    path = tmp_path / ".1258630735.7.hostfile"
    path.write_text("hostA\nhostA\nhostB\n")
    found = by_platform({**LSF, "LSB_DJOB_HOSTFILE": str(path)})
    text = "hostA slots=2\nhostB slots=1\n"
    assert found == HostfilePath(str(path), "LSB_DJOB_HOSTFILE", Source.PLATFORM, text)


@pytest.mark.parametrize("path", ["", "/nowhere/hostfile", "/dev/null"])
def test_lsfs_variable_is_for_pods_that_lack_the_file(path: str) -> None:
    found = by_platform({**LSF, "LSB_DJOB_HOSTFILE": path})
    text = "hostB slots=2\nhostA slots=1\n"
    assert found == HostfilePath("LSB_MCPU_HOSTS", "LSF", Source.PLATFORM, text)


def test_a_host_that_lsf_names_twice_has_the_sum() -> None:
    found = by_platform({**LSF, "LSB_MCPU_HOSTS": "a 2 b 1 a 3"})
    hosts = parse(found.text, found.path, found.by).hosts
    assert [(host.name, host.slots) for host in hosts] == [("a", 5), ("b", 1)]


@pytest.mark.parametrize("value", ["a", "a 2 b", "a b", "2 a"])
def test_what_is_no_list_of_lsf_is_said(value: str) -> None:
    found = by_platform({**LSF, "LSB_MCPU_HOSTS": value})
    with pytest.raises(MpibootError) as wrong:
        parse(found.text, found.path, found.by)
    assert wrong.value.code == ExitCode.HOSTFILE_INVALID
    assert wrong.value.finding.message.startswith("LSB_MCPU_HOSTS:")


def test_without_lsfs_job_its_variables_are_leftovers() -> None:
    left = {"LSB_MCPU_HOSTS": "a 2"}
    assert hostfiles.hosts_by_platform(left, OWN, "/nowhere") is None
    assert hostfiles.hosts_by_platform({"LSB_JOBID": "7"}, OWN, "/nowhere") is None
