"""Rounds, perftest's lines and what results mean: who is named, and who is not."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from mpiboot.core.model import Level
from mpiboot.core.settings import resolve
from mpiboot.network import decision, worker_network
from mpiboot.validate import pairs
from mpiboot.validate.pairs import MEASURES, TCP, Flow, Measured
from tests.fakes import workers as w

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpiboot.core.facts import Worker
    from mpiboot.core.model import Finding

WRITE, READ = MEASURES["ib_write_bw"], MEASURES["ib_read_lat"]


def names(count: int) -> tuple[str, ...]:
    return tuple(f"w-{number}" for number in range(count))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 64])
def test_in_each_round_all_hosts_are_busy_and_together_all_pairs_meet(count: int) -> None:
    hosts, met = names(count), list[tuple[str, str]]()
    for flows in pairs.rounds(hosts):
        assert len(flows) == count // 2
        assert len({*sum(flows, ())}) == 2 * len(flows)
        met += flows
    both = [*combinations(hosts, 2), *((b, a) for a, b in combinations(hosts, 2))]
    assert sorted(met) == sorted(both)


@pytest.mark.parametrize("count", [0, 1])
def test_without_two_hosts_there_is_nothing_to_measure(count: int) -> None:
    assert [flows for flows in pairs.rounds(names(count)) if flows] == []


def test_a_few_rounds_of_many_are_spread_over_the_pairs() -> None:
    """No host sees only neighbours: the first rounds lead to all parts of the list."""
    hosts = names(100)
    partners = {int(b[2:]) for flows in [*pairs.rounds(hosts)][:20] for a, b in flows if a == "w-7"}
    assert len(partners) >= 10
    assert {partner // 34 for partner in partners} == {0, 1, 2}


# As perftest 4.5 prints them (6.06), over soft-RoCE; blanks and lines of stars are left out.
BANDWIDTH = """
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1200             0.00               96.73                0.184500
---------------------------------------------------------------------------------------
"""
LATENCY = """
 #bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] 99%  99.9%
 2      1000        2.31        9.87        2.41            2.44        0.20          2.96 9.87
"""


def test_results_of_perftest_are_read() -> None:
    assert WRITE.read(BANDWIDTH.splitlines()) == 96.73
    assert READ.read(LATENCY.splitlines()) == 2.41
    assert WRITE.read(["---------", "Completion with error at client", ""]) is None
    assert WRITE.read(["1 2 . 4", "1 2 1.2.3 4", "... ... ... ..."]) is None


def test_of_what_perftest_says_the_reason_is_taken() -> None:
    text = "****\n Failed to modify QP 17 to RTR\n Unable to Connect the HCA's through the link\n"
    assert pairs.complaint(text.splitlines()) == "Failed to modify QP 17 to RTR"
    assert pairs.complaint(["", "12345", "mpiboot-status 137"]) == "mpiboot-status 137"
    assert pairs.complaint([]) == ""


def measured(
    count: int,
    value: Callable[[Flow], float],
    *,
    passes: int = 3,
    rails: tuple[str, ...] = ("net1",),
    measure: pairs.Measure = TCP,
    limits: tuple[float, ...] = (),
    only: int | None = None,
) -> Measured:
    """What so many passes of all rounds, or of some of them, have measured."""
    seen = Measured(measure, names(count), rails, limits)
    for _ in range(passes):
        for flows in [*pairs.rounds(seen.hosts)][:only]:
            for rail, flow in ((rail, flow) for rail in range(len(rails)) for flow in flows):
                one = Flow(rail, *flow)
                seen.values.setdefault(one, []).append(value(one))
    return seen


def named(found: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(item.check, item.host) for item in found]


def around(middle: float, spread: float = 0.02, seed: int = 1) -> Callable[[Flow], float]:
    chance = random.Random(seed)
    return lambda _: max(0.01, chance.gauss(middle, middle * spread))


def slowed(by: float, slow: Callable[[Flow], bool]) -> Callable[[Flow], float]:
    usual = around(97)
    return lambda flow: usual(flow) * (by if slow(flow) else 1)


@pytest.mark.parametrize("count", [3, 4, 5, 16])
def test_a_host_whose_ways_are_all_slow_is_named(count: int) -> None:
    found = pairs.judge(measured(count, slowed(0.5, lambda flow: "w-1" in flow)))
    assert named(found) == [("slow-host", "w-1")] * 2
    assert found[0].level is Level.FAIL
    both = found[0].message + found[1].message
    assert "from it by net1, the others 9" in both
    assert "to it by net1, the others 9" in both


def test_a_host_that_is_slow_in_one_direction_is_named_for_it() -> None:
    (found,) = pairs.judge(measured(3, slowed(0.01, lambda flow: flow.source == "w-2")))
    assert (found.check, found.host) == ("slow-host", "w-2")
    assert " Gb/s from it by net1, the others 9" in found.message


def test_a_host_that_was_busy_for_a_while_is_not_named() -> None:
    """Two of three passes slow all that it sends; a slow link would slow the third one, too."""
    seen = measured(3, around(20, 0.01))
    for flow in [flow for flow in seen.values if flow.source == "w-0"]:
        seen.values[flow][:2] = [9.0, 10.0]
    assert "slow-host" not in {item.check for item in pairs.judge(seen)}


def test_of_several_slow_hosts_the_slowest_is_told_first() -> None:
    usual = around(20)
    by = {"w-2": 0.6, "w-5": 0.01}
    found = pairs.judge(measured(8, lambda flow: usual(flow) * by.get(flow.source, 1.0)))
    assert named(found) == [("slow-host", "w-5"), ("slow-host", "w-2")]


def test_a_single_slow_pair_is_no_hosts_fault() -> None:
    found = pairs.judge(measured(8, slowed(0.5, lambda flow: {*flow[1:]} == {"w-2", "w-5"})))
    assert named(found) == [("slow-pair", "")] * 2
    assert {item.hosts for item in found} == {("w-2", "w-5"), ("w-5", "w-2")}


def test_of_two_hosts_none_is_named() -> None:
    assert pairs.judge(measured(2, around(97))) == ()
    found = pairs.judge(measured(2, slowed(0.1, lambda flow: flow.source == "w-0")))
    assert named(found) == [("slow-pair", "")]
    assert found[0].message.startswith("w-0 to w-1 by net1: ")
    assert found[0].hosts == ("w-0", "w-1")


def test_a_rail_that_is_slow_everywhere_is_named_and_not_its_hosts() -> None:
    rails = ("mlx5_0:1", "mlx5_1:1", "mlx5_2:1")
    seen = measured(4, slowed(0.5, lambda flow: flow.rail == 1), rails=rails, measure=WRITE)
    assert named(pairs.judge(seen)) == [("slow-rail", "")]
    assert pairs.judge(seen)[0].hosts == seen.hosts
    assert pairs.judge(seen)[0].message.startswith("mlx5_1:1 is slow between all hosts: 4")


def test_a_host_that_is_slow_on_one_rail_is_named_with_it() -> None:
    rails = ("mlx5_0:1", "mlx5_1:1")
    seen = measured(4, slowed(0.5, lambda flow: flow.rail == 1 and "w-3" in flow), rails=rails)
    found = pairs.judge(seen)
    assert named(found) == [("slow-host", "w-3")] * 2
    assert "mlx5_1:1" in found[0].message


def test_what_all_ports_carry_is_held_against_their_rate() -> None:
    seen = measured(4, around(50), measure=WRITE, limits=(98.0,))
    (found,) = pairs.judge(seen)
    assert found.check == "port-rate"
    assert "51% of the 98 Gb/s of its port" in found.message.replace("52%", "51%")
    assert pairs.judge(seen, 0.4) == ()
    assert pairs.judge(measured(4, around(50), measure=WRITE, limits=(0.0,))) == ()


def test_of_latencies_the_large_ones_are_slow() -> None:
    usual = around(2.0)
    seen = measured(4, lambda flow: usual(flow) * (5 if "w-0" in flow else 1), measure=READ)
    assert named(pairs.judge(seen)) == [("slow-host", "w-0")] * 2
    assert " us from it" in "".join(item.message for item in pairs.judge(seen))
    # One more switch on the flow.
    seen = measured(6, lambda flow: usual(flow) * (1.5 if "w-0" in flow else 1), measure=READ)
    assert pairs.judge(seen) == ()


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.25])
@pytest.mark.parametrize(("count", "passes"), [(2, 3), (3, 1), (3, 3), (5, 3), (16, 1), (32, 1)])
def test_noise_names_nobody(count: int, passes: int, spread: float) -> None:
    for seed in range(20):
        value = around(20, spread, 100 * count + seed)
        found = pairs.judge(measured(count, value, passes=passes))
        assert [item for item in found if item.host or "slow" in item.check][1:] == [], seed


def test_so_much_noise_hides_no_host_that_is_far_off() -> None:
    chance = random.Random(7)
    for _ in range(20):
        seen = measured(
            5, lambda flow: chance.lognormvariate(3, 0.5) * (0.002 if flow.source == "w-4" else 1)
        )
        assert named(pairs.judge(seen)) == [("slow-host", "w-4")]


def test_a_pair_is_not_named_by_a_single_value() -> None:
    seen = measured(16, slowed(0.1, lambda flow: flow[1:] == ("w-3", "w-8")), passes=1)
    assert pairs.judge(seen) == ()
    seen.values[Flow(0, "w-3", "w-8")].append(9.6)
    assert named(pairs.judge(seen)) == [("slow-pair", "")]
    seen.values[Flow(0, "w-3", "w-8")].append(96.0)
    assert pairs.judge(seen) == ()


def test_by_few_rounds_of_many_a_slow_host_is_named_all_the_same() -> None:
    seen = measured(200, slowed(0.3, lambda flow: "w-77" in flow), passes=1, only=20)
    assert named(pairs.judge(seen)) == [("slow-host", "w-77")] * 2
    text = pairs.as_text(seen, pairs.judge(seen), None, whole=True)
    assert "1000 of 19900 pairs of 200 hosts measured" in text
    assert len(text.splitlines()) < 9


def test_by_one_partner_alone_no_host_is_named() -> None:
    """Interrupted in the first round: nobody knows whose fault it is."""
    seen = measured(8, slowed(0.1, lambda flow: "w-3" in flow), only=2)
    assert {item.check for item in pairs.judge(seen)} == {"slow-pair"}


def test_ways_without_a_result_are_told_once_for_each_reason() -> None:
    seen = measured(4, around(97), measure=WRITE)
    for flow in [flow for flow in seen.values if flow.target == "w-2"]:
        del seen.values[flow]
        seen.failed[flow] = "w-2: Couldn't allocate MR"
    seen.failed[Flow(0, "w-0", "w-1")] = "no end within 22 s"  # and then it came to one
    found, other = pairs.judge(seen)
    assert (found.check, found.host, found.level) == ("not-measured", "w-2", Level.FAIL)
    assert found.message.endswith(" by net1 and 2 more flows: w-2: Couldn't allocate MR")
    assert (other.level, other.message) == (
        Level.WARN,
        "w-0 to w-1 by net1: no end within 22 s, and at other times a result",
    )
    del seen.values[Flow(0, "w-0", "w-1")]
    found, other = pairs.judge(seen)
    assert {(found.host, found.hosts), (other.host, other.hosts)} == {
        ("w-2", ()),
        ("", ("w-0", "w-1")),
    }


def test_the_matrix_is_shown_and_folded_where_it_is_too_wide() -> None:
    seen = measured(3, lambda flow: 10.0 + int(flow.source[2:]))
    text = pairs.as_text(seen, (), None, whole=True)
    assert text.splitlines()[:4] == [
        "Gb/s  w-0  w-1  w-2",
        "w-0   -    10   10",
        "w-1   11   -    11",
        "w-2   12   12   -",
    ]
    text = pairs.as_text(seen, (), 12, whole=False)
    assert " ".join(text.split()) == (
        "w-0 w-0 -, w-1 10, w-2 10 w-1 w-0 11, w-1 -, w-2 11 w-2 w-0 12, w-1 12, w-2 - "
        "3 of 3 pairs of 3 hosts measured by mpiboot's own TCP stream over net1: median 11 "
        "Gb/s, 10 Gb/s to 12 Gb/s; interrupted before its end"
    )
    assert "w-16" not in pairs.as_text(measured(17, around(10, 0.001)), (), None, whole=True)
    assert pairs.as_text(Measured(TCP), (), 80, whole=False) == (
        "nothing was measured; interrupted before its end\n"
    )
    assert pairs.as_text(Measured(TCP, names(2), ("net1",)), (), 80, whole=True) == (
        "0 of 1 pair of 2 hosts measured by mpiboot's own TCP stream over net1\n"
    )


def test_a_program_gets_each_way_with_all_its_values() -> None:
    seen = measured(2, lambda flow: 10.0, measure=WRITE, limits=(98.0,))
    seen.failed[Flow(0, "w-1", "w-0")] = "once"
    record = pairs.record(seen, (), whole=True)
    assert record["tool"] == "ib_write_bw"
    flows = record["flows"]
    assert isinstance(flows, list)
    assert flows[1] == {
        "rail": "net1",
        "from": "w-1",
        "to": "w-0",
        "values": [10.0, 10.0, 10.0],
        "resent": [],
        "failed": "once",
    }


SETTINGS = resolve({}, {}).settings


def common(*workers: Worker) -> tuple[dict[str, tuple[pairs.RailEnd, ...]], list[str]]:
    chosen = [worker_network.choose(one, SETTINGS) for one in workers]
    found = decision.decide(chosen, SETTINGS, {}).networks
    return pairs.common_rails({network.host: network for network in found})


def ends(one: Worker) -> tuple[pairs.RailEnd, ...]:
    return common(one)[0]["w-0"]


def test_perftest_gets_the_delivered_device_port_and_index() -> None:
    (end,) = ends(w.macvlan())
    table = {gid.index: gid for gid in w.macvlan().facts.fabric.devices[0].ports[0].gids}  # type: ignore[union-attr]
    index = end.options.rpartition(" ")[2]
    assert table[int(index)].value == "::ffff:10.0.0.12"
    assert WRITE.command(end, 18578, 2.4) == (
        f"ib_write_bw -d mlx5_2 -i 1 -x {index} -p 18578 -F -s 65536 -D 2 --report_gbits"
    )
    assert 92 < end.limit < 93  # of 100 Gb/s, less the headers of packets of 1,024 bytes


def test_infiniband_has_no_index_and_efa_no_perftest() -> None:
    (end,) = ends(w.ipoib())
    assert READ.command(end, 18515, 1.0) == "ib_read_lat -d mlx5_4 -i 1 -p 18515 -F -n 1000"
    assert [end.name for end in ends(w.rails8())] == [f"mlx5_{20 - n}:1" for n in range(1, 9)]
    assert ends(w.ipoib(state="INIT")) == ()
    assert common(w.worker("w-0", w.eth0())) == ({"w-0": ()}, ["w-0"])


def test_a_rail_that_one_host_lacks_is_left_out_and_no_other_takes_its_place() -> None:
    whole, other = w.rails8(0), w.rails8(1)
    assert other.facts is not None
    devices = tuple(
        replace(one, open_error="denied") if one.name == "mlx5_18" else one
        for one in other.facts.fabric.devices
    )
    fabric = replace(other.facts.fabric, devices=devices)
    found, without = common(whole, replace(other, facts=replace(other.facts, fabric=fabric)))
    kept = [f"mlx5_{20 - rail}:1" for rail in range(1, 9) if rail != 2]
    assert {host: [end.name for end in own] for host, own in found.items()} == {
        "w-0": kept,
        "w-1": kept,
    }
    assert without == []
    found, without = common(w.sriov(0), replace(w.worker("w-1", w.eth0())))
    assert (found, without) == ({"w-0": (), "w-1": ()}, ["w-1"])


def test_who_loses_packets_is_told_beside() -> None:
    seen = measured(4, around(20))
    seen.resent = {flow: [0.01 + (1.1 if flow.source == "w-1" else 0)] * 3 for flow in seen.values}
    (found,) = pairs.judge(seen)
    assert (found.check, found.level, found.host) == ("lost-packets", Level.WARN, "w-1")
    assert found.message.startswith("1.11 % of the packets sent again from it by net1")
    seen.resent = {flow: [0.2, 0.0, 0.4] for flow in seen.values}
    assert pairs.judge(seen) == ()
