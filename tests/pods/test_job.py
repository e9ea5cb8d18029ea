"""Whole jobs: a launcher and workers as pods, real sshd, real mpirun, a real MPI program."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mpiboot import __version__
from tests.pods import images
from tests.pods.marks import MOMENT, ONE_IMAGE
from tests.pods.operator import KeyPair, mpijob
from tests.pods.volumes import Files, Tmpfs
from tests.waiting import until

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster
    from tests.pods.images import Image
    from tests.pods.operator import Job
    from tests.pods.pod import Pod

RING = "/opt/programs/ring"
OLD, NEW = images.NAMES
# Guards against a hang only, many times what a job takes.
PATIENCE = 120


def ranks(output: str) -> list[tuple[int, int, str]]:
    """Rank, number of ranks and host of each line that the program printed."""
    found = re.findall(r"^rank (\d+) of (\d+) on (\S+)$", output, re.MULTILINE)
    return sorted((int(rank), int(of), host) for rank, of, host in found)


def owners(pod: Pod) -> set[int]:
    """The users on the host whose processes run in a pod."""
    found = set()
    for process in pod.processes():
        with contextlib.suppress(FileNotFoundError):  # its sessions may still be ending
            found.add(Path(f"/proc/{process.host_pid}").stat().st_uid)
    return found


def spans(job: Job, slots: int = 1) -> None:
    """Every worker ran its ranks, in the order of the hostfile, and nothing ran elsewhere."""
    total = len(job.workers) * slots
    expected = [
        (index * slots + slot, total, worker.hostname)
        for index, worker in enumerate(job.workers)
        for slot in range(slots)
    ]
    assert ranks(job.launcher.stdout()) == expected


def test_all_ready_and_every_worker_runs_its_ranks(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=3, slots=2, launcher_args=[RING], data_link="net1").start()
    assert job.wait(PATIENCE) == 0
    spans(job, slots=2)


def test_a_good_job_is_a_dozen_lines_of_the_log(cluster: Cluster, image: Image) -> None:
    """A record each: nothing is wrapped, nothing lacks the prefix by which grep finds it."""
    quiet = {"MPIBOOT_LOG_LEVEL": "info"}
    # mpirun is looked at every 0.25 s: ranks that wait for the line leave the time to write it.
    wait = ["sh", "-c", f"until [ -e /tmp/go ]; do sleep 0.1; done; exec {RING}"]
    job = mpijob(
        cluster, image, workers=2, data_link="net1", launcher_args=wait, launcher={"env": quiet}
    ).start()
    until(lambda: "joined" in job.launcher.stderr())
    for worker in job.workers:
        worker.shell("touch /tmp/go")
    assert job.wait(PATIENCE) == 0
    lines = [line for line in job.launcher.stderr().splitlines() if not line.startswith("[")]
    assert len(lines) <= 12, lines
    assert [line for line in lines if not line.startswith("mpiboot: ")] == []
    assert lines[0].startswith(f"mpiboot: mpiboot {__version__}, role launcher (")
    assert lines[-1].startswith("mpiboot: job ended: ")
    for part in ("2 ranks on 2 hosts of", "control network", "data network: TCP", "joined"):
        assert [line for line in lines if part in line], part
    # The operator's own variables are not the user's settings.
    assert not [line for line in lines if "your settings" in line]


def test_a_whole_mpirun_line_as_in_a_manifest(cluster: Cluster, image: Image) -> None:
    line = [
        "mpirun",
        "-n",
        "2",
        "-x",
        "GREETING=two words",
        "sh",
        "-c",
        f'{MOMENT}echo "$GREETING"',
    ]
    job = mpijob(cluster, image, workers=2, launcher_args=line).start()
    assert job.wait(PATIENCE) == 0
    assert job.launcher.stdout().splitlines() == ["two words", "two words"]


def test_names_become_resolvable_one_by_one(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=3, launcher_args=[RING]).start(publish=False)
    until(lambda: "DNS for pi-worker-0, pi-worker-1, pi-worker-2" in job.launcher.stderr())
    for worker in job.workers:
        assert job.launcher.running
        worker.publish()
        time.sleep(0.4)
    assert job.wait(PATIENCE) == 0
    spans(job)
    assert "NXDOMAIN" in job.launcher.stderr()


@ONE_IMAGE
def test_a_negative_answer_that_a_resolver_caches(cluster: Cluster, image: Image) -> None:
    cluster.dns.negative_cache(3)
    job = mpijob(cluster, image, workers=2, launcher_args=[RING]).start(publish=False)
    until(lambda: cluster.dns.questions(job.workers[1].fqdn))
    job.publish()
    assert job.wait(PATIENCE) == 0
    spans(job)


@ONE_IMAGE
def test_sshd_that_comes_late(cluster: Cluster, image: Image) -> None:
    script = "until [ -e /tmp/go ]; do sleep 0.1; done; exec mpiboot worker"
    late = {1: {"command": ["sh", "-c", script]}}
    job = mpijob(cluster, image, workers=2, launcher_args=[RING], each_worker=late).start()
    until(lambda: "connection refused" in job.launcher.stderr())
    job.workers[1].shell("touch /tmp/go")
    assert job.wait(PATIENCE) == 0
    spans(job)


@ONE_IMAGE
def test_a_worker_that_never_comes_is_named(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=2, launcher_args=[RING], env={"MPIBOOT_TIMEOUT": "20"})
    job.workers[0].start().publish()
    until(lambda: "listens" in job.workers[0].stderr())
    job.launcher.start()
    assert job.wait(PATIENCE) == 68
    message = job.launcher.termination_log()
    assert message.startswith("names-unresolved: ")
    assert job.workers[1].fqdn.removesuffix(".cluster.local") in message
    assert "NXDOMAIN" in message
    assert job.launcher.stdout() == ""


@ONE_IMAGE
def test_a_worker_that_resolves_but_never_answers(cluster: Cluster, image: Image) -> None:
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=[RING],
        env={"MPIBOOT_TIMEOUT": "20"},
        each_worker={1: {"command": ["sleep", "1000"]}},
    ).start()
    assert job.wait(PATIENCE) == 69
    message = job.launcher.termination_log()
    assert message.startswith("workers-unreachable: ")
    assert "pi-worker-1" in message
    assert "connection refused" in message
    assert "pi-worker-0" not in message


def other_keys(job_path: str = "/root/.ssh") -> Files:
    return Files(job_path, KeyPair.make().files(), 0o600)


@ONE_IMAGE
def test_a_worker_with_another_key_is_refused_at_once(cluster: Cluster, image: Image) -> None:
    """Its sshd shows that other key, so it is the host key that differs first."""
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=[RING],
        each_worker={1: {"volumes": [other_keys()]}},
    ).start()
    assert job.wait(PATIENCE) == 77
    message = job.launcher.termination_log()
    assert "pi-worker-1" in message
    assert message.count("SHA256:") >= 2


STOCK_SSHD = (
    "mkdir -p /run/sshd; {keygen} exec /usr/sbin/sshd -De -o UsePAM=no "
    "-o AuthorizedKeysFile=/root/.ssh/authorized_keys -o StrictModes=no"
)


def stock(keygen: str) -> dict[str, object]:
    """A worker whose image runs sshd itself, without mpiboot."""
    return {"command": ["sh", "-c", STOCK_SSHD.format(keygen=keygen)]}


@ONE_IMAGE
def test_a_worker_that_refuses_the_key_ends_the_wait(cluster: Cluster, image: Image) -> None:
    script = (
        "mkdir -p /run/sshd; cp /root/.ssh/id_rsa /tmp/host; chmod 600 /tmp/host; "
        "exec /usr/sbin/sshd -De -o UsePAM=no -h /tmp/host -o AuthorizedKeysFile=/nowhere"
    )
    refuses = {"command": ["sh", "-c", script]}
    job = mpijob(cluster, image, workers=2, launcher_args=[RING], each_worker={1: refuses}).start()
    assert job.wait(PATIENCE) == 77
    message = job.launcher.termination_log()
    assert message.startswith("ssh-denied: ")
    assert "pi-worker-1" in message


@ONE_IMAGE
def test_another_host_key_is_refused_with_what_to_add(cluster: Cluster, image: Image) -> None:
    own = stock("ssh-keygen -A;")
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=[RING],
        each_worker={1: own},
        env={"MPIBOOT_TIMEOUT": "100"},
    ).start()
    assert job.wait(PATIENCE) == 77
    message = job.launcher.termination_log()
    assert message.startswith("host-key-differs: ")
    assert "pi-worker-1" in message
    assert "args: [worker]" in message


@ONE_IMAGE
def test_another_host_key_is_taken_when_asked(cluster: Cluster, image: Image) -> None:
    own = stock("ssh-keygen -A;")
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=[RING],
        each_worker={1: own},
        env={"MPIBOOT_HOST_KEYS": "accept-new"},
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job)


@ONE_IMAGE
def test_a_key_that_is_mounted_0644(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=2, launcher_args=[RING], ssh_mount="/etc/job/.ssh").start()
    assert job.wait(PATIENCE) == 0
    spans(job)


@ONE_IMAGE
def test_user_1000_with_the_key_in_its_home(cluster: Cluster, image: Image) -> None:
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=[RING],
        ssh_mount="/home/mpiuser/.ssh",
        user=1000,
        env={"MPIBOOT_WORKER_EXIT": "never"},
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    assert owners(job.workers[0]) == {1000}


@pytest.mark.parametrize("name", ["openmpi-4.1-nosshd", "openmpi-5.0-nosshd"])
def test_an_image_without_sshd(cluster: Cluster, rig: None, name: str) -> None:
    job = mpijob(cluster, images.image(name), workers=2, slots=2, launcher_args=[RING]).start()
    assert job.wait(PATIENCE) == 0
    spans(job, slots=2)
    assert "embedded" in job.workers[0].stderr()


def test_a_hostfile_of_the_form_host_colon_n(cluster: Cluster, image: Image) -> None:
    """Open MPI 4.1 itself ignores that count without a word."""
    text = "# the first rack\r\n"
    text += "".join(f"pi-worker-{index}.pi.default.svc:2 # its slots=9\r\n" for index in range(2))
    job = mpijob(cluster, image, workers=2, slots=2, launcher_args=[RING], hostfile=text).start()
    assert job.wait(PATIENCE) == 0
    spans(job, slots=2)


@ONE_IMAGE
def test_a_host_without_a_rank_is_named_where_mpirun_places_them(
    cluster: Cluster, image: Image
) -> None:
    """Open MPI 5.0 writes which rank is where; 4.1 tells nothing, but has a daemon on each host."""
    args = ["mpirun", "-n", "1", "--map-by", "slot:pe=1", RING]
    job = mpijob(cluster, image, workers=2, launcher_args=args).start()
    assert job.wait(PATIENCE) == 0
    message = job.launcher.stderr()
    assert "rank-placement=left to mpirun" in message
    unused = "mpirun put no rank on 1 of 2 hosts: pi-worker-1.pi.default.svc"
    assert (unused in message) == ("openmpi-5" in image.name)


def test_hosts_without_slots_have_those_that_the_operator_names(
    cluster: Cluster, image: Image
) -> None:
    """Its variable is Open MPI 4.1's; 5.0 reads another, and mpirun's copy has numbers anyway."""
    text = "".join(f"pi-worker-{index}.pi.default.svc\n" for index in range(2))
    job = mpijob(cluster, image, workers=2, slots=2, launcher_args=[RING], hostfile=text).start()
    assert job.wait(PATIENCE) == 0
    spans(job, slots=2)


def test_short_names_that_need_the_clusters_domain(cluster: Cluster, image: Image) -> None:
    """Every name is asked for, and given to mpirun, in its long form."""
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=[RING],
        launcher={"env": {"MPIBOOT_REWRITE_FQDN": "on"}},
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    assert "pi-worker-0.pi.default.svc.cluster.local" in job.launcher.stderr()


@ONE_IMAGE
def test_start_sshd_makes_a_worker_without_any_platform(cluster: Cluster, image: Image) -> None:
    env = {"K_MPI_JOB_ROLE": "", "START_SSHD": "true"}
    job = mpijob(
        cluster, image, workers=2, launcher_args=[RING], worker={"args": [], "env": env}
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    assert "START_SSHD" in job.workers[0].stderr()
    # Only the MPI Operator's workers may end with the job: others are started again.
    assert all(worker.running for worker in job.workers)


def test_several_programs_in_one_line(cluster: Cluster, image: Image) -> None:
    """The daemons of 5.0.7 die of it, and its mpirun may return 0: that is never a success."""
    line = ["mpirun", "-n", "2", RING, ":", "-n", "2", RING]
    job = mpijob(cluster, image, workers=2, slots=2, launcher_args=line).start()
    code = job.wait(PATIENCE)
    if image.name == "openmpi-5.0":
        assert "the daemons of 5.0.7 die at the start" in job.launcher.stderr()
        assert code == 69
    else:
        assert code == 0
        spans(job, slots=2)


@pytest.mark.parametrize("message", ["by its search list", "by the setting"])
@ONE_IMAGE
def test_names_in_a_cluster_of_another_domain(cluster: Cluster, image: Image, message: str) -> None:
    """The operator's hostfile ends in .svc; what comes behind is not cluster.local everywhere."""
    domain = "k8s.example.org"
    cluster.dns.serve(domain)
    by_setting = message == "by the setting"
    env = {"MPIBOOT_REWRITE_FQDN": "on"}
    if by_setting:
        env = {"MPIBOOT_REWRITE_FQDN": "auto", "MPIBOOT_CLUSTER_DOMAIN": domain}
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=[RING],
        # With dnsPolicy None there is no search list to read the domain from.
        launcher={"cluster_domain": domain, "cluster_dns": not by_setting, "env": env},
        worker={"cluster_domain": domain},
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    assert f"pi-worker-0.pi.default.svc.{domain}" in job.launcher.stderr()
    assert "cluster.local" not in job.launcher.stderr()


def test_the_launcher_is_a_worker_too(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=2, launcher_args=[RING], as_worker=True).start()
    assert job.wait(PATIENCE) == 0
    hosts = [host for _, _, host in ranks(job.launcher.stdout())]
    assert hosts == [pod.hostname for pod in job.pods]


def test_the_programs_own_status_is_the_containers(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=2, launcher_args=[RING, "--exit", "3"]).start()
    assert job.wait(PATIENCE) == 3


def program_runs(pod: Pod) -> bool:
    return any(RING in process.args for process in pod.processes())


def test_sigterm_to_the_launcher_ends_the_ranks(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=2, launcher_args=[RING, "--sleep", "1000"]).start()
    until(lambda: all(program_runs(worker) for worker in job.workers))
    job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 143
    until(lambda: not any(program_runs(worker) for worker in job.workers))
    assert all(worker.running for worker in job.workers)


@pytest.mark.parametrize("count", ["1", "2", ""])
def test_the_operators_variables_never_put_a_job_on_the_launcher(
    cluster: Cluster, image: Image, count: str
) -> None:
    """Open MPI 5 ignores them all, and ends such a job well on the launcher alone."""
    line = ["mpirun", *(["-n", count] if count else []), RING]
    job = mpijob(cluster, image, workers=2, launcher_args=line).start()
    assert job.wait(PATIENCE) == 0
    hosts = {host for _, _, host in ranks(job.launcher.stdout())}
    assert hosts == {worker.hostname for worker in job.workers[: int(count or 2)]}


def test_daemons_and_mpi_stay_on_the_control_link(cluster: Cluster, image: Image) -> None:
    job = mpijob(
        cluster, image, workers=2, launcher_args=[RING, "--bytes", "20"], data_link="net1"
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    for worker in job.workers:
        assert worker.counters("eth0").tx > 15_000_000
        # Neighbour discovery and multicast reports are all that crosses the other link.
        assert worker.counters("net1").tx < 20_000


def test_the_pods_own_variables_reach_the_ranks(cluster: Cluster, image: Image) -> None:
    value = 'a b;c,"d"$HOME`x`\\\'é\nline two'
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=[
            "sh",
            "-c",
            f"{MOMENT}exec python3 -c \"import os; print(ascii(os.environ['ONLY_HERE']))\"",
        ],
        worker={"env": {"ONLY_HERE": value}},
    ).start()
    assert job.wait(PATIENCE) == 0
    assert job.launcher.stdout().splitlines() == [ascii(value)] * 2


@ONE_IMAGE
def test_a_read_only_root_with_one_writable_folder(cluster: Cluster, image: Image) -> None:
    details = {"read_only_root": True, "volumes": [Tmpfs("/tmp")]}
    job = mpijob(
        cluster, image, workers=2, launcher_args=[RING], launcher=details, worker=details
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job)


def test_two_versions_of_mpi_are_said_where_mpirun_fails_over_them(
    cluster: Cluster, rig: None
) -> None:
    old, new = images.image("openmpi-4.1"), images.image("openmpi-5.0")
    job = mpijob(
        cluster, old, workers=2, launcher_args=[RING], each_worker={1: {"image": new}}
    ).start()
    assert job.wait(PATIENCE) == 127
    assert "program-missing" in job.launcher.termination_log()
    (message,) = [text for text in job.launcher.stderr().splitlines() if "[mpi-versions]" in text]
    assert "pi-worker-1" in message
    assert "4.1" in message
    assert "5.0" in message


def test_more_ranks_than_slots_are_for_mpirun_to_refuse(cluster: Cluster, image: Image) -> None:
    """Its status and its words are those of a run without mpiboot."""
    job = mpijob(cluster, image, workers=2, launcher_args=[RING], env={"MPI_NP": "5"}).start()
    assert job.wait(PATIENCE) == 1
    message = " ".join((job.launcher.stdout() + job.launcher.stderr()).split())
    assert "5 ranks are asked for, and 2 hosts offer 2 slots" in message
    assert "There are not enough slots available in the system" in message


def test_fewer_ranks_than_slots_run_and_the_idle_host_is_said(
    cluster: Cluster, image: Image
) -> None:
    line = ["mpirun", "-np", "2", RING]
    job = mpijob(cluster, image, workers=2, slots=2, launcher_args=line).start()
    assert job.wait(PATIENCE) == 0
    assert [host for _, _, host in ranks(job.launcher.stdout())] == ["pi-worker-0"] * 2
    assert "1 of 2 hosts will get no rank: pi-worker-1" in job.launcher.stderr()


def test_a_hidden_hostfile_ends_the_job_instead_of_running_it_on_one_host(
    cluster: Cluster, image: Image
) -> None:
    """A line's own launcher module starts no agent: the witness must say so."""
    line = ["mpirun", "--mca", "plm", "isolated", "-n", "2", RING, "--sleep", "30"]
    job = mpijob(cluster, image, workers=2, launcher_args=line).start()
    code = job.wait(PATIENCE)
    assert code != 0
    assert len({host for _, _, host in ranks(job.launcher.stdout())} & {job.launcher.hostname}) == 0


@ONE_IMAGE
def test_signals_while_waiting_end_the_launcher(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=1, launcher_args=[RING]).start(publish=False)
    until(lambda: "waiting" in job.launcher.stderr() or "NXDOMAIN" in job.launcher.stderr())
    timer = threading.Timer(0, job.launcher.signal, [signal.SIGTERM])
    timer.start()
    assert job.wait(PATIENCE) == 143
    timer.join()


@pytest.mark.full
def test_a_flat_launch_as_many_guides_have_it(cluster: Cluster, image: Image) -> None:
    """Under 4.1 that flag makes daemons leave their agents, unless something keeps them."""
    line = ["mpirun", "--mca", "plm_rsh_no_tree_spawn", "1", RING]
    job = mpijob(cluster, image, workers=3, launcher_args=line).start()
    assert job.wait(PATIENCE) == 0
    spans(job)


@pytest.mark.full
def test_without_a_parent_mpirun_is_the_container(cluster: Cluster, image: Image) -> None:
    env = {"MPIBOOT_SUPERVISE": "off"}
    line = [RING, "--exit", "3"]
    job = mpijob(cluster, image, workers=2, launcher_args=line, launcher={"env": env}).start()
    assert job.wait(PATIENCE) == 3
    spans(job)
    assert "mpirun runs without mpiboot" in " ".join(job.launcher.stderr().split())


@pytest.mark.full
def test_a_hostfile_that_names_the_user(cluster: Cluster, image: Image) -> None:
    text = "".join(f"mpiuser@pi-worker-{index}.pi.default.svc slots=1\n" for index in range(2))
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=[RING],
        ssh_mount="/home/mpiuser/.ssh",
        worker={"user": 1000, "env": {"MPIBOOT_WORKER_EXIT": "never"}},
        launcher={"env": {"MPIBOOT_SSH_KEY": "/home/mpiuser/.ssh"}},
        hostfile=text,
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job)


@pytest.mark.full
def test_a_parameter_of_mpis_that_is_empty(cluster: Cluster, image: Image) -> None:
    """A manifest's template may leave a value out; 5.0 by itself crashes of it."""
    env = {"PRTE_MCA_oob_base_verbose": "", "OMPI_MCA_mpi_yield_when_idle": ""}
    job = mpijob(cluster, image, workers=2, launcher_args=[RING], launcher={"env": env}).start()
    assert job.wait(PATIENCE) == 0
    spans(job)


@pytest.mark.parametrize("name", [pytest.param(OLD, marks=pytest.mark.full), NEW])
def test_a_line_for_4_1_in_a_job_whose_name_has_a_dot(
    cluster: Cluster, rig: None, name: str
) -> None:
    """5.0 cuts names at the first dot, and would start a program called none."""
    line = ["mpirun", "-q", "-np", "4", "-bind-to", "none", "-map-by", "slot", RING]
    job = mpijob(
        cluster, images.image(name), workers=2, slots=2, name="pi.v2", launcher_args=line
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job, slots=2)
    assert ("-bind-to as --bind-to" in job.launcher.stderr()) == (name == NEW)


@pytest.mark.full
@pytest.mark.parametrize("name", images.NAMES)
def test_hosts_on_the_line_of_a_job_whose_name_has_a_dot(
    cluster: Cluster, rig: None, name: str
) -> None:
    """Named as in the job's hostfile; 5.0 gets other names there, and so on the line too."""
    second, first = (f"pi.v2-worker-{number}.pi.v2.default.svc" for number in (1, 0))
    line = ["mpirun", "--host", f"{second}:2,{first}:1", RING]
    job = mpijob(
        cluster, images.image(name), workers=2, slots=2, name="pi.v2", launcher_args=line
    ).start()
    assert job.wait(PATIENCE) == 0
    hosts = sorted(host for _, _, host in ranks(job.launcher.stdout()))
    assert hosts == ["pi.v2-worker-0", "pi.v2-worker-1", "pi.v2-worker-1"]


@pytest.mark.parametrize(
    ("name", "option"),
    [(NEW, "--novm"), pytest.param(OLD, "--stop-on-exec", marks=pytest.mark.full)],
)
def test_an_option_of_the_other_version_ends_the_launcher_at_once(
    cluster: Cluster, rig: None, name: str, option: str
) -> None:
    job = mpijob(cluster, images.image(name), workers=1, launcher_args=["mpirun", option, RING])
    job.launcher.start()  # alone: it waits for nobody
    assert job.wait(PATIENCE) == 2
    assert job.launcher.termination_log().startswith("usage: ")
    assert f"has no option {option}" in job.launcher.termination_log()


# Another MPI has its name on PATH; the image's own is in a folder of its own.
MOVED = """
mkdir -p /opt/other/bin
for name in mpirun orted prted prterun; do
    [ ! -e /usr/bin/$name ] || ln -s /usr/bin/$name /opt/other/bin/$name
done
printf '#!/bin/sh\\necho "mpirun (Open MPI) %s"\\n' "$1" > /usr/local/bin/mpirun
chmod 755 /usr/local/bin/mpirun
"""
BY_PATH, BY_PREFIX = ("/opt/other/bin/mpirun",), ("/usr/bin/mpirun", "--prefix", "/opt/other")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        pytest.param(OLD, BY_PATH, id="4.1-path"),
        pytest.param(NEW, BY_PATH, id="5.0-path", marks=pytest.mark.full),
        pytest.param(OLD, BY_PREFIX, id="4.1-prefix", marks=pytest.mark.full),
        pytest.param(NEW, BY_PREFIX, id="5.0-prefix", marks=pytest.mark.full),
    ],
)
def test_an_mpi_that_is_not_the_one_on_path(
    cluster: Cluster, rig: None, name: str, line: tuple[str, ...]
) -> None:
    other = {OLD: "5.0.11", NEW: "4.1.4"}[name]
    image = images.image(name).after("sh", "-ec", MOVED, "sh", other)
    job = mpijob(cluster, image, workers=2, launcher_args=[*line, "-n", "2", RING]).start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    # It is the image's, and nobody is blamed for what PATH has.
    assert other not in job.launcher.stderr()


# Two ranks of one host, and a message that is too large for what they share.
LARGE = """
import ctypes
mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
names = ("ompi_mpi_comm_world", "ompi_mpi_byte")
world, byte = (ctypes.byref(ctypes.c_char.in_dll(mpi, name)) for name in names)
mpi.MPI_Init(None, None)
rank, size = ctypes.c_int(), 1 << 20
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
data = ctypes.create_string_buffer((b"x" if rank.value else b"y") * size, size)
if rank.value:
    mpi.MPI_Recv(data, size, byte, 0, 0, world, None)
else:
    mpi.MPI_Send(data, size, byte, 1, 0, world)
print("rank", rank.value, data.raw == b"y" * size, flush=True)
mpi.MPI_Finalize()
"""


@pytest.mark.parametrize("name", [OLD, pytest.param(NEW, marks=pytest.mark.full)])
def test_memory_of_other_processes_that_may_not_be_read(
    cluster: Cluster, rig: None, name: str
) -> None:
    job = mpijob(
        cluster,
        images.image(name),
        workers=1,
        slots=2,
        launcher_args=["/opt/mpiboot/bin/python3", "-c", LARGE],
        worker={"refused_calls": ("process_vm_readv", "process_vm_writev")},
    ).start()
    assert job.wait(PATIENCE) == 0
    assert sorted(job.launcher.stdout().splitlines()) == ["rank 0 True", "rank 1 True"]
    assert "process_vm_readv is refused (Operation not permitted)" in job.launcher.stderr()
    assert "errno" not in job.launcher.stdout() + job.launcher.stderr()


@pytest.mark.full
@pytest.mark.parametrize("name", [OLD])
def test_what_a_refused_read_looks_like(cluster: Cluster, rig: None, name: str) -> None:
    """The same with the user's own wish for it, which is kept: what the row above is spared."""
    job = mpijob(
        cluster,
        images.image(name),
        workers=1,
        slots=2,
        launcher_args=["/opt/mpiboot/bin/python3", "-c", LARGE],
        env={"OMPI_MCA_btl_vader_single_copy_mechanism": "cma", "MPIBOOT_TIMEOUT": "60"},
        worker={"refused_calls": ("process_vm_readv", "process_vm_writev")},
    ).start()
    until(lambda: "errno = 1" in job.launcher.stderr())


@ONE_IMAGE
@pytest.mark.full
def test_a_node_of_a_gpu_that_the_kernel_has_not(cluster: Cluster, image: Image) -> None:
    """A file stands in for the node; the machine of the tests has no GPU that could be lost."""
    made = {1: {"command": ["sh", "-c", "touch /dev/nvidia0; exec mpiboot worker"]}}
    job = mpijob(cluster, image, workers=2, launcher_args=[RING], each_worker=made).start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    message = [line for line in job.launcher.stderr().splitlines() if "[gpus]" in line]
    assert len(message) == 2, message
    assert "1 of 1 GPUs in /dev, the kernel has no more" in message[0]
    assert job.workers[1].hostname in message[0]
