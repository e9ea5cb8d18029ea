from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mpiboot.core.facts import Link, Worker
from mpiboot.core.model import Source
from mpiboot.core.settings import Given
from mpiboot.network import worker_network
from tests.fakes import workers as w
from tests.fakes.workers import link

GIVEN = Given(Source.FLAG, "--control-ifname")


def pod(*links: Link) -> tuple[Link, ...]:
    return (link("lo", "127.0.0.1/8", "::1/128"), *links)


def worker(
    number: int, address: str, links: Sequence[Link] | None, local: str = "10.244.0.9"
) -> Worker:
    made = w.worker(f"w-{number}", control=address)
    known = made.facts and links and replace(made.facts, links=tuple(links), control_address="")
    return replace(made, local_address=local, facts=known or None)


def on(number: int, *links: Link, local: str = "10.244.0.9") -> Worker:
    """A worker that is reached at the first address of its first link."""
    return worker(number, links[0].addresses[0].partition("/")[0], pod(*links), local)


LAUNCHER = pod(link("eth0", "10.244.0.9/24"))
SMALL = ("10.244.0.0/28", "")
ENS4 = link("ens4", "10.244.0.5/24")
AT_10 = on(0, link("eth0", "10.244.0.5/24"))
BOTH = pod(link("eth0", "10.244.0.9/24", "fd00::9/64"))
ALONE = pod(link("eth0", "192.0.2.1/24"))
PAST = pod(link("eth0", "fd00:1::9/64", "fe80::1/64"))
DATA = link("net1", "10.244.0.7/24")
HOLDS = "10.244.0.0/28 would hold all control addresses but also 10.244.0.7/24"


@pytest.mark.parametrize(
    ("launcher", "workers", "expected"),
    [
        (
            LAUNCHER,
            [on(n, link("eth0", f"10.244.{n}.5/24"), link("net1", "1.2.3.4/8")) for n in (0, 1, 2)],
            ("eth0", ""),
        ),
        # The smallest network, where names differ, or one means another link on a worker.
        (
            LAUNCHER,
            [AT_10, on(1, link("ens4", "10.244.0.6/24"), link("net1", "192.168.1.6/24"))],
            SMALL,
        ),
        (LAUNCHER, [on(0, link("eth1", "10.244.0.5/24"), link("eth0", "192.168.1.5/24"))], SMALL),
        # Not where another link is inside it.
        (LAUNCHER, [on(0, ENS4, DATA)], ("", HOLDS)),
        ((*LAUNCHER, DATA), [on(0, ENS4)], ("", HOLDS)),
        # Pods that have an address of their own each, without a network.
        (
            pod(link("eth0", "100.64.1.9/32")),
            [on(n, link(f"cali{n}", f"100.64.{n}.7/32"), local="100.64.1.9") for n in range(4)],
            ("100.64.0.0/22", ""),
        ),
        # Workers without facts count by their address, and make a name unsure.
        (
            LAUNCHER,
            [worker(0, "10.244.0.5", None), worker(1, "10.244.0.200", None)],
            ("10.244.0.0/24", ""),
        ),
        (LAUNCHER, [AT_10, worker(1, "10.244.0.6", None)], SMALL),
        # Workers on loopback addresses.
        (
            ALONE,
            [worker(n, f"127.0.0.{n}", ALONE, "127.0.0.1") for n in (2, 3)],
            ("127.0.0.0/30", ""),
        ),
        # Both IP versions: no network holds them, a name does.
        (
            BOTH,
            [worker(0, "10.244.0.5", None), worker(1, "fd00::5", None, "fd00::9")],
            ("", "the control addresses are of both IP versions, or not all known"),
        ),
        (BOTH, [AT_10, on(1, link("eth0", "fd00::5/64"), local="fd00::9")], ("eth0", "")),
        # Past link-local addresses.
        (
            PAST,
            [on(0, link("ens4", "fd00:1::5/64", "fe80::2/64"), local="fd00:1::9")],
            ("fd00:1::/124", ""),
        ),
        (LAUNCHER, [], ("", "no worker whose route would show it")),
        # An address that is on no link of the worker, as behind a Service's, is no name's.
        (LAUNCHER, [worker(0, "10.244.0.5", pod(link("eth0", "10.244.0.77/24")))], SMALL),
        # 10/8 and 100.64/10 have nothing in common but the first bit, which 127/8 has too.
        (
            LAUNCHER,
            [on(0, link("ens4", "100.64.0.5/32"))],
            ("", "0.0.0.0/1 would hold all control addresses but also 127.0.0.1/8"),
        ),
    ],
)
def test_what_names_the_control_link(
    launcher: tuple[Link, ...], workers: list[Worker], expected: tuple[str, str]
) -> None:
    decision, why_not = worker_network.control_link("", launcher, tuple(workers), GIVEN)
    assert ((decision.value if decision else ""), why_not) == expected
    assert decision is None or decision.source is Source.DETECTED


def test_the_users_own_link_wins_and_says_where_it_was_given() -> None:
    decision, _ = worker_network.control_link("net9", LAUNCHER, (AT_10,), GIVEN)
    assert decision is not None
    assert (decision.value, decision.source, decision.reason) == ("net9", *GIVEN)


def test_a_network_has_the_name_of_the_link_that_every_pod_has_there() -> None:
    workers = [
        on(0, link("eth0", "10.244.0.10/24"), link("a", "192.168.0.1/24")),
        on(1, link("eth0", "10.244.1.10/24"), link("b", "192.168.0.2/24")),
    ]
    launcher = (*LAUNCHER, link("a", "192.168.0.9/24"))
    # Bits beyond the prefix; another link on a worker, no address on another one, no network.
    names = {"10.244.0.0/16": "eth0", "10.244.0.9/16": "eth0"}
    for network in (*names, "192.168.0.0/16", "10.244.0.0/24", "eth0"):
        found = worker_network.name_in(network, launcher, workers)
        assert found == names.get(network, "")
        more = [*workers, worker(2, "10.244.2.10", None)]
        assert worker_network.name_in(network, launcher, more) == ""
