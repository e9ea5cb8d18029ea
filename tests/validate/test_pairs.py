"""Rounds, perftest's lines and what results mean: who is named, and who is not."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from mpiboot.core.model import Level
from mpiboot.core.settings import resolve
from mpiboot.network import decision, worker_network
from mpiboot.validate import pairs
from mpiboot.validate.pairs import FRACTION, IB_WRITE_BW, TCP, Flow, Measured
from tests.fakes import workers as w

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpiboot.core.facts import Worker


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 8, 9, 64])
def test_in_each_round_all_hosts_are_busy_and_together_all_pairs_meet(count: int) -> None:
    hosts, met = [f"w-{number}" for number in range(count)], list[tuple[str, str]]()
    for flows in pairs.rounds(hosts):
        assert len(flows) == count // 2
        assert len({*sum(flows, ())}) == 2 * len(flows)
        met += flows
    assert sorted(met) == sorted(permutations(hosts, 2))
    # The first rounds of many are spread over the pairs.
    partners = [int(other[2:]) // 16 for one, other in met[: 8 * count] if one == "w-7"]
    assert count < 64 or len({*partners}) > 2


# As perftest 4.5 prints them (6.06), over soft-RoCE; blanks and lines of stars are left out.
BANDWIDTH = """
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1200             0.00               96.73                0.184500
---------------------------------------------------------------------------------------
"""


def test_what_perftest_prints_is_read() -> None:
    completion = "---------\nCompletion with error at client\n"
    modify = "****\n Failed to modify QP 17 to RTR\n Unable to Connect the HCA's\n"
    texts = (BANDWIDTH, completion, "1 2 . 4\n1 2 1.2.3 4\n... ... ... ...", modify, "")
    found = [IB_WRITE_BW.bandwidth(text.splitlines()) for text in texts]
    assert found == [96.73, None, None, None, None]
    errors = [pairs.error_line(text.splitlines()) for text in (completion, modify, "1\nKilled\n\n")]
    assert errors == ["Completion with error at client", "Failed to modify QP 17 to RTR", "Killed"]
    assert pairs.error_line([]) == "no output"


PORT, RAM = 10.0, 40.0  # Gb/s of a node's port in each direction, and between pods of a node
SLOW = 0.5


@dataclass(frozen=True)
class Layout:
    """Pods by node, and nodes by rack, with what a rack's uplink carries."""

    pods: tuple[int, ...]
    racks: tuple[int, ...] = ()
    uplink: float = 0.0

    @property
    def nodes(self) -> dict[str, int]:
        every = [node for node, count in enumerate(self.pods) for _ in range(count)]
        return {f"w-{at}": node for at, node in enumerate(every)}

    def links(self, source: str, target: str) -> dict[str, float]:
        """What a flow shares with others, each with what it carries."""
        one, other = self.nodes[source], self.nodes[target]
        if one == other:
            return {f"RAM of {source}": RAM}
        found = {f"from node {one}": PORT, f"to node {other}": PORT}
        if self.racks and self.racks[one] != self.racks[other]:
            found[f"from rack {self.racks[one]}"] = self.uplink
        return found


def shared(flows: Sequence[dict[str, float]]) -> list[float]:
    """What each flow gets where TCP shares links fairly (max-min)."""
    left = {name: rate for links in flows for name, rate in links.items()}
    rates = [0.0] * len(flows)
    open_flows = set(range(len(flows)))
    while open_flows:
        users = {name: [at for at in open_flows if name in flows[at]] for name in left}
        share, name = min((left[name] / len(by), name) for name, by in users.items() if by)
        for at in users[name]:
            rates[at] = share
            open_flows.discard(at)
            for other in flows[at]:
                left[other] -= share
    return rates


def measured(
    layout: Layout,
    sender: str = "",
    pair: tuple[str, ...] = (),
    *,
    nodes_known: bool = True,
    noise: float = 0.03,
    repeated: bool = True,
    seed: int = 1,
) -> Measured:
    """What two passes of all rounds have measured, and then what was slow in them alone."""
    chance = random.Random(seed)
    seen = Measured(TCP, tuple(layout.nodes), ("net1",), (0.0,))
    if nodes_known:
        seen.nodes = {host: f"boot {node}" for host, node in layout.nodes.items()}

    def measure(flows: Sequence[tuple[str, str]], into: dict[Flow, list[float]]) -> None:
        links = [layout.links(*flow) for flow in flows]
        for (source, target), own in zip(flows, links, strict=True):
            if source == sender and layout.nodes[source] != layout.nodes[target]:
                own[f"port of {source}"] = SLOW
            if {source, target} == {*pair}:
                own[f"{source} to {target}"] = SLOW
        for flow, rate in zip(flows, shared(links), strict=True):
            into.setdefault(Flow(0, *flow), []).append(rate * chance.gauss(1, noise))

    for flows in [*pairs.rounds(seen.hosts)] * 2:
        measure(flows, seen.values)
    slow = pairs.suspects(seen, FRACTION)
    for _ in range(2 * repeated):
        for flow in dict.fromkeys(flow for one in slow for flow in one.flows):
            measure([flow[1:]], seen.alone)
        slow = [one for one in slow if one.speed_alone(seen) is not None]
    return seen


def named(seen: Measured, fraction: float = FRACTION) -> set[tuple[str, str]]:
    """Who is named, and how: a host by what it does, a pair by its direction."""
    found = pairs.judge(seen, fraction)
    return {
        (item.host, item.message.split()[0]) if item.host else (item.hosts[0], item.hosts[1])
        for item in found
    }


LAYOUTS = {
    "2+1+1": Layout((2, 1, 1)),
    "2+2": Layout((2, 2)),
    "3+1": Layout((3, 1)),
    "2+2+1": Layout((2, 2, 1)),
    "2+2+2+2": Layout((2,) * 4),
    "4+4+4+4": Layout((4,) * 4),
    "8+8+8+8": Layout((8,) * 4),
    "two racks of 4 at 2:1": Layout((1,) * 8, (0,) * 4 + (1,) * 4, 20.0),
    "racks of 5 and 3": Layout((1,) * 8, (0,) * 5 + (1,) * 3, 20.0),
}
# w-1 has one peer on other nodes: a slow sender and a slow path between the two look alike.
SENDERS = {"3+1": ("w-1", "w-3")}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_slow_sender_or_pair_is_named_and_nobody_else(name: str) -> None:
    layout = LAYOUTS[name]
    for noise in (0.03, 0.1):
        assert named(measured(layout, noise=noise)) == set()
        # Without knowing who shares a node, a lone pod beside three looks like a slow host.
        if name != "3+1":
            assert named(measured(layout, noise=noise, nodes_known=False)) == set()
    seen = measured(layout, sender="w-1")
    assert named(seen) == named(seen, 0.6) == {SENDERS.get(name, ("w-1", "sends"))}
    assert named(measured(layout, sender="w-1", repeated=False)) == set()
    last = list(layout.nodes)[-1]
    seen = measured(layout, pair=("w-0", last))
    assert named(seen) == {("w-0", last), (last, "w-0")}
    assert {item.check for item in pairs.judge(seen, FRACTION)} == {"slow-pair"}


EIGHT = Layout((1,) * 8)


def test_a_finding_has_its_figures_and_a_hint() -> None:
    (found,) = pairs.judge(measured(EIGHT, sender="w-1", noise=0.0), FRACTION)
    assert (found.check, found.level, found.host) == ("slow-host", Level.FAIL, "w-1")
    assert found.message == "sends 0.5 Gb/s over net1, typically 10 Gb/s"
    assert found.hint.startswith("check that node's NIC")
    found, _ = pairs.judge(measured(EIGHT, pair=("w-2", "w-5"), noise=0.0), FRACTION)
    assert (found.check, found.host) == ("slow-pair", "")
    assert found.message.endswith(" over net1: 0.5 Gb/s, typically 10 Gb/s")


def test_what_is_slow_only_beside_others_or_of_a_few_hosts_is_not_named() -> None:
    seen = measured(EIGHT, sender="w-1", noise=0.0)
    seen.alone = {flow: [9.9] for flow in seen.alone}
    assert named(seen) == set()
    for count in (2, 3):
        assert named(measured(Layout((1,) * count), sender="w-0")) == set()


def test_a_pair_whose_measurements_differ_has_to_be_slower() -> None:
    seen, flow = measured(EIGHT, noise=0.0), Flow(0, "w-2", "w-5")
    for rounds, alone, is_named in ((7.0, 7.0, True), (4.0, 7.0, False), (4.0, 5.5, True)):
        seen.values[flow], seen.alone[flow] = [rounds, rounds], [alone]
        assert named(seen) == ({("w-2", "w-5")} if is_named else set())


@pytest.mark.parametrize(
    ("count", "limit", "slow", "expected"),
    [
        (8, 9.8, PORT, set()),
        (8, 98.0, PORT, {("w-0", "w-1")}),  # of all of them
        (2, 98.0, PORT, {("w-0", "w-1"), ("w-1", "w-0")}),
        (3, 9.8, SLOW, {("w-0", "w-1")}),
        (3, 0.0, SLOW, set()),
    ],
)
def test_rates_are_compared_with_the_ports(
    count: int, limit: float, slow: float, expected: set[tuple[str, str]]
) -> None:
    seen = measured(Layout((1,) * count), noise=0.0)
    seen.limits, seen.values[Flow(0, "w-0", "w-1")] = (limit,), [slow, slow]
    seen.alone = {flow: values[-1:] for flow, values in seen.values.items()}
    if slow == PORT:
        assert named(seen) == expected
    found = [item for item in pairs.judge(seen, FRACTION) if item.check == "port-rate"]
    assert {item.hosts[:2] for item in found} == expected
    assert all(f"port rate {limit:.3g} Gb/s" in item.message for item in found)


def test_flows_without_a_result_are_reported_once_for_each_reason() -> None:
    seen = measured(Layout((1,) * 4), noise=0.0)
    for flow in [flow for flow in seen.values if flow.target == "w-2"]:
        del seen.values[flow]
        seen.failed[flow] = "w-2: Couldn't allocate MR"
    seen.failed[Flow(0, "w-0", "w-1")] = "timed out after 22 s"  # and then it came to one
    seen.left_out = ("w-9",)
    found, other, absent = pairs.judge(seen, FRACTION)
    assert (found.check, found.host, found.level) == ("not-measured", "w-2", Level.FAIL)
    assert found.message.endswith(" over net1 and 2 more flows: w-2: Couldn't allocate MR")
    late = "w-0 to w-1 over net1: timed out after 22 s"
    assert (other.level, other.message) == (Level.WARN, late)
    assert (absent.host, absent.level) == ("w-9", Level.UNKNOWN)


def test_the_matrix_is_shown_and_a_summary() -> None:
    seen = Measured(TCP, ("w-0", "w-1", "w-2"), ("net1",))
    for flows in pairs.rounds(seen.hosts):
        seen.values |= {Flow(0, *flow): [10.0 + int(flow[0][2:])] for flow in flows}
    text = pairs.as_text(seen, (), whole=True)
    assert [" ".join(line.split()) for line in text.splitlines()[:4]] == [
        *("Gb/s w-0 w-1 w-2", "w-0 - 10 10", "w-1 11 - 11", "w-2 12 12 -")
    ]
    text = pairs.as_text(seen, (), whole=False)
    assert text.endswith(
        "\n3 of 3 pairs of 3 hosts measured with mpiboot's TCP stream over net1: median 11 "
        "Gb/s (10 to 12); interrupted\n"
    )
    many = measured(Layout((1,) * 17), noise=0.0)
    assert "w-16" not in pairs.as_text(many, (), whole=True)
    nothing = pairs.as_text(Measured(TCP), (), whole=False)
    assert nothing == "nothing was measured; interrupted\n"


def test_a_program_gets_each_flow_with_all_its_values() -> None:
    seen = measured(Layout((1, 1)), noise=0.0)
    seen.failed[Flow(0, "w-1", "w-0")] = "once"
    record = pairs.record(seen, (), whole=True)
    assert (record["version"], record["tool"]) == (2, "tcp")
    assert record["nodes"] == {"w-0": "boot 0", "w-1": "boot 1"}
    flow = {"rail": "net1", "from": "w-1", "to": "w-0", "values": [10.0, 10.0], "alone": []}
    assert isinstance(record["flows"], list)
    assert record["flows"][1] == {**flow, "failed": "once"}


SETTINGS = resolve({}, {}).settings


def common(*workers: Worker) -> tuple[dict[str, tuple[pairs.End, ...]], list[str]]:
    chosen = [worker_network.choose(one, SETTINGS) for one in workers]
    found = decision.decide(chosen, SETTINGS, {}).networks
    named = {one.host.name: one for one in workers}
    return pairs.common_rails(named, {network.host: network for network in found})


def ends(one: Worker) -> tuple[pairs.End, ...]:
    return common(one)[0]["w-0"]


def test_perftest_gets_the_delivered_device_port_and_index() -> None:
    (end,) = ends(w.macvlan())
    table = {gid.index: gid for gid in w.macvlan().facts.fabric.devices[0].ports[0].gids}  # type: ignore[union-attr]
    index = end.args.rpartition(" ")[2]
    assert table[int(index)].value == "::ffff:10.0.0.12"
    given = {"args": end.args, "port": 18578, "seconds": 2.4, "peer": end.address}
    line = f"ib_write_bw -d mlx5_2 -i 1 -x {index} -p 18578 -F -s 65536 -D 2 --report_gbits"
    assert IB_WRITE_BW.server.format(**given) == line
    assert IB_WRITE_BW.client.format(**given) == f"{line} {w.macvlan().address}"
    assert end.limit == 100.0


def test_infiniband_has_no_index_and_efa_no_perftest() -> None:
    (end,) = ends(w.ipoib())
    assert end.args == "-d mlx5_4 -i 1"
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
    assert [[end.name for end in own] for own in found.values()] == [kept, kept]
    assert without == []
    found, without = common(w.sriov(0), replace(w.worker("w-1", w.eth0())))
    assert (found, without) == ({"w-0": (), "w-1": ()}, ["w-1"])


def links(*workers: Worker) -> dict[str, list[tuple[str, str]]]:
    networks = {one.host.name: worker_network.choose(one, SETTINGS) for one in workers}
    found = pairs.link_ends({one.host.name: one for one in workers}, networks)
    return {host: [(end.name, end.address) for end in own] for host, own in found.items()}


def test_tcp_goes_by_the_data_links_or_by_the_control_link_where_one_host_has_no_other() -> None:
    both, plain = w.macvlan(0), w.worker("w-1", w.eth0("10.244.1.6/24"))
    (found,) = links(both)["w-0"]
    assert found[0] != "eth0"
    assert links(both, plain) == {"w-0": [("eth0", both.address)], "w-1": [("eth0", plain.address)]}
    assert links(replace(plain, facts=None)) == {}
