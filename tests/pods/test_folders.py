"""Where mpiboot and MPI keep their files, on folders that are full, odd, or somebody else's."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, ended, spanned, spans
from tests.pods.marks import MOMENT
from tests.pods.operator import Job, mpijob
from tests.pods.test_input import fails
from tests.pods.volumes import EmptyDir, HostPath, Tmpfs

NAME = "openmpi-5.0"
NOEXEC = ("nosuid", "nodev", "noexec")


def named(volume: EmptyDir | Tmpfs) -> dict[str, Any]:
    """A pod whose user names a volume as the runtime folder."""
    env = {"MPIBOOT_RUNTIME_DIR": volume.path}
    return {"volumes": [volume], "env": env}


def of_another_user() -> EmptyDir:
    class Theirs(EmptyDir):
        def make(self, folder: Any) -> Any:
            made = super().make(folder)
            os.chown(folder, 1234, 1234)
            return made

    return Theirs("/scratch")


def job_of(cluster: Cluster, role: str, details: dict[str, Any]) -> Job:
    """Two workers, where the pods of one role are special."""
    line = ["mpirun", RING]
    pods: dict[str, Any] = {role: details}
    return mpijob(cluster, images.image(NAME), workers=2, launcher_args=line, **pods).start()


@pytest.mark.full
@pytest.mark.parametrize("image", images.NAMES, indirect=True)
@pytest.mark.parametrize(
    "details",
    [
        pytest.param(
            {"volumes": [Tmpfs(path, options=NOEXEC) for path in ("/tmp", "/run", "/dev/shm")]},
            id="noexec-everywhere",
        ),
        pytest.param(named(Tmpfs("/scratch", options=NOEXEC)), id="noexec-named"),
        pytest.param({"env": {"TMPDIR": "/nowhere/yet"}}, id="tmpdir-to-be-made"),
        pytest.param(
            {"env": {"TMPDIR": "/scratch/a b"}, "volumes": [EmptyDir("/scratch/a b")]},
            id="tmpdir-with-a-blank",
        ),
    ],
)
def test_what_is_no_obstacle(cluster: Cluster, image: Image, details: dict[str, Any]) -> None:
    spanned(cluster, image, launcher=details, worker=copy.deepcopy(details))


@pytest.mark.full
def test_a_worker_takes_a_named_folder_with_a_blank(cluster: Cluster, rig: None) -> None:
    job = job_of(cluster, "worker", named(EmptyDir("/scratch/a b")))
    assert job.wait(PATIENCE) == 0
    spans(job)


def test_pods_that_share_a_volume_for_their_files(
    cluster: Cluster, rig: None, tmp_path: Path
) -> None:
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
        ssh_mount="/home/mpiuser/.ssh",
        launcher=every,
        worker=every,
    )
    lines = {line for line in job.launcher.stdout().splitlines() if line.startswith("at ")}
    hosts = {line.split()[1] for line in lines}
    assert lines == {f"at {host} {host}" for host in hosts}
    assert len(hosts) == 2
    assert len(list((tmp_path / "shared").glob("pi-*"))) == 3


BLANK = "'/scratch/a b' has a blank in its path, and mpirun splits it there"
UNUSABLE = [
    pytest.param(named(EmptyDir("/scratch/a b")), BLANK, id="blank"),
    pytest.param(named(Tmpfs("/scratch", size=16 << 10)), "No space left on device", id="full"),
    pytest.param(
        named(of_another_user()),
        "belongs to uid 1234, not to uid 0",
        id="another-user",
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(("details", "message"), UNUSABLE)
def test_a_named_folder_that_a_launcher_can_not_use(
    cluster: Cluster, rig: None, details: dict[str, Any], message: str
) -> None:
    job = job_of(cluster, "launcher", details)
    fails(job, 73, "runtime-folder", "/scratch", message)
    assert "MPIBOOT_RUNTIME_DIR" in job.launcher.stderr()


@pytest.mark.full
@pytest.mark.parametrize(("details", "message"), UNUSABLE[1:])
def test_a_named_folder_that_a_worker_can_not_use(
    cluster: Cluster, rig: None, details: dict[str, Any], message: str
) -> None:
    worker = job_of(cluster, "worker", details).workers[0]
    assert worker.wait(PATIENCE) == 73
    assert worker.termination_log().startswith("runtime-folder: the runtime folder /scratch ")
    assert message in worker.termination_log()
    assert "MPIBOOT_RUNTIME_DIR" in worker.stderr()


@pytest.mark.parametrize("role", ["launcher", pytest.param("worker", marks=pytest.mark.full)])
def test_a_full_disk_is_passed_over_where_nobody_named_it(
    cluster: Cluster, rig: None, role: str
) -> None:
    job = job_of(cluster, role, {"volumes": [Tmpfs("/run", size=8 << 10)]})
    assert job.wait(PATIENCE) == 0
    spans(job)
    pod = job.launcher if role == "launcher" else job.workers[0]
    (line,) = [item for item in pod.stderr().splitlines() if "the private folder is" in item]
    made = rf"/tmp/mpiboot-0/[^/]+/{role}"
    assert re.match(f"mpiboot: the private folder is {made}: /run/mpiboot/", line)
    assert line.endswith("No space left on device")


@pytest.mark.full
def test_a_tmpdir_with_a_blank_is_passed_over_for_a_launchers_files(
    cluster: Cluster, rig: None
) -> None:
    folder = EmptyDir("/scratch/a b", mode=0o1777)
    job = spanned(
        cluster,
        images.image(NAME),
        user=1000,
        ssh_mount="/home/mpiuser/.ssh",
        launcher={"env": {"TMPDIR": folder.path}, "volumes": [folder]},
    )
    assert "'/scratch/a b/mpiboot-1000' has a blank in its path" in job.launcher.stderr()


TMPDIRS = [
    pytest.param("/etc/passwd", "/etc/passwd is not a folder", id="a-file"),
    pytest.param("/sys/tmp", "/sys can't be written", id="read-only"),
]


@pytest.mark.full
@pytest.mark.parametrize(("path", "message"), TMPDIRS)
@pytest.mark.parametrize("role", ["launcher", "worker"])
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
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_command=["sh", "-c", script, "sh"],
        launcher_args=["mpirun", RING],
        launcher={"volumes": [Tmpfs("/scratch", options=NOEXEC)]},
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    log = job.launcher.stderr()
    assert agent in " ".join(log.split())
    assert "setpgid" not in log  # mpirun's own warning, which means nothing
