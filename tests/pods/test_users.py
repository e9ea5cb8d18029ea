"""Pods as clusters let them run: users, homes, capabilities, policies; each runs a whole job."""

from __future__ import annotations

import copy
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pages import named
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import (
    FOREVER,
    MOMENT,
    NEW,
    NO_MPI,
    OLD,
    PATIENCE,
    RING,
    ended,
    launched,
    left,
    owners,
    spanned,
    spans,
)
from tests.pods.oci import CRIO, NO_CAPABILITIES
from tests.pods.operator import Job, mpijob
from tests.pods.pod import TINI, Pod
from tests.pods.users import FIRST
from tests.pods.volumes import EmptyDir, HostPath, Tmpfs
from tests.waiting import until

# As an OpenShift project hands them out.
RANDOM = 1000650000
RESTRICTED: Mapping[str, Any] = {
    "capabilities": NO_CAPABILITIES,
    "no_new_privileges": True,
    "seccomp": True,
}
MOUNTED = "/home/mpiuser/.ssh"
# The folder of one container below a folder that pods may share.
CONTAINER = r"[^/ ]+-[0-9a-f]{8}"


def run(cluster: Cluster, image: Image, every: Mapping[str, Any], user: int = 0, **job: Any) -> Job:
    """Run a job in which every pod is like that; it has to succeed."""
    given = {"ssh_mount": MOUNTED if user else "/root/.ssh", **job}
    return spanned(cluster, image, user=user, launcher=every, worker=every, **given)


def plan_of(job: Job) -> str:
    """The launcher's log, which has a line for each decision of the plan."""
    return job.launcher.stderr()


def message(job: Job, *words: str) -> None:
    """A worker's log has all of these words."""
    text = job.workers[0].stderr()
    assert [word for word in words if word not in text] == [], text


def as_it_is(image: Image) -> Image:
    return image


def openshift(image: Image) -> Image:
    """An image into whose /etc/passwd CRI-O has written the random uid, as OpenShift 4 does."""
    entry = f"{RANDOM}:x:{RANDOM}:0:{RANDOM} user:/:/sbin/nologin\n"
    return image.with_files({"/etc/passwd": image.read_text("/etc/passwd") + entry})


def locked(image: Image) -> Image:
    """An image whose accounts are locked."""
    shadow = re.sub(
        r"^(root|mpiuser):[^:]*:", r"\1:!:", image.read_text("/etc/shadow"), flags=re.MULTILINE
    )
    return image.with_files({"/etc/shadow": shadow}, mode=0o640)


def with_capability(image: Image) -> Image:
    """The operator's images give sshd the capability to bind port 22, as a file's attribute."""
    sshd = (image.layers[-1] / "usr/sbin/sshd").read_bytes()
    # struct vfs_cap_data, revision 2, effective: CAP_NET_BIND_SERVICE is number 10.
    value = (0x02000001).to_bytes(4, "little") + (1 << 10).to_bytes(4, "little") + bytes(12)
    return image.with_program("/usr/sbin/sshd", sshd, value)


NONE: Mapping[str, Any] = {"capabilities": NO_CAPABILITIES}
# Restricted allows that one capability, and no program may gain it.
BIND = {**RESTRICTED, "capabilities": ["CAP_NET_BIND_SERVICE"]}
OWN_USERS = {"host_users": False}
# A tmpfs hides the folder that sshd's package made.
TMPFS = {"volumes": [Tmpfs("/run"), Tmpfs("/tmp")]}
HIGH = ("sshd (openssh)", ":2222 ")
EMBEDDED = "the embedded SSH server is used"
LACKS = f"{EMBEDDED}: sshd as root needs the capabilities "
# The image, what every pod is like, its user, and what a worker says of its server.
Server = tuple[Callable[[Image], Image], Mapping[str, Any], int, tuple[str, ...]]
SERVERS: dict[str, Server] = {
    "restricted in full": (as_it_is, RESTRICTED, 1000, HIGH),
    "root, CRI-O": (as_it_is, {"capabilities": CRIO}, 0, (f"{LACKS}SYS_CHROOT",)),
    "OpenShift": (
        openshift,
        {**RESTRICTED, "group": 0},
        RANDOM,
        (f"the shell /sbin/nologin of {RANDOM} runs no commands",),
    ),
}
MORE_SERVERS: dict[str, Server] = {
    "file capability": (with_capability, NONE, 1000, (EMBEDDED, "file capabilities")),
    "user 1000 without capabilities": (as_it_is, NONE, 1000, HIGH),
    "root without capabilities": (as_it_is, NONE, 0, (f"{LACKS}SETGID",)),
    "locked root": (locked, {}, 0, ("is locked in /etc/shadow",)),
    # Who isn't root can't read shadow, and neither can the sshd that it runs.
    "locked user": (locked, {}, 1000, ("sshd (openssh)",)),
    "file capability, restricted": (with_capability, BIND, 1000, HIGH),
    "file capability that it may have": (with_capability, {}, 1000, ()),
    "tmpfs": (as_it_is, TMPFS, 0, ()),
    "own users, restricted": (as_it_is, {**RESTRICTED, **OWN_USERS}, 1000, HIGH),
    "root of own users": (as_it_is, {**NONE, **OWN_USERS}, 0, (f"{LACKS}SETGID",)),
}


@NO_MPI
@pytest.mark.parametrize(
    ("made", "every", "user", "words"),
    [
        *(pytest.param(*row, id=name) for name, row in SERVERS.items()),
        *(
            pytest.param(*row, id=name, marks=pytest.mark.full)
            for name, row in MORE_SERVERS.items()
        ),
    ],
)
def test_the_server_that_a_pod_allows(
    cluster: Cluster,
    image: Image,
    made: Callable[[Image], Image],
    every: Mapping[str, Any],
    user: int,
    words: tuple[str, ...],
) -> None:
    random: dict[str, Any] = {"ssh_mount": "/etc/job/.ssh", "env": {"HOME": "/"}}
    job = run(cluster, made(image), every, user=user, **(random if user == RANDOM else {}))
    message(job, *words)


@pytest.mark.full
def test_the_user_of_the_page(cluster: Cluster, rig: None) -> None:
    first, second = named("non-root").splitlines()
    name = first.rpartition("/")[2]
    run(cluster, images.image(name), {}, user=int(second.removeprefix("USER ")))


@NO_MPI
def test_a_uid_without_passwd_entry_and_without_a_home(cluster: Cluster, image: Image) -> None:
    details = {**RESTRICTED, "group": 0}
    job = run(cluster, image, details, user=RANDOM, ssh_mount="/etc/job/.ssh", env={"HOME": "/"})
    message(job, "the embedded SSH server is used: uid 1000650000 has no passwd entry")
    made = rf"/tmp/mpiboot-{RANDOM}/{CONTAINER}/launcher"
    assert re.search(rf"home={made} \(detected: this user has no home that can", plan_of(job))


HOMES = {"missing": "/nowhere", "the root folder": "/", "closed to this user": "/root"}


@pytest.mark.full
@NO_MPI
@pytest.mark.parametrize("home", HOMES.values(), ids=HOMES)
def test_a_home_that_is_no_home(cluster: Cluster, image: Image, home: str) -> None:
    job = run(cluster, image, {}, user=1000, ssh_mount="/etc/job/.ssh", env={"HOME": home})
    for pod in (job.launcher, job.workers[0]):
        assert f"HOME={home} can't be used: /home/mpiuser is used instead" in pod.stderr()


@pytest.mark.full
def test_the_pod_has_no_home_variable_at_all(cluster: Cluster, image: Image) -> None:
    args = ["env", "--unset=HOME", "mpiboot"]
    run(
        cluster,
        image,
        {},
        user=1000,
        ssh_mount="/etc/job/.ssh",
        worker_command=[*args, "worker"],
        worker_args=(),
        launcher_command=[*args, "mpirun", RING],
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("image", "user", "name"),
    [
        (OLD, 0, "TMPDIR"),
        (NEW, 1000, "TMPDIR"),
        (OLD, 1000, "MPIBOOT_RUNTIME_DIR"),
        (NEW, 0, "MPIBOOT_RUNTIME_DIR"),
    ],
    indirect=["image"],
)
def test_a_read_only_root_and_one_empty_dir(
    cluster: Cluster, image: Image, user: int, name: str
) -> None:
    details = {
        "read_only_root": True,
        # As TMPDIR one that is not sticky comes after /dev/shm.
        "volumes": [EmptyDir("/scratch", mode=0o1777 if name == "TMPDIR" else 0o777)],
        "env": {name: "/scratch"},
    }
    job = run(cluster, image, details, user=user, ssh_mount="/etc/job/.ssh")
    if name == "TMPDIR":
        made = rf"/scratch/mpiboot-{user}/{CONTAINER}/launcher"
        assert re.search(rf"={made}/launch/hostfile ", plan_of(job))
    else:
        made = rf"/scratch/{CONTAINER}/launcher"
        assert re.search(rf"={made}/launch/hostfile ", plan_of(job))
        assert re.search(rf"tmpdir={made}/tmp \(detected: MPI can't write", plan_of(job))


@NO_MPI
def test_a_read_only_root_and_nothing_else(cluster: Cluster, image: Image) -> None:
    """What is left is /dev/shm, where nothing may be executed."""
    job = run(cluster, image, {"read_only_root": True}, ssh_mount="/etc/job/.ssh")
    shm = rf"/dev/shm/mpiboot-0/{CONTAINER}"
    assert re.search(rf"tmpdir={shm}/launcher/tmp \(detected: MPI can't write", plan_of(job))
    stderr = job.workers[0].stderr()
    assert re.search(rf"/tmp can't be written: MPI gets TMPDIR={shm}/worker/tmp", stderr)


@NO_MPI
@pytest.mark.parametrize("only", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_folder_that_another_user_could_replace(
    cluster: Cluster, image: Image, *, only: bool
) -> None:
    """An emptyDir has mode 0777 without the sticky bit: it is taken where nothing else is left."""
    folders = ("/tmp", "/dev/shm") if only else ("/tmp",)
    details = {"read_only_root": True, "volumes": [EmptyDir(path) for path in folders]}
    job = run(cluster, image, details, user=1000, ssh_mount="/etc/job/.ssh")
    base = "/tmp" if only else "/dev/shm"
    warning = "could replace it: /tmp has mode 0777, not sticky"
    for pod in (job.launcher, job.workers[0]):
        assert (warning in pod.stderr()) is only
    made = rf"{base}/mpiboot-1000/{CONTAINER}/launcher"
    assert re.search(rf"={made}/launch/hostfile ", plan_of(job))


@pytest.mark.parametrize(
    "user", [0, pytest.param(1000, marks=pytest.mark.full, id="1000")], ids=str
)
@NO_MPI
def test_a_user_namespace_of_the_pods_own(cluster: Cluster, image: Image, user: int) -> None:
    """`hostUsers: false`: root of the pod is nobody on the node."""
    details = {"host_users": False, "env": {"MPIBOOT_WORKER_EXIT": "never"}}
    job = run(cluster, image, details, user=user, ssh_mount="/root/.ssh" if user == 0 else MOUNTED)
    message(job, "sshd (openssh)", ":22 " if user == 0 else ":2222 ")
    worker = job.workers[0]
    assert owners(worker) == {FIRST + user}
    facts = worker.shell("mpiboot facts")
    assert re.search(r"identity.own_users +yes", facts)


def with_tini(name: str) -> Image:
    """An image whose ENTRYPOINT has an init in front, as `docker run --init` or many images do."""
    plain = images.image(name)
    entrypoint = ("/usr/bin/tini", "--", *plain.entrypoint)
    return replace(
        plain.with_program("/usr/bin/tini", Path(TINI).read_bytes()), entrypoint=entrypoint
    )


FIRST_PROCESS = pytest.mark.parametrize("first", ["tini", "pause"])


def below(cluster: Cluster, name: str, first: str, *program: str, publish: bool = True) -> Job:
    """A job where another program is the first process of each pod."""
    details = {"share_processes": first == "pause"}
    image = with_tini(name) if first == "tini" else images.image(name)
    return mpijob(
        cluster, image, workers=2, launcher_args=program, launcher=details, worker=details
    ).start(publish=publish)


@FIRST_PROCESS
@pytest.mark.parametrize("name", [OLD, pytest.param(NEW, marks=pytest.mark.full)])
def test_mpiboot_is_not_the_first_process(
    cluster: Cluster, rig: None, name: str, first: str
) -> None:
    """An init in front, or the one `pause` of a pod with shareProcessNamespace."""
    job = below(cluster, name, first, "mpirun", RING, publish=False)
    worker = job.workers[0]
    until(lambda: first_words(worker) == ("/usr/bin/tini" if first == "tini" else TINI))
    job.publish()  # not before: the pods end with the job
    assert job.wait(PATIENCE) == 0
    spans(job)
    if first == "pause":  # there nobody can tell the container's own launcher from another
        assert all(pod.running for pod in job.workers)
        worker.signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0


@pytest.mark.parametrize("shares", ["launcher", "worker"])
def test_who_shares_its_process_table_decides_whether_workers_end_with_the_job(
    cluster: Cluster, rig: None, shares: str
) -> None:
    """A launcher that shares its process table notifies no worker of the end."""
    details: dict[str, Any] = {shares: {"share_processes": True}}
    image = images.image(images.NAMES[-1])
    job = ended(cluster, image, workers=1, **details)
    (worker,) = job.workers
    if shares == "launcher":
        assert worker.running
        worker.signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0


def first_words(pod: Pod) -> str:
    """The program that has the number 1 there."""
    return next((item.args[0] for item in pod.processes() if item.pid == 1), "")


@pytest.mark.full
@FIRST_PROCESS
@pytest.mark.parametrize("name", images.NAMES)
@pytest.mark.parametrize("end", ["signal", "killed"])
def test_the_end_of_a_launcher_that_is_not_the_first_process(
    cluster: Cluster, rig: None, name: str, first: str, end: str
) -> None:
    job = below(cluster, name, first, *FOREVER)
    launched(job)
    if end == "signal":
        job.launcher.signal(signal.SIGTERM)
        assert job.wait(PATIENCE) == 143
    else:
        job.launcher.kill()
        assert job.wait(PATIENCE) == 137
    until(lambda: not left(job.workers))
    assert all(worker.running for worker in job.workers)


NO_CLONE3 = {"refused_calls": ("clone3",)}


@pytest.mark.full
def test_a_seccomp_profile_that_lets_no_thread_begin_is_named(cluster: Cluster, rig: None) -> None:
    """An older Docker's: glibc falls back on clone where clone3 is not there, and not on EPERM."""
    job = mpijob(
        cluster,
        images.image(images.NAMES[0]),
        workers=1,
        launcher_args=("mpirun", RING),
        launcher=NO_CLONE3,
        worker=NO_CLONE3,
    ).start()
    named = "the pod's seccomp profile fails clone3 with EPERM"
    assert job.wait(PATIENCE) == 69
    assert job.launcher.termination_log().startswith(f"launcher-limits: {named}")
    (worker,) = job.workers
    assert worker.wait(PATIENCE) == 127
    for said in (job.launcher.stderr(), worker.stderr()):
        assert named in said
        assert "[bug]" not in said
        assert "capabilities" not in said


NAME = "openmpi-5.0"
NOEXEC = ("nosuid", "nodev", "noexec")


def runtime_folder(volume: EmptyDir | Tmpfs) -> dict[str, Any]:
    """A pod whose user names a volume as the runtime folder."""
    env = {"MPIBOOT_RUNTIME_DIR": volume.path}
    return {"volumes": [volume], "env": env}


def job_of(cluster: Cluster, role: str, details: dict[str, Any]) -> Job:
    """Two workers, where the pods of one role are special."""
    line = ["mpirun", RING]
    pods: dict[str, Any] = {role: details}
    return mpijob(cluster, images.image(NAME), launcher_args=line, **pods).start()


@pytest.mark.full
@NO_MPI
@pytest.mark.parametrize(
    "details",
    [
        pytest.param(
            {"volumes": [Tmpfs(path, options=NOEXEC) for path in ("/tmp", "/run", "/dev/shm")]},
            id="noexec-everywhere",
        ),
        pytest.param(runtime_folder(Tmpfs("/scratch", options=NOEXEC)), id="noexec-named"),
        pytest.param({"env": {"TMPDIR": "/nowhere/yet"}}, id="tmpdir-to-be-made"),
        pytest.param(
            {"env": {"TMPDIR": "/scratch/a b"}, "volumes": [EmptyDir("/scratch/a b")]},
            id="tmpdir-with-a-blank",
        ),
    ],
)
def test_what_is_no_obstacle(cluster: Cluster, image: Image, details: dict[str, Any]) -> None:
    spanned(cluster, image, launcher=details, worker=copy.deepcopy(details))


def test_pods_share_a_volume_for_files(cluster: Cluster, rig: None, tmp_path: Path) -> None:
    """A volume that many pods mount: each has its own files and environment."""
    (tmp_path / "shared").mkdir(mode=0o777)
    (tmp_path / "shared").chmod(0o777)
    every: dict[str, Any] = {
        "env": {"TMPDIR": "/shared", "MPIBOOT_RUNTIME_DIR": "/shared"},
        "volumes": [HostPath("/shared", tmp_path / "shared", writable=True)],
    }
    job = ended(
        cluster,
        images.image(NAME),
        *("mpirun", "sh", "-c", f'{MOMENT}echo "at $(hostname) $HOSTNAME"'),
        user=1000,
        launcher=every,
        worker=every,
    )
    lines = {line for line in job.launcher.stdout().splitlines() if line.startswith("at ")}
    hosts = {line.split()[1] for line in lines}
    assert lines == {f"at {host} {host}" for host in hosts}
    assert len(hosts) == 2
    assert len(list((tmp_path / "shared").glob("pi-*"))) == 3


BLANK = "'/scratch/a b' has a blank or ${ in its path"


@pytest.mark.full
@pytest.mark.parametrize(
    ("role", "volume", "message"),
    [
        ("launcher", EmptyDir("/scratch/a b"), BLANK),
        ("worker", Tmpfs("/scratch", size=16 << 10), "No space left on device"),
    ],
    ids=["blank", "full"],
)
def test_a_named_folder_that_can_not_be_used(
    cluster: Cluster, rig: None, role: str, volume: EmptyDir | Tmpfs, message: str
) -> None:
    job = job_of(cluster, role, runtime_folder(volume))
    pod = job.launcher if role == "launcher" else job.workers[0]
    assert pod.wait(PATIENCE) == 73
    assert pod.termination_log().startswith("runtime-folder: ")
    assert message in pod.termination_log()
    assert "MPIBOOT_RUNTIME_DIR" in pod.stderr()


@pytest.mark.parametrize("role", ["launcher", pytest.param("worker", marks=pytest.mark.full)])
def test_a_full_disk_nobody_named_is_skipped(cluster: Cluster, rig: None, role: str) -> None:
    job = job_of(cluster, role, {"volumes": [Tmpfs("/run", size=8 << 10)]})
    assert job.wait(PATIENCE) == 0
    spans(job)
    pod = job.launcher if role == "launcher" else job.workers[0]
    (line,) = [item for item in pod.stderr().splitlines() if "the private folder is" in item]
    made = rf"/tmp/mpiboot-0/[^/]+/{role}"
    assert re.match(f"mpiboot: the private folder is {made}: /run/mpiboot/", line)
    assert line.endswith("No space left on device")


@pytest.mark.full
def test_a_launchers_tmpdir_with_a_blank(cluster: Cluster, rig: None) -> None:
    folder = EmptyDir("/scratch/a b", mode=0o1777)
    job = spanned(
        cluster,
        images.image(NAME),
        user=1000,
        launcher={"env": {"TMPDIR": folder.path}, "volumes": [folder]},
    )
    assert "'/scratch/a b/mpiboot-1000' has a blank or ${ in its path" in job.launcher.stderr()


TMPDIRS = [
    pytest.param("launcher", "/etc/passwd", "/etc/passwd is not a folder", id="a-file"),
    pytest.param("worker", "/sys/tmp", "/sys can't be written", id="read-only"),
]


@pytest.mark.full
@pytest.mark.parametrize(("role", "path", "message"), TMPDIRS)
def test_a_tmpdir_that_can_not_be_used(
    cluster: Cluster, rig: None, role: str, path: str, message: str
) -> None:
    """Open MPI's own end is a page about `orte_init` or PMIx that names no folder."""
    job = job_of(cluster, role, {"env": {"TMPDIR": path}})
    pod = job.launcher if role == "launcher" else job.workers[0]
    assert pod.wait(PATIENCE) == 73
    assert pod.termination_log().startswith(f"tmpdir: TMPDIR={path} can't be used: {message}")


LOST_BIT = 'chmod -x $(find /opt/mpiboot -path "*libexec/agent"); exec mpiboot "$@"'
ELSEWHERE = (
    'cp -r $(dirname $(find /opt/mpiboot -path "*mpiboot/libexec")) /scratch; '
    'cd /scratch; exec /opt/mpiboot/bin/python -m mpiboot "$@"'
)


@pytest.mark.full
@NO_MPI
@pytest.mark.parametrize(
    ("script", "agent"),
    [
        pytest.param(LOST_BIT, "/bin/sh /opt/mpiboot/", id="no-execute-bit"),
        pytest.param(ELSEWHERE, "/bin/sh /scratch/mpiboot/", id="noexec-mount"),
    ],
)
def test_a_launch_agent_that_can_not_be_executed(
    cluster: Cluster, image: Image, script: str, agent: str
) -> None:
    job = spanned(
        cluster,
        image,
        launcher_command=["sh", "-c", script, "sh", "mpirun", RING],
        launcher={"volumes": [Tmpfs("/scratch", options=NOEXEC)]},
    )
    log = job.launcher.stderr()
    assert agent in " ".join(log.split())
    assert "setpgid" not in log  # mpirun's own warning, which means nothing
