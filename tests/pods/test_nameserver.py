"""The cluster's name server: like CoreDNS when it is well, and badly behaved when told to be."""

from __future__ import annotations

import dns.message
import dns.query
import dns.rcode
import dns.rdatatype
import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.network import DNS_ADDRESSES
from tests.pods.oci import PodSpec
from tests.pods.pod import Pod
from tests.waiting import until

NAME = "a.job.default.svc.cluster.local"


@pytest.fixture
def pod(cluster: Cluster, plain: Image) -> Pod:
    # A job's pods meet a name server that runs; what it is asked before that, TCP refuses.
    cluster.dns.ready()
    spec = PodSpec(name="a", image=plain, command=["sleep", "1000"], subdomain="job")
    return cluster.pod(spec).start()


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


def ask(
    pod: Pod, name: str = NAME, kind: str = "A", transport: str = "udp", patience: float = 20.0
) -> dns.message.Message | str:
    """Ask once; the answer to a question that is not dropped is waited for, however busy we are."""
    python = "/opt/mpiboot/bin/python3"
    done = pod.exec(python, "-c", ASK, DNS_ADDRESSES[0], name, kind, transport, str(patience))
    assert done.returncode == 0, done.stderr
    return done.stdout if done.stdout == "timeout" else dns.message.from_text(done.stdout)


def rcode(pod: Pod, name: str = NAME, transport: str = "udp", patience: float = 20.0) -> str:
    answer = ask(pod, name, transport=transport, patience=patience)
    return answer if isinstance(answer, str) else dns.rcode.to_text(answer.rcode())


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_records_come_and_go(cluster: Cluster, pod: Pod, transport: str) -> None:
    before = ask(pod, transport=transport)
    assert isinstance(before, dns.message.Message)
    assert before.rcode() == dns.rcode.NXDOMAIN
    (soa,) = before.authority
    assert (soa.rdtype, soa.ttl, soa[0].minimum) == (dns.rdatatype.SOA, 5, 5)
    cluster.dns.negative_cache(1000)
    assert rcode(pod, transport=transport) == "NXDOMAIN"
    pod.publish()
    assert rcode(pod, transport=transport) == "NXDOMAIN"  # for as long as the answer said
    cluster.dns.negative_cache(3)
    for name in (NAME, "job.default.svc.cluster.local"):
        answer = ask(pod, name, transport=transport)
        assert isinstance(answer, dns.message.Message)
        assert [record.address for record in answer.answer[0]] == [pod.address]
    nothing = ask(pod, kind="AAAA", transport=transport)
    assert isinstance(nothing, dns.message.Message)
    assert (nothing.rcode(), nothing.answer) == (dns.rcode.NOERROR, [])
    pod.unpublish()
    assert rcode(pod, transport=transport) == "NXDOMAIN"
    pod.publish()
    until(lambda: rcode(pod, transport=transport) == "NOERROR")


def test_bad_days(cluster: Cluster, pod: Pod) -> None:
    pod.publish()
    cluster.dns.behave(NAME, servfail=2)
    assert [rcode(pod) for _ in range(3)] == ["SERVFAIL", "SERVFAIL", "NOERROR"]
    cluster.dns.behave(NAME, drop=1)
    assert [rcode(pod, patience=0.3), rcode(pod)] == ["timeout", "NOERROR"]
    cluster.dns.behave(NAME, flip=True)
    assert [rcode(pod) for _ in range(4)] == ["NOERROR", "NXDOMAIN"] * 2
    cluster.dns.behave(NAME)
    assert [q.message for q in cluster.dns.questions(NAME)][:3] == [
        "SERVFAIL",
        "SERVFAIL",
        "NOERROR",
    ]
    assert rcode(pod, "example.com") == "NXDOMAIN"


def test_readiness_publishes(pod: Pod) -> None:
    pod.publish(when_port=8000)
    assert rcode(pod) == "NXDOMAIN"
    serve = "/opt/mpiboot/bin/python3 -m http.server 8000 >/dev/null 2>&1 &"
    pod.exec("sh", "-c", serve)
    until(lambda: rcode(pod) == "NOERROR")
