"""The ways between hosts, judged: each outcome by values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.model import Finding
from mpiboot.doctor import hosts, table
from mpiboot.doctor.checks import BY_REFERENCE, judge_all
from mpiboot.network.worker_pairs import Dial, Reached

GOOD = Dial(
    "w-0",
    "w-1",
    "10.0.0.2",
    40001,
    2.0,
    Reached.ANSWERED,
    link="eth0",
    wanted=1450,
    microseconds=100,
    mtu=1450,
    rate=125_000_000,
)
DATA = replace(GOOD, link="net1", control=False, address="10.1.0.2", wanted=9000, mtu=9000)
TO_1 = "w-0 to w-1 (10.0.0.2 by the control link eth0)"
DATA_TO_1 = "w-0 to w-1 (10.1.0.2 by the data link net1)"


def message(found: list[Finding]) -> list[str]:
    return [f"{item.level.value} {item.check}: {item.message}" for item in found]


def test_ways_that_are_well_are_told_in_three_lines() -> None:
    assert message(list(judge_all(table.WAYS, {"ways": [GOOD, GOOD, DATA]}, {}))) == [
        "ok network-reach: 3 ways on eth0, net1: all come through",
        "ok path-mtu: packets as large as the links' MTU come through: 1450 on eth0, 9000 on net1",
        *(
            f"ok path-speed: on {link} a round trip takes 100 us in the middle, 100 us at most; "
            "one TCP stream carries 1 Gb/s, 1 Gb/s at least"
            for link in ("eth0", "net1")
        ),
    ]
    assert list(judge_all(table.WAYS, {"ways": []}, {})) == []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (Reached.SILENT, "no answer"),
        (Reached.REFUSED, "refused"),
        (Reached.NO_ROUTE, "no route"),
    ],
)
def test_a_way_that_is_cut_fails(how: Reached, why: str) -> None:
    cut = replace(DATA, reached=how, microseconds=None, mtu=None, rate=None)
    (one,) = hosts.reach([GOOD, cut])
    assert message([one]) == [f"fail network-reach: {DATA_TO_1}: {why}"]
    assert one.hint == BY_REFERENCE["network-reach"].hint
    (several,) = hosts.reach([cut] * 6)
    assert several.message == f"{DATA_TO_1}: {why}; 5 more"
    assert several.evidence == (f"{DATA_TO_1}: {why}",) * 3
    assert (several.host, several.hosts) == ("", ("w-0", "w-1"))
    others = [replace(cut, source="w-2"), replace(cut, source="w-1", target="w-3")]
    (at_one,) = hosts.reach([cut, *others])
    assert (at_one.host, at_one.hosts) == ("w-1", ())
    (anywhere,) = hosts.reach([cut, replace(cut, source="w-2", target="w-3")])
    assert (anywhere.host, anywhere.hosts) == ("", ())
    assert list(hosts.path_mtu([cut])) == []
    assert list(hosts.speed([cut])) == []


def test_ways_for_which_there_was_no_time_are_not_known() -> None:
    late = replace(GOOD, reached=Reached.UNKNOWN, microseconds=None, mtu=None, rate=None)
    assert message(list(hosts.reach([GOOD, late, late]))) == [
        f"unknown network-reach: not measured in time: 2 ways of 3, such as {TO_1}"
    ]


def test_a_path_that_carries_less_than_its_links_fails() -> None:
    assert message(list(hosts.path_mtu([GOOD, replace(DATA, mtu=1500)]))) == [
        (
            f"fail path-mtu: {DATA_TO_1}: packets of 1500 bytes come through, larger ones are "
            "lost; the links have 9000"
        )
    ]


@pytest.mark.parametrize("mtu", [None, 1450])
def test_a_stream_that_stalls_fails(mtu: int | None) -> None:
    stalled = replace(GOOD, reached=Reached.STALLED, mtu=mtu, rate=None)
    assert message(list(hosts.path_mtu([stalled])))[0] == (
        f"fail path-mtu: {TO_1}: small packets come through, large ones are lost"
    )


def test_without_answers_by_udp_the_path_mtu_is_not_known() -> None:
    assert message(list(hosts.path_mtu([replace(GOOD, mtu=None)]))) == [
        (
            f"unknown path-mtu: no answer by UDP on 1 way, such as {TO_1}; TCP's large "
            "packets come through"
        )
    ]


def test_a_way_that_is_much_slower_than_the_others_is_named() -> None:
    slow = replace(GOOD, target="w-9", microseconds=9000, rate=12_500_000)
    ways = [replace(GOOD, target=f"w-{number}") for number in range(1, 5)]
    where = "w-0 to w-9 (10.0.0.2 by the control link eth0)"
    odd, figures = hosts.speed([*ways, slow])
    assert odd.message == f"{where}: a round trip takes 9 ms, of the others 100 us; 1 more"
    assert odd.evidence == (f"{where}: one TCP stream carries 100 Mb/s, the others 1 Gb/s",)
    assert odd.level.value == "warn"
    assert figures.message.endswith(
        "9 ms at most; one TCP stream carries 1 Gb/s, 100 Mb/s at least"
    )
    # Of two there is no middle one, and what is quick enough is never slow.
    assert len(list(hosts.speed([GOOD, slow]))) == 1
    quick = replace(slow, microseconds=1900, rate=40_000_000)
    assert len(list(hosts.speed([*ways, quick]))) == 1
