"""Programs on the launcher that log in to the hosts by themselves, as Horovod and DeepSpeed do."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.pods import images
from tests.pods.jobs import PATIENCE, PROMISED, RING, alive, ended, ranks
from tests.pods.marks import crossed
from tests.pods.operator import mpijob
from tests.pods.test_users import RANDOM, RESTRICTED
from tests.waiting import until

if TYPE_CHECKING:
    from typing import Any

    from tests.pods.cluster import Cluster
    from tests.pods.images import Image

NAME = images.NAMES[-1]
# As Horovod calls it: the job's host key is checked all the same.
LOGS_IN = """
import subprocess
for host in ("pi-worker-0", "pi-worker-1.pi.default.svc"):
    words = ("-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no")
    subprocess.run(["ssh", *words, host, "hostname; cat"], input=b"said\\n", check=True)
"""
# As in Horovod's elastic mode: the operator's script lists the hosts, and is left as it is.
DISCOVERS = """
hosts = subprocess.run(["/etc/mpi/discover_hosts.sh"], capture_output=True, text=True, check=True)
for host in hosts.stdout.split():
    subprocess.run(["ssh", host, "echo found $(hostname)"], stdin=subprocess.DEVNULL, check=True)
"""
FOUND = ["found pi-worker-0", "found pi-worker-1"]
BOTH = ["pi-worker-0", "said", "pi-worker-1", "said"]
EACH = "for host in pi-worker-0 pi-worker-1; do ssh $host hostname </dev/null || exit 9; done"


def test_what_logs_in_by_itself_begins_when_every_host_is_ready(
    cluster: Cluster, rig: None
) -> None:
    """Short names, which no nameserver knows, and no configuration of ssh's in the image."""
    program = ["launcher", "--script", "on", "--", "python3", "-c", LOGS_IN + DISCOVERS]
    job = mpijob(cluster, images.image(NAME), workers=2, launcher_args=program)
    job.start(publish=False)
    job.workers[0].publish()
    until(lambda: "DNS for pi-worker-1" in job.launcher.stderr())
    assert job.launcher.stdout() == ""
    job.workers[1].publish()
    assert job.wait(PATIENCE) == 0
    assert job.launcher.stdout().splitlines() == BOTH + FOUND
    assert [worker.wait(PATIENCE) for worker in job.workers] == [0, 0]


def test_a_host_that_joins_later_is_reached_as_the_others_are(cluster: Cluster, rig: None) -> None:
    """As in Horovod's elastic mode; the hostfile that was mounted has one host."""
    key = "/etc/job/.ssh"
    job = mpijob(
        cluster,
        images.image(NAME),
        workers=2,
        user=1000,
        ssh_mount=key,
        env={"MPIBOOT_SSH_KEY": key},
        hostfile="pi-worker-0.pi.default.svc slots=1\n",
        launcher_args=["sh", "-c", EACH.replace("; do", " pi-worker-1.pi.default.svc; do")],
    ).start(publish=False)
    for worker in reversed(job.workers):
        worker.publish(when_port=2222)
    assert job.wait(PATIENCE) == 0
    assert job.launcher.stdout().split() == ["pi-worker-0", "pi-worker-1", "pi-worker-1"]


@pytest.mark.full
def test_a_script_that_calls_both_mpirun_and_ssh(cluster: Cluster, image: Image) -> None:
    """It waits once, for its ssh; what its mpirun asks the hosts is answered at once."""
    script = f"{EACH}; mpirun -n 2 {RING}"
    job = mpijob(cluster, image, workers=2, launcher_args=["sh", "-c", script]).start(publish=False)
    until(lambda: "DNS for pi-worker-0, pi-worker-1" in job.launcher.stderr())
    job.publish()
    assert job.wait(PATIENCE) == 0
    message, out = job.launcher.stderr(), job.launcher.stdout()
    assert out.splitlines()[:2] == ["pi-worker-0", "pi-worker-1"]
    assert ranks(out) == [(0, 2, "pi-worker-0"), (1, 2, "pi-worker-1")]
    assert "its script calls ssh and mpirun: it runs once, here, when all hosts are" in message
    waited, _, after = message.partition("starting sh")
    assert "DNS for" in waited
    assert "DNS for" not in after
    assert [worker.wait(PATIENCE) for worker in job.workers] == [0, 0]


# A daemon as `ray start` leaves one, an MPI job, and a rank as DeepSpeed starts one.
DAEMON = f"""
ssh pi-worker-0 '[ -e /tmp/on ] || {{ touch /tmp/on; setsid nohup sleep 1000 >/dev/null 2>&1 & }}'
mpirun -n 2 {RING} && ssh pi-worker-0 'sleep 1001 & wait'
"""


@crossed("server", ["openssh", "embedded"])
def test_a_daemon_that_called_setsid_is_there_for_the_next_job(
    cluster: Cluster, image: Image, server: str
) -> None:
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=["sh", "-c", DAEMON],
        worker={"env": {"MPIBOOT_SSHD": server}},
    ).start()

    def sleeping(seconds: str) -> list[int]:
        return [item.pid for item in alive(job.workers[0], "sleep") if item.args[1] == seconds]

    until(lambda: sleeping("1001"))
    daemon = sleeping("1000")
    assert len(daemon) == 1
    job.launcher.kill()
    assert job.wait(PATIENCE) == 137
    until(lambda: not sleeping("1001"), PROMISED)
    job.launcher.start()
    until(lambda: sleeping("1001"))
    assert len(ranks(job.launcher.stdout())) == 4
    assert sleeping("1000") == daemon


@pytest.mark.full
def test_mpirun_by_its_path_logs_in_by_the_scripts_ssh(cluster: Cluster, rig: None) -> None:
    """Past mpiboot, as the script was told; only the gate and the logins are mpiboot's."""
    script = f"/usr/bin/mpirun --allow-run-as-root -n 2 {RING}"
    job = ended(cluster, images.image(images.NAMES[0]), "sh", "-c", script)
    assert ranks(job.launcher.stdout()) == [(0, 2, "pi-worker-0"), (1, 2, "pi-worker-1")]
    assert "bypassing mpiboot" in job.launcher.stderr()


@pytest.mark.full
@pytest.mark.parametrize(
    ("user", "mount", "details"),
    [
        (1000, "/home/mpiuser/.ssh", {}),
        (RANDOM, "/etc/job/.ssh", {**RESTRICTED, "group": 0}),
    ],
)
def test_as_another_user_than_root(
    cluster: Cluster, rig: None, user: int, mount: str, details: dict[str, Any]
) -> None:
    """OpenSSH refuses a user without a passwd entry: mpiboot's own client is the program's."""
    job = ended(
        cluster,
        images.image(NAME),
        "sh",
        "-c",
        EACH,
        user=user,
        ssh_mount=mount,
        env={"MPIBOOT_SSH_KEY": mount},
        launcher=details,
        worker=details,
    )
    assert job.launcher.stdout().splitlines() == ["pi-worker-0", "pi-worker-1"]
    own = "its ssh is mpiboot's own client" in job.launcher.stderr()
    assert own == (user == RANDOM)


@pytest.mark.full
def test_with_the_gate_off_it_begins_at_once_with_plain_ssh(cluster: Cluster, rig: None) -> None:
    job = mpijob(
        cluster,
        images.image(NAME),
        workers=2,
        launcher_args=["sh", "-c", "command -v ssh; ssh -V"],
        launcher={"env": {"MPIBOOT_SCRIPT_GATE": "off"}},
    )
    job.launcher.start()
    assert job.launcher.wait(PATIENCE) == 0
    assert job.launcher.stdout() == "/usr/bin/ssh\n"
    assert "MPIBOOT_SCRIPT_GATE: it starts at once" in job.launcher.stderr()


@pytest.mark.full
def test_a_signal_while_hosts_are_waited_for_starts_nothing(cluster: Cluster, rig: None) -> None:
    args = ["sh", "-c", f"echo started; {EACH}"]
    job = mpijob(cluster, images.image(NAME), workers=2, launcher_args=args)
    job.launcher.start()
    until(lambda: "DNS for pi-worker-0, pi-worker-1" in job.launcher.stderr())
    job.launcher.signal(signal.SIGTERM)
    assert job.launcher.wait(PATIENCE) == 143
    assert job.launcher.stdout() == ""
    assert "SIGTERM while waiting for hosts: nothing was started" in job.launcher.stderr()


@pytest.mark.full
def test_a_script_that_fails_frees_the_workers_and_tells_the_next_attempt(
    cluster: Cluster, rig: None
) -> None:
    job = ended(
        cluster,
        images.image(NAME),
        "sh",
        "-c",
        f"{EACH}; exit 5",
        code=5,
        worker={"env": {"MPIBOOT_LAUNCHER_AWAY": "60"}},
    )
    assert job.launcher.termination_log() == "program: sh ended with 5\n"
    job.launcher.start()
    assert job.launcher.wait(PATIENCE) == 5
    assert "attempt 2; the last one" in job.launcher.stderr()
    assert "ended: program: sh ended with 5" in job.launcher.stderr()
    assert "attempt 2; the last one" in job.launcher.termination_log()
