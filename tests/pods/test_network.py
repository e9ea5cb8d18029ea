"""Networks as clusters have them: policies, one family of addresses, odd names; whole jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import (
    MOMENT,
    NEW,
    OLD,
    ONE_IMAGE,
    PATIENCE,
    RING,
    each,
    ended,
    ranks,
    spanned,
    spans,
)
from tests.pods.mesh import accepting, istio
from tests.pods.network import DNS_ADDRESSES, Link
from tests.pods.oci import PodSpec
from tests.pods.operator import Job, mpijob
from tests.pods.pod import Pod
from tests.pods.test_foreign import plain_worker
from tests.pods.test_split import on, pods, shown
from tests.pods.volumes import SubPath
from tests.waiting import until

POLICY = """
table inet allowed {
    chain input {
        type filter hook input priority 0; policy drop;
        iifname "lo" accept
        ct state established,related accept
        meta l4proto ipv6-icmp accept
        tcp dport { %s } accept
    }
}
"""


# A path that carries less than the links say, and tells nobody.
BLACK_HOLE = """
table inet hole {
    chain input {
        type filter hook input priority -300;
        iifname "eth0" meta length > %d drop
    }
}
"""
DEBIAN_HOSTS = "127.0.0.1 localhost\n127.0.1.1 {0}\n::1 localhost ip6-localhost\n"


def only(job: Job, ports: Sequence[str]) -> None:
    """Apply a NetworkPolicy that drops everything else in every pod."""
    for pod in job.pods:
        pod.network.run("nft", "-f", "-", stdin=POLICY % ", ".join(ports))


PORTS = {"MPIBOOT_PORT_RANGE": "40000-40009"}
LINKS = {
    "IPv4": Link(),
    "IPv6": Link(ipv4=False, ipv6=True),
    "both": Link(ipv6=True, ipv6_first=True),
}


@pytest.mark.parametrize(
    ("image", "link"),
    [
        pytest.param(
            image,
            link,
            id=f"{image}-{name}",
            marks=() if (image, name) == (NEW, "IPv4") else pytest.mark.full,
        )
        # The daemons of 5.0.7 crash on IPv6 alone.
        for image, name in ((NEW, "IPv4"), (OLD, "IPv4"), (OLD, "IPv6"), (NEW, "both"))
        for link in [LINKS[name]]
    ],
    indirect=["image"],
)
def test_a_policy_that_allows_ssh_and_a_range(cluster: Cluster, image: Image, link: Link) -> None:
    pod, program = {"links": (link,)}, ["mpirun", RING, "--bytes", "1"]
    job = mpijob(
        cluster, image, slots=2, launcher_args=program, env=PORTS, launcher=pod, worker=pod
    )
    only(job, ["22", "40000-40009"])
    assert job.start().wait(PATIENCE) == 0
    spans(job, slots=2)


@pytest.mark.full
def test_a_launcher_that_runs_ranks_too_keeps_to_its_ports(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=1, as_worker=True, env=PORTS)
    only(job, ["22", "40000-40009"])
    assert job.start().wait(PATIENCE) == 0


@pytest.mark.full
def test_a_range_that_is_too_small_is_said(cluster: Cluster, rig: None) -> None:
    job = ended(
        cluster,
        images.image("openmpi-5.0"),
        code=78,
        workers=1,
        slots=4,
        env={"MPIBOOT_PORT_RANGE": "40000-40003"},
    )
    assert "daemons need 2, and a host has 4 slots" in job.launcher.termination_log()


def test_a_sidecar_in_front_of_every_pod_is_hinted_at(cluster: Cluster, rig: None) -> None:
    job = mpijob(
        cluster,
        images.image("openmpi-5.0"),
        env={"MPIBOOT_TIMEOUT": "20", "MPIBOOT_SSH_PORT": "22"},
    )
    for pod in job.pods:
        istio(cluster, pod)
    assert job.start().wait(PATIENCE) == 69
    message = job.launcher.termination_log()
    assert "no SSH greeting: a proxy in front of the pod (a service mesh's sidecar)?" in message


@pytest.mark.full
def test_the_annotation_that_excludes_the_jobs_ports(cluster: Cluster, image: Image) -> None:
    """The annotation of docs/pod-network.md: the job runs, and no worker is accused."""
    job = mpijob(
        cluster,
        image,
        launcher_args=["mpirun", RING, "--bytes", "1"],
        env={"MPIBOOT_PORT_RANGE": "40000-40009"},
    )
    for pod in job.pods:
        istio(cluster, pod, excluded=["22", "40000-40009"])
    assert job.start().wait(PATIENCE) == 0
    spans(job)
    assert "[worker-" not in job.launcher.stderr()


@pytest.mark.full
def test_names_on_127_0_1_1(cluster: Cluster, image: Image) -> None:
    """As on Debian: by a mounted /etc/hosts on one worker, by hostAliases on the other pods."""
    job = ended(
        cluster,
        image,
        *("mpirun", RING, "--bytes", "1"),
        as_worker=True,
        launcher={"extra_hosts": {"127.0.1.1": ["pi-launcher", "pi-launcher.pi.default.svc"]}},
        each_worker={
            0: {"volumes": [SubPath("/etc/hosts", DEBIAN_HOSTS.format("pi-worker-0"))]},
            1: {"extra_hosts": {"127.0.1.1": ["pi-worker-1"]}},
        },
    )
    hosts = [pod.hostname for pod in job.pods]
    assert ranks(job.launcher.stdout()) == [(n, 3, host) for n, host in enumerate(hosts)]
    for worker in job.workers:
        assert f"listens on {worker.address}:22" in worker.stderr()


@ONE_IMAGE
def test_a_smaller_mtu_on_one_node(cluster: Cluster, image: Image) -> None:
    job = spanned(
        cluster,
        image,
        *("mpirun", RING, "--bytes", "8"),
        each_worker={1: {"links": (Link(mtu=1400),)}},
    )
    message = " ".join(job.launcher.stderr().split())
    assert (
        "[workers-differ] workers differ: pi-worker-1.pi.default.svc: 0 GPUs, 0 RDMA ports, "
        "MTU 1400; the others (1): 0 GPUs, 0 RDMA ports, MTU 1500"
    ) in message


@pytest.mark.full
def test_a_path_that_loses_large_packets(cluster: Cluster, rig: None) -> None:
    """The server's greeting fits any packet; its half of the key exchange is the first to hang."""
    job = mpijob(cluster, images.image("openmpi-5.0"), workers=1, env={"MPIBOOT_TIMEOUT": "30"})
    job.launcher.network.run("nft", "-f", "-", stdin=BLACK_HOLE % 1400)
    assert job.start().wait(PATIENCE) == 69
    message = job.launcher.termination_log()
    assert "SSH login timed out: are large packets lost (MTU)?" in message
    assert "CNI configuration" in message


SIX: dict[str, Any] = {"links": (Link(ipv4=False, ipv6=True),)}
# The daemons of 5.0.7 crash there.
ON_SIX = pytest.mark.parametrize("image", [OLD], indirect=True)
BOTH: dict[str, Any] = {"links": (Link(ipv6=True),)}
BOTH_SIX_FIRST: dict[str, Any] = {"links": (Link(ipv6=True, ipv6_first=True),)}
DROPS_SSH_ON_IPV6 = """
table ip6 dropped {
    chain input {
        type filter hook input priority 0;
        tcp dport 22 counter drop
    }
}
"""
# What the MPI of every image answers here; that of a build without IPv6 can't be had as a package.
NO_IPV6 = "#!/bin/sh\necho options:mpi1_compat:no\necho options:ipv6:no\n"


@ON_SIX
def test_a_job_on_ipv6_alone(cluster: Cluster, image: Image) -> None:
    """Names come late, so that the gate queries a name server on IPv6 as well."""
    job = mpijob(
        cluster,
        image,
        slots=2,
        launcher_args=["mpirun", RING, "--bytes", "1"],
        launcher=SIX,
        worker=SIX,
    ).start(publish=False)
    until(lambda: "NXDOMAIN" in job.launcher.stderr())
    job.publish()
    assert job.wait(PATIENCE) == 0
    spans(job, slots=2)
    message = job.launcher.stderr()
    assert "ip-version" in message
    # Open MPI's own complaint about addresses of a version that it isn't meant to use.
    assert "reachable pairing" not in message
    assert "listens on [fd00:10:244::" in job.workers[0].stderr()


@pytest.mark.full
@pytest.mark.parametrize("image", [f"{OLD}-nossh"], indirect=True)
def test_the_embedded_server_and_client_on_ipv6_alone(cluster: Cluster, image: Image) -> None:
    """The launcher's pod runs ranks too."""
    job = ended(cluster, image, workers=1, as_worker=True, launcher=SIX, worker=SIX)
    assert job.launcher.stdout().count("rank ") == 2
    assert "(embedded) listens on [" in job.workers[0].stderr()


@pytest.mark.full
@ON_SIX
def test_a_hostfile_of_ipv6_addresses(cluster: Cluster, image: Image) -> None:
    """In brackets and bare, as people write them; no name of a pod is known to DNS."""
    addresses = [f"fd00:10:244::{number:x}" for number in (11, 12)]
    job = mpijob(
        cluster,
        image,
        hostfile=f"[{addresses[0]}]:1\n{addresses[1]} slots=1\n",
        launcher=SIX,
        worker=SIX,
    ).start(publish=False)
    assert [worker.address for worker in job.workers] == addresses
    assert job.wait(PATIENCE) == 0
    spans(job)
    assert "fd00:10:244::b -> ip-fd00-10-244--b" in job.launcher.stderr()


@pytest.mark.full
@pytest.mark.parametrize(
    ("image", "pod", "version"),
    [
        pytest.param(OLD, BOTH, "IPv4", id="IPv4 first"),
        pytest.param(NEW, BOTH_SIX_FIRST, "IPv6", id="IPv6 first"),
    ],
    indirect=["image"],
)
def test_pods_with_both_versions(
    cluster: Cluster, image: Image, pod: dict[str, Any], version: str
) -> None:
    job = spanned(cluster, image, "mpirun", RING, "--bytes", "1", slots=2, launcher=pod, worker=pod)
    message = job.launcher.stderr()
    assert message.partition("plan ip-version=")[2].split()[0] == version
    assert "reachable pairing" not in message


@pytest.mark.full
def test_the_gate_asks_for_the_version_that_workers_listen_on(cluster: Cluster, rig: None) -> None:
    """The other one may be dropped without a word, and each try would cost its time limit."""
    job = mpijob(cluster, images.image(NEW), launcher=BOTH, worker=BOTH)
    for worker in job.workers:
        worker.network.run("nft", "-f", "-", stdin=DROPS_SSH_ON_IPV6)
        worker.start()
    # Of a host that still refuses SSH by the one version the other one is tried, too.
    until(lambda: all("listens on" in worker.stderr() for worker in job.workers))
    job.publish()
    job.launcher.start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    for worker in job.workers:
        assert "counter packets 0 bytes 0" in worker.network.run("nft", "list", "ruleset")


def test_an_mpi_without_ipv6_is_told_before_the_start(cluster: Cluster, rig: None) -> None:
    image = images.image(NEW).with_files({"/usr/bin/ompi_info": NO_IPV6}, mode=0o755)
    job = ended(cluster, image, code=78, launcher=SIX, worker=SIX)
    message = job.launcher.termination_log()
    assert "is built without IPv6" in message
    assert "--enable-ipv6" in message
    assert job.launcher.stdout() == ""


# As a node's masquerade rule that is too wide: a worker's connections come from another address.
SNAT = """
table ip wide {
    chain input {
        type nat hook input priority 100;
        ip saddr { %s } snat to 10.244.0.250
    }
}
"""
# What comes by a link to another port than SSH's: a policy's verdict on it, and a sidecar's way.
VERDICT = """
table inet verdict {
    chain input {
        type filter hook input priority 0;
        ct state established,related accept
        iifname "%s" tcp dport != 22 %s
    }
}
"""
PROXY = """
table ip accept_all {
    chain inbound {
        type nat hook prerouting priority dstnat;
        iifname "%s" tcp dport != 22 redirect to :15006
    }
}
"""
NAMES = "pi-worker-0.pi.default.svc", "pi-worker-1.pi.default.svc"


def both_ways(job: Job, rules: str) -> None:
    """Rules in each of the first two workers, for what the other one sends."""
    first, second = job.workers[:2]
    for one, other in ((first, second), (second, first)):
        one.network.run("nft", "-f", "-", stdin=rules % other.address)


def said_at_the_end(job: Job) -> str:
    return " ".join(job.launcher.termination_log().split())


WAYS = {
    "drops": "no answer in 2 s, twice",
    "rejects": "the connection is refused, although that port is listened at: a firewall or "
    "NetworkPolicy that rejects",
    "accepts": "a proxy does that, such as a service mesh's sidecar",
}


def stopped(cluster: Cluster, pods: Sequence[Pod], way: str, link: str = "eth0") -> None:
    """Have what comes to these pods by a link dropped, rejected, or accepted by a stand-in."""
    for pod in pods:
        if way == "accepts":
            pod.network.run("nft", "-f", "-", stdin=PROXY % link)
            accepting(cluster, pod)
        else:
            verdict = "drop" if way == "drops" else "reject with tcp reset"
            pod.network.run("nft", "-f", "-", stdin=VERDICT % (link, verdict))


def ways(quick: str) -> pytest.MarkDecorator:
    rows = [pytest.param(way, marks=() if way == quick else pytest.mark.full) for way in WAYS]
    return pytest.mark.parametrize("way", rows)


@pytest.mark.parametrize("image", [OLD], indirect=True)
@ways("rejects")
@pytest.mark.parametrize("to", ["worker", pytest.param("launcher", marks=pytest.mark.full)])
def test_a_blocked_dial_is_named(cluster: Cluster, image: Image, to: str, way: str) -> None:
    line = ("mpirun", "sh", "-c", f"{MOMENT}true")
    job = mpijob(cluster, image, launcher_args=line)
    targets = NAMES[::-1] if to == "worker" else ["the launcher"] * 2
    can = "may not" if way == "accepts" else "can't"
    stopped(cluster, job.workers if to == "worker" else [job.launcher], way)
    job.start()
    if way == "accepts":  # mpirun's daemons would wait forever at the launcher's
        until(lambda: "starting mpirun" in job.launcher.stderr())
        message = " ".join(job.launcher.stderr().split())
        job.launcher.signal(15)
        job.wait(PATIENCE)
    else:
        assert job.wait(PATIENCE) == 69
        assert "starting mpirun" not in job.launcher.stderr()
        message = said_at_the_end(job)
        assert ("; its SSH port 22 answers" in message) == (to == "worker")
    pairs = zip(NAMES, targets, strict=True)
    assert any(f"{one} {can} reach {other} (10.244." in message for one, other in pairs)
    assert WAYS[way] in message
    assert "; 1 more of " in message


@pytest.mark.parametrize("image", [OLD], indirect=True)
@ways("accepts")
def test_a_blocked_data_link_carries_no_sockets(cluster: Cluster, image: Image, way: str) -> None:
    job = pods(cluster, image)
    stopped(cluster, job.workers, way, "net1")
    on_control = {**on("eth0"), "UCX_NET_DEVICES": "eth0"}
    assert shown(job.start()) == {worker.hostname: on_control for worker in job.workers}
    message = " ".join(job.launcher.stderr().split())
    assert "[data-sockets] TCP does not pass on the data network: pi-worker-" in message
    assert any(
        f" reach {name} ({worker.network.addresses('net1')[0]} port" in message
        for name, worker in zip(NAMES, job.workers, strict=True)
    )
    assert "(and 1 more); the control addresses answer, so mpiboot puts no sockets on it" in message
    assert WAYS[way] in message
    assert "[worker-pairs]" not in message


@pytest.mark.full
def test_one_way_is_a_warning(cluster: Cluster, image: Image) -> None:
    """The ring's first message opens the connection by which the second worker answers."""
    job = mpijob(cluster, image, launcher_args=["mpirun", RING, "--bytes", "1"])
    stopped(cluster, job.workers[:1], "drops")
    assert job.start().wait(PATIENCE) == 0
    spans(job)
    message = " ".join(job.launcher.stderr().split())
    assert f"warning: [worker-pairs] {NAMES[1]} can't reach {NAMES[0]}" in message


@pytest.mark.full
def test_source_nat_between_workers(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, launcher_args=["mpirun", RING, "--bytes", "1"])
    both_ways(job, SNAT)
    assert job.start().wait(PATIENCE) == 78
    message = said_at_the_end(job)
    assert any(
        f"worker-address: {NAMES[other]} sees connections of {NAMES[one]} come from 10.244.0.250, "
        f"not from its own address {job.workers[one].address}" in message
        for one, other in ((0, 1), (1, 0))
    )


@pytest.mark.full
def test_a_worker_of_somebody_elses_is_not_checked(cluster: Cluster, rig: None) -> None:
    job = spanned(
        cluster,
        images.image("openmpi-5.0"),
        *("mpirun", RING, "--bytes", "1"),
        workers=3,
        each_worker={
            1: {
                "image": plain_worker("openmpi-5.0"),
                "command": ["/usr/sbin/sshd", "-De"],
                "args": (),
            }
        },
    )
    message = " ".join(job.launcher.stderr().split())
    assert f"{NAMES[1]} tries no connections to other workers: it does not run mpiboot" in message
    assert "4 connections tried" in message


CHAIN = ("add table ip t", "add chain ip t i { type filter hook input priority 0; }")


@pytest.mark.full
def test_an_ssh_port_that_is_filtered(cluster: Cluster, rig: None) -> None:
    """As by a NetworkPolicy or a node's firewall, which drop."""
    job = mpijob(cluster, images.image(NEW), env={"MPIBOOT_TIMEOUT": "10"}).start(publish=False)
    for rule in (*CHAIN, "add rule ip t i tcp dport 22 drop"):
        job.workers[1].network.run("nft", rule)
    job.publish()
    assert job.wait(PATIENCE) == 69
    message = job.launcher.termination_log()
    assert ", though other ports refuse" in message
    assert "port 22 of pi-worker-1.pi.default.svc is filtered: its pod is there" in message
    assert "A NetworkPolicy or firewall must let the launcher connect to port 22" in message
    assert "look closer: kubectl exec -n default pi-worker-1 -- mpiboot doctor" in message


@pytest.mark.full
def test_a_launcher_with_its_nodes_nameserver(cluster: Cluster, rig: None) -> None:
    job = mpijob(
        cluster,
        images.image(NEW),
        workers=1,
        env={"MPIBOOT_TIMEOUT": "15"},
        launcher={"host_network": "node-1", "cluster_dns": False},
    )
    job.start(publish=False)  # that nameserver has no name of the cluster
    assert job.wait(PATIENCE) == 68
    message = job.launcher.termination_log()
    assert "/etc/resolv.conf is not the cluster's (no search list)" in message
    assert "`dnsPolicy: ClusterFirstWithHostNet`" in message


@pytest.mark.full
def test_a_nameserver_that_never_answers_is_named(cluster: Cluster, rig: None) -> None:
    cluster.dns.behave(drop=1_000_000)
    job = ended(cluster, images.image(NEW), code=68, workers=1, env={"MPIBOOT_TIMEOUT": "15"})
    message = job.launcher.termination_log()
    assert message.startswith("names-unresolved: 1 of 1 hosts do not resolve after ")
    assert DNS_ADDRESSES[0] in message


@pytest.mark.full
def test_both_ports_of_a_node_are_taken(cluster: Cluster, rig: None) -> None:
    """The node's sshd has 22 and something else 2222: neither is what to try next."""
    image = images.image(NEW)
    script = "mkdir -p /run/sshd; ssh-keygen -A; exec /usr/sbin/sshd -De -p 22 -p 2222 -o UsePAM=no"
    node = PodSpec(name="sshd", image=image, command=["sh", "-c", script], host_network="node-1")
    taken = cluster.pod(node).start()
    until(lambda: taken.stderr().count("Server listening on 0.0.0.0") == 2)
    job = mpijob(cluster, image, workers=1, worker={"host_network": "node-1"})
    worker = job.workers[0].start()
    assert worker.wait(PATIENCE) == 69
    message = worker.termination_log()
    assert "name a free one with MPIBOOT_SSH_PORT" in message
    assert "MPIBOOT_SSH_PORT=2222" not in message


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
# As short as the search list allows, and this pod itself by an address.
SHORT = "127.0.0.1 slots=1\npi-worker-0.pi slots=1\npi-worker-1.pi slots=1\n"


def asked_after_the_gate(job: Job, cluster: Cluster) -> list[str]:
    """Run a job whose nameserver is silent once mpirun starts; the queries from then on."""
    job.start()
    until(lambda: job.launcher.shell("[ ! -e /tmp/held ] || echo held").strip() == "held")
    before = len(cluster.dns.questions())
    cluster.dns.behave(drop=1_000_000)
    job.launcher.shell("touch /tmp/go")
    assert job.wait(PATIENCE) == 0
    questions = cluster.dns.questions()[before:]
    return [item.name for item in questions if item.client == job.launcher.address]


def held(cluster: Cluster, name: str, **details: Any) -> Job:
    files = dict.fromkeys(("/opt/held/mpirun", "/opt/held/mpiexec.hydra"), HELD)
    image = images.image(name).with_files(files, 0o755)
    path = image.env.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    launcher = {"env": {"PATH": f"/opt/held:{path}"}}
    program = HYDRA_RANK if name.startswith("mpich") else ["mpirun", RING]
    given = {"launcher_args": program, "as_worker": True, "launcher": launcher}
    return mpijob(cluster, image, **{**given, **details})


@pytest.mark.parametrize(
    ("name", "hostfile"),
    [
        pytest.param(OLD, None, id="4.1"),
        pytest.param(NEW, None, id="5.0", marks=pytest.mark.full),
        pytest.param(OLD, SHORT, id="4.1-short", marks=pytest.mark.full),
        pytest.param(NEW, SHORT, id="5.0-short", marks=pytest.mark.full),
        pytest.param("mpich-4.0", None, id="mpich-4.0", marks=pytest.mark.full),
        pytest.param("intel-mpi", None, id="intel", marks=pytest.mark.full),
    ],
)
def test_a_nameserver_that_is_silent_once_the_gate_is_passed(
    cluster: Cluster, rig: None, name: str, hostfile: str | None
) -> None:
    """This pod is one of the hosts, and is known for mpirun's own host without being asked for."""
    job = held(cluster, name, hostfile=hostfile)
    assert asked_after_the_gate(job, cluster) == []
    hosts = [pod.hostname for pod in job.pods]
    assert ranks(job.launcher.stdout()) == [(n, 3, host) for n, host in enumerate(hosts)]


# An address that no pod has.
NOBODY = "10.244.0.250"


def misbehaving(cluster: Cluster, job: Job, each: dict[int, dict[str, Any]]) -> Job:
    """Drop every query by UDP, and spoil the answers for some workers."""
    cluster.dns.behave(tcp_only=True)
    for index, behaviour in each.items():
        cluster.dns.behave(job.workers[index].fqdn, tcp_only=True, **behaviour)
    return job


@each(NEW, OLD, "mpich-4.0")
def test_a_nameserver_by_tcp_that_fails_and_flips(cluster: Cluster, rig: None, name: str) -> None:
    """The wrong address comes first: nobody is there, and the name is asked for again."""
    program = HYDRA_RANK if name.startswith("mpich") else ["mpirun", RING]
    job = mpijob(cluster, images.image(name), workers=3, launcher_args=program)
    misbehaving(cluster, job, {0: {"servfail": 3}, 1: {"flip": True, "other": NOBODY}}).start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    found = {item for item in cluster.dns.questions() if item.message == "NOERROR"}
    assert {item.transport for item in found} == {"tcp"}
    assert {item.name.partition(".")[0] for item in found} == {pod.hostname for pod in job.workers}
    refused = [item for item in cluster.dns.questions() if item.message == "SERVFAIL"]
    assert len(refused) == 3


@pytest.mark.full
def test_servfail_until_the_deadline_is_named(cluster: Cluster, rig: None) -> None:
    job = mpijob(cluster, images.image(NEW), workers=3, env={"MPIBOOT_DNS_WAIT": "15"})
    misbehaving(cluster, job, {1: {"servfail": 1_000_000}}).start()
    assert job.wait(PATIENCE) == 68
    message = job.launcher.termination_log()
    assert message.startswith(
        "names-unresolved: 1 of 3 hosts do not resolve after 15 s: waiting for "
    )
    assert "\npi-worker-1.pi.default.svc: DNS: SERVFAIL for " in message
    assert "pi-worker-0" not in message
    assert "starting mpirun" not in job.launcher.stderr()


@pytest.mark.full
def test_a_name_that_leads_to_another_worker_is_no_second_host(cluster: Cluster, rig: None) -> None:
    """It has the job's key and accepts the login."""
    job = mpijob(cluster, images.image(NEW), workers=3).start(publish=False)
    first = job.workers[0]
    cluster.dns.behave(job.workers[1].fqdn, flip=True, other=first.address)
    job.publish()
    assert job.wait(PATIENCE) == 78
    message = job.launcher.termination_log()
    both = "pi-worker-0.pi.default.svc, pi-worker-1.pi.default.svc"
    assert f"{both} lead to one and the same SSH server, {first.address} port 22" in message
    assert "else the nameserver has a wrong or an old address" in message
    assert "starting mpirun" not in job.launcher.stderr()
