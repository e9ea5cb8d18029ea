from __future__ import annotations

from dataclasses import replace

from mpiboot.model import Link, Worker
from mpiboot.network import mtu
from tests.fakes.plans import hosts, link, worker


def sized(size: int, made: Link) -> Link:
    return replace(made, mtu=size)


def pods(*sizes: int) -> tuple[Worker, ...]:
    made = []
    for number, (host, size) in enumerate(zip(hosts(*[1] * len(sizes)), sizes, strict=True)):
        one = worker(host, number, None)
        assert one.facts is not None
        links = (
            *(sized(size, item) for item in one.facts.links),
            sized(9000, link("net1", "1.2.3.4/8")),
        )
        made.append(replace(one, facts=replace(one.facts, links=links)))
    return tuple(made)


LAUNCHER = (link("lo", "127.0.0.1/8"), link("eth0", "10.244.0.9/24"))


def test_one_mtu_is_no_finding_whatever_other_links_have() -> None:
    assert mtu.findings((*LAUNCHER, sized(9000, link("net1", "1.2.3.5/8"))), pods(1500, 1500)) == ()


def test_pods_are_told_by_their_mtu() -> None:
    (found,) = mtu.findings(LAUNCHER, pods(1500, 1400, 8900))
    assert found.said == (
        "MTUs of the control links differ: 1400 on w-1.job.ns.svc; "
        "1500 on the launcher, w-0.job.ns.svc; 8900 on w-2.job.ns.svc"
    )
    assert found.check == "control-mtu"


def test_the_launchers_own_counts_and_a_worker_that_tells_nothing_does_not() -> None:
    silent = replace(pods(1400)[0], facts=None)
    assert mtu.findings(LAUNCHER, (silent,)) == ()
    small = (LAUNCHER[0], sized(1400, LAUNCHER[1]))
    assert len(mtu.findings(small, pods(1500))) == 1
