"""Where mpiboot and MPI keep their files, on folders that are full, odd, or somebody else's."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, ended, spanned, spans
from tests.pods.marks import MOMENT, NO_MPI
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import EmptyDir, HostPath, Tmpfs

NAME = "openmpi-5.0"
NOEXEC = ("nosuid", "nodev", "noexec")


def named(volume: EmptyDir | Tmpfs) -> dict[str, Any]:
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
    job = job_of(cluster, role, named(volume))
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
