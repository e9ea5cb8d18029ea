"""Pods as clusters let them run: users, homes, rights, folders; each runs a whole job."""

from __future__ import annotations

import copy
import re
import signal
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.pages import named
from tests.pods import images, jobs
from tests.pods.cluster import Cluster
from tests.pods.images import PYTHON, Image
from tests.pods.jobs import MOMENT, NEW, OLD, RING
from tests.pods.oci import CRIO, NO_CAPABILITIES
from tests.pods.operator import Job, mpijob
from tests.pods.pod import TINI, Pod
from tests.pods.users import FIRST
from tests.pods.volumes import EmptyDir, HostPath, Tmpfs
from tests.waiting import until

FULL = pytest.mark.full
# As an OpenShift project hands them out.
RANDOM = 1000650000
RESTRICTED: Mapping[str, Any] = {
    "capabilities": NO_CAPABILITIES,
    "no_new_privileges": True,
    "seccomp": True,
}
NONE: Mapping[str, Any] = {"capabilities": NO_CAPABILITIES}
# Restricted allows that one capability, and no program may gain it.
BIND = {**RESTRICTED, "capabilities": ["CAP_NET_BIND_SERVICE"]}
NOEXEC = ("nosuid", "nodev", "noexec")
# The folder of one container below a folder that pods may share.
CONTAINER = r"[^/ ]+-[0-9a-f]{8}"
JOB_KEY = "/etc/job/.ssh"


def openshift(image: Image) -> Image:
    """An image into whose /etc/passwd CRI-O has written the random uid, as OpenShift 4 does."""
    entry = f"{RANDOM}:x:{RANDOM}:0:{RANDOM} user:/:/sbin/nologin\n"
    return image.with_files({"/etc/passwd": image.read_text("/etc/passwd") + entry})


def locked(image: Image) -> Image:
    """An image whose accounts are locked."""
    shadow = image.read_text("/etc/shadow")
    shadow = re.sub(r"^(root|mpiuser):[^:]*:", r"\1:!:", shadow, flags=re.MULTILINE)
    return image.with_files({"/etc/shadow": shadow}, mode=0o640)


def with_capability(image: Image) -> Image:
    """The operator's images give sshd the capability to bind port 22, as a file's attribute."""
    # struct vfs_cap_data, revision 2, effective: CAP_NET_BIND_SERVICE is number 10.
    value = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)
    script = f"import os; os.setxattr('/usr/sbin/sshd', 'security.capability', {value!r})"
    return image.after(PYTHON, "-c", script)


@dataclass(frozen=True)
class Kind:
    """What every pod of a job is like, and what is logged: patterns of a worker and of all pods.

    `plan` is a pattern of the launcher's log.
    """

    pods: Mapping[str, Any] = field(default_factory=dict)
    user: int = 0
    worker: tuple[str, ...] = ()
    every: str = ""
    plan: str = ""
    image: str = NEW
    made: Callable[[Image], Image] = field(default=lambda image: image)
    key: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False


def home(path: str) -> Kind:
    text = f"HOME={path} can't be used: /home/mpiuser is used instead"
    return Kind(user=1000, key=JOB_KEY, env={"HOME": path}, every=text)


def one_folder(image: str, user: int, name: str) -> Kind:
    """A read-only root and one emptyDir, which a variable names."""
    by_tmpdir = name == "TMPDIR"
    # As TMPDIR one that is not sticky comes after /dev/shm.
    folder = EmptyDir("/scratch", mode=0o1777 if by_tmpdir else 0o777)
    made = f"/scratch/mpiboot-{user}/{CONTAINER}" if by_tmpdir else f"/scratch/{CONTAINER}"
    plan = f"={made}/launcher/launch/hostfile "
    tmp = f"MPI gets TMPDIR={made}/launcher/tmp"
    pods = {"read_only_root": True, "volumes": [folder], "env": {name: "/scratch"}}
    both = plan if by_tmpdir else f"(?s)^(?=.*{plan})(?=.*{tmp})"
    return Kind(pods, user, image=image, key=JOB_KEY, plan=both)


HIGH = (r"sshd \(openssh\)", ":2222 ")
EMBEDDED = "the embedded SSH server is used"
LACKS = f"{EMBEDDED}: sshd as root needs the capabilities "
RANDOM_USER = {**RESTRICTED, "group": 0}
WARNING = "could replace it: /tmp has mode 0777, not sticky"
KINDS = {
    # --- the server that a pod allows ---
    "restricted in full": Kind(RESTRICTED, 1000, HIGH, quick=True),
    "root, CRI-O": Kind({"capabilities": CRIO}, 0, (f"{LACKS}SYS_CHROOT",), quick=True),
    "OpenShift": Kind(
        *(RANDOM_USER, RANDOM, (f"the shell /sbin/nologin of {RANDOM} runs no commands",)),
        made=openshift,
        key=JOB_KEY,
        env={"HOME": "/"},
        quick=True,
    ),
    "a uid without a passwd entry": Kind(
        *(RANDOM_USER, RANDOM, (f"{EMBEDDED}: uid {RANDOM} has no passwd entry",)),
        key=JOB_KEY,
        env={"HOME": "/"},
        plan=f"HOME=/ can't be used: /tmp/mpiboot-{RANDOM}/{CONTAINER}/launcher",
        quick=True,
    ),
    "file capability": Kind(NONE, 1000, (EMBEDDED, "file capabilities"), made=with_capability),
    "user 1000 without capabilities": Kind(NONE, 1000, HIGH),
    "root without capabilities": Kind(NONE, 0, (f"{LACKS}SETGID",)),
    "locked root": Kind(worker=("is locked in /etc/shadow",), made=locked),
    # Who isn't root can't read shadow, and neither can the sshd that it runs.
    "locked user": Kind(user=1000, worker=HIGH[:1], made=locked),
    "file capability, restricted": Kind(BIND, 1000, HIGH, made=with_capability),
    "file capability that it may have": Kind(user=1000, made=with_capability),
    "own users, restricted": Kind({**RESTRICTED, "host_users": False}, 1000, HIGH),
    "root of own users": Kind({**NONE, "host_users": False}, 0, (f"{LACKS}SETGID",)),
    # --- homes and folders ---
    "a home that is missing": home("/nowhere"),
    "the root folder as home": home("/"),
    "a home that is closed to this user": home("/root"),
    # A tmpfs hides the folder that sshd's package made.
    "tmpfs": Kind({"volumes": [Tmpfs("/run"), Tmpfs("/tmp")]}),
    "one folder for root": one_folder(OLD, 0, "TMPDIR"),
    "one folder": one_folder(NEW, 1000, "TMPDIR"),
    "one folder of mpiboot's": one_folder(OLD, 1000, "MPIBOOT_RUNTIME_DIR"),
    "one folder of mpiboot's for root": one_folder(NEW, 0, "MPIBOOT_RUNTIME_DIR"),
    # What is left is /dev/shm, where nothing may be executed.
    "a read-only root": Kind(
        {"read_only_root": True},
        worker=(f"/tmp can't be written: MPI gets TMPDIR=/dev/shm/mpiboot-0/{CONTAINER}/worker/t",),
        key=JOB_KEY,
        plan=f"MPI gets TMPDIR=/dev/shm/mpiboot-0/{CONTAINER}/launcher/tmp",
        quick=True,
    ),
    # An emptyDir has mode 0777 without the sticky bit: it is taken where nothing else is left.
    "a folder that another user could replace": Kind(
        {"read_only_root": True, "volumes": [EmptyDir("/tmp"), EmptyDir("/dev/shm")]},
        *(1000, (), WARNING, f"=/tmp/mpiboot-1000/{CONTAINER}/launcher/launch/hostfile "),
        quick=True,
    ),
    "such a folder beside another one": Kind(
        {"read_only_root": True, "volumes": [EmptyDir("/tmp")]},
        *(1000, (), "", f"=/dev/shm/mpiboot-1000/{CONTAINER}/launcher/launch/hostfile "),
    ),
    "noexec everywhere": Kind(
        {"volumes": [Tmpfs(path, options=NOEXEC) for path in ("/tmp", "/run", "/dev/shm")]}
    ),
    "a noexec folder of mpiboot's": Kind(
        {"volumes": [Tmpfs("/scratch", options=NOEXEC)], "env": {"MPIBOOT_RUNTIME_DIR": "/scratch"}}
    ),
    "a TMPDIR to be made": Kind({"env": {"TMPDIR": "/nowhere/yet"}}),
    "a TMPDIR with a blank": Kind(
        {"env": {"TMPDIR": "/scratch/a b"}, "volumes": [EmptyDir("/scratch/a b", mode=0o1777)]},
        1000,
        plan=f"=/tmp/mpiboot-1000/{CONTAINER}/launcher/launch/hostfile ",
    ),
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=name, marks=[FULL] * (not kind.quick)) for name, kind in KINDS.items()],
)
def test_a_job_runs_in_pods_of_a_kind(cluster: Cluster, kind: Kind) -> None:
    job = jobs.spanned(
        cluster,
        kind.made(images.image(kind.image)),
        user=kind.user,
        env=kind.env,
        ssh_mount=kind.key or ("/home/mpiuser/.ssh" if kind.user else "/root/.ssh"),
        launcher=copy.deepcopy(dict(kind.pods)),
        worker=copy.deepcopy(dict(kind.pods)),
    )
    worker = job.workers[0].stderr()
    assert [text for text in (*kind.worker, kind.every) if not re.search(text, worker)] == []
    assert kind.every in job.log
    assert re.search(kind.plan, job.log)
    assert (WARNING in worker) == (kind.every == WARNING)


@FULL
def test_the_user_of_the_page(cluster: Cluster) -> None:
    first, second = named("non-root").splitlines()
    image = images.image(first.rpartition("/")[2])
    jobs.spanned(cluster, image, user=int(second.removeprefix("USER ")))


@FULL
def test_the_pod_has_no_home_variable_at_all(cluster: Cluster, image: Image) -> None:
    args = ["env", "--unset=HOME", "mpiboot"]
    commands = {
        "worker_command": [*args, "worker"],
        "worker_args": (),
        "launcher_command": [*args, "mpirun", RING],
    }
    jobs.spanned(cluster, image, user=1000, ssh_mount=JOB_KEY, **commands)


@pytest.mark.parametrize("user", [0, pytest.param(1000, marks=FULL)])
def test_a_user_namespace_of_the_pods_own(cluster: Cluster, user: int) -> None:
    """`hostUsers: false`: root of the pod is nobody on the node."""
    details = {"host_users": False, "env": {"MPIBOOT_WORKER_EXIT": "never"}}
    job = jobs.spanned(cluster, images.image(NEW), user=user, launcher=details, worker=details)
    worker = job.workers[0]
    assert "sshd (openssh)" in worker.stderr()
    assert (":2222 " if user else ":22 ") in worker.stderr()
    assert jobs.owners(worker) == {FIRST + user}
    assert re.search(r"identity.own_users +yes", worker.shell("mpiboot facts"))


# --- another program is the first process ---


def below(cluster: Cluster, name: str, first: str, *program: str, publish: bool = True) -> Job:
    """A job behind tini in each image, or below the one `pause` of shareProcessNamespace."""
    details, image = {"share_processes": first == "pause"}, images.image(name)
    if first == "tini":
        entrypoint = ("/usr/bin/tini", "--", *image.entrypoint)
        with_init = image.with_files({"/usr/bin/tini": Path(TINI).read_bytes()}, 0o755)
        image = replace(with_init, entrypoint=entrypoint)
    job = mpijob(cluster, image, launcher_args=program, launcher=details, worker=details)
    return job.start(publish=publish)


def first_words(pod: Pod) -> str:
    """The program that has the number 1 there."""
    return next((item.args[0] for item in pod.processes() if item.pid == 1), "")


FIRST_PROCESS = pytest.mark.parametrize("first", ["tini", "pause"])


@FIRST_PROCESS
@pytest.mark.parametrize("name", [OLD, pytest.param(NEW, marks=FULL)])
def test_mpiboot_is_not_the_first_process(cluster: Cluster, name: str, first: str) -> None:
    job = below(cluster, name, first, "mpirun", RING, publish=False)
    worker = job.workers[0]
    until(lambda: first_words(worker) == ("/usr/bin/tini" if first == "tini" else TINI))
    job.publish()  # not before: the pods end with the job
    jobs.spans(job)
    if first == "pause":  # there nobody can tell the container's own launcher from another
        assert all(pod.running for pod in job.workers)
        worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.parametrize("shares", ["launcher", "worker"])
def test_who_shares_its_process_table_decides_whether_workers_end_with_the_job(
    cluster: Cluster, shares: str
) -> None:
    """A launcher that shares its process table notifies no worker of the end."""
    details: dict[str, Any] = {shares: {"share_processes": True}}
    (worker,) = jobs.ended(cluster, images.image(NEW), workers=1, **details).workers
    if shares == "launcher":
        assert worker.running
        worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@FULL
@FIRST_PROCESS
@pytest.mark.parametrize(("name", "end"), [(OLD, signal.SIGTERM), (NEW, signal.SIGKILL)])
def test_the_end_of_a_launcher_that_is_not_the_first_process(
    cluster: Cluster, name: str, first: str, end: int
) -> None:
    job = below(cluster, name, first, *jobs.FOREVER)
    jobs.launched(job)
    job.launcher.signal(end)
    assert job.wait() == 128 + end
    until(lambda: not jobs.left(job.workers))
    assert all(worker.running for worker in job.workers)


# --- what can't be used ---


@FULL
def test_a_seccomp_profile_that_lets_no_thread_begin_is_named(cluster: Cluster) -> None:
    """An older Docker's: glibc falls back on clone where clone3 is not there, and not on EPERM."""
    profile = {"refused_calls": ("clone3",)}
    image = images.image(OLD)
    job = mpijob(cluster, image, workers=1, launcher=profile, worker=profile).start()
    named = "the pod's seccomp profile fails clone3 with EPERM"
    assert job.wait() == 69
    assert job.message.startswith(f"launcher-limits: {named}")
    (worker,) = job.workers
    assert worker.wait() == 127
    for said in (job.log, worker.stderr()):
        assert named in said
        assert "[bug]" not in said
        assert "capabilities" not in said


def special(cluster: Cluster, role: str, details: dict[str, Any]) -> tuple[Job, Pod]:
    """A job where the pods of one role are special, and the first of these."""
    pods: dict[str, Any] = {role: details}
    job = mpijob(cluster, images.image(NEW), **pods).start()
    return job, job.launcher if role == "launcher" else job.workers[0]


BLANK = "'/scratch/a b' has a blank or ${ in its path"


@FULL
@pytest.mark.parametrize(
    ("role", "volume", "message"),
    [
        ("launcher", EmptyDir("/scratch/a b"), BLANK),
        ("worker", Tmpfs("/scratch", size=16 << 10), "No space left on device"),
    ],
    ids=["blank", "full"],
)
def test_a_named_folder_that_can_not_be_used(
    cluster: Cluster, role: str, volume: EmptyDir | Tmpfs, message: str
) -> None:
    env = {"MPIBOOT_RUNTIME_DIR": volume.path}
    _, pod = special(cluster, role, {"volumes": [volume], "env": env})
    assert pod.wait() == 73
    assert pod.termination_log().startswith("runtime-folder: ")
    assert message in pod.termination_log()
    assert "MPIBOOT_RUNTIME_DIR" in pod.stderr()


@pytest.mark.parametrize("role", ["launcher", pytest.param("worker", marks=FULL)])
def test_a_full_disk_nobody_named_is_skipped(cluster: Cluster, role: str) -> None:
    job, _ = special(cluster, role, {"volumes": [Tmpfs("/run", size=8 << 10)]})
    jobs.spans(job)
    folder = "/tmp" if role == "launcher" else "/run/mpiboot"
    assert re.search(f"={folder}[^ ]*/launcher/launch/hostfile ", job.log)


def test_pods_share_a_volume_for_files(cluster: Cluster, tmp_path: Path) -> None:
    """A volume that many pods mount: each has its own files and environment."""
    tmp_path.chmod(0o777)
    every: dict[str, Any] = {
        "env": {"TMPDIR": "/shared", "MPIBOOT_RUNTIME_DIR": "/shared"},
        "volumes": [HostPath("/shared", tmp_path, writable=True)],
    }
    line = ("mpirun", "sh", "-c", f'{MOMENT}echo "at $(hostname) $HOSTNAME"')
    image = images.image(NEW)
    job = jobs.ended(cluster, image, *line, user=1000, launcher=every, worker=every)
    lines = {line for line in job.output.splitlines() if line.startswith("at ")}
    assert lines == {f"at pi-worker-{n} pi-worker-{n}" for n in (0, 1)}
    assert len(list(tmp_path.glob("pi-*"))) == 3


LOST_BIT = 'chmod -x $(find /opt/mpiboot -path "*libexec/agent"); exec mpiboot "$@"'
ELSEWHERE = (
    'cp -r $(dirname $(find /opt/mpiboot -path "*mpiboot/libexec")) /scratch; '
    'cd /scratch; exec /opt/mpiboot/bin/python -m mpiboot "$@"'
)


@FULL
@pytest.mark.parametrize(
    ("script", "agent"),
    [(LOST_BIT, "/bin/sh /opt/mpiboot/"), (ELSEWHERE, "/bin/sh /scratch/mpiboot/")],
    ids=["no-execute-bit", "noexec-mount"],
)
def test_a_launch_agent_that_can_not_be_executed(cluster: Cluster, script: str, agent: str) -> None:
    words = ["sh", "-c", script, "sh", "mpirun", RING]
    scratch = {"volumes": [Tmpfs("/scratch", options=NOEXEC)]}
    image = images.image(NEW)
    job = jobs.spanned(cluster, image, launcher_command=words, launcher=scratch)
    assert agent in " ".join(job.log.split())
    assert "setpgid" not in job.log  # mpirun's own warning, which means nothing
