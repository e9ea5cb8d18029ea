"""Networks as clusters have them: policies, IPv6, proxies, NAT, name servers; whole jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.pods import images, jobs
from tests.pods.cluster import Cluster
from tests.pods.images import PYTHON, Image
from tests.pods.jobs import MOMENT, NEW, OLD, RING
from tests.pods.network import Link
from tests.pods.operator import mpijob
from tests.pods.pod import Pod
from tests.pods.test_split import on, pods, shown
from tests.pods.volumes import SubPath
from tests.waiting import until

FULL = pytest.mark.full
BYTES = ("mpirun", RING, "--bytes", "1")
NAMES = "pi-worker-0.pi.default.svc", "pi-worker-1.pi.default.svc"
RULES = "table {} {} {{ chain c {{ type {} priority {}; {}; }}; }}"


def rule(pod: Pod, hook: str, *rules: str, priority: str = "0", kind: str = "filter") -> None:
    """Give a pod's network a chain of rules, for packets of both versions of IP."""
    table = "inet" if kind == "filter" else "ip"
    text = RULES.format(table, f"t{hook}", f"{kind} hook {hook}", priority, "; ".join(rules))
    pod.network.run("nft", "-f", "-", stdin=text)


def words(text: str) -> str:
    return " ".join(text.split())


REDIRECTS = """
table ip istio {
    chain inbound {
        type nat hook prerouting priority dstnat;
        iifname "%s" tcp dport != { 15006, 22 } redirect to :15006
    }
}
"""
PROXY = """
import socket
server = socket.create_server(("", 15006))
held = []
while True:
    held.append(server.accept()[0])
"""


def accepting(cluster: Cluster, pod: Pod, link: str) -> None:
    """Put a service mesh's sidecar before all ports of a pod's link but SSH's.

    The proxy stands in for Envoy: it takes every connection and says nothing, as that does where it
    waits for the client of a server that speaks first.
    """
    pod.network.run("nft", "-f", "-", stdin=REDIRECTS % link)
    name, command = f"{pod.spec.name}-istio-proxy", [PYTHON, "-c", PROXY]
    plain = replace(pod.spec, name=name, command=command, args=(), env={}, user=1337, group=1337)
    cluster.pod(replace(plain, volumes=()), beside=pod).start()


PORTS = {"MPIBOOT_PORT_RANGE": "40000-40009"}
SIX: dict[str, Any] = {"links": (Link(ipv4=False, ipv6=True),)}


# The daemons of 5.0.7 crash on IPv6 alone.
@pytest.mark.parametrize(
    ("image", "pods"),
    [
        pytest.param(NEW, {}, id="IPv4"),
        pytest.param(OLD, {"launcher": SIX, "worker": SIX}, id="IPv6", marks=FULL),
        *(pytest.param(name, {"as_worker": True}, marks=FULL) for name in images.NAMES),
    ],
    indirect=["image"],
)
def test_a_policy_of_ssh_and_a_range(cluster: Cluster, image: Image, pods: dict[str, Any]) -> None:
    """Apply a NetworkPolicy that drops everything else in every pod; the launcher may be a host."""
    job = mpijob(cluster, image, slots=2, launcher_args=BYTES, env=PORTS, **pods)
    for pod in job.pods:
        rule(
            pod,
            *("input", "policy drop", 'iifname "lo" accept', "ct state established,related accept"),
            *("meta l4proto ipv6-icmp accept", "tcp dport { 22, 40000-40009 } accept"),
        )
    assert job.start().wait() == 0, job.log[-3000:]
    hosts = job.pods if "as_worker" in pods else job.workers
    assert jobs.hosts(job) == [pod.hostname for pod in hosts for _ in range(2)]
    assert "[worker-" not in job.log


@FULL
def test_a_path_that_loses_large_packets(cluster: Cluster) -> None:
    """The server's greeting fits any packet; its half of the key exchange is the first to hang."""
    job = mpijob(cluster, images.image(NEW), workers=1, env={"MPIBOOT_TIMEOUT": "30"})
    rule(job.launcher, "input", 'iifname "eth0" meta length > 1400 drop', priority="-300")
    assert job.start().wait() == 69
    assert "are large packets lost (MTU)" in job.message
    assert "CNI configuration" in job.message


# What the MPI of every image answers here; that of a build without IPv6 can't be had as a package.
NO_IPV6 = "#!/bin/sh\necho options:mpi1_compat:no\necho options:ipv6:no\n"


def test_a_job_on_ipv6_alone(cluster: Cluster) -> None:
    """Names come late, so that the gate queries a name server on IPv6 as well."""
    details: dict[str, Any] = {"slots": 2, "launcher_args": BYTES, "launcher": SIX, "worker": SIX}
    job = mpijob(cluster, images.image(OLD), **details).start(publish=False)
    job.launcher.logs("NXDOMAIN")
    job.publish()
    jobs.spans(job, slots=2)
    assert "ip-version" in job.log
    # Open MPI's own complaint about addresses of a version that it isn't meant to use.
    assert "reachable pairing" not in job.log
    assert "listens on [fd00:10:244::" in job.workers[0].stderr()


@FULL
def test_a_hostfile_of_ipv6_addresses(cluster: Cluster) -> None:
    """In brackets and bare, as people write them; no name of a pod is known to DNS."""
    addresses = [f"fd00:10:244::{number:x}" for number in (11, 12)]
    text = f"[{addresses[0]}]:1\n{addresses[1]} slots=1\n"
    job = mpijob(cluster, images.image(OLD), hostfile=text, launcher=SIX, worker=SIX)
    jobs.spans(job.start(publish=False))
    assert [worker.address for worker in job.workers] == addresses
    assert "fd00:10:244::b -> ip-fd00-10-244--b" in job.log


@FULL
def test_pods_with_both_versions(cluster: Cluster) -> None:
    first = {"links": (Link(ipv6=True, ipv6_first=True),)}
    job = jobs.spanned(cluster, images.image(NEW), *BYTES, slots=2, launcher=first, worker=first)
    assert job.log.partition("plan ip-version=")[2].split()[0] == "IPv6"
    assert "reachable pairing" not in job.log


@jobs.each(NEW, "mpich-4.0", "mpich-5.0", "intel-mpi")
def test_an_mpi_without_ipv6_is_told_before_the_start(cluster: Cluster, image: Image) -> None:
    image = image.with_files({"/usr/bin/ompi_info": NO_IPV6}, mode=0o755)
    message = ("", "uses IPv4 alone", "--enable-ipv6" if "openmpi" in image.name else "")
    jobs.refused(cluster, image, 78, *message, launcher=SIX, worker=SIX)


WAYS = {
    "rejects": "the connection is refused, although that port is listened at: a firewall or "
    "NetworkPolicy that rejects",
    "accepts": "a proxy does that, such as a service mesh's sidecar",
}


def stopped(cluster: Cluster, pods: Sequence[Pod], way: str, link: str = "eth0") -> None:
    """Have what comes to these pods by a link dropped, rejected, or accepted by a stand-in."""
    others = f'iifname "{link}" tcp dport != 22'
    for pod in pods:
        if way == "accepts":
            accepting(cluster, pod, link)
        else:
            verdict = "drop" if way == "drops" else "reject with tcp reset"
            rule(pod, "input", "ct state established,related accept", f"{others} {verdict}")


@pytest.mark.parametrize(
    ("to", "way"),
    [("worker", "rejects"), *(pytest.param("launcher", way, marks=FULL) for way in WAYS)],
)
def test_a_blocked_dial_is_named(cluster: Cluster, to: str, way: str) -> None:
    line = ("mpirun", "sh", "-c", f"{MOMENT}true")
    job = mpijob(cluster, images.image(OLD), launcher_args=line)
    targets = NAMES[::-1] if to == "worker" else ["the launcher"] * 2
    can = "may not" if way == "accepts" else "can't"
    stopped(cluster, job.workers if to == "worker" else [job.launcher], way)
    job.start()
    if way == "accepts":  # mpirun's daemons would wait forever at the launcher's
        job.launcher.logs("starting mpirun")
        message = words(job.log)
        job.launcher.signal(15)
        job.wait()
    else:
        assert job.wait() == 69
        message = words(job.message)
        assert ("; its SSH port 22 answers" in message) == (to == "worker")
    pairs = zip(NAMES, targets, strict=True)
    assert any(f"{one} {can} reach {other} (10.244." in message for one, other in pairs)
    assert WAYS[way] in message


def test_a_blocked_data_link_carries_no_sockets(cluster: Cluster) -> None:
    job = pods(cluster, images.image(OLD))
    stopped(cluster, job.workers, "rejects", "net1")
    on_control = {**on("eth0"), "UCX_NET_DEVICES": "eth0"}
    assert shown(job.start()) == {worker.hostname: on_control for worker in job.workers}
    message = words(job.log)
    assert "[data-sockets] TCP fails on the data network: pi-worker-" in message
    data = [worker.network.addresses("net1")[0] for worker in job.workers]
    pairs = zip(NAMES, data, strict=True)
    assert any(f" reach {name} ({address} port" in message for name, address in pairs)
    assert "(and 1 more); the control addresses answer; sockets use the control link" in message
    assert "[worker-pairs]" not in message


@FULL
def test_one_way_is_a_warning(cluster: Cluster, image: Image) -> None:
    """The ring's first message opens the connection by which the second worker answers."""
    job = mpijob(cluster, image, launcher_args=BYTES)
    stopped(cluster, job.workers[:1], "drops")
    jobs.spans(job.start())
    assert f"warning: [worker-pairs] {NAMES[1]} can't reach {NAMES[0]}" in words(job.log)


@FULL
def test_source_nat_between_workers(cluster: Cluster, image: Image) -> None:
    """A node's masquerade rule is too wide: a worker's connections have another address."""
    job = mpijob(cluster, image, launcher_args=BYTES)
    own = [worker.address for worker in job.workers]
    for pod, other in zip(job.workers, own[::-1], strict=True):
        snat = f"ip saddr {other} snat to 10.244.0.250"
        rule(pod, "input", snat, priority="100", kind="nat")
    assert job.start().wait() == 78
    message = words(job.message)
    assert any(
        f"worker-address: {NAMES[1 - at]} sees connections of {NAMES[at]} come from 10.244.0.250, "
        f"not from its own address {own[at]}" in message
        for at in (0, 1)
    )


DEBIAN_HOSTS = "127.0.0.1 localhost\n127.0.1.1 pi-worker-0\n::1 localhost ip6-localhost\n"


@FULL
def test_names_on_127_0_1_1(cluster: Cluster, image: Image) -> None:
    """As on Debian: by a mounted /etc/hosts on one worker, by hostAliases on the other pods."""
    job = jobs.ended(
        cluster,
        image,
        *BYTES,
        as_worker=True,
        launcher={"extra_hosts": {"127.0.1.1": ["pi-launcher", "pi-launcher.pi.default.svc"]}},
        each_worker={
            0: {"volumes": [SubPath("/etc/hosts", DEBIAN_HOSTS)]},
            1: {"extra_hosts": {"127.0.1.1": ["pi-worker-1"]}},
        },
    )
    assert jobs.ranks(job.output) == [(n, 3, pod.hostname) for n, pod in enumerate(job.pods)]
    for worker in job.workers:
        assert f"listens on {worker.address}:22" in worker.stderr()


# An mpirun that waits for a file before it starts.
HELD = """#!/bin/sh
PATH=${PATH#/opt/held:}
case " $* " in *" --version "* | *" -version "*) exec "${0##*/}" "$@" ;; esac
touch /tmp/held
until [ -e /tmp/go ]; do sleep 0.1; done
exec "${0##*/}" "$@"
"""
# Ranks without MPI: MPICH 4.0.2 itself does not come out of MPI_Finalize each time, with three
# hosts (docs/how-to/job-hangs.md).
HYDRA_RANK = ["mpirun", "sh", "-c", 'echo "rank $PMI_RANK of $PMI_SIZE on $(hostname)"']


def program_of(image: Image) -> list[str]:
    return HYDRA_RANK if image.name.startswith("mpich") else ["mpirun", RING]


@jobs.each(OLD, NEW, "mpich-4.0", "intel-mpi")
def test_a_nameserver_that_is_silent_after_the_gate(cluster: Cluster, image: Image) -> None:
    """This pod is one of the hosts, and is known for mpirun's own host without being asked for."""
    files = dict.fromkeys(("/opt/held/mpirun", "/opt/held/mpiexec.hydra"), HELD)
    path = image.env.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    job = mpijob(
        cluster,
        image.with_files(files, 0o755),
        launcher_args=program_of(image),
        as_worker=True,
        launcher={"env": {"PATH": f"/opt/held:{path}"}},
    ).start()
    until(lambda: job.launcher.exec("test", "-e", "/tmp/held").returncode == 0)
    before = len(cluster.dns.questions())
    cluster.dns.behave(drop=1_000_000)
    job.launcher.shell("touch /tmp/go")
    assert job.wait() == 0
    questions = cluster.dns.questions()[before:]
    assert [item.name for item in questions if item.client == job.launcher.address] == []
    assert jobs.ranks(job.output) == [(n, 3, pod.hostname) for n, pod in enumerate(job.pods)]


# An address that no pod has.
NOBODY = "10.244.0.250"


@jobs.each(NEW, OLD, "mpich-4.0")
def test_a_nameserver_that_fails_and_has_a_wrong_address(cluster: Cluster, image: Image) -> None:
    """The wrong address comes first: nobody is there, and the name is asked for again."""
    job = mpijob(cluster, image, workers=3, launcher_args=program_of(image))
    cluster.dns.behave(job.workers[0].fqdn, servfail=3)
    cluster.dns.behave(job.workers[1].fqdn, other=NOBODY)
    job.start()
    job.launcher.logs("SSH on pi-worker-1 (connection timed out)")
    cluster.dns.behave(job.workers[1].fqdn)
    jobs.spans(job)
    found = {item for item in cluster.dns.questions() if item.message.startswith("10.244.")}
    assert {item.name.partition(".")[0] for item in found} == {pod.hostname for pod in job.workers}
    assert [item.message for item in cluster.dns.questions()].count("SERVFAIL") == 3


@FULL
def test_a_name_that_leads_to_another_worker_is_no_second_host(cluster: Cluster) -> None:
    """It has the job's key and accepts the login."""
    job = mpijob(cluster, images.image(NEW), workers=3).start(publish=False)
    first = job.workers[0]
    cluster.dns.behave(job.workers[1].fqdn, other=first.address)
    job.publish()
    assert job.wait() == 78
    both = f"{', '.join(NAMES)} lead to one and the same SSH server, {first.address} port 22"
    assert both in job.message
    assert "else the nameserver has a wrong or an old address" in job.message
    assert "starting mpirun" not in job.log
