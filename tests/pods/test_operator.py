"""MPIJobs as the operator makes them; and a real job over the rig by hand, without mpiboot."""

from __future__ import annotations

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.operator import mpijob

SLEEP = ("sleep", "1000")


@pytest.mark.parametrize(
    ("mpi", "as_worker", "hostfile", "variables"),
    [
        (
            "OpenMPI",
            False,
            "pi-worker-0.pi.default.svc slots=2\npi-worker-1.pi.default.svc slots=2\n",
            {
                "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
                "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
                "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
                "OMPI_MCA_orte_set_default_slots": "2",
                "NVIDIA_VISIBLE_DEVICES": "",
            },
        ),
        (
            "Intel",
            True,
            "".join(f"pi-{pod}.pi.default.svc:2\n" for pod in ("launcher", "worker-0", "worker-1")),
            {"I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile", "I_MPI_PERHOST": "2"},
        ),
    ],
)
def test_what_the_operator_writes(
    cluster: Cluster,
    plain: Image,
    *,
    mpi: str,
    as_worker: bool,
    hostfile: str,
    variables: dict[str, str],
) -> None:
    job = mpijob(
        cluster,
        plain,
        mpi=mpi,
        slots=2,
        as_worker=as_worker,
        launcher_command=SLEEP,
        worker_command=SLEEP,
        worker_args=(),
    ).start()
    launcher, worker = job.launcher, job.workers[1]
    assert launcher.exec("cat", "/etc/mpi/hostfile").stdout == hostfile
    env = dict(line.split("=", 1) for line in launcher.exec("env").stdout.splitlines())
    assert env.items() >= {"K_MPI_JOB_ROLE": "launcher", **variables}.items()
    assert ("NVIDIA_VISIBLE_DEVICES" in env) != as_worker
    env = dict(line.split("=", 1) for line in worker.exec("env").stdout.splitlines())
    assert env["K_MPI_JOB_ROLE"] == "worker"
    assert not any(name.startswith(("OMPI", "I_MPI")) for name in env)
    assert worker.exec("test", "-e", "/etc/mpi").returncode == 1
    modes = launcher.exec("stat", "-Lc%a", "/root/.ssh/id_rsa", "/etc/mpi/discover_hosts.sh").stdout
    assert modes.split() == ["600", "555"]
    assert launcher.exec("ssh-keygen", "-yf", "/root/.ssh/id_rsa").stdout == job.keys.public
    assert job.keys.public.startswith("ecdsa-sha2-nistp521 ")
    assert "job pi.default" not in worker.exec("cat", "/etc/resolv.conf").stdout
    assert (
        worker.exec("cat", "/etc/resolv.conf")
        .stdout.splitlines()[0]
        .endswith(" cluster.local pi.default.svc.cluster.local")
    )
    assert worker.exec("getent", "hosts", "pi-worker-0").stdout
    assert launcher.exec("getent", "hosts", "pi-worker-1.pi.default.svc").stdout
    launcher_record = worker.exec("getent", "hosts", "pi-launcher.pi").returncode == 0
    assert launcher_record == as_worker


def test_the_key_is_0644_where_it_is_no_roots(cluster: Cluster, plain: Image) -> None:
    mount = "/home/mpiuser/.ssh"
    job = mpijob(cluster, plain, ssh_mount=mount, user=1000, launcher_command=SLEEP)
    job.launcher.start()
    assert job.launcher.shell(f"stat -Lc%a {mount}/id_rsa") == "644"
