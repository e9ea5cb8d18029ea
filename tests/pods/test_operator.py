"""MPIJobs as the operator makes them."""

from __future__ import annotations

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.operator import mpijob

SLEEP = ("sleep", "1000")


def test_what_the_operator_writes(cluster: Cluster, plain: Image) -> None:
    job = mpijob(
        cluster, plain, slots=2, launcher_command=SLEEP, worker_command=SLEEP, worker_args=()
    ).start()
    launcher, worker = job.launcher, job.workers[1]
    hosts = [f"pi-worker-{index}.pi.default.svc slots=2" for index in range(2)]
    assert launcher.shell("cat /etc/mpi/hostfile").splitlines() == hosts
    env = dict(line.split("=", 1) for line in launcher.shell("env").splitlines())
    assert (
        env.items()
        >= {
            "K_MPI_JOB_ROLE": "launcher",
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
            "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
            "OMPI_MCA_orte_set_default_slots": "2",
            "NVIDIA_VISIBLE_DEVICES": "",
        }.items()
    )
    env = dict(line.split("=", 1) for line in worker.shell("env").splitlines())
    assert env["K_MPI_JOB_ROLE"] == "worker"
    assert not any(name.startswith("OMPI") for name in env)
    assert worker.exec("test", "-e", "/etc/mpi").returncode == 1
    modes = launcher.shell("stat -Lc%a /root/.ssh/id_rsa /etc/mpi/discover_hosts.sh")
    assert modes.split() == ["600", "555"]
    assert launcher.exec("ssh-keygen", "-yf", "/root/.ssh/id_rsa").stdout == job.keys.public
    assert job.keys.public.startswith("ecdsa-sha2-nistp521 ")
    search = worker.shell("cat /etc/resolv.conf").splitlines()[0]
    assert search.endswith(" cluster.local pi.default.svc.cluster.local")
    assert worker.exec("getent", "hosts", "pi-worker-0").stdout
    assert launcher.exec("getent", "hosts", "pi-worker-1.pi.default.svc").stdout
    assert worker.exec("getent", "hosts", "pi-launcher.pi").returncode
