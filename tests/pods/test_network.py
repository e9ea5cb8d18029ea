"""Networks as clusters have them: policies, IPv6, proxies, NAT, name servers; whole jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.pods import images, jobs
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import MOMENT, NEW, OLD, RING
from tests.pods.mesh import accepting, istio
from tests.pods.network import DNS_ADDRESSES, Link
from tests.pods.oci import PodSpec
from tests.pods.operator import Job, mpijob
from tests.pods.pod import Pod
from tests.pods.test_foreign import plain_worker
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


# --- policies, sidecars, paths that lose packets ---

PORTS = {"MPIBOOT_PORT_RANGE": "40000-40009"}
LINKS = {
    "IPv4": Link(),
    "IPv6": Link(ipv4=False, ipv6=True),
    "both": Link(ipv6=True, ipv6_first=True),
}


def only_ssh_and_ports(job: Job) -> None:
    """Apply a NetworkPolicy that drops everything else in every pod."""
    for pod in job.pods:
        rule(
            pod,
            *("input", "policy drop", 'iifname "lo" accept', "ct state established,related accept"),
            *("meta l4proto ipv6-icmp accept", "tcp dport { 22, 40000-40009 } accept"),
        )


# The daemons of 5.0.7 crash on IPv6 alone.
@pytest.mark.parametrize(
    ("image", "link"),
    [
        (NEW, "IPv4"),
        *(pytest.param(*row, marks=FULL) for row in ((OLD, "IPv4"), (OLD, "IPv6"), (NEW, "both"))),
    ],
    indirect=["image"],
)
def test_a_policy_that_allows_ssh_and_a_range(cluster: Cluster, image: Image, link: str) -> None:
    pod = {"links": (LINKS[link],)}
    details: dict[str, Any] = {
        "slots": 2,
        "launcher_args": BYTES,
        "env": PORTS,
        "launcher": pod,
        "worker": pod,
    }
    job = mpijob(cluster, image, **details)
    only_ssh_and_ports(job)
    jobs.spans(job.start(), slots=2)


@FULL
def test_a_launcher_that_runs_ranks_too_keeps_to_its_ports(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=1, as_worker=True, env=PORTS)
    only_ssh_and_ports(job)
    assert job.start().wait() == 0


@FULL
def test_a_range_that_is_too_small_is_said(cluster: Cluster) -> None:
    env, message = {"MPIBOOT_PORT_RANGE": "40000-40003"}, "daemons need 2, and a host has 4 slots"
    jobs.refused(cluster, images.image(NEW), 78, "", message, workers=1, slots=4, env=env)


def test_a_sidecar_in_front_of_every_pod_is_hinted_at(cluster: Cluster) -> None:
    env = {"MPIBOOT_TIMEOUT": "20", "MPIBOOT_SSH_PORT": "22"}
    job = mpijob(cluster, images.image(NEW), env=env)
    for pod in job.pods:
        istio(cluster, pod)
    assert job.start().wait() == 69
    hint = "no SSH greeting: a proxy in front of the pod (a service mesh's sidecar)?"
    assert hint in job.message


@FULL
def test_the_annotation_that_excludes_the_jobs_ports(cluster: Cluster, image: Image) -> None:
    """The annotation of docs/pod-network.md: the job runs, and no worker is accused."""
    job = mpijob(cluster, image, launcher_args=BYTES, env=PORTS)
    for pod in job.pods:
        istio(cluster, pod, excluded=["22", "40000-40009"])
    jobs.spans(job.start())
    assert "[worker-" not in job.log


@jobs.ONE_IMAGE
def test_a_smaller_mtu_on_one_node(cluster: Cluster, image: Image) -> None:
    links = {1: {"links": (Link(mtu=1400),)}}
    job = jobs.spanned(cluster, image, "mpirun", RING, "--bytes", "8", each_worker=links)
    seen = "0 GPUs, 0 RDMA ports, MTU"
    message = f"workers differ: {NAMES[1]}: {seen} 1400; the others (1): {seen} 1500"
    assert f"[workers-differ] {message}" in words(job.log)


@FULL
def test_a_path_that_loses_large_packets(cluster: Cluster) -> None:
    """The server's greeting fits any packet; its half of the key exchange is the first to hang."""
    job = mpijob(cluster, images.image(NEW), workers=1, env={"MPIBOOT_TIMEOUT": "30"})
    rule(job.launcher, "input", 'iifname "eth0" meta length > 1400 drop', priority="-300")
    assert job.start().wait() == 69
    assert "SSH login timed out: are large packets lost (MTU)?" in job.message
    assert "CNI configuration" in job.message


@FULL
def test_an_ssh_port_that_is_filtered(cluster: Cluster) -> None:
    """As by a NetworkPolicy or a node's firewall, which drop."""
    job = mpijob(cluster, images.image(NEW), env={"MPIBOOT_TIMEOUT": "10"})
    rule(job.workers[1], "input", "tcp dport 22 drop")
    assert job.start().wait() == 69
    for part in (
        ", though other ports refuse",
        f"port 22 of {NAMES[1]} is filtered: its pod is there",
        "A NetworkPolicy or firewall must let the launcher connect to port 22",
        "look closer: kubectl exec -n default pi-worker-1 -- mpiboot doctor",
    ):
        assert part in job.message


@FULL
def test_both_ports_of_a_node_are_taken(cluster: Cluster) -> None:
    """The node's sshd has 22 and something else 2222: neither is what to try next."""
    image = images.image(NEW)
    script = "mkdir -p /run/sshd; ssh-keygen -A; exec /usr/sbin/sshd -De -p 22 -p 2222 -o UsePAM=no"
    node = PodSpec(name="sshd", image=image, command=["sh", "-c", script], host_network="node-1")
    cluster.pod(node).start().logs("Server listening on 0.0.0.0", 2)
    job = mpijob(cluster, image, workers=1, worker={"host_network": "node-1"})
    worker = job.workers[0].start()
    assert worker.wait() == 69
    assert "name a free one with MPIBOOT_SSH_PORT" in worker.termination_log()
    assert "MPIBOOT_SSH_PORT=2222" not in worker.termination_log()


# --- IPv6 ---

SIX: dict[str, Any] = {"links": (LINKS["IPv6"],)}
BOTH: dict[str, Any] = {"links": (Link(ipv6=True),)}
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
def test_the_embedded_server_and_client_on_ipv6_alone(cluster: Cluster) -> None:
    """The launcher's pod runs ranks too."""
    details: dict[str, Any] = {"workers": 1, "as_worker": True, "launcher": SIX, "worker": SIX}
    job = jobs.ended(cluster, images.image(f"{OLD}-nossh"), **details)
    assert job.output.count("rank ") == 2
    assert "(embedded) listens on [" in job.workers[0].stderr()


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
@pytest.mark.parametrize(
    ("image", "pod", "version"),
    [(OLD, BOTH, "IPv4"), (NEW, {"links": (LINKS["both"],)}, "IPv6")],
    indirect=["image"],
    ids=["IPv4 first", "IPv6 first"],
)
def test_pods_with_both_versions(
    cluster: Cluster, image: Image, pod: dict[str, Any], version: str
) -> None:
    job = jobs.spanned(cluster, image, *BYTES, slots=2, launcher=pod, worker=pod)
    assert job.log.partition("plan ip-version=")[2].split()[0] == version
    assert "reachable pairing" not in job.log


@FULL
def test_the_gate_asks_for_the_version_that_workers_listen_on(cluster: Cluster) -> None:
    """The other one may be dropped without a word, and each try would cost its time limit."""
    job = mpijob(cluster, images.image(NEW), launcher=BOTH, worker=BOTH)
    for worker in job.workers:
        rule(worker, "input", "meta nfproto ipv6 tcp dport 22 counter drop")
        # Of a host that still refuses SSH by the one version the other one is tried, too.
        worker.start().logs("listens on")
    job.publish()
    job.launcher.start()
    jobs.spans(job)
    for worker in job.workers:
        assert "counter packets 0 bytes 0" in worker.network.run("nft", "list", "ruleset")


def test_an_mpi_without_ipv6_is_told_before_the_start(cluster: Cluster) -> None:
    image = images.image(NEW).with_files({"/usr/bin/ompi_info": NO_IPV6}, mode=0o755)
    message = ("", "uses IPv4 alone", "--enable-ipv6")
    jobs.refused(cluster, image, 78, *message, launcher=SIX, worker=SIX)


# --- workers that can't reach each other or the launcher ---

WAYS = {
    "drops": "no answer in 2 s, twice",
    "rejects": "the connection is refused, although that port is listened at: a firewall or "
    "NetworkPolicy that rejects",
    "accepts": "a proxy does that, such as a service mesh's sidecar",
}


def stopped(cluster: Cluster, pods: Sequence[Pod], way: str, link: str = "eth0") -> None:
    """Have what comes to these pods by a link dropped, rejected, or accepted by a stand-in."""
    others = f'iifname "{link}" tcp dport != 22'
    for pod in pods:
        if way == "accepts":
            proxy = f"{others} redirect to :15006"
            rule(pod, "prerouting", proxy, priority="dstnat", kind="nat")
            accepting(cluster, pod)
        else:
            verdict = "drop" if way == "drops" else "reject with tcp reset"
            rule(pod, "input", "ct state established,related accept", f"{others} {verdict}")


def ways(quick: str) -> pytest.MarkDecorator:
    rows = [pytest.param(way, marks=() if way == quick else FULL) for way in WAYS]
    return pytest.mark.parametrize("way", rows)


@ways("rejects")
@pytest.mark.parametrize("to", ["worker", pytest.param("launcher", marks=FULL)])
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
        assert "starting mpirun" not in job.log
        message = words(job.message)
        assert ("; its SSH port 22 answers" in message) == (to == "worker")
    pairs = zip(NAMES, targets, strict=True)
    assert any(f"{one} {can} reach {other} (10.244." in message for one, other in pairs)
    assert WAYS[way] in message
    assert "; 1 more of " in message


@ways("accepts")
def test_a_blocked_data_link_carries_no_sockets(cluster: Cluster, way: str) -> None:
    job = pods(cluster, images.image(OLD))
    stopped(cluster, job.workers, way, "net1")
    on_control = {**on("eth0"), "UCX_NET_DEVICES": "eth0"}
    assert shown(job.start()) == {worker.hostname: on_control for worker in job.workers}
    message = words(job.log)
    assert "[data-sockets] TCP fails on the data network: pi-worker-" in message
    data = [worker.network.addresses("net1")[0] for worker in job.workers]
    pairs = zip(NAMES, data, strict=True)
    assert any(f" reach {name} ({address} port" in message for name, address in pairs)
    assert "(and 1 more); the control addresses answer, so mpiboot keeps sockets off it" in message
    assert WAYS[way] in message
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


@FULL
def test_a_worker_of_somebody_elses_is_not_checked(cluster: Cluster) -> None:
    plain = {"image": plain_worker(NEW), "command": ["/usr/sbin/sshd", "-De"], "args": ()}
    job = jobs.spanned(cluster, images.image(NEW), *BYTES, workers=3, each_worker={1: plain})
    message = f"{NAMES[1]} tries no connections to other workers: it does not run mpiboot"
    assert message in words(job.log)
    assert "4 connections tried" in words(job.log)


# --- names ---

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


@FULL
def test_a_launcher_with_its_nodes_nameserver(cluster: Cluster) -> None:
    launcher = {"host_network": "node-1", "cluster_dns": False}
    env = {"MPIBOOT_TIMEOUT": "15"}
    job = mpijob(cluster, images.image(NEW), workers=1, env=env, launcher=launcher)
    job.start(publish=False)  # that nameserver has no name of the cluster
    assert job.wait() == 68
    assert "/etc/resolv.conf is not the cluster's (no search list)" in job.message
    assert "`dnsPolicy: ClusterFirstWithHostNet`" in job.message


@FULL
def test_a_nameserver_that_never_answers_is_named(cluster: Cluster) -> None:
    cluster.dns.behave(drop=1_000_000)
    message = ("names-unresolved: 1 of 1 hosts do not resolve after ", DNS_ADDRESSES[0])
    jobs.refused(cluster, images.image(NEW), 68, *message, workers=1, env={"MPIBOOT_TIMEOUT": "15"})


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


@pytest.mark.parametrize(
    ("image", "hostfile"),
    [
        (OLD, None),
        *(pytest.param(name, None, marks=FULL) for name in (NEW, "mpich-4.0", "intel-mpi")),
        *(pytest.param(name, SHORT, marks=FULL, id=f"{name}-short") for name in (OLD, NEW)),
    ],
    indirect=["image"],
)
def test_a_nameserver_that_is_silent_once_the_gate_is_passed(
    cluster: Cluster, image: Image, hostfile: str | None
) -> None:
    """This pod is one of the hosts, and is known for mpirun's own host without being asked for."""
    files = dict.fromkeys(("/opt/held/mpirun", "/opt/held/mpiexec.hydra"), HELD)
    path = image.env.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    job = mpijob(
        cluster,
        image.with_files(files, 0o755),
        hostfile=hostfile,
        launcher_args=HYDRA_RANK if image.name.startswith("mpich") else ["mpirun", RING],
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


def misbehaving(cluster: Cluster, job: Job, each_worker: dict[int, dict[str, Any]]) -> Job:
    """Drop every query by UDP, and spoil the answers for some workers."""
    cluster.dns.behave(tcp_only=True)
    for index, behaviour in each_worker.items():
        cluster.dns.behave(job.workers[index].fqdn, tcp_only=True, **behaviour)
    return job.start()


@jobs.each(NEW, OLD, "mpich-4.0")
def test_a_nameserver_by_tcp_that_fails_and_flips(cluster: Cluster, image: Image) -> None:
    """The wrong address comes first: nobody is there, and the name is asked for again."""
    program = HYDRA_RANK if image.name.startswith("mpich") else ["mpirun", RING]
    job = mpijob(cluster, image, workers=3, launcher_args=program)
    jobs.spans(misbehaving(cluster, job, {0: {"servfail": 3}, 1: {"flip": True, "other": NOBODY}}))
    found = {item for item in cluster.dns.questions() if item.message == "NOERROR"}
    assert {item.transport for item in found} == {"tcp"}
    assert {item.name.partition(".")[0] for item in found} == {pod.hostname for pod in job.workers}
    assert [item.message for item in cluster.dns.questions()].count("SERVFAIL") == 3


@FULL
def test_servfail_until_the_deadline_is_named(cluster: Cluster) -> None:
    job = mpijob(cluster, images.image(NEW), workers=3, env={"MPIBOOT_DNS_WAIT": "15"})
    assert misbehaving(cluster, job, {1: {"servfail": 1_000_000}}).wait() == 68
    start = "names-unresolved: 1 of 3 hosts do not resolve after 15 s: waiting for "
    assert job.message.startswith(start)
    assert f"\n{NAMES[1]}: DNS: SERVFAIL for " in job.message
    assert "pi-worker-0" not in job.message
    assert "starting mpirun" not in job.log


@FULL
def test_a_name_that_leads_to_another_worker_is_no_second_host(cluster: Cluster) -> None:
    """It has the job's key and accepts the login."""
    job = mpijob(cluster, images.image(NEW), workers=3).start(publish=False)
    first = job.workers[0]
    cluster.dns.behave(job.workers[1].fqdn, flip=True, other=first.address)
    job.publish()
    assert job.wait() == 78
    both = f"{', '.join(NAMES)} lead to one and the same SSH server, {first.address} port 22"
    assert both in job.message
    assert "else the nameserver has a wrong or an old address" in job.message
    assert "starting mpirun" not in job.log
