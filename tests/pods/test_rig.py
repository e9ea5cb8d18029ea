"""The rig proves itself: its pods are what a kubelet makes of them, and share nothing."""

from __future__ import annotations

import signal
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
from tests.pods.network import DNS_ADDRESSES, Link
from tests.pods.oci import CONTAINERD, CRIO, NO_CAPABILITIES, PodSpec
from tests.pods.operator import mpijob
from tests.pods.pod import Pod, PodError
from tests.pods.volumes import EmptyDir, Files, SubPath, Tmpfs
from tests.waiting import until

GUARD = 60  # seconds, against a hang
SLEEP = ("sleep", "1000")
CONNECT = """import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), 0.5)
except ConnectionRefusedError:
    print("yes")
except OSError:
    print("no")
"""
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


def reaches(pod: Pod, address: str) -> bool:
    """Whether a packet gets there and back: a closed port refuses the connection."""
    done = pod.exec(PYTHON, "-c", CONNECT, address)
    assert done.stdout in {"yes\n", "no\n"}, done.stderr
    return done.stdout == "yes\n"


def ns(pod: Pod, kind: str = "net") -> Path:
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


def test_links(cluster: Cluster, make: Make) -> None:
    """Bridges that don't meet, cuts with and without a carrier, IPv6 alone, a node's network."""
    links = (Link(), Link("net1", "br-data", mtu=9000))
    one, two, three = make("a", links=links), make("b", links=links), make("c")
    data = two.network.addresses("net1")[0]
    assert [reaches(one, two.address), reaches(one, data)] == [True, True]
    assert [reaches(three, two.address), reaches(three, data)] == [True, False]
    assert one.shell("cat /sys/class/net/net1/mtu; ls /sys/class/net") == "9000\neth0\nlo\nnet1"
    before = two.counters("net1"), two.counters("eth0")
    send = "import socket, sys\nfor _ in range(20):\n"
    send += "    socket.socket(type=socket.SOCK_DGRAM).sendto(bytes(1400), (sys.argv[1], 9))\n"
    one.exec(PYTHON, "-c", send, data)
    until(lambda: two.counters("net1").rx - before[0].rx >= 20 * 1400)
    assert two.counters("eth0").rx - before[1].rx < 3000
    for silent in (True, False):
        two.link_down("eth0", silent=silent)
        assert two.shell("cat /sys/class/net/eth0/carrier") == ("1" if silent else "0")
        assert not reaches(one, two.address)
        two.network.up("eth0")
        until(lambda: reaches(one, two.address), GUARD)
    six = make("six", links=(Link(ipv4=False, ipv6=True),), subdomain="job")
    six.publish()
    assert six.address.startswith("fd00:10:244::")
    assert six.shell("getent ahostsv6 six.job | head -n1").split()[0] == six.address
    assert cluster.dns.questions("six.job.default.svc.cluster.local")[0].client.startswith("fd00")
    first, second = (make(name, host_network="node-1", subdomain="job") for name in ("n", "m"))
    assert (ns(first), first.address) == (ns(second), second.address)
    assert first.shell("hostname") == "node-1"
    first.publish()
    assert second.shell("getent hosts n.job").split()[0] == first.address


def test_volumes_and_kubelets_files(make: Make) -> None:
    secret = Files("/etc/keys", {"key": "one", "other": "x"}, mode=0o600)
    both = {"key": "x", "script": "y"}
    pod = make(
        hostname="w-0",
        subdomain="job",
        namespace="team",
        searches=["job.team.svc.cluster.local"],
        extra_hosts={"10.9.9.9": ["db", "db.example"]},
        volumes=[
            secret,
            Files("/a", both, mode=0o600, modes={"script": 0o555}, fs_group=1000),
            SubPath("/b/key", "z", mode=0o400),
            EmptyDir("/c"),
            Tmpfs("/d", size=1 << 20),
        ],
    )
    assert pod.shell("readlink /etc/keys/key") == "..data/key"
    assert pod.shell("readlink /etc/keys/..data").startswith("..20")
    assert pod.shell("stat -L -c %a:%u:%g /etc/keys/key") == "600:0:0"
    secret.update({"key": "two", "new": "y"})
    assert pod.shell("cat /etc/keys/key; ls /etc/keys") == "twokey\nnew"
    assert pod.shell("stat -L -c %a:%g /a/key /a/script").split() == ["640:1000", "555:1000"]
    assert pod.shell("stat -c '%F %a' /b/key") == "regular file 400"
    assert pod.shell("touch /c/x; stat -c %a /c; stat -f -c %T /d") == "777\ntmpfs"
    search = "team.svc.cluster.local svc.cluster.local cluster.local job.team.svc.cluster.local"
    assert pod.shell("head -n1 /etc/resolv.conf") == f"search {search}"
    assert "options ndots:5" in pod.shell("cat /etc/resolv.conf")
    names = [pod.address, "w-0.job.team.svc.cluster.local", "w-0"]
    assert pod.shell("getent hosts w-0").split() == names
    assert pod.shell("getent hosts db").split()[0] == "10.9.9.9"
    own = pod.shell("echo $HOSTNAME $KUBERNETES_SERVICE_HOST; cat /etc/hostname").split()
    assert own == ["w-0", "10.96.0.1", "w-0"]
    pod.shell("echo because >/dev/termination-log")
    assert pod.termination_log() == "because\n"
    assert pod.shell("df -k /dev/shm | awk 'NR==2 {print $2}'") == "65536"
    for refused in (
        "touch /etc/keys/file",
        "head -c 2M /dev/zero >/d/x",
        "echo 1 >/proc/sys/net/ipv4/ip_forward",
        "mkdir /sys/fs/cgroup/memory/x /sys/fs/cgroup/x",
    ):
        assert pod.exec("sh", "-c", refused).returncode != 0, refused


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


def test_a_containers_life(make: Make) -> None:
    pod = make(command=["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (pod.wait(), pod.stdout(), pod.stderr()) == (7, "out\n", "err\n")
    script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    pod = make(command=["sh", "-c", script])
    until(lambda: "ready" in pod.stdout())
    assert pod.stop() == 5
    with pytest.raises(PodError, match="no-such-program"):
        make(command=["no-such-program"])
    pod, other = make(volumes=[EmptyDir("/kept")]), make()
    address, network = pod.address, ns(pod)
    pod.shell("touch /kept/x /tmp/x")
    pod.kill()
    assert pod.wait() == 128 + signal.SIGKILL
    pod.start()
    assert (pod.address, ns(pod), pod.restarts) == (address, network, 1)
    assert pod.shell("ls /kept; ls /tmp") == "x"
    assert reaches(other, address)
    pod.delete()
    assert not reaches(other, address)


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


def test_what_the_operator_writes(cluster: Cluster, plain: Image) -> None:
    job = mpijob(
        cluster, plain, slots=2, launcher_command=SLEEP, worker_command=SLEEP, worker_args=()
    ).start()
    launcher, worker = job.launcher, job.workers[1]
    hosts = [f"pi-worker-{index}.pi.default.svc slots=2" for index in range(2)]
    assert launcher.shell("cat /etc/mpi/hostfile").splitlines() == hosts
    env = launcher.shell("env").splitlines()
    assert {
        "K_MPI_JOB_ROLE=launcher",
        "OMPI_MCA_orte_keep_fqdn_hostnames=true",
        "OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args=-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots=2",
        "NVIDIA_VISIBLE_DEVICES=",
    } <= set(env)
    env = worker.shell("env").splitlines()
    assert "K_MPI_JOB_ROLE=worker" in env
    assert not any(name.startswith("OMPI") for name in env)
    assert worker.exec("test", "-e", "/etc/mpi").returncode == 1
    modes = launcher.shell("stat -Lc%a /root/.ssh/id_rsa /etc/mpi/discover_hosts.sh")
    assert modes.split() == ["600", "555"]
    assert launcher.exec("ssh-keygen", "-yf", "/root/.ssh/id_rsa").stdout == job.keys.public
    assert job.keys.public.startswith("ecdsa-sha2-nistp521 ")
    search = worker.shell("cat /etc/resolv.conf").splitlines()[0]
    assert search.endswith(" cluster.local pi.default.svc.cluster.local")
    assert worker.exec("getent", "hosts", "pi-worker-0").stdout
    assert launcher.exec("getent", "hosts", "pi-worker-1.pi.default.svc").stdout
    assert worker.exec("getent", "hosts", "pi-launcher.pi").returncode
