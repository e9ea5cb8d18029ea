"""The hosts that settings or a platform name, from files and variables as it writes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpiboot.core.checks import MpibootError
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
ALONE = "the 1 task of this Volcano job without this pod"


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the svc plugin mounts; its files have no final newline."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for key, value in ENVIRON.items():  # its ConfigMap has these keys too
        (tmp_path / key).write_text(value)
    monkeypatch.setattr(platforms, "VOLCANO_FOLDER", str(tmp_path))
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=OWN))
    return str(tmp_path)


def hostnames(*names: str) -> str:
    return "".join(f"{name}\n" for name in names)


FILE, BY_PLUGIN = "mpi_worker.host", "MPI_HOST of Volcano's mpi plugin"
FIRST = {"VC_A_HOSTS": "lm-mpi-job-a-0.lm-mpi-job", "VC_A_NUM": "1"}
EMPTY = {"VC_PS_HOSTS": "", "VC_PS_NUM": "0"}
ONLY = {name: value for name, value in ENVIRON.items() if "MASTER" in name}
BY_VARIABLE = "VC_MPI_WORKER_HOSTS", ALONE, hostnames(*WORKERS)
SEVERAL = "VC_A_HOSTS, VC_MPI_WORKER_HOSTS, VC_PS_HOSTS"
# "Using Platform LSF HPC" 7.3: a line for each slot in the file; host and slots in the variable.
LSF = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "hostB 2 hostA 1 "}
BY_LSF = "LSB_MCPU_HOSTS", "LSF", "hostB slots=2\nhostA slots=1\n"


@pytest.mark.parametrize(
    ("files", "environ", "path", "by", "text"),
    [
        # the other task's file, whose hosts may change, else the variables
        *((True, environ, FILE, ALONE, "") for environ in (ENVIRON, {})),
        (False, ENVIRON, *BY_VARIABLE),
        # the mpi plugin's word before a guess, also in a job whose controller updates no file
        (True, ENVIRON | THIRD | MPI_PLUGIN, FILE, BY_PLUGIN, ""),
        (False, MPI_PLUGIN, "MPI_HOST", BY_PLUGIN, hostnames(*WORKERS)),
        (
            *(False, THIRD | ENVIRON | FIRST, SEVERAL),
            "the 3 tasks of this Volcano job without this pod",
            hostnames(FIRST["VC_A_HOSTS"], *WORKERS, THIRD["VC_PS_HOSTS"]),
        ),
        (False, ENVIRON | EMPTY, *BY_VARIABLE),  # a task without pods is none
        (
            *(False, ONLY, "VC_MPI_MASTER_HOSTS"),
            *("the only task of this Volcano job", hostnames(MASTER)),
        ),
        (False, LSF | {"LSB_DJOB_HOSTFILE": ""}, *BY_LSF),
        (False, LSF | {"LSB_DJOB_HOSTFILE": "/nowhere/hostfile"}, *BY_LSF),
        (False, LSF | {"LSB_DJOB_HOSTFILE": "/dev/null"}, *BY_LSF),
        # elsewhere; without LSF's job its variables are leftovers
        *(
            (False, environ, "", "", "")
            for environ in (
                {"PATH": "/bin", "MY_HOSTS": "a,b"},
                {"LSB_MCPU_HOSTS": "a 2"},
                {"LSB_JOBID": "7"},
            )
        ),
    ],
)
def test_the_hosts_that_a_platform_lists(
    mounted: str,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    path: str,
    by: str,
    text: str,
    *,
    files: bool,
) -> None:
    path = f"{mounted}/{path}" if path == FILE else path
    expected = HostfilePath(path, by, Source.PLATFORM, text) if path else None
    monkeypatch.setattr(platforms, "VOLCANO_FOLDER", mounted if files else "/nowhere")
    assert hostfiles.hosts_by_platform(environ, OWN) == expected


def test_where_the_launchers_own_task_is_not_known_none_is_guessed() -> None:
    """As on the node's network: its own task may be one of them."""
    with pytest.raises(MpibootError) as wrong:
        hostfiles.hosts_by_platform(ENVIRON, "node-7")
    assert wrong.value.code == 66
    assert "it has 2 (mpi_master, mpi_worker)" in wrong.value.finding.message
    assert "MPIBOOT_WORKER_TASK=" in wrong.value.finding.hint


def test_lsfs_file_has_a_line_for_each_slot(tmp_path: Path) -> None:
    path = tmp_path / ".1258630735.7.hostfile"
    path.write_text("hostA\nhostA\nhostB\n")
    found = hostfiles.hosts_by_platform(LSF | {"LSB_DJOB_HOSTFILE": str(path)}, OWN)
    text = "hostA slots=2\nhostB slots=1\n"
    assert found == HostfilePath(str(path), "LSB_DJOB_HOSTFILE", Source.PLATFORM, text)


@pytest.mark.parametrize("value", ["a 2 b 1 a 3", "a", "a 2 b", "a b", "2 a"])
def test_lsfs_variable_is_hosts_and_slots(value: str) -> None:
    """One that it names twice has the sum."""
    found = hostfiles.hosts_by_platform(LSF | {"LSB_MCPU_HOSTS": value}, OWN)
    assert found is not None
    if value.endswith("3"):
        parsed = parse(found.text, found.path, found.by).hosts
        assert [(host.name, host.slots) for host in parsed] == [("a", 5), ("b", 1)]
        return
    with pytest.raises(MpibootError, match="LSB_MCPU_HOSTS:") as wrong:
        parse(found.text, found.path, found.by)
    assert wrong.value.code == 65


SET = {"replicas": "3", "service": "my-hpc-cluster", "name": "my-cnode"}
PODS = (
    "my-cnode-0.my-hpc-cluster\nmy-cnode-1.my-hpc-cluster\nmy-cnode-2.my-hpc-cluster",
    "my-cnode-[0-2].my-hpc-cluster",
)


LISTED = f"{THIRD['VC_PS_HOSTS']} slots=1\n{WORKERS[0]} slots=8\n{WORKERS[1]} slots=8\n"
TASKS, BY_TASK = {"worker_task": "ps:1,mpi-worker:8"}, "MPIBOOT_WORKER_TASK"
SET_BY_ENV = {f"MPIBOOT_{name.upper()}": value for name, value in SET.items()}


@pytest.mark.parametrize(
    ("flags", "environ", "path", "by", "text"),
    [
        *(({}, {BY_TASK: task}, FILE, BY_TASK, "") for task in ("mpi-worker", "mpi_worker")),
        (TASKS, {}, f"VC_PS_HOSTS, {FILE}", "--worker-task", LISTED),
        (SET, {}, PODS[1], "--replicas", PODS[0]),
        ({}, SET_BY_ENV, PODS[1], "MPIBOOT_REPLICAS", PODS[0]),
    ],
)
def test_the_hosts_that_a_setting_lists(
    mounted: str, flags: dict[str, str], environ: dict[str, str], path: str, by: str, text: str
) -> None:
    environ |= ENVIRON | THIRD
    found = hostfiles.hosts_by_setting(resolve(flags, environ), environ)
    source = Source.FLAG if flags else Source.ENVIRONMENT
    assert found == HostfilePath(path.replace(FILE, f"{mounted}/{FILE}"), by, source, text)


NO_TASK = "--worker-task=worker: "


@pytest.mark.parametrize(
    ("flags", "environ", "code", "message"),
    [
        ({"worker_task": "worker"}, ENVIRON, 66, "mpi_master, mpi_worker"),
        ({"worker_task": "mpi-worker:0"}, ENVIRON, 2, "mpi-worker:0 names no task with a number"),
        ({"worker_task": "worker"}, {}, 66, "have no task's hosts"),
        *(
            (
                {name: value for name, value in SET.items() if name != missing},
                *({}, 78, f"without --{missing}: "),
            )
            for missing in SET
        ),
    ],
)
def test_a_setting_that_lists_no_hosts_is_refused(
    flags: dict[str, str], environ: dict[str, str], code: int, message: str
) -> None:
    with pytest.raises(MpibootError) as wrong:
        hostfiles.hosts_by_setting(resolve(flags, {}), environ)
    assert wrong.value.code == code
    assert message in wrong.value.finding.message
    assert flags.get("worker_task") != "worker" or NO_TASK in wrong.value.finding.message


async def test_a_launcher_reads_them_where_nothing_names_a_hostfile(
    mounted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostfile that is mounted or named comes first; a task's file is read again."""
    assert mounted == str(tmp_path)
    path, none = tmp_path / "hostfile", str(tmp_path / "none" / "hostfile")
    path.write_text("w-0 slots=2\n")

    async def find(default: str, hostfile: str = "", line: Sequence[str] = ()) -> JobHostfile:
        monkeypatch.setattr(platforms, "HOSTFILE", default)
        flags = {"hostfile": hostfile} if hostfile else {}
        return await of_job(resolve(flags, {}), {}, 0.0, line)

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
    flags = {"worker_task": "w", "hostfile": str(path)}
    found = await of_job(resolve(flags, {}), {"VC_W_HOSTS": "w-0", "VC_W_NUM": "1"}, 0.0)
    assert ([host.name for host in found.hostfile.hosts], found.is_file) == (["other"], True)
