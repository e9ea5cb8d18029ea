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
from tests.pods import images, jobs
from tests.pods.cluster import Cluster
from tests.pods.images import PYTHON, Image
from tests.pods.jobs import MOMENT, NEW, OLD, PATIENCE, RING
from tests.pods.oci import PodSpec
from tests.pods.operator import Job, KeyPair, mpijob
from tests.pods.volumes import Files

FULL = pytest.mark.full
BOTH = "pi-worker-0.pi.default.svc", "pi-worker-1.pi.default.svc"
STAYS = {"MPIBOOT_WORKER_EXIT": "never"}


def test_every_slot_runs_a_rank_by_the_control_link(cluster: Cluster, image: Image) -> None:
    shape: dict[str, Any] = {"workers": 3, "slots": 2, "data_link": "net1"}
    job = jobs.spanned(cluster, image, "mpirun", RING, "--bytes", "20", **shape)
    for worker in job.workers:
        assert worker.counters("eth0").tx > 15_000_000
        # Neighbour discovery and multicast reports are all that crosses the other link.
        assert worker.counters("net1").tx < 20_000


@jobs.ONE_IMAGE
def test_a_good_job_is_a_dozen_lines_of_the_log(cluster: Cluster, image: Image) -> None:
    """A record each: nothing is wrapped, nothing lacks the prefix by which grep finds it."""
    # mpirun is looked at every 0.25 s: ranks that wait for the line leave the time to write it.
    job = jobs.held(
        cluster, image, data_link="net1", launcher={"env": {"MPIBOOT_LOG_LEVEL": "info"}}
    )
    jobs.let_go(job)
    assert job.wait() == 0
    lines = [line for line in job.log.splitlines() if not line.startswith("[")]
    assert len(lines) <= 12, lines
    assert [line for line in lines if not line.startswith("mpiboot: ")] == []
    assert lines[0].startswith(f"mpiboot: mpiboot {__version__}, role launcher (")
    assert lines[-1].startswith("mpiboot: job ended: ")
    parts = "2 ranks on 2 hosts of", "control network", "data network: TCP", "daemons started"
    assert [part for part in parts if part not in job.log] == []
    # The operator's own variables are not the user's settings.
    assert "your settings" not in job.log


def test_a_whole_mpirun_line_as_in_a_manifest(cluster: Cluster, image: Image) -> None:
    """What it sets, and what each pod has of its own, reaches the ranks byte for byte."""
    value = 'a b;c,"d"$HOME`x`\\\'é\nline two'
    show = "import os; print(ascii([os.environ[x] for x in ('GREETING', 'ONLY_HERE')]))"
    script = f'{MOMENT}exec python3 -c "{show}"'
    line = ("mpirun", "-n", "2", "-x", "GREETING=two words", "sh", "-c", script)
    job = jobs.ended(cluster, image, *line, worker={"env": {"ONLY_HERE": value}})
    assert job.output.splitlines() == [ascii(["two words", value])] * 2


# 5.0 ignores the operator's variables: by itself it would run such a job on the launcher alone.
COUNTS = f"""
mpiboot launcher -- mpirun -n 1 {RING}
mpiboot launcher -- mpirun -np 2 {RING}
mpiboot launcher -- mpirun {RING}
mpiboot launcher -- mpirun -n 9 {RING}
"""


def test_as_many_ranks_as_asked_for_run_on_the_first_slots(cluster: Cluster, image: Image) -> None:
    """More than there are is for mpirun to refuse: status and words are its own."""
    job = jobs.ended(cluster, image, code=1, slots=2, launcher_command=["sh", "-c", COUNTS])
    one, two = (worker.hostname for worker in job.workers)
    four = [(0, 4, one), (1, 4, one), (2, 4, two), (3, 4, two)]
    assert jobs.ranks(job.output) == sorted([(0, 1, one), (0, 2, one), (1, 2, one), *four])
    message = " ".join((job.output + job.log).split())
    assert "There are not enough slots available in the system" in message


@jobs.NO_MPI
def test_names_and_servers_come_one_by_one(cluster: Cluster, image: Image) -> None:
    """By a resolver that keeps negative answers for a while, and with an sshd that is late."""
    cluster.dns.negative_cache(3)
    script = "until [ -e /tmp/go ]; do sleep 0.1; done; exec mpiboot worker"
    late = {1: {"command": ["sh", "-c", script]}}
    job = mpijob(cluster, image, workers=3, each_worker=late).start(publish=False)
    first, *others = job.workers
    job.launcher.logs("DNS for pi-worker-0, pi-worker-1, pi-worker-2")
    first.publish()
    job.launcher.logs("1/3 hosts ready")
    for worker in others:
        worker.publish()
    job.launcher.logs("connection refused")
    others[0].shell("touch /tmp/go")
    jobs.spans(job)
    assert "NXDOMAIN" in job.log


@jobs.NO_MPI
@pytest.mark.parametrize("never", ["resolves", "answers"])
def test_a_worker_that_never_comes_is_named(cluster: Cluster, image: Image, never: str) -> None:
    """The time is over when the other worker is ready."""
    late = {1: {"command": ["sleep", "1000"]}}
    job = mpijob(cluster, image, env={"MPIBOOT_TIMEOUT": "12"}, each_worker=late)
    job.workers[0].start().publish()
    if never == "answers":
        job.workers[1].start().publish()
    job.workers[0].logs("listens")
    job.launcher.start()
    unknown = never == "resolves"
    assert job.wait() == (68 if unknown else 69)
    assert job.message.startswith("names-unresolved: " if unknown else "workers-unreachable: ")
    assert job.workers[1].fqdn.removesuffix(".cluster.local") in job.message
    assert ("NXDOMAIN" if unknown else "connection refused") in job.message
    assert "pi-worker-0" not in job.message
    assert job.output == ""


_SSHD = "mkdir -p /run/sshd; {}; exec /usr/sbin/sshd -De -f /dev/null -o UsePAM=no {}"
_OWN_KEYS = "-o AuthorizedKeysFile=/root/.ssh/authorized_keys -o StrictModes=no"
# A worker whose image runs sshd itself, without mpiboot.
STOCK = {"command": ["sh", "-c", _SSHD.format("ssh-keygen -A", _OWN_KEYS)]}
_COPY = "cp /root/.ssh/id_rsa /tmp/host; chmod 600 /tmp/host"
DENIES = {
    "command": ["sh", "-c", _SSHD.format(_COPY, "-h /tmp/host -o AuthorizedKeysFile=/nowhere")]
}
KEYS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # Its sshd shows that other key, so it is the host key that differs first.
    "another key": (
        {"volumes": [Files("/root/.ssh", KeyPair.make().files(), 0o600)]},
        ("host-key-differs: ",),
    ),
    "denied": (DENIES, ("ssh-denied: ",)),
    "another host key": (STOCK, ("host-key-differs: ", "args: [worker]")),
}


@jobs.NO_MPI
@pytest.mark.parametrize(("worker", "message"), KEYS.values(), ids=KEYS)
def test_a_worker_of_another_key_is_refused(
    cluster: Cluster, image: Image, worker: dict[str, Any], message: tuple[str, ...]
) -> None:
    env = {"MPIBOOT_TIMEOUT": "20"}  # another host key is waited on
    job = jobs.refused(
        cluster, image, 77, *message, "pi-worker-1", each_worker={1: worker}, env=env
    )
    assert job.message.count("SHA256:") >= (0 if "ssh-denied" in job.message else 2)


_LINES = "# the first rack\r\n" + "".join(f"{host}:2 # its slots=9\r\n" for host in BOTH)
_BARE = "".join(f"{host}\n" for host in BOTH)
# The cluster publishes the names of pods that stand in a comment, too.
_NONE = "# pi-worker-0. pi-worker-1.\n"
_OTHER = f"{_NONE}pi-worker-7.pi.default.svc slots=2\n"
_BY_LINE = f"mpirun -n 2 -host {BOTH[0]}:1,{BOTH[1]}:1 RING"
_TWO = "mpirun -n 2 RING : -n 2 RING"
_BASE = "PidFile /tmp/sshd.pid\nHostKey /home/mpiuser/.ssh/id_rsa\nStrictModes no\nPort 2222\n"
_BASE += "AuthorizedKeysFile /home/mpiuser/.ssh/authorized_keys\n"
OPERATORS: dict[str, Any] = {
    "worker_command": ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"],
    "worker_args": (),
}
PLATFORMLESS = {"args": [], "env": {"K_MPI_JOB_ROLE": "", "START_SSHD": "true"}}
FOR_USER: dict[str, Any] = {
    "ssh_mount": "/home/mpiuser/.ssh",
    "worker": {"user": 1000, "env": STAYS},
    "launcher": {"env": {"MPIBOOT_SSH_KEY": "/home/mpiuser/.ssh"}},
    "hostfile": "".join(f"mpiuser@{host} slots=1\n" for host in BOTH),
}
ACCEPT = {"MPIBOOT_HOST_KEYS": "accept-new"}
EMPTY = dict.fromkeys(("PRTE_MCA_oob_base_verbose", "OMPI_MCA_mpi_yield_when_idle"), "")
Row = tuple[str, str, dict[str, Any], str]
# The image, the line, what the job has, and what its launcher or a worker logs.
SPANNED: dict[str, Row] = {
    "another host key": (NEW, "", {"each_worker": {1: STOCK}, "env": ACCEPT}, ""),
    # 4.1 ignores the count of this form without a word.
    "slots behind a colon": (OLD, "", {"slots": 2, "hostfile": _LINES}, ""),
    # A variable of the operator's has the slots, which 5.0 does not read.
    "no slots": (NEW, "", {"slots": 2, "hostfile": _BARE}, ""),
    # Whatever the hostfile has, which may lack them or have a host that never comes.
    "hosts of the line": (NEW, _BY_LINE, {"hostfile": _OTHER}, "2 hosts of the mpirun line"),
    "a worker without any platform": (NEW, "", {"worker": PLATFORMLESS}, "START_SSHD"),
    # 5.0 cuts names at the first dot, and would start a program called none.
    "a line for 4.1": (
        *(NEW, "mpirun -np 4 -bind-to none -map-by slot RING"),
        *({"slots": 2, "name": "pi.v2"}, "-bind-to as --bind-to"),
    ),
    # Its sshd_config: the mounted key is the host key, and the port is 2222.
    "the operator's base image": (NEW, "", {"slots": 2, "user": 1000, **OPERATORS}, ""),
    "no ssh at all": ("openmpi-5.0-nossh", "", {"slots": 2}, "embedded"),
}
MORE_SPANNED: dict[str, Row] = {
    "no ssh at all, 4.1": ("openmpi-4.1-nossh", "", {"slots": 2}, "embedded"),
    "no hosts but the line's": (NEW, _BY_LINE, {"hostfile": _NONE}, "2 hosts of the mpirun line"),
    "a hostfile that names the user": (NEW, "", FOR_USER, ""),
    # A manifest's template may leave a value out; 5.0 by itself crashes of it.
    "an empty parameter": (NEW, "", {"launcher": {"env": EMPTY}}, ""),
    "several programs": (OLD, _TWO, {"slots": 2}, ""),
}


def words(line: str) -> list[str]:
    return shlex.split(line.replace("RING", RING))


@pytest.mark.parametrize(
    ("image", "line", "details", "logged"),
    [pytest.param(*row, id=name) for name, row in SPANNED.items()]
    + [pytest.param(*row, id=name, marks=FULL) for name, row in MORE_SPANNED.items()],
    indirect=["image"],
)
def test_a_job_runs_on_every_slot(
    cluster: Cluster, image: Image, line: str, details: dict[str, Any], logged: str
) -> None:
    if "worker_command" in details:
        image = image.with_files({"/home/mpiuser/.sshd_config": _BASE})
    job = jobs.spanned(cluster, image, *words(line), **details)
    assert logged in job.log + job.workers[0].stderr()


UNUSED = f"no rank runs on 1 of 2 hosts: {BOTH[1]}"
DAEMONS_LINK = {"launcher": {"env": {"PRTE_MCA_prte_if_include": "ens5"}}}
NO_LINK = "PRTE_MCA_prte_if_include=ens5: no such link in the launcher's pod (there are lo, eth0)"
NO_DAEMON = "mpirun ended with {} and started no daemon on pi-worker-0"
SLEEPS = "RING --sleep 14"
SLOTS: dict[str, Any] = {"slots": 2}
IN_TIME = {"env": {"MPIBOOT_LAUNCH_TIMEOUT": "5"}}
# The image, the line, its exit code, what the job has, and what it logs.
ENDED: dict[str, tuple[str, str, int, dict[str, Any], tuple[str, ...]]] = {
    # The daemons of 5.0.7 die of it, and its mpirun may return 0: that is never a success.
    "several programs": (NEW, _TWO, 69, SLOTS, ("the daemons of 5.0.7 die at the start",)),
    "an option of 4.1": (
        *(NEW, "mpirun --novm RING", 213, {}),
        (NO_DAEMON.format(213), "--novm: an option unknown to mpiboot"),
    ),
    # Of both hosts one has neither a daemon nor a rank: mpirun's own choice, and no timeout.
    "fewer daemons": (
        *(OLD, f"mpirun -n 2 --mca orte_max_vm_size 1 {SLEEPS}", 0, {**SLOTS, **IN_TIME}),
        (UNUSED,),
    ),
}
MORE_ENDED = {
    "an option that is new": (
        *(OLD, "mpirun --stop-on-exec RING", 1, {}),
        (NO_DAEMON.format(1), "--stop-on-exec: an option unknown to mpiboot"),
    ),
    "fewer ranks": (OLD, f"mpirun -n 2 --map-by slot {SLEEPS}", 0, SLOTS, (UNUSED,)),
    "fewer ranks, 5.0": (NEW, f"mpirun -n 2 --map-by slot:pe=1 {SLEEPS}", 0, SLOTS, (UNUSED,)),
    "a link that the daemons lack": (NEW, "", 72, DAEMONS_LINK, (NO_LINK,)),
}


@pytest.mark.parametrize(
    ("image", "line", "code", "details", "logged"),
    [pytest.param(*row, id=name) for name, row in ENDED.items()]
    + [pytest.param(*row, id=name, marks=FULL) for name, row in MORE_ENDED.items()],
    indirect=["image"],
)
def test_a_job_ends_with_that(
    cluster: Cluster,
    image: Image,
    line: str,
    code: int,
    details: dict[str, Any],
    logged: tuple[str, ...],
) -> None:
    job = jobs.ended(cluster, image, *words(line), code=code, **details)
    text = " ".join(job.log.split())
    assert [part for part in logged if part not in text] == []


def test_each_program_of_a_line_gets_what_is_forwarded(cluster: Cluster) -> None:
    """With 4.1 ``-x`` is an option of one program."""
    show = ("sh", "-c", 'echo "$NCCL_DEBUG $NCCL_SOCKET_IFNAME"')
    line = ("mpirun", "-n", "1", *show, ":", "-n", "1", *show)
    env = {"env": {"NCCL_DEBUG": "VERSION"}}
    job = jobs.ended(cluster, images.image(OLD), *line, launcher=env)
    assert job.output.splitlines() == ["VERSION =eth0"] * 2


OTHER_DOMAIN = "k8s.example.org"


@pytest.mark.parametrize(
    ("domain", "searched", "env"),
    [
        pytest.param("cluster.local", True, {}, id="usual", marks=FULL),
        pytest.param(OTHER_DOMAIN, True, {}, id="search list"),
        # With dnsPolicy None there is no search list to read the domain from.
        pytest.param(OTHER_DOMAIN, False, {"MPIBOOT_CLUSTER_DOMAIN": OTHER_DOMAIN}, id="setting"),
    ],
)
@jobs.NO_MPI
def test_every_name_is_asked_for_in_its_long_form(
    cluster: Cluster, image: Image, domain: str, *, searched: bool, env: dict[str, str]
) -> None:
    """The operator's hostfile ends in .svc; what comes behind is not cluster.local everywhere."""
    cluster.dns.serve(domain)
    env = env or {"MPIBOOT_REWRITE_FQDN": "on"}
    launcher = {"cluster_domain": domain, "cluster_dns": searched, "env": env}
    job = jobs.spanned(cluster, image, launcher=launcher, worker={"cluster_domain": domain})
    assert f"pi-worker-0.pi.default.svc.{domain}" in job.log
    assert domain == "cluster.local" or "cluster.local" not in job.log


def test_two_versions_of_mpi_fail_and_are_named(cluster: Cluster) -> None:
    old, new = map(images.image, images.NAMES)
    job = jobs.ended(cluster, old, code=127, each_worker={1: {"image": new}})
    assert "program-missing" in job.message
    (message,) = [text for text in job.log.splitlines() if "[mpi-versions]" in text]
    assert [word for word in ("pi-worker-1", "4.1", "5.0") if word not in message] == []


@jobs.ONE_IMAGE
@FULL
def test_a_hidden_hostfile_runs_no_rank_in_the_launcher(cluster: Cluster, image: Image) -> None:
    """A line's own launcher module starts no agent: the witness must say so."""
    line = ["mpirun", "--mca", "plm", "isolated", "-n", "2", RING, "--sleep", "30"]
    job = mpijob(cluster, image, launcher_args=line).start()
    assert job.wait() != 0
    assert job.launcher.hostname not in jobs.hosts(job)


@FULL
def test_without_a_parent_mpirun_is_the_container(cluster: Cluster, image: Image) -> None:
    env = {"MPIBOOT_SUPERVISE": "off"}
    job = jobs.ended(cluster, image, "mpirun", RING, "--exit", "3", code=3, launcher={"env": env})
    jobs.spans(job, code=3)
    assert "job ended" not in job.log


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


@jobs.crossed("line", [BY_PATH, BY_PREFIX], ["path", "prefix"])
def test_an_mpi_that_is_not_the_one_on_path(
    cluster: Cluster, image: Image, line: tuple[str, ...]
) -> None:
    other = {OLD: "5.0.11", NEW: "4.1.4"}[image.name]
    moved = image.after("sh", "-ec", MOVED, "sh", other)
    job = jobs.spanned(cluster, moved, *line, "-n", "2", RING)
    # The line's MPI is the image's own; what PATH has is not reported.
    assert other not in job.log


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


@jobs.OLD_IMAGE
def test_memory_of_other_processes_that_may_not_be_read(cluster: Cluster, image: Image) -> None:
    no_reading = {"refused_calls": ("process_vm_readv", "process_vm_writev")}
    line = ("mpirun", PYTHON, "-c", LARGE)
    job = jobs.ended(cluster, image, *line, workers=1, slots=2, worker=no_reading)
    assert sorted(job.output.splitlines()) == ["rank 0 True", "rank 1 True"]
    assert "process_vm_readv is refused (Operation not permitted)" in job.log
    assert "errno" not in job.output + job.log


# --- the launcher's pod alone, and hosts that it finds in odd places ---


@jobs.each("openmpi-5.0", "openmpi-4.1", "mpich-4.0", "mpich-5.0", "intel-mpi")
def test_a_job_of_this_pod_alone_needs_no_key(cluster: Cluster, image: Image) -> None:
    name, image = image.name, image.with_files({"/hosts": "localhost slots=2\n"})
    lines = ["mpirun", RING], ["sh", "-c", f"ssh -V || :; mpirun {RING}"], ["mpirun", "/no-such"]
    pods = []
    for number, line in enumerate(lines):
        args = ["launcher", "--hostfile", "/hosts", *line]
        pods.append(cluster.pod(PodSpec(name=f"p{number}", image=image, args=args)).start())
    *alone, bad = pods
    for good in alone:
        assert good.wait() == 0, good.stderr()
        lines_of_ranks = [f"rank {rank} of 2 on {good.hostname}" for rank in range(2)]
        assert sorted(good.stdout().splitlines()) == lines_of_ranks
    code = bad.wait()
    assert code
    if name != "intel-mpi":  # whose own mpirun may be killed by SIGPIPE then
        assert code == 127, bad.stderr()
        assert "the program /no-such does not exist" in bad.stderr()


@jobs.each("openmpi-4.1", "openmpi-5.0", "mpich-4.0", "mpich-5.0", "intel-mpi")
def test_a_hostfile_may_be_a_pipe(cluster: Cluster, image: Image) -> None:
    """By a plain mpirun too; each of these pipes can be read once, by one process."""
    flag, start = "--hostfile" if "openmpi" in image.name else "-f", "mpiboot mpirun -n 2"
    # 4.0.2 may never end.
    rank = "sh -c 'echo rank $PMI_RANK of 2 on $(hostname)'" if "h-4" in image.name else RING
    script = (
        f"set -e; h=/etc/mpi/hostfile; {start} {flag} <(grep -v bad $h) {rank}; "
        f"grep . $h | {start} {flag} /dev/stdin {rank}; "
        f"{start} {flag} /dev/fd/3 {rank} 3< <(cat $h); "
        f"env MPIBOOT_HOSTFILE=<(cat $h) {start} {rank}"
    )
    job = jobs.ended(cluster, image, launcher_command=("bash", "-c", script), env=STAYS)
    assert jobs.hosts(job) == ["pi-worker-0"] * 4 + ["pi-worker-1"] * 4


HOSTNAMES = ("mpirun", "sh", "-c", 'echo "$HOSTNAME"')


def test_a_hostfile_that_is_written_late_is_waited_for(cluster: Cluster, one: Image) -> None:
    job = mpijob(cluster, one, workers=1, launcher_args=HOSTNAMES)
    whole = job.config.files
    job.config.update({})
    job.start()
    job.launcher.logs("waiting for the hostfile: /etc/mpi/hostfile")
    job.config.update(whole)
    assert job.wait() == 0
    assert job.output.split() == ["pi-worker-0"]


def test_of_two_hostfiles_the_users_is_used(cluster: Cluster, one: Image) -> None:
    mine = Files("/etc/mine", {"hosts": "pi-worker-1.pi.default.svc slots=1\n"})
    details = {"env": {"MPI_HOSTFILE": "/etc/mine/hosts"}, "volumes": [mine]}
    job = jobs.ended(cluster, one, *HOSTNAMES, launcher=details)
    assert job.output.split() == ["pi-worker-1"]
    (line,) = [x for x in job.log.splitlines() if " differs (" in x]
    assert "OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile differs (2 hosts, 2 slots)" in line
    assert "mpiboot uses /etc/mine/hosts (named by MPI_HOSTFILE)" in line


# --- common mistakes and questions ---


def test_a_key_that_this_user_may_not_read_is_named(cluster: Cluster, one: Image) -> None:
    details = {"volumes": [Files("/home/mpiuser/.ssh", KeyPair.make().files(), 0o600)]}
    message = "/home/mpiuser/.ssh/id_rsa has mode 0600 of uid 0"
    jobs.refused(cluster, one, 77, "ssh-key: ", message, workers=1, user=1000, launcher=details)


@FULL
def test_a_user_who_can_write_nowhere_is_told_what_to_mount(cluster: Cluster, one: Image) -> None:
    """No emptyDir, and in the place of /dev/shm a volume that is nobody's to write."""
    pod: dict[str, Any] = {"read_only_root": True, "volumes": [Files("/dev/shm", {"a": ""})]}
    job = mpijob(cluster, one, workers=1, launcher=pod, worker=pod, user=1000).start()
    for wrong in job.pods:
        assert wrong.wait() == 73
        (line,) = [line for line in wrong.stderr().splitlines() if "error: [" in line]
        assert line.startswith("mpiboot: error: [runtime-folder] ")
        assert "emptyDir" in wrong.stderr()


def test_workers_without_args_run_the_operators_sshd(cluster: Cluster, one: Image) -> None:
    """Without shims and settings the image's own sshd ends: it has no host key."""
    job = jobs.refused(
        cluster,
        one,
        *(69, "workers-unreachable: ", "pi-worker-0", "args: [worker]"),
        workers=1,
        launcher={"env": {"MPIBOOT_TIMEOUT": "15"}},
        worker_args=(),
        worker={"image": one.without("/etc/ssh/sshd_config.d/mpi.conf")},
    )
    assert "no hostkeys available" in job.workers[0].stderr()


def test_wait_is_an_init_container(cluster: Cluster, one: Image) -> None:
    job = mpijob(cluster, one, launcher_args=["wait"]).start(publish=False)
    job.launcher.logs("NXDOMAIN")
    job.publish()
    assert job.wait() == 0
    assert "2 hosts ready in" in job.log
    assert job.output == ""


@jobs.ONE_IMAGE
def test_plan_and_doctor_tell_a_healthy_job(cluster: Cluster, image: Image) -> None:
    job = jobs.with_facts(mpijob(cluster, image, launcher_command=["sleep", "1000"]).start())
    code, text = jobs.mpiboot(job, "plan", "--", "mpirun", RING)
    assert code == 0
    assert text.splitlines()[-1].startswith("mpirun -n 2")
    assert "pi-worker-1.pi.default.svc" in text
    # Where nobody sits at a terminal, each decision is a line.
    assert [line for line in text.splitlines() if re.match("   ", line)] == []
    code, text = jobs.mpiboot(job, "plan", "--json", "--", "mpirun", RING)
    assert (code, json.loads(text)["argv"][:3]) == (0, ["mpirun", "-n", "2"])
    code, text = jobs.mpiboot(job, "doctor")
    assert (code, "FAIL" in text) == (0, False)
    assert " 0 failed" in text.splitlines()[-1]
    code, text = jobs.mpiboot(job, "doctor", "--json")
    found = {
        (item["host"].partition(".")[0], item["level"]) for item in json.loads(text)["findings"]
    }
    assert {("pi-worker-0", "ok"), ("pi-worker-1", "ok")} <= found
    for words in (("doctor",), ("doctor", "--image")):
        own = job.workers[0].exec("mpiboot", *words)
        assert own.returncode == 0
        assert own.stdout.splitlines()[-1].endswith(" checks: 0 failed, 0 warnings"), own.stdout
        assert ("no RDMA device of this pod" in own.stdout) or "--image" in words
    seen = job.workers[0].exec("mpiboot", "facts").stdout.splitlines()
    assert [line.split() for line in seen if line.startswith("sshd ")] == [["sshd", "openssh"]]
    code, text = jobs.mpiboot(job, "wait", "--json")
    ports = {item["host"].partition(".")[0]: item["port"] for item in json.loads(text)["hosts"]}
    assert (code, ports) == (0, {"pi-worker-0": 22, "pi-worker-1": 22})


@FULL
def test_missing_hosts_fill_one_screen_with_one_hint(cluster: Cluster, one: Image) -> None:
    # At debug, which the rig's pods have, each host has its line.
    launcher = {"env": {"MPIBOOT_LOG_LEVEL": "info"}}
    waits = ["sleep", "1000"]
    job = mpijob(cluster, one, workers=1, launcher=launcher, launcher_command=waits).start()
    job.launcher.shell('for n in $(seq 64); do echo "w-$n.gone.pi.svc"; done > /tmp/hosts')
    own = ["--hostfile", "/tmp/hosts"]
    for code, words in (
        (68, ["plan", *own, "--", "mpirun", RING]),
        (1, ["doctor", *own]),
        (68, ["wait", *own, "--timeout", "3"]),
    ):
        done = job.launcher.exec("mpiboot", *words)
        output = (done.stdout + done.stderr).splitlines()
        assert done.returncode == code, output
        assert sum("-> " in line for line in output) == 1, output
        # Below it a plan has what can be decided; above it `wait` has what it waited for.
        assert sum(".gone.pi.svc" in line for line in output) <= 24 + 2, output
        terminal = job.launcher.exec_in_terminal("env", "TERM=xterm", "mpiboot", *words)
        assert terminal.wait() == code
        assert terminal.screen().count("-> ") == 1, terminal.screen()
        assert "more" in terminal.screen()


# --- CPUs: what plain mpirun gives a rank in the same pods, but for one default ---

WHERE = 'echo "$(hostname)" $(python3 -c "import os; print(os.sched_getaffinity(0))")'
TRUST = {"/etc/ssh/ssh_config.d/a.conf": "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"}


def entered(cluster: Cluster, image: Image, *, cpus: str = "") -> Job:
    """Pods in which both can be tried: a launcher that does nothing, and workers."""
    job = mpijob(
        cluster,
        image.with_files(TRUST),
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
    job = entered(cluster, image)
    cpus = job.workers[0].shell("python3 -c 'import os; print(os.sched_getaffinity(0))'")
    found = bound(job, "-n 2", "mpiboot", "launcher")
    assert [words.split(maxsplit=1)[1] for words in found] == [cpus] * 2
    assert "other pods of the node may use" in job.launcher.shell("mpiboot plan -- mpirun true")


@jobs.ONE_IMAGE
def test_ranks_are_bound_where_each_pod_has_a_cpuset(cluster: Cluster, image: Image) -> None:
    job = entered(cluster, image, cpus="0")
    plain = bound(job, "-n 2 --map-by node --bind-to core")
    assert [words.split()[1] for words in plain] == ["{0}", "{0}"]
    assert bound(job, "-N 1", "mpiboot", "launcher") == plain
    assert re.search(r"cpus.usable +1\n", job.workers[0].shell("mpiboot facts"))
    message = job.launcher.shell("mpiboot plan -- mpirun -n 2 true")
    # Two slots, and a core for one rank alone.
    assert "pi-worker-0.pi.default.svc, pi-worker-1.pi.default.svc has fewer cores" in message


# --- what users, images and workers set themselves ---


@jobs.OLD_IMAGE
def test_a_link_that_no_worker_has_is_said_before_the_start(cluster: Cluster, image: Image) -> None:
    """MPI itself ends with "unable to reach" then, far from the cause."""
    line = ["mpirun", "--mca", "btl_tcp_if_include", "ens5", RING]
    job = mpijob(cluster, image, launcher_args=line).start()
    assert job.wait() != 0
    before, starting, _ = job.log.partition("mpiboot: starting mpirun")
    assert starting
    hosts = ", ".join(BOTH)
    message = f"OMPI_MCA_btl_tcp_if_include=ens5: no such link in {hosts} (there are lo, eth0)"
    assert message in before


ETC = "/etc/openmpi/openmpi-mca-params.conf"
# Horovod's image writes these (its Dockerfile.test.cpu), TensorFlow's of the MPI Operator too.
HOROVOD = "hwloc_base_binding_policy = none\nrmaps_base_mapping_policy = slot\n"
HOROVOD += "btl_tcp_if_exclude = lo,docker0\n"


@jobs.crossed("of", ["the image", "a worker"])
def test_links_excluded_by_an_mpi_file(cluster: Cluster, image: Image, of: str) -> None:
    """Each rank reads the file of its own pod, whose image may be another one."""
    there = image.with_files({ETC: HOROVOD})
    workers = of == "a worker"
    worker = {"image": there} if workers else {}
    job = jobs.spanned(cluster, image if workers else there, data_link="net1", worker=worker)
    assert "mutually exclusive" not in job.log
    where = f"set in {ETC}{' on pi-worker-0.pi.default.svc' if workers else ''})"
    assert f"not set: OMPI_MCA_btl_tcp_if_exclude is {where}" in job.log


@jobs.ONE_IMAGE
@FULL
def test_the_mapping_of_the_users_file_stands(cluster: Cluster, image: Image) -> None:
    names = {"/root/.openmpi/mca-params.conf": "rmaps_base_mapping_policy = node\n"}
    names |= {"/root/.prte/mca-params.conf": "rmaps_default_mapping_policy = node\n"}
    job = jobs.ended(cluster, image.with_files(names), "mpirun", "-n", "2", RING, slots=2)
    assert jobs.hosts(job) == ["pi-worker-0", "pi-worker-1"]


USUAL = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
THEIRS = {"PATH": f"/opt/conda/bin:{USUAL}", "LD_LIBRARY_PATH": "/opt/conda/lib"}
# A name that only the folder of the workers' own image has.
THEIR_FILES = {"/opt/conda/bin/where": f"#!/bin/sh\n{MOMENT}echo theirs $LD_LIBRARY_PATH\n"}


@jobs.crossed("words", [(), ("-x", "LD_LIBRARY_PATH")], ["own", "-x"])
def test_workers_of_another_image_find_their_own_programs(
    cluster: Cluster, image: Image, words: tuple[str, ...]
) -> None:
    job = jobs.ended(
        cluster,
        image,
        *("mpirun", *words, "where"),
        launcher={"env": {"LD_LIBRARY_PATH": "/opt/launcher/lib"}},
        worker={"env": THEIRS, "image": image.with_files(THEIR_FILES, mode=0o755)},
    )
    paths = [line.split()[1] for line in job.output.splitlines()]
    found = "/opt/launcher/lib" if words else "/opt/conda/lib"
    assert [found in path for path in paths] == [True] * 2
    assert "has another one of its own" in job.log


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


@jobs.each("openmpi-5.0", "openmpi-4.1", "mpich-4.0", "intel-mpi")
def test_ranks_of_torchruns_programs_know_who_they_are(cluster: Cluster, image: Image) -> None:
    """As the page has it; each MPI really sets the variables that the table names."""
    (container,) = yaml.safe_load(pages.named("torchrun"))
    env = {item["name"]: item["value"] for item in container["env"]}
    image, launcher = image.with_files({"/train.py": MEET}), {"env": env}
    job = jobs.ended(cluster, image, *container["args"], slots=2, launcher=launcher)
    first, *others = job.output.splitlines()
    assert first == "0 of 4, 0 of 2 on pi-worker-0 ['--epochs', '3']"
    assert sorted(others) == [
        "1 of 4, 1 of 2 on pi-worker-0",
        "2 of 4, 0 of 2 on pi-worker-1",
        "3 of 4, 1 of 2 on pi-worker-1",
    ]
