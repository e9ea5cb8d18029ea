"""The rig proves itself: its pods share nothing with the host or each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.pods.cache import REPOSITORY
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.network import Link
from tests.pods.oci import PodSpec
from tests.pods.probe import reaches
from tests.waiting import until

GUARD = 60  # seconds, against a hang
SLEEP = ("sleep", "1000")


def test_a_pod_shares_nothing(cluster: Cluster, plain: Image, tmp_path: Path) -> None:
    pods = [cluster.pod(PodSpec(name=name, image=plain, command=SLEEP)).start() for name in "ab"]
    for kind in ("pid", "net", "mnt", "uts", "ipc"):
        processes = (pods[0].pid, pods[1].pid, "self")
        seen = {Path(f"/proc/{number}/ns/{kind}").readlink() for number in processes}
        assert len(seen) == 3, kind
    pod = pods[0]
    pod.shell("touch /root/mark /tmp/mark-of-pod /dev/shm/mark-of-pod")
    for path in ("/root/mark", "/tmp/mark-of-pod", "/dev/shm/mark-of-pod"):
        assert not Path(path).exists()
        assert not any((layer / path[1:]).exists() for layer in plain.layers)
    assert not pod.root.samefile("/")
    assert not (pod.root / tmp_path.relative_to("/")).exists()
    assert pod.shell("ls /tmp") == "mark-of-pod"
    until(lambda: [(p.pid, p.args) for p in pod.processes()] == [(1, SLEEP)])  # runc execs it
    assert pod.shell("cat /proc/1/cmdline | tr '\\0' ' '") == "sleep 1000"
    assert pod.shell("hostname") == "a"


def test_nothing_is_left_when_the_cluster_ends(cluster: Cluster, plain: Image) -> None:
    pod = cluster.pod(PodSpec(name="a", image=plain, command=SLEEP)).start()
    before = Path("/proc/self/mountinfo").read_text()
    assert str(cluster.folder) not in before
    assert not Path("/run/netns", pod.network.name).exists()
    cluster.close()
    assert not Path(f"/proc/{pod.pid}").exists()
    assert not cluster.folder.exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/mpiboot-{cluster.name}*"))


def test_nothing_is_left_when_the_test_is_killed(rig: None) -> None:
    code = (
        "import sys, time\n"
        "from tests.pods.cluster import Cluster\n"
        "from tests.pods.images import image\n"
        "from tests.pods.oci import PodSpec\n"
        "cluster = Cluster()\n"
        "spec = PodSpec(name='a', image=image('openmpi-5.0', programs=False),"
        " command=['sleep', '1000'])\n"
        "print(cluster.pod(spec).start().pid, cluster.folder, flush=True)\n"
        "time.sleep(1000)\n"
    )
    test = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert test.stdout is not None
    pid, folder = test.stdout.readline().split()
    assert Path("/proc", pid).exists()
    test.kill()
    test.communicate()
    until(lambda: not Path("/proc", pid).exists() and not Path(folder).exists(), GUARD)


def test_pods_reach_each_other_on_each_bridge(cluster: Cluster, plain: Image) -> None:
    links = (Link(), Link("net1", "br-data", mtu=9000))
    one, two = (
        cluster.pod(PodSpec(name=name, image=plain, command=SLEEP, links=links)).start()
        for name in "ab"
    )
    three = cluster.pod(PodSpec(name="c", image=plain, command=SLEEP)).start()
    two_data = two.network.addresses("net1")[0]
    assert reaches(one, two.address)
    assert reaches(one, two_data)
    assert reaches(three, two.address)
    assert not reaches(three, two_data)
    assert one.shell("cat /sys/class/net/net1/mtu") == "9000"
    assert sorted(one.shell("ls /sys/class/net").split()) == ["eth0", "lo", "net1"]
    before = two.counters("net1"), two.counters("eth0")
    code = (
        "import socket, sys\n"
        "for _ in range(20):\n"
        "    socket.socket(type=socket.SOCK_DGRAM).sendto(bytes(1400), (sys.argv[1], 9))\n"
    )
    one.exec("/opt/mpiboot/bin/python3", "-c", code, two_data)
    until(lambda: two.counters("net1").rx - before[0].rx >= 20 * 1400)
    assert two.counters("eth0").rx - before[1].rx < 3000
    for silent in (True, False):
        two.link_down("eth0", silent=silent)
        assert two.shell("cat /sys/class/net/eth0/carrier") == ("1" if silent else "0")
        assert not reaches(one, two.address)
        two.link_up("eth0")
        until(lambda: reaches(one, two.address), GUARD)


def test_ipv6_only(cluster: Cluster, plain: Image) -> None:
    links = (Link(ipv4=False, ipv6=True),)
    spec = PodSpec(name="a", image=plain, command=SLEEP, links=links, subdomain="job")
    pod = cluster.pod(spec).start()
    pod.publish()
    assert pod.address == "fd00:10:244::a"
    assert pod.shell("getent ahostsv6 a.job | head -n1").split()[0] == pod.address
    assert cluster.dns.questions("a.job.default.svc.cluster.local")[0].client.startswith("fd00")


def test_host_network_shares_the_nodes_links_and_ports(cluster: Cluster, plain: Image) -> None:
    specs = [
        PodSpec(name=name, image=plain, command=SLEEP, host_network="node-1", subdomain="job")
        for name in "ab"
    ]
    one, two = (cluster.pod(spec).start() for spec in specs)
    assert Path(f"/proc/{one.pid}/ns/net").readlink() == Path(f"/proc/{two.pid}/ns/net").readlink()
    assert one.address == two.address
    assert one.shell("hostname") == "node-1"
    one.publish()
    assert two.shell("getent hosts a.job").split()[0] == one.address
