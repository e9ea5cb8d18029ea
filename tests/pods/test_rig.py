"""The rig proves what no test of a job would notice: pods share nothing, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import dns.rdatatype
import pytest

from tests.pods.cache import REPOSITORY
from tests.pods.cluster import Cluster
from tests.pods.images import PYTHON, Image
from tests.pods.network import DNS_ADDRESSES
from tests.pods.oci import CONTAINERD, CRIO, NO_CAPABILITIES, PodSpec
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
Make = Callable[..., Pod]


@pytest.fixture
def make(cluster: Cluster, plain: Image) -> Make:
    """Starts a pod that sleeps, unless its fields say otherwise."""

    def started(name: str = "", **fields: Any) -> Pod:
        given = {"command": SLEEP, "image": plain, "name": name or f"p{len(cluster.pods)}"}
        return cluster.pod(PodSpec(**{**given, **fields})).start()

    return started


def ns(pod: Pod, kind: str) -> Path:
    return Path(f"/proc/{pod.pid}/ns/{kind}").readlink()


def test_a_pod_shares_nothing_and_nothing_is_left(
    cluster: Cluster, plain: Image, make: Make
) -> None:
    pod, other = make("a"), make("b")
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


def test_rights(make: Make) -> None:
    """Capabilities, users and groups, and what the profile of seccomp refuses."""
    for capabilities, expected in ((CONTAINERD, 0xA80425FB), (CRIO, 0x5FB), (NO_CAPABILITIES, 0)):
        pod = make(capabilities=capabilities)
        status = Path(f"/proc/{pod.pid}/status").read_text()
        sets = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Cap"))
        assert int(sets["CapBnd"], 16) == int(sets["CapEff"], 16) == expected
        assert int(sets["CapInh"], 16) == int(sets["CapAmb"], 16) == 0
    pod = make(user=12345, groups=[77], no_new_privileges=True)
    assert pod.shell("id -u; id -g; id -G").split() == ["12345", "0", "0", "77"]
    status = Path(f"/proc/{pod.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    known = make(user=1000).shell("id -un; id -g; echo $HOME").split()
    assert known == ["mpiuser", "1000", "/home/mpiuser"]
    for refused in (False, True):
        pod = make(seccomp=refused, capabilities=("CAP_SYS_ADMIN",))
        assert (pod.exec("unshare", "--uts", "true").returncode != 0) == refused


NAME = "a.job.default.svc.cluster.local"
ASK = """
import sys, dns.message, dns.query
server, name, kind, how, patience = sys.argv[1:]
ask = dns.query.tcp if how == "tcp" else dns.query.udp
question = dns.message.make_query(name, kind)
try:
    sys.stdout.write(ask(question, server, timeout=float(patience)).to_text())
except dns.exception.Timeout:
    sys.stdout.write("timeout")
"""


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_a_nameservers_good_and_bad_days(cluster: Cluster, make: Make, transport: str) -> None:
    pod = make("a", subdomain="job")

    def ask(
        name: str = NAME, kind: str = "A", patience: float = 20.0
    ) -> dns.message.Message | None:
        words = (DNS_ADDRESSES[0], name, kind, transport, str(patience))
        done = pod.exec(PYTHON, "-c", ASK, *words)
        assert done.returncode == 0, done.stderr
        return None if done.stdout == "timeout" else dns.message.from_text(done.stdout)

    def rcode(name: str = NAME, patience: float = 20.0) -> str:
        answer = ask(name, patience=patience)
        return "timeout" if answer is None else dns.rcode.to_text(answer.rcode())

    denied = ask()
    assert denied
    (soa,) = denied.authority
    assert (soa.rdtype, soa.ttl, soa[0].minimum) == (dns.rdatatype.SOA, 5, 5)
    cluster.dns.negative_cache(1000)
    assert rcode() == "NXDOMAIN"
    pod.publish()
    assert rcode() == "NXDOMAIN"  # for as long as the answer said
    cluster.dns.negative_cache(0)
    for name in (NAME, "job.default.svc.cluster.local"):
        answer = ask(name)
        assert answer
        assert [record.address for record in answer.answer[0]] == [pod.address]
    nothing = ask(kind="AAAA")
    assert nothing
    assert (nothing.rcode(), nothing.answer) == (dns.rcode.NOERROR, [])
    cluster.dns.behave(NAME, servfail=2)
    assert [rcode() for _ in range(3)] == ["SERVFAIL", "SERVFAIL", "NOERROR"]
    cluster.dns.behave(NAME, drop=1)
    assert [rcode(patience=0.3), rcode()] == ["timeout", "NOERROR"]
    cluster.dns.behave(NAME, flip=True)
    assert [rcode() for _ in range(4)] == ["NOERROR", "NXDOMAIN"] * 2
    cluster.dns.behave(NAME, tcp_only=True)
    assert rcode(patience=0.3) == ("NOERROR" if transport == "tcp" else "timeout")
    cluster.dns.behave(NAME)
    assert rcode("example.com") == "NXDOMAIN"
    pod.unpublish()
    pod.publish(when_port=8000)
    assert rcode() == "NXDOMAIN"
    pod.exec("sh", "-c", f"{PYTHON} -m http.server 8000 >/dev/null 2>&1 &")
    until(lambda: rcode() == "NOERROR")
