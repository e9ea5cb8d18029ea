"""A program that runs once though an MPI is installed: who is warned."""

from __future__ import annotations

import pytest

from mpiboot.core.model import Level
from mpiboot.job.program_words import one_of_several, runs_alone

HOSTS = "127.0.0.1 localhost\n10.0.0.7\tnode-1.mpi.default.svc.cluster.local\tnode-1\n"


@pytest.mark.parametrize(
    ("environ", "hostname", "hosts", "several"),
    [
        ({}, "train", "", ""),
        ({"JOB_COMPLETION_INDEX": ""}, "train", "", ""),
        ({"JOB_COMPLETION_INDEX": "0"}, "train", "", "JOB_COMPLETION_INDEX says that"),
        ({}, "node-1", HOSTS, "the name node-1.mpi.default.svc in /etc/hosts is that of one pod"),
        ({}, "node-2", HOSTS, ""),
        ({}, "node-1", "10.0.0.7 node-1\n", ""),
        ({}, "node-1", "10.0.0.7 another-node-1.mpi.default.svc\n", ""),
        ({}, "node1", HOSTS.replace("node-1", "node1"), ""),
    ],
)
def test_a_pod_is_one_of_several_by_its_index_or_its_name(
    environ: dict[str, str], hostname: str, hosts: str, several: str
) -> None:
    assert one_of_several(environ, hostname, hosts).startswith(several)
    assert bool(one_of_several(environ, hostname, hosts)) == bool(several)
    found = runs_alone("./train", environ, hostname, hosts)
    assert found is not None
    assert (found.check, found.level) == ("role", Level.WARN)
    message = "./train runs once in this pod, without mpirun: no hostfile, no role"
    but = f"; but {one_of_several(environ, hostname, hosts)}" if several else ""
    assert found.message == message + but
    assert "MPIBOOT_ROLE=launcher" in found.hint


@pytest.mark.parametrize("program", ["sh", "/bin/sleep", "mpirun", "/opt/mpiexec.hydra", "tini"])
def test_what_pods_run_beside_jobs_is_not_warned_of(program: str) -> None:
    assert runs_alone(program, {"JOB_COMPLETION_INDEX": "1"}, "x", "") is None


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"])
def test_a_rank_is_not_warned_of(name: str) -> None:
    assert runs_alone("train", {name: "0"}, "x", "") is None
    assert runs_alone("train", {name: ""}, "x", "") is not None
