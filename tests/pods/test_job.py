"""Whole jobs: a launcher and workers as pods, real sshd, real mpirun, a real MPI program."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from mpiboot import __version__
from tests import pages
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import (
    MOMENT,
    NEW,
    NO_MPI,
    OLD,
    OLD_IMAGE,
    ONE_IMAGE,
    PATIENCE,
    RING,
    crossed,
    each,
    ended,
    held,
    hosts,
    let_go,
    ranks,
    refused,
    spanned,
    spans,
)
from tests.pods.oci import PodSpec
from tests.pods.operator import Job, KeyPair, mpijob
from tests.pods.volumes import Files
from tests.waiting import until


def test_every_slot_runs_a_rank_by_the_control_link(cluster: Cluster, image: Image) -> None:
    shape: dict[str, Any] = {"workers": 3, "slots": 2, "data_link": "net1"}
    job = spanned(cluster, image, "mpirun", RING, "--bytes", "20", **shape)
    for worker in job.workers:
        assert worker.counters("eth0").tx > 15_000_000
        # Neighbour discovery and multicast reports are all that crosses the other link.
        assert worker.counters("net1").tx < 20_000


@ONE_IMAGE
def test_a_good_job_is_a_dozen_lines_of_the_log(cluster: Cluster, image: Image) -> None:
    """A record each: nothing is wrapped, nothing lacks the prefix by which grep finds it."""
    # mpirun is looked at every 0.25 s: ranks that wait for the line leave the time to write it.
    job = held(cluster, image, data_link="net1", launcher={"env": {"MPIBOOT_LOG_LEVEL": "info"}})
    let_go(job)
    assert job.wait(PATIENCE) == 0
    lines = [line for line in job.launcher.stderr().splitlines() if not line.startswith("[")]
    assert len(lines) <= 12, lines
    assert [line for line in lines if not line.startswith("mpiboot: ")] == []
    assert lines[0].startswith(f"mpiboot: mpiboot {__version__}, role launcher (")
    assert lines[-1].startswith("mpiboot: job ended: ")
    for part in (
        "2 ranks on 2 hosts of",
        "control network",
        "data network: TCP",
        "daemons started",
    ):
        assert [line for line in lines if part in line], part
    # The operator's own variables are not the user's settings.
    assert not [line for line in lines if "your settings" in line]


def test_a_whole_mpirun_line_as_in_a_manifest(cluster: Cluster, image: Image) -> None:
    """What it sets, and what each pod has of its own, reaches the ranks byte for byte."""
    value = 'a b;c,"d"$HOME`x`\\\'é\nline two'
    show = "import os; print(ascii([os.environ[x] for x in ('GREETING', 'ONLY_HERE')]))"
    script = f'{MOMENT}exec python3 -c "{show}"'
    line = ("mpirun", "-n", "2", "-x", "GREETING=two words", "sh", "-c", script)
    job = ended(cluster, image, *line, worker={"env": {"ONLY_HERE": value}})
    assert job.launcher.stdout().splitlines() == [ascii(["two words", value])] * 2


# 5.0 ignores the operator's variables: by itself it would run such a job on the launcher alone.
COUNTS = f"""
mpiboot launcher -- mpirun -n 1 {RING}
mpiboot launcher -- mpirun -np 2 {RING}
mpiboot launcher -- mpirun {RING}
mpiboot launcher -- mpirun -n 9 {RING}
"""


def test_as_many_ranks_as_asked_for_run_on_the_first_slots(cluster: Cluster, image: Image) -> None:
    """More than there are is for mpirun to refuse: status and words are its own."""
    job = ended(cluster, image, code=1, slots=2, launcher_command=["sh", "-c", COUNTS])
    one, two = (worker.hostname for worker in job.workers)
    four = [(0, 4, one), (1, 4, one), (2, 4, two), (3, 4, two)]
    assert ranks(job.launcher.stdout()) == sorted([(0, 1, one), (0, 2, one), (1, 2, one), *four])
    message = " ".join((job.launcher.stdout() + job.launcher.stderr()).split())
    assert "There are not enough slots available in the system" in message


@NO_MPI
def test_names_and_servers_come_one_by_one(cluster: Cluster, image: Image) -> None:
    """By a resolver that keeps negative answers for a while, and with an sshd that is late."""
    cluster.dns.negative_cache(3)
    script = "until [ -e /tmp/go ]; do sleep 0.1; done; exec mpiboot worker"
    late = {1: {"command": ["sh", "-c", script]}}
    job = mpijob(cluster, image, workers=3, each_worker=late).start(publish=False)
    first, *others = job.workers
    until(lambda: "DNS for pi-worker-0, pi-worker-1, pi-worker-2" in job.launcher.stderr())
    first.publish()
    until(lambda: "1/3 hosts ready" in job.launcher.stderr())
    for worker in others:
        worker.publish()
    until(lambda: "connection refused" in job.launcher.stderr())
    others[0].shell("touch /tmp/go")
    assert job.wait(PATIENCE) == 0
    spans(job)
    assert "NXDOMAIN" in job.launcher.stderr()


@NO_MPI
@pytest.mark.parametrize("never", ["resolves", "answers"])
def test_a_worker_that_never_comes_is_named(cluster: Cluster, image: Image, never: str) -> None:
    """The time is over when the other worker is ready."""
    job = mpijob(
        cluster,
        image,
        env={"MPIBOOT_TIMEOUT": "12"},
        each_worker={1: {"command": ["sleep", "1000"]}},
    )
    job.workers[0].start().publish()
    if never == "answers":
        job.workers[1].start().publish()
    until(lambda: "listens" in job.workers[0].stderr())
    job.launcher.start()
    unknown = never == "resolves"
    assert job.wait(PATIENCE) == (68 if unknown else 69)
    message = job.launcher.termination_log()
    assert message.startswith("names-unresolved: " if unknown else "workers-unreachable: ")
    assert job.workers[1].fqdn.removesuffix(".cluster.local") in message
    assert ("NXDOMAIN" if unknown else "connection refused") in message
    assert "pi-worker-0" not in message
    assert job.launcher.stdout() == ""


STOCK_SSHD = (
    "mkdir -p /run/sshd; ssh-keygen -A; exec /usr/sbin/sshd -De -f /dev/null -o UsePAM=no "
    "-o AuthorizedKeysFile=/root/.ssh/authorized_keys -o StrictModes=no"
)
# A worker whose image runs sshd itself, without mpiboot.
STOCK = {"command": ["sh", "-c", STOCK_SSHD]}
DENIES = (
    "mkdir -p /run/sshd; cp /root/.ssh/id_rsa /tmp/host; chmod 600 /tmp/host; "
    "exec /usr/sbin/sshd -De -f /dev/null -o UsePAM=no -h /tmp/host -o AuthorizedKeysFile=/nowhere"
)
KEYS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # Its sshd shows that other key, so it is the host key that differs first.
    "another key": (
        {"volumes": [Files("/root/.ssh", KeyPair.make().files(), 0o600)]},
        ("host-key-differs: ",),
    ),
    "denied": ({"command": ["sh", "-c", DENIES]}, ("ssh-denied: ",)),
    "another host key": (STOCK, ("host-key-differs: ", "args: [worker]")),
}


@NO_MPI
@pytest.mark.parametrize(("worker", "message"), KEYS.values(), ids=KEYS)
def test_a_worker_of_another_key_is_refused(
    cluster: Cluster, image: Image, worker: dict[str, Any], message: tuple[str, ...]
) -> None:
    env = {"MPIBOOT_TIMEOUT": "20"}  # another host key is waited on
    said = refused(cluster, image, 77, *message, "pi-worker-1", each_worker={1: worker}, env=env)
    assert said.count("SHA256:") >= (0 if "ssh-denied" in said else 2)


@NO_MPI
def test_another_host_key_is_taken_when_asked(cluster: Cluster, image: Image) -> None:
    spanned(cluster, image, each_worker={1: STOCK}, env={"MPIBOOT_HOST_KEYS": "accept-new"})


# Open MPI 4.1 ignores the count of the first form without a word. Of the other, its variable of the
# operator's tells the slots, which 5.0 does not read; mpirun's copy has numbers anyway.
@crossed("line", ["{}:2 # its slots=9\r\n", "{}\n"], ids=["colon", "bare"])
def test_slots_that_are_not_in_the_usual_form(cluster: Cluster, image: Image, line: str) -> None:
    lines = [line.format(f"pi-worker-{index}.pi.default.svc") for index in range(2)]
    spanned(cluster, image, slots=2, hostfile="".join(["# the first rack\r\n", *lines]))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # Of both hosts one has neither a daemon nor a rank: mpirun's own choice, and no timeout.
        (OLD, ("--mca", "orte_max_vm_size", "1")),
        (OLD, ("--map-by", "slot")),
        pytest.param(NEW, ("--map-by", "slot:pe=1"), marks=pytest.mark.full),
    ],
    ids=["fewer daemons", "4.1", "5.0"],
)
def test_a_host_without_a_rank_is_named_and_the_job_goes_on(
    cluster: Cluster, rig: None, name: str, words: tuple[str, ...]
) -> None:
    line = ("mpirun", "-n", "2", *words, RING, "--sleep", "14")
    env = {"MPIBOOT_LAUNCH_TIMEOUT": "5"}
    job = ended(cluster, images.image(name), *line, slots=2, env=env)
    unused = "no rank runs on 1 of 2 hosts: pi-worker-1.pi.default.svc"
    assert unused in job.launcher.stderr()


@NO_MPI
@pytest.mark.parametrize(
    "listed", ["pi-worker-7.pi.default.svc slots=2", ""], ids=["other", "none"]
)
def test_only_hosts_of_the_line_are_awaited(cluster: Cluster, image: Image, listed: str) -> None:
    """Whatever the hostfile has, which may lack them or have a host that never comes."""
    hosts = ",".join(f"pi-worker-{index}.pi.default.svc:1" for index in range(2))
    line = ("mpirun", "-n", "2", "-host", hosts, RING)
    # The cluster publishes the names of pods that stand here.
    text = f"# pi-worker-0. pi-worker-1.\n{listed}\n"
    job = spanned(cluster, image, *line, hostfile=text)
    assert "2 hosts of the mpirun line" in job.launcher.stderr()


@NO_MPI
def test_start_sshd_makes_a_worker_without_any_platform(cluster: Cluster, image: Image) -> None:
    env = {"K_MPI_JOB_ROLE": "", "START_SSHD": "true"}
    job = spanned(cluster, image, worker={"args": [], "env": env})
    assert "START_SSHD" in job.workers[0].stderr()
    # Only the MPI Operator's workers may end with the job: others are started again.
    assert all(worker.running for worker in job.workers)


@ONE_IMAGE
def test_several_programs_in_one_line(cluster: Cluster, image: Image) -> None:
    """The daemons of 5.0.7 die of it, and its mpirun may return 0: that is never a success."""
    line = ("mpirun", "-n", "2", RING, ":", "-n", "2", RING)
    if image.name == NEW:
        job = ended(cluster, image, *line, slots=2, code=69)
        assert "the daemons of 5.0.7 die at the start" in job.launcher.stderr()
    else:
        spanned(cluster, image, *line, slots=2)


def test_each_program_of_a_line_gets_what_is_forwarded(cluster: Cluster, rig: None) -> None:
    """With 4.1 ``-x`` is an option of one program."""
    show = ("sh", "-c", 'echo "$NCCL_DEBUG $NCCL_SOCKET_IFNAME"')
    line = ("mpirun", "-n", "1", *show, ":", "-n", "1", *show)
    env = {"env": {"NCCL_DEBUG": "VERSION"}}
    job = ended(cluster, images.image(OLD), *line, launcher=env)
    assert job.launcher.stdout().splitlines() == ["VERSION =eth0"] * 2


OTHER_DOMAIN = "k8s.example.org"


@pytest.mark.parametrize(
    ("domain", "searched", "env"),
    [
        pytest.param("cluster.local", True, {}, id="usual", marks=pytest.mark.full),
        pytest.param(OTHER_DOMAIN, True, {}, id="search list"),
        # With dnsPolicy None there is no search list to read the domain from.
        pytest.param(OTHER_DOMAIN, False, {"MPIBOOT_CLUSTER_DOMAIN": OTHER_DOMAIN}, id="setting"),
    ],
)
@NO_MPI
def test_every_name_is_asked_for_in_its_long_form(
    cluster: Cluster, image: Image, domain: str, *, searched: bool, env: dict[str, str]
) -> None:
    """The operator's hostfile ends in .svc; what comes behind is not cluster.local everywhere."""
    cluster.dns.serve(domain)
    env = env or {"MPIBOOT_REWRITE_FQDN": "on"}
    launcher = {"cluster_domain": domain, "cluster_dns": searched, "env": env}
    job = spanned(cluster, image, launcher=launcher, worker={"cluster_domain": domain})
    assert f"pi-worker-0.pi.default.svc.{domain}" in job.launcher.stderr()
    assert domain == "cluster.local" or "cluster.local" not in job.launcher.stderr()


def test_two_versions_of_mpi_fail_and_are_named(cluster: Cluster, rig: None) -> None:
    old, new = map(images.image, images.NAMES)
    job = ended(cluster, old, code=127, each_worker={1: {"image": new}})
    assert "program-missing" in job.launcher.termination_log()
    (message,) = [text for text in job.launcher.stderr().splitlines() if "[mpi-versions]" in text]
    assert [word for word in ("pi-worker-1", "4.1", "5.0") if word not in message] == []


@ONE_IMAGE
@pytest.mark.full
def test_a_hidden_hostfile_runs_no_rank_in_the_launcher(cluster: Cluster, image: Image) -> None:
    """A line's own launcher module starts no agent: the witness must say so."""
    line = ["mpirun", "--mca", "plm", "isolated", "-n", "2", RING, "--sleep", "30"]
    job = mpijob(cluster, image, launcher_args=line).start()
    assert job.wait(PATIENCE) != 0
    assert job.launcher.hostname not in hosts(job)


@pytest.mark.full
def test_without_a_parent_mpirun_is_the_container(cluster: Cluster, image: Image) -> None:
    env = {"MPIBOOT_SUPERVISE": "off"}
    job = ended(cluster, image, "mpirun", RING, "--exit", "3", code=3, launcher={"env": env})
    spans(job)
    assert "job ended" not in job.launcher.stderr()


@pytest.mark.full
def test_a_hostfile_that_names_the_user(cluster: Cluster, image: Image) -> None:
    spanned(
        cluster,
        image,
        ssh_mount="/home/mpiuser/.ssh",
        worker={"user": 1000, "env": {"MPIBOOT_WORKER_EXIT": "never"}},
        launcher={"env": {"MPIBOOT_SSH_KEY": "/home/mpiuser/.ssh"}},
        hostfile="".join(f"mpiuser@pi-worker-{n}.pi.default.svc slots=1\n" for n in range(2)),
    )


@pytest.mark.full
def test_a_parameter_of_mpis_that_is_empty(cluster: Cluster, image: Image) -> None:
    """A manifest's template may leave a value out; 5.0 by itself crashes of it."""
    env = {"PRTE_MCA_oob_base_verbose": "", "OMPI_MCA_mpi_yield_when_idle": ""}
    spanned(cluster, image, launcher={"env": env})


@ONE_IMAGE
def test_a_line_for_4_1_in_a_job_whose_name_has_a_dot(cluster: Cluster, image: Image) -> None:
    """5.0 cuts names at the first dot, and would start a program called none."""
    line = ("mpirun", "-np", "4", "-bind-to", "none", "-map-by", "slot", RING)
    job = spanned(cluster, image, *line, slots=2, name="pi.v2")
    assert ("-bind-to as --bind-to" in job.launcher.stderr()) == (image.name == NEW)


@ONE_IMAGE
def test_an_option_of_the_other_version_is_mpiruns_error(cluster: Cluster, image: Image) -> None:
    option, code = ("--novm", 213) if image.name == NEW else ("--stop-on-exec", 1)
    job = ended(cluster, image, "mpirun", option, RING, code=code)
    message = " ".join(job.launcher.termination_log().split())
    assert f"mpirun ended with {code} and started no daemon on pi-worker-0" in message
    assert f"{option}: an option that mpiboot does not know" in message


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
    ("image", "line"),
    [
        pytest.param(OLD, BY_PATH, id="4.1-path"),
        pytest.param(NEW, BY_PATH, id="5.0-path", marks=pytest.mark.full),
        pytest.param(OLD, BY_PREFIX, id="4.1-prefix", marks=pytest.mark.full),
        pytest.param(NEW, BY_PREFIX, id="5.0-prefix", marks=pytest.mark.full),
    ],
    indirect=["image"],
)
def test_an_mpi_that_is_not_the_one_on_path(
    cluster: Cluster, image: Image, line: tuple[str, ...]
) -> None:
    other = {OLD: "5.0.11", NEW: "4.1.4"}[image.name]
    moved = image.after("sh", "-ec", MOVED, "sh", other)
    job = spanned(cluster, moved, *line, "-n", "2", RING)
    # The line's MPI is the image's own; what PATH has is not reported.
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


NO_READING = {"refused_calls": ("process_vm_readv", "process_vm_writev")}
PROGRAM = ("mpirun", "/opt/mpiboot/bin/python3", "-c", LARGE)


@OLD_IMAGE
def test_memory_of_other_processes_that_may_not_be_read(cluster: Cluster, image: Image) -> None:
    job = ended(cluster, image, *PROGRAM, workers=1, slots=2, worker=NO_READING)
    assert sorted(job.launcher.stdout().splitlines()) == ["rank 0 True", "rank 1 True"]
    assert "process_vm_readv is refused (Operation not permitted)" in job.launcher.stderr()
    assert "errno" not in job.launcher.stdout() + job.launcher.stderr()


@each("openmpi-5.0", "openmpi-4.1", "mpich-4.0", "mpich-5.0", "intel-mpi")
def test_it_starts_without_a_key(cluster: Cluster, rig: None, name: str) -> None:
    image = images.image(name).with_files({"/hosts": "localhost slots=2\n"})
    pods = [
        cluster.pod(
            PodSpec(name=word, image=image, args=["launcher", "--hostfile", "/hosts", *line])
        )
        for word, line in (
            ("good", ["mpirun", RING]),
            ("script", ["sh", "-c", f"ssh -V || :; mpirun {RING}"]),
            ("bad", ["mpirun", "/no-such-program"]),
        )
    ]
    *alone, bad = (pod.start() for pod in pods)
    for good in alone:
        assert good.wait(PATIENCE) == 0, good.stderr()
        said = sorted(good.stdout().splitlines())
        assert said == [f"rank {rank} of 2 on {good.hostname}" for rank in range(2)]
    code = bad.wait(PATIENCE)
    if name != "intel-mpi":  # whose own mpirun may be killed by SIGPIPE then
        assert code == 127, bad.stderr()
        assert "the program /no-such-program does not exist" in bad.stderr()
    assert code


@each("openmpi-4.1", "openmpi-5.0", "mpich-4.0", "mpich-5.0", "intel-mpi")
def test_a_hostfile_may_be_a_pipe(cluster: Cluster, rig: None, name: str) -> None:
    """By a plain mpirun too; each of these pipes can be read once, by one process."""
    flag, start = "--hostfile" if "openmpi" in name else "-f", "mpiboot mpirun -n 2"
    # 4.0.2 may never end.
    rank = "sh -c 'echo rank $PMI_RANK of 2 on $(hostname)'" if name == "mpich-4.0" else RING
    script = (
        f"set -e; h=/etc/mpi/hostfile; {start} {flag} <(grep -v bad $h) {rank}; "
        f"grep . $h | {start} {flag} /dev/stdin {rank}; "
        f"{start} {flag} /dev/fd/3 {rank} 3< <(cat $h); "
        f"env MPIBOOT_HOSTFILE=<(cat $h) {start} {rank}"
    )
    env = {"env": {"MPIBOOT_WORKER_EXIT": "never"}}
    job = ended(
        cluster,
        images.image(name),
        launcher_command=("bash", "-c", script),
        launcher=env,
        worker=env,
    )
    assert hosts(job) == ["pi-worker-0"] * 4 + ["pi-worker-1"] * 4


WHERE = 'echo "$(hostname)" $(python3 -c "import os; print(os.sched_getaffinity(0))")'
FILES = {
    "/etc/ssh/ssh_config.d/own.conf": "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n",
}


def started(cluster: Cluster, image: Image, *, cpus: str = "") -> Job:
    """Pods in which both can be tried: a launcher that does nothing, and workers."""
    job = mpijob(
        cluster,
        image.with_files(FILES),
        slots=2,
        launcher_command=["sleep", "3600"],
        worker={"cpus": cpus},
        launcher={"env": {"MPIBOOT_LOG_LEVEL": "error", "OMPI_ALLOW_RUN_AS_ROOT": "1"}},
    ).start()
    job.launcher.shell("mpiboot wait")
    return job


def bound(job: Job, words: str, *before: str) -> list[str]:
    """The host and the CPUs of each rank of a line; nothing where mpirun refuses it."""
    own = ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "PRTE_MCA_prte_default_hostfile=/etc/mpi/hostfile")
    line = ("env", *own, *before, "mpirun", *shlex.split(words), "sh", "-c", WHERE)
    done = job.launcher.exec(*line, timeout=PATIENCE)
    assert (done.returncode == 0) == bool(done.stdout), f"{line}\n{done.stdout}{done.stderr}"
    return sorted(done.stdout.splitlines())


def test_ranks_are_not_bound_where_pods_share_cpus(cluster: Cluster, image: Image) -> None:
    """What a line says of CPUs stands: `same_lines`."""
    job = started(cluster, image)
    cpus = job.workers[0].shell("python3 -c 'import os; print(os.sched_getaffinity(0))'")
    found = bound(job, "-n 2", "mpiboot", "launcher")
    assert [words.split(maxsplit=1)[1] for words in found] == [cpus] * 2
    assert "other pods of the node may use" in job.launcher.shell("mpiboot plan -- mpirun true")


@ONE_IMAGE
def test_ranks_are_bound_where_each_pod_has_a_cpuset(cluster: Cluster, image: Image) -> None:
    job = started(cluster, image, cpus="0")
    plain = bound(job, "-n 2 --map-by node --bind-to core")
    assert [words.split()[1] for words in plain] == ["{0}", "{0}"]
    assert bound(job, "-N 1", "mpiboot", "launcher") == plain
    assert re.search(r"cpus.usable +1\n", job.workers[0].shell("mpiboot facts"))
    message = job.launcher.shell("mpiboot plan -- mpirun -n 2 true")
    # Two slots, and a core for one rank alone.
    assert "pi-worker-0.pi.default.svc, pi-worker-1.pi.default.svc has fewer cores" in message


BOTH = "pi-worker-0.pi.default.svc, pi-worker-1.pi.default.svc has no such link"


@OLD_IMAGE
def test_a_link_that_no_worker_has_is_said_before_the_start(cluster: Cluster, image: Image) -> None:
    """MPI itself ends with "unable to reach" then, far from the cause."""
    line = ["mpirun", "--mca", "btl_tcp_if_include", "ens5", RING]
    job = mpijob(cluster, image, launcher_args=line).start()
    assert job.wait(PATIENCE) != 0
    before, starting, _ = job.launcher.stderr().partition("mpiboot: starting mpirun")
    assert starting
    message = f"OMPI_MCA_btl_tcp_if_include=ens5: {BOTH} (there are lo, eth0)"
    assert message in before


@ONE_IMAGE
@pytest.mark.full
def test_a_link_of_the_daemons_that_the_launcher_lacks(cluster: Cluster, image: Image) -> None:
    name = "oob_tcp_if_include" if image.name == OLD else "prte_if_include"
    prefix = "OMPI_MCA_" if image.name == OLD else "PRTE_MCA_"
    job = ended(
        cluster, image, "mpirun", RING, code=72, launcher={"env": {f"{prefix}{name}": "ens5"}}
    )
    message = f"{prefix}{name}=ens5: no such link in the launcher's pod (there are lo, eth0)"
    assert message in job.launcher.stderr()
    assert "starting mpirun" not in job.launcher.stderr()


ETC = "/etc/openmpi/openmpi-mca-params.conf"
# Horovod's image writes these (its Dockerfile.test.cpu), TensorFlow's of the MPI Operator too.
HOROVOD = "hwloc_base_binding_policy = none\nrmaps_base_mapping_policy = slot\n"
HOROVOD += "btl_tcp_if_exclude = lo,docker0\n"


@crossed("of", ["the image", "a worker"])
def test_links_excluded_by_an_mpi_file(cluster: Cluster, image: Image, of: str) -> None:
    """Each rank reads the file of its own pod, whose image may be another one."""
    there = image.with_files({ETC: HOROVOD})
    workers_own = of == "a worker"
    worker = {"image": there} if workers_own else {}
    chosen = image if workers_own else there
    job = spanned(cluster, chosen, data_link="net1", worker=worker)
    assert "mutually exclusive" not in job.launcher.stderr()
    where = f"set in {ETC}{' of pi-worker-0.pi.default.svc' if workers_own else ''})"
    assert f"not set: OMPI_MCA_btl_tcp_if_exclude is {where}" in job.launcher.stderr()


@ONE_IMAGE
@pytest.mark.full
def test_the_mapping_of_the_users_file_stands(cluster: Cluster, image: Image) -> None:
    names = {"/root/.openmpi/mca-params.conf": "rmaps_base_mapping_policy = node\n"}
    names |= {"/root/.prte/mca-params.conf": "rmaps_default_mapping_policy = node\n"}
    job = ended(cluster, image.with_files(names), "mpirun", "-n", "2", RING, slots=2)
    hosts = [host for _, _, host in ranks(job.launcher.stdout())]
    assert hosts == ["pi-worker-0", "pi-worker-1"]


USUAL = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
THEIRS = {"PATH": f"/opt/conda/bin:{USUAL}", "LD_LIBRARY_PATH": "/opt/conda/lib"}
# A name that only the folder of the workers' own image has.
THEIR_FILES = {"/opt/conda/bin/where": f"#!/bin/sh\n{MOMENT}echo theirs $LD_LIBRARY_PATH\n"}


@crossed("words", [(), ("-x", "LD_LIBRARY_PATH")], ["own", "-x"])
def test_workers_of_another_image_find_their_own_programs(
    cluster: Cluster, image: Image, words: tuple[str, ...]
) -> None:
    job = ended(
        cluster,
        image,
        "mpirun",
        *words,
        "where",
        launcher={"env": {"LD_LIBRARY_PATH": "/opt/launcher/lib"}},
        worker={"env": THEIRS, "image": image.with_files(THEIR_FILES, mode=0o755)},
    )
    paths = [line.split()[1] for line in job.launcher.stdout().splitlines()]
    found = "/opt/launcher/lib" if words else "/opt/conda/lib"
    assert [found in path for path in paths] == [True] * 2
    assert "has another one of its own" in job.launcher.stderr()


# What torch.distributed does with its variables: ranks connect to where rank 0 listens.
MEET = """
import os, socket, sys, time
names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"
rank, size, local, here, port = (int(os.environ[name]) for name in names)
place = os.environ["MASTER_ADDR"], port
if rank:
    end = time.monotonic() + 60
    while True:
        try:
            meeting = socket.create_connection(place, timeout=60)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    meeting.sendall(f"{rank} of {size}, {local} of {here} on {socket.gethostname()}\\n".encode())
    meeting.shutdown(socket.SHUT_WR)
    meeting.recv(1)
else:
    server = socket.create_server(place)
    server.settimeout(60)
    peers = [server.accept()[0] for _ in range(size - 1)]
    print(f"0 of {size}, {local} of {here} on {socket.gethostname()} {sys.argv[1:]}")
    for peer in peers:
        print(peer.makefile().read(), end="")
    for peer in peers:
        peer.close()
"""


@each("openmpi-5.0", "openmpi-4.1", "mpich-4.0", "intel-mpi")
def test_ranks_know_who_they_are_and_meet(cluster: Cluster, rig: None, name: str) -> None:
    """As the page has it; each MPI really sets the variables that the table names."""
    (container,) = yaml.safe_load(pages.named("torchrun"))
    job = ended(
        cluster,
        images.image(name).with_files({"/train.py": MEET}),
        *container["args"],
        slots=2,
        launcher={"env": {item["name"]: item["value"] for item in container["env"]}},
    )
    first, *others = job.launcher.stdout().splitlines()
    assert first == "0 of 4, 0 of 2 on pi-worker-0 ['--epochs', '3']"
    assert sorted(others) == [
        "1 of 4, 1 of 2 on pi-worker-0",
        "2 of 4, 0 of 2 on pi-worker-1",
        "3 of 4, 1 of 2 on pi-worker-1",
    ]


HOSTNAMES = ["mpirun", "sh", "-c", 'echo "$HOSTNAME"']


def fails(job: Job, code: int, reference: str, *said: str) -> None:
    """The launcher ends with one line for people, which is also the termination message's."""
    assert job.wait(PATIENCE) == code
    errors = [line for line in job.launcher.stderr().splitlines() if "error: [" in line]
    assert len(errors) == 1, errors
    assert errors[0].startswith(f"mpiboot: error: [{reference}] ")
    assert job.launcher.termination_log().startswith(f"{reference}: ")
    for text in said:
        assert text in errors[0]
    assert "Traceback" not in job.launcher.stderr()
    assert job.launcher.stdout() == ""


def names(job: Job) -> list[str]:
    return sorted(job.launcher.stdout().split())


def test_a_hostfile_that_is_written_late_is_waited_for(cluster: Cluster, one: Image) -> None:
    job = mpijob(cluster, one, workers=1, launcher_args=HOSTNAMES)
    whole = job.config.files
    job.config.update({})
    job.start()
    until(lambda: "waiting for the hostfile: /etc/mpi/hostfile" in job.launcher.stderr())
    job.config.update(whole)
    assert job.wait(PATIENCE) == 0
    assert names(job) == ["pi-worker-0"]


def test_of_two_hostfiles_the_users_is_used(cluster: Cluster, one: Image) -> None:
    mine = Files("/etc/mine", {"hosts": "pi-worker-1.pi.default.svc slots=1\n"})
    details = {"env": {"MPI_HOSTFILE": "/etc/mine/hosts"}, "volumes": [mine]}
    job = ended(cluster, one, *HOSTNAMES, launcher=details)
    assert names(job) == ["pi-worker-1"]
    (line,) = [x for x in job.launcher.stderr().splitlines() if " differs (" in x]
    assert "OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile differs (2 hosts, 2 slots)" in line
    assert "mpiboot uses /etc/mine/hosts (named by MPI_HOSTFILE)" in line


def test_a_key_that_this_user_may_not_read_is_named(cluster: Cluster, one: Image) -> None:
    private = Files("/home/mpiuser/.ssh", KeyPair.make().files(), 0o600)
    details = {"volumes": [private]}
    job = mpijob(
        cluster,
        one,
        workers=1,
        launcher_args=HOSTNAMES,
        user=1000,
        launcher=details,
    ).start()
    fails(job, 77, "ssh-key", "/home/mpiuser/.ssh/id_rsa has mode 0600 of uid 0")


@pytest.mark.full
def test_a_user_who_can_write_nowhere_is_told_what_to_mount(cluster: Cluster, one: Image) -> None:
    """No emptyDir, and in the place of /dev/shm a volume that is nobody's to write."""
    pod: dict[str, Any] = {"read_only_root": True, "volumes": [Files("/dev/shm", {"a": ""})]}
    job = mpijob(cluster, one, workers=1, launcher=pod, worker=pod, user=1000).start()
    for wrong in job.pods:
        assert wrong.wait(PATIENCE) == 73
        (line,) = [line for line in wrong.stderr().splitlines() if "error: [" in line]
        assert line.startswith("mpiboot: error: [runtime-folder] ")
        assert "emptyDir" in wrong.stderr()


def test_workers_without_args_run_the_operators_sshd(cluster: Cluster, one: Image) -> None:
    """Without shims and settings the image's own sshd ends: it has no host key."""
    job = mpijob(
        cluster,
        one,
        workers=1,
        launcher_args=HOSTNAMES,
        launcher={"env": {"MPIBOOT_TIMEOUT": "6"}},
        worker_args=(),
        worker={"image": one.without("/etc/ssh/sshd_config.d/mpi.conf")},
    )
    # The time is over when its name is known, and not before.
    job.workers[0].start().publish()
    job.launcher.start()
    fails(job, 69, "workers-unreachable", "pi-worker-0")
    assert "no hostkeys available" in job.workers[0].stderr()
    assert "args: [worker]" in job.launcher.stderr()


def test_wait_is_an_init_container(cluster: Cluster, one: Image) -> None:
    job = mpijob(cluster, one, launcher_args=["wait"]).start(publish=False)
    until(lambda: "NXDOMAIN" in job.launcher.stderr())
    job.publish()
    assert job.wait(PATIENCE) == 0
    assert "2 hosts ready in" in job.launcher.stderr()
    assert job.launcher.stdout() == ""


def mpiboot(job: Job, *words: str) -> tuple[int, str]:
    """What somebody with `kubectl exec` in the launcher sees on stdout."""
    done = job.launcher.exec("mpiboot", *words)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def ready(cluster: Cluster, image: Image, env: dict[str, str] | None = None) -> Job:
    """A launcher that only stays, and workers that serve."""
    stay = ["sleep", "1000"]
    job = mpijob(cluster, image, launcher_command=stay, env=env).start()
    for worker in job.workers:
        worker.shell("until [ -e /run/mpiboot/*/worker/facts.json ]; do sleep 0.1; done")
    return job


@ONE_IMAGE
def test_plan_and_doctor_tell_a_healthy_job(cluster: Cluster, image: Image) -> None:
    job = ready(cluster, image)
    code, text = mpiboot(job, "plan", "--", "mpirun", RING)
    assert code == 0
    assert text.splitlines()[-1].startswith("mpirun -n 2")
    assert "pi-worker-1.pi.default.svc" in text
    # Where nobody sits at a terminal, each decision is a line.
    output = text.splitlines()
    assert [line for line in output if line.startswith("  ") and line[2] == " "] == []
    code, text = mpiboot(job, "plan", "--json", "--", "mpirun", RING)
    assert (code, json.loads(text)["argv"][:3]) == (0, ["mpirun", "-n", "2"])
    code, text = mpiboot(job, "doctor")
    assert (code, "FAIL" in text) == (0, False)
    assert " 0 failed" in text.splitlines()[-1]
    code, text = mpiboot(job, "doctor", "--json")
    found = {
        (item["host"].partition(".")[0], item["level"]) for item in json.loads(text)["findings"]
    }
    assert {("pi-worker-0", "ok"), ("pi-worker-1", "ok")} <= found
    own = job.workers[0].exec("mpiboot", "doctor")
    assert own.returncode == 0
    assert "no RDMA device of this pod" in own.stdout
    assert own.stdout.splitlines()[-1].endswith(" checks: 0 failed, 0 warnings"), own.stdout
    built = job.workers[0].exec("mpiboot", "doctor", "--image")
    assert built.returncode == 0
    assert built.stdout.splitlines()[-1].endswith(" checks: 0 failed, 0 warnings"), built.stdout
    seen = job.workers[0].exec("mpiboot", "facts").stdout.splitlines()
    assert [line.split() for line in seen if line.startswith("sshd ")] == [["sshd", "openssh"]]
    code, text = mpiboot(job, "wait", "--json")
    ports = {item["host"].partition(".")[0]: item["port"] for item in json.loads(text)["hosts"]}
    assert (code, ports) == (0, {"pi-worker-0": 22, "pi-worker-1": 22})


@pytest.mark.full
def test_missing_hosts_fill_one_screen_with_one_hint(cluster: Cluster, one: Image) -> None:
    # At debug, which the rig's pods have, each host has its line.
    launcher = {"env": {"MPIBOOT_LOG_LEVEL": "info"}}
    waits = ["sleep", "1000"]
    job = mpijob(cluster, one, workers=1, launcher=launcher, launcher_command=waits).start()
    job.launcher.shell('for n in $(seq 64); do echo "w-$n.gone.pi.svc"; done > /tmp/hosts')
    own = ["--hostfile", "/tmp/hosts"]
    for words in (
        ["plan", *own, "--", "mpirun", RING],
        ["doctor", *own],
        ["wait", *own, "--timeout", "3"],
    ):
        done = job.launcher.exec("mpiboot", *words)
        output = (done.stdout + done.stderr).splitlines()
        code = 1 if words[0] == "doctor" else 68
        assert done.returncode == code, output
        assert sum("-> " in line for line in output) == 1, output
        # Below it a plan has what can be decided; above it `wait` has what it waited for.
        missing = [line for line in output if ".gone.pi.svc" in line]
        assert len(missing) <= 24 + 2, output
        terminal = job.launcher.exec_in_terminal("env", "TERM=xterm", "mpiboot", *words)
        assert terminal.wait(PATIENCE) == code
        assert terminal.screen().count("-> ") == 1, terminal.screen()
        assert "more" in terminal.screen()
