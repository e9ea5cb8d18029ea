"""The rig proves what no test of a job would notice: pods share nothing, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.pods.cache import REPOSITORY
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.oci import PodSpec
from tests.pods.pod import Pod
from tests.waiting import until

GUARD = 60  # seconds, against a hang
SLEEP = ("sleep", "1000")
# It is killed while its pod runs.
KILLED = """import time
from tests.pods.cluster import Cluster
from tests.pods.images import image
from tests.pods.oci import PodSpec
cluster = Cluster()
image = image("openmpi-5.0", programs=False)
pod = cluster.pod(PodSpec(name="a", image=image, command=["sleep", "1000"])).start()
print(pod.pid, cluster.folder, flush=True)
time.sleep(1000)
"""


def ns(pod: Pod, kind: str) -> Path:
    return Path(f"/proc/{pod.pid}/ns/{kind}").readlink()


def test_a_pod_shares_nothing_and_nothing_is_left(cluster: Cluster, plain: Image) -> None:
    pod, other = (
        cluster.pod(PodSpec(name=name, image=plain, command=SLEEP)).start() for name in "ab"
    )
    for kind in ("pid", "net", "mnt", "uts", "ipc"):
        seen = {ns(pod, kind), ns(other, kind), Path(f"/proc/self/ns/{kind}").readlink()}
        assert len(seen) == 3, kind
    pod.shell("touch /root/mark /tmp/mark-of-pod /dev/shm/mark-of-pod")
    for path in ("/root/mark", "/tmp/mark-of-pod", "/dev/shm/mark-of-pod"):
        assert not Path(path).exists()
        assert not any((layer / path[1:]).exists() for layer in plain.layers)
    assert not pod.root.samefile("/")
    assert pod.shell("ls /tmp; hostname") == "mark-of-pod\na"
    until(lambda: [(p.pid, p.args) for p in pod.processes()] == [(1, SLEEP)])  # runc execs it
    assert str(cluster.folder) not in Path("/proc/self/mountinfo").read_text()
    assert not Path("/run/netns", pod.network.name).exists()
    cluster.close()
    assert not Path(f"/proc/{pod.pid}").exists()
    assert not cluster.folder.exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/mpiboot-{cluster.name}*"))


def test_nothing_is_left_when_the_test_is_killed(rig: None) -> None:
    argv = [sys.executable, "-c", KILLED]
    test = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert test.stdout is not None
    pid, folder = test.stdout.readline().split()
    assert Path("/proc", pid).exists()
    test.kill()
    test.communicate()
    until(lambda: not Path("/proc", pid).exists() and not Path(folder).exists(), GUARD)
