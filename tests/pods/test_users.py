"""Pods as clusters let them run: users, homes, rights, folders; each runs a whole job."""

from __future__ import annotations

import copy
import re
import signal
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.pages import named
from tests.pods import images, jobs
from tests.pods.cluster import Cluster
from tests.pods.images import PYTHON, Image
from tests.pods.jobs import MOMENT, NEW, OLD, RING
from tests.pods.oci import CRIO, NO_CAPABILITIES
from tests.pods.operator import mpijob
from tests.pods.pod import TINI
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
READ_ONLY: Mapping[str, Any] = {"read_only_root": True}
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
    made: Callable[[Image], Image] = field(default=lambda image: image)
    key: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False


def home(path: str) -> Kind:
    text = f"HOME={path} can't be used: /home/mpiuser is used instead"
    return Kind(user=1000, key=JOB_KEY, env={"HOME": path}, every=text)


HIGH = (r"sshd \(openssh\)", ":2222 ")
EMBEDDED = "using the embedded SSH server"
LACKS = f"{EMBEDDED}: sshd as root needs the capabilities "
RANDOM_USER = {**RESTRICTED, "group": 0}
WARNING = "could replace it: /tmp has mode 0777, not sticky"
KINDS = {
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
    "locked root": Kind(worker=("is locked in /etc/shadow",), made=locked),
    "file capability, restricted": Kind(BIND, 1000, HIGH, made=with_capability),
    "a home that is missing": home("/nowhere"),
    "a home that is closed to this user": home("/root"),
    # A tmpfs hides the folder that sshd's package made.
    "tmpfs": Kind({"volumes": [Tmpfs("/run"), Tmpfs("/tmp")]}),
    "one folder": Kind(
        {
            "volumes": [EmptyDir("/scratch", mode=0o1777)],
            "env": {"TMPDIR": "/scratch"},
            **READ_ONLY,
        },
        1000,
        key=JOB_KEY,
        plan=f"=/scratch/mpiboot-1000/{CONTAINER}/launcher/launch/hostfile ",
    ),
    "one folder of mpiboot's": Kind(
        {
            "volumes": [EmptyDir("/scratch")],
            "env": {"MPIBOOT_RUNTIME_DIR": "/scratch"},
            **READ_ONLY,
        },
        key=JOB_KEY,
        plan=f"MPI gets TMPDIR=/scratch/{CONTAINER}/launcher/tmp",
    ),
    # What is left is /dev/shm, where nothing may be executed.
    "a read-only root": Kind(
        READ_ONLY,
        worker=(f"/tmp can't be written: MPI gets TMPDIR=/dev/shm/mpiboot-0/{CONTAINER}/worker/t",),
        key=JOB_KEY,
        plan=f"MPI gets TMPDIR=/dev/shm/mpiboot-0/{CONTAINER}/launcher/tmp",
        quick=True,
    ),
    # An emptyDir has mode 0777 without the sticky bit: it is taken where nothing else is left.
    "a folder that another user could replace": Kind(
        {"volumes": [EmptyDir("/tmp"), EmptyDir("/dev/shm")], **READ_ONLY},
        *(1000, (), WARNING, f"=/tmp/mpiboot-1000/{CONTAINER}/launcher/launch/hostfile "),
        quick=True,
    ),
    "noexec everywhere": Kind(
        {"volumes": [Tmpfs(path, options=NOEXEC) for path in ("/tmp", "/run", "/dev/shm")]}
    ),
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
        kind.made(images.image(NEW)),
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


@pytest.mark.parametrize("first", ["tini", "pause"])
@jobs.OLD_IMAGE
def test_mpiboot_is_not_the_first_process(cluster: Cluster, image: Image, first: str) -> None:
    """But tini of the image, or the one `pause` of shareProcessNamespace."""
    details = {"share_processes": first == "pause"}
    if first == "tini":
        image = jobs.under_tini(image)
    job = mpijob(cluster, image, launcher=details, worker=details).start(publish=False)
    worker = job.workers[0]
    program = "/usr/bin/tini" if first == "tini" else TINI
    until(lambda: [item for item in worker.processes() if (item.pid, item.args[0]) == (1, program)])
    job.publish()  # not before: the pods end with the job
    jobs.spans(job)
    if first == "pause":  # there nobody can tell the container's own launcher from another
        assert all(pod.running for pod in job.workers)
        worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@FULL
def test_a_seccomp_profile_that_lets_no_thread_begin_is_named(cluster: Cluster) -> None:
    """An older Docker's: glibc falls back on clone where clone3 is not there, and not on EPERM."""
    profile = {"refused_calls": ("clone3",)}
    image = images.image(OLD)
    job = mpijob(cluster, image, workers=1, launcher=profile, worker=profile).start()
    named = "a seccomp profile that fails clone3 with EPERM"
    assert job.wait() == 69
    assert job.message.startswith("launcher-limits: ")
    (worker,) = job.workers
    assert worker.wait() == 127
    for said in (job.log, worker.stderr()):
        assert named in said
        assert "[bug]" not in said


@pytest.mark.parametrize("role", ["launcher", pytest.param("worker", marks=FULL)])
def test_a_full_disk_nobody_named_is_skipped(cluster: Cluster, role: str) -> None:
    full: dict[str, Any] = {role: {"volumes": [Tmpfs("/run", size=8 << 10)]}}
    job = jobs.spanned(cluster, images.image(NEW), **full)
    folder = "/tmp" if role == "launcher" else "/run/mpiboot"
    assert re.search(f"={folder}[^ ]*/launcher/launch/hostfile ", job.log)


@FULL
def test_a_named_folder_that_is_full(cluster: Cluster) -> None:
    worker = {
        "volumes": [Tmpfs("/scratch", size=16 << 10)],
        "env": {"MPIBOOT_RUNTIME_DIR": "/scratch"},
    }
    pod = mpijob(cluster, images.image(NEW), worker=worker).start().workers[0]
    assert pod.wait() == 73
    assert pod.termination_log().startswith("runtime-folder: ")
    assert "No space left on device" in pod.termination_log()


def test_pods_share_a_volume_for_files(cluster: Cluster, tmp_path: Path) -> None:
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


ELSEWHERE = (
    'cp -r $(dirname $(find /opt/mpiboot -path "*mpiboot/libexec")) /scratch; '
    'cd /scratch; exec /opt/mpiboot/bin/python -m mpiboot "$@"'
)


@FULL
def test_a_launch_agent_that_can_not_be_executed(cluster: Cluster) -> None:
    words = ["sh", "-c", ELSEWHERE, "sh", "mpirun", RING]
    scratch = {"volumes": [Tmpfs("/scratch", options=NOEXEC)]}
    job = jobs.spanned(cluster, images.image(NEW), launcher_command=words, launcher=scratch)
    assert "/bin/sh /scratch/mpiboot/" in " ".join(job.log.split())
    assert "setpgid" not in job.log  # mpirun's own warning, which means nothing
