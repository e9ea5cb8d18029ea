"""Whole jobs: a launcher and workers as pods, real sshd, real mpirun, a real MPI program."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from mpiboot import __version__
from tests import pages
from tests.pods import images, jobs
from tests.pods.cluster import Cluster
from tests.pods.faults import SSHD
from tests.pods.images import Image
from tests.pods.jobs import MOMENT, NEW, OLD, RING
from tests.pods.oci import PodSpec
from tests.pods.operator import KeyPair, mpijob
from tests.pods.volumes import Files

FULL = pytest.mark.full
BOTH = "pi-worker-0.pi.default.svc", "pi-worker-1.pi.default.svc"
STAYS = {"MPIBOOT_WORKER_EXIT": "never"}


def test_every_slot_runs_a_rank_by_the_control_link(cluster: Cluster, image: Image) -> None:
    shape: dict[str, Any] = {"workers": 3, "slots": 2, "data_link": "net1"}
    job = jobs.spanned(cluster, image, "mpirun", RING, "--bytes", "20", **shape)
    for worker in job.workers:
        assert worker.network.sent("eth0") > 15_000_000
        # Neighbour discovery and multicast reports are all that crosses the other link.
        assert worker.network.sent("net1") < 20_000


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


@jobs.NO_MPI
def test_names_and_servers_come_one_by_one(cluster: Cluster, image: Image) -> None:
    """By a resolver that keeps negative answers for a while, and with an sshd that is late."""
    cluster.dns.negative_cache = 3
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
def test_a_worker_of_another_key_is_refused(cluster: Cluster, image: Image) -> None:
    """Its server shows that other key, so it is the host key that differs first."""
    other = {"volumes": [Files("/root/.ssh", KeyPair.make().files(), 0o600)]}
    message = ("host-key-differs: ", "pi-worker-1", "SHA256:")
    env = {"MPIBOOT_TIMEOUT": "20"}  # another host key is waited on
    jobs.refused(cluster, image, 77, *message, each_worker={1: other}, env=env)


_LINES = "# the first rack\r\n" + "".join(f"{host}:2 # its slots=9\r\n" for host in BOTH)
_BARE = "".join(f"{host}\n" for host in BOTH)
_OTHER = "# pi-worker-0. pi-worker-1.\npi-worker-7.pi.default.svc slots=2\n"
_BY_LINE = f"mpirun -n 2 -host {BOTH[0]}:1,{BOTH[1]}:1 RING"
_TWO = "mpirun -n 2 RING : -n 2 RING"
PLATFORMLESS = {"args": [], "env": {"K_MPI_JOB_ROLE": "", "START_SSHD": "true"}}
FOR_USER: dict[str, Any] = {
    "ssh_mount": "/home/mpiuser/.ssh",
    "worker": {"user": 1000, "env": STAYS},
    "launcher": {"env": {"MPIBOOT_SSH_KEY": "/home/mpiuser/.ssh"}},
    "hostfile": "".join(f"mpiuser@{host} slots=1\n" for host in BOTH),
}
# A worker whose image runs sshd itself, without mpiboot.
STOCK = {"command": SSHD, "args": ()}
ACCEPT = {"MPIBOOT_HOST_KEYS": "accept-new"}
EMPTY = dict.fromkeys(("PRTE_MCA_oob_base_verbose", "OMPI_MCA_mpi_yield_when_idle"), "")
_DOMAIN = "k8s.example.org"
_LONG = f"{BOTH[0]}.{_DOMAIN}"


def in_domain(**env: str) -> dict[str, Any]:
    """A job in another cluster domain; its setting is needed where there is no search list."""
    domain = {"cluster_domain": _DOMAIN}
    searched = "MPIBOOT_CLUSTER_DOMAIN" not in env  # as with dnsPolicy None
    return {"launcher": {**domain, "cluster_dns": searched, "env": env}, "worker": domain}


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
    "no ssh at all": ("openmpi-5.0-nossh", "", {"slots": 2}, "embedded"),
    "a hostfile that names the user": (NEW, "", FOR_USER, ""),
    # A manifest's template may leave a value out; 5.0 by itself crashes of it.
    "an empty parameter": (NEW, "", {"launcher": {"env": EMPTY}}, ""),
    "several programs": (OLD, _TWO, {"slots": 2}, ""),
    # The operator's hostfile ends in .svc; what comes behind is not cluster.local everywhere.
    "another domain, of the search list": (NEW, "", in_domain(MPIBOOT_REWRITE_FQDN="on"), _LONG),
    "another domain, of a setting": (NEW, "", in_domain(MPIBOOT_CLUSTER_DOMAIN=_DOMAIN), _LONG),
}


def words(line: str) -> list[str]:
    return shlex.split(line.replace("RING", RING))


@pytest.mark.parametrize(
    ("image", "line", "details", "logged"), SPANNED.values(), ids=SPANNED, indirect=["image"]
)
def test_a_job_runs_on_every_slot(
    cluster: Cluster, image: Image, line: str, details: dict[str, Any], logged: str
) -> None:
    if logged == _LONG:
        cluster.dns.serve(_DOMAIN)
    job = jobs.spanned(cluster, image, *words(line), **details)
    assert logged in job.log + job.workers[0].stderr()


UNUSED = f"no rank runs on 1 of 2 hosts: {BOTH[1]}"
NO_DAEMON = "mpirun ended with {} and started no daemon on pi-worker-0"
SLEEPS = "RING --sleep 14"
SLOTS: dict[str, Any] = {"slots": 2}
IN_TIME = {"env": {"MPIBOOT_LAUNCH_TIMEOUT": "5"}}
# The image, the line, its exit code, what the job has, and what it logs.
ENDED: dict[str, tuple[str, str, int, dict[str, Any], tuple[str, ...]]] = {
    # The daemons of 5.0.7 die of it, and its mpirun may return 0: that is never a success.
    "several programs": (NEW, _TWO, 69, SLOTS, ()),
    "an option of 4.1": (
        *(NEW, "mpirun --novm RING", 213, {}),
        (NO_DAEMON.format(213), "--novm: an option unknown to mpiboot"),
    ),
    # Of both hosts one has neither a daemon nor a rank: mpirun's own choice, and no timeout.
    "fewer daemons": (
        *(OLD, f"mpirun -n 2 --mca orte_max_vm_size 1 {SLEEPS}", 0, {**SLOTS, **IN_TIME}),
        (UNUSED,),
    ),
    "fewer ranks": (NEW, f"mpirun -n 2 --map-by slot:pe=1 {SLEEPS}", 0, SLOTS, (UNUSED,)),
}


@pytest.mark.parametrize(
    ("image", "line", "code", "details", "logged"), ENDED.values(), ids=ENDED, indirect=["image"]
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


def test_two_versions_of_mpi_fail_and_are_named(cluster: Cluster) -> None:
    old, new = map(images.image, images.NAMES)
    job = jobs.ended(cluster, old, code=127, each_worker={1: {"image": new}})
    assert "program-missing" in job.message
    (message,) = [text for text in job.log.splitlines() if "[mpi-versions]" in text]
    assert [word for word in ("pi-worker-1", "4.1", "5.0") if word not in message] == []


@FULL
def test_without_a_parent_mpirun_is_the_container(cluster: Cluster, image: Image) -> None:
    env = {"MPIBOOT_SUPERVISE": "off"}
    job = jobs.ended(cluster, image, "mpirun", RING, "--exit", "3", code=3, launcher={"env": env})
    jobs.spans(job, code=3)
    assert "job ended" not in job.log


@jobs.each(OLD, "mpich-5.0")
def test_memory_of_other_processes_that_may_not_be_read(cluster: Cluster, image: Image) -> None:
    """A message between two ranks of a host that is too large for what they share."""
    refused = {"refused_calls": ("process_vm_readv", "process_vm_writev")}
    line = ("mpirun", RING, "--bytes", "4")
    job = jobs.spanned(cluster, image, *line, workers=1, slots=2, worker=refused)
    assert "process_vm_readv is refused on" in job.log
    assert "errno" not in job.output + job.log


def test_ranks_are_not_bound_where_pods_share_cpus(cluster: Cluster, image: Image) -> None:
    """What a line says of CPUs stands: `same_lines`."""
    show = "python3 -c 'import os; print(os.sched_getaffinity(0))'"
    line = ("mpirun", "-n", "2", "sh", "-c", f"{MOMENT}{show}")
    job = jobs.ended(cluster, image, *line, slots=2, env=STAYS)
    assert job.output.splitlines() == [job.workers[0].shell(show)] * 2


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


@jobs.each("openmpi-4.1", "mpich-5.0")
def test_a_hostfile_may_be_a_pipe(cluster: Cluster, image: Image) -> None:
    """By a plain mpirun too; each of these pipes can be read once, by one process."""
    flag, start = "--hostfile" if "openmpi" in image.name else "-f", "mpiboot mpirun -n 2"
    script = (
        f"set -e; h=/etc/mpi/hostfile; {start} {flag} <(grep -v bad $h) {RING}; "
        f"grep . $h | {start} {flag} /dev/stdin {RING}; "
        f"env MPIBOOT_HOSTFILE=<(cat $h) {start} {RING}"
    )
    job = jobs.ended(cluster, image, launcher_command=("bash", "-c", script), env=STAYS)
    assert jobs.hosts(job) == ["pi-worker-0"] * 3 + ["pi-worker-1"] * 3


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


@jobs.ONE_IMAGE
def test_plan_and_doctor_tell_a_healthy_job(cluster: Cluster, image: Image) -> None:
    job = jobs.with_facts(mpijob(cluster, image, launcher_command=["sleep", "1000"]).start())
    code, text = jobs.mpiboot(job, "plan", "--", "mpirun", RING)
    assert code == 0
    assert text.splitlines()[-1].startswith("mpirun -n 2")
    assert "pi-worker-1.pi.default.svc" in text
    code, text = jobs.mpiboot(job, "plan", "--json", "--", "mpirun", RING)
    assert (code, json.loads(text)["argv"][:3]) == (0, ["mpirun", "-n", "2"])
    code, text = jobs.mpiboot(job, "doctor", "--json")
    found = {
        (item["host"].partition(".")[0], item["level"]) for item in json.loads(text)["findings"]
    }
    assert code == 0
    assert {("pi-worker-0", "ok"), ("pi-worker-1", "ok")} <= found
    for words in (("doctor",), ("doctor", "--image")):
        own = job.workers[0].exec("mpiboot", *words)
        assert own.stdout.splitlines()[-1].endswith(" checks: 0 failed, 0 warnings"), own.stdout
        assert ("no usable RDMA port" in own.stdout) or "--image" in words
    assert '"sshd": "openssh"' in job.workers[0].shell("mpiboot facts")
    code, text = jobs.mpiboot(job, "wait", "--json")
    ports = {item["host"].partition(".")[0]: item["port"] for item in json.loads(text)["hosts"]}
    assert (code, ports) == (0, {"pi-worker-0": 22, "pi-worker-1": 22})


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


USUAL = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
THEIRS = {"PATH": f"/opt/conda/bin:{USUAL}", "LD_LIBRARY_PATH": "/opt/conda/lib"}
# A name that only the folder of the workers' own image has.
THEIR_FILES = {"/opt/conda/bin/where": f"#!/bin/sh\n{MOMENT}echo $PWD $LD_LIBRARY_PATH\n"}


@jobs.crossed("words", [(), ("-x", "LD_LIBRARY_PATH")], ["own", "-x"])
def test_workers_of_another_image_find_their_own_programs(
    cluster: Cluster, image: Image, words: tuple[str, ...]
) -> None:
    job = jobs.ended(
        cluster,
        image,
        *("mpirun", *words, "where"),
        launcher={"env": {"LD_LIBRARY_PATH": "/opt/launcher/lib"}, "working_dir": "/opt/launcher"},
        worker={"env": THEIRS, "image": image.with_files(THEIR_FILES, mode=0o755)},
    )
    folders, paths = zip(*(line.split() for line in job.output.splitlines()), strict=True)
    assert folders == ("/root", "/root")  # the launcher's is not there
    found = "/opt/launcher/lib" if words else "/opt/conda/lib"
    assert [found in path for path in paths] == [True] * 2
    assert "another one on " in job.log


TELLS = f"""{MOMENT}echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on $(hostname)"
echo "at $MASTER_ADDR:$MASTER_PORT with $*" """


@jobs.each("openmpi-5.0", "openmpi-4.1", "mpich-4.0", "intel-mpi")
def test_ranks_of_torchruns_programs_know_who_they_are(cluster: Cluster, image: Image) -> None:
    """As the page has it; each MPI really sets the variables that the table names."""
    (container,) = yaml.safe_load(pages.named("torchrun"))
    env = {item["name"]: item["value"] for item in container["env"]}
    image = image.with_files({"/usr/local/bin/python3": f"#!/bin/sh\nshift\n{TELLS}"}, 0o755)
    job = jobs.ended(cluster, image, *container["args"], slots=2, launcher={"env": env})
    places = {line for line in job.output.splitlines() if line.startswith("at ")}
    assert places == {f"at {job.workers[0].address}:29500 with --epochs 3"}
    assert sorted(line for line in job.output.splitlines() if " of " in line) == [
        "0 of 4, 0 of 2 on pi-worker-0",
        "1 of 4, 1 of 2 on pi-worker-0",
        "2 of 4, 0 of 2 on pi-worker-1",
        "3 of 4, 1 of 2 on pi-worker-1",
    ]
