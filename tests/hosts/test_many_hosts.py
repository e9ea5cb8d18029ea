"""Of very many hosts one line a kind is said, and the odd ones are named."""

from __future__ import annotations

import json

import pytest

from mpiboot.core import log
from mpiboot.core.model import Finding, Level
from mpiboot.hosts import error_report
from mpiboot.job import render
from mpiboot.job.plan import Plan
from mpiboot.network import cluster_view
from mpiboot.network.cluster_view import WorkerRow
from mpiboot.network.records import Transport, WorkerNetwork


def finding(
    place: int, message: str = "no mpirun on its PATH", check: str = "mpi-versions"
) -> Finding:
    return Finding(check, Level.WARN, message, host=f"w-{place}", hint="install it")


def row(place: int, hca: str = "mlx5_0:1", state: str = "ACTIVE", links: str = "") -> WorkerRow:
    data = links or f"net1 172.16.0.{place} .. net8 172.16.7.{place} (8)"
    return WorkerRow(f"w-{place}", f"eth0 10.0.0.{place}", data, hca, state, "400", "9000", "3")


def test_sixteen_hosts_have_a_line_each() -> None:
    found = [finding(place) for place in range(16)]
    assert error_report.merge_findings(found) == tuple(found)
    rows = [row(place) for place in range(16)]
    assert cluster_view.merge_rows(rows) == tuple(rows)


def test_of_more_one_line_says_it_for_all() -> None:
    (one,) = error_report.merge_findings(map(finding, range(17)))
    assert one.message == "no mpirun on its PATH"
    assert one.where == "17 hosts (w-0, w-1, w-2, w-3 and 13 more)"
    assert one.hint == "install it"


def test_an_odd_host_is_named_where_the_others_differ_by_their_addresses_alone() -> None:
    found = [finding(place, f"refused on 10.0.0.{place} port 22") for place in range(18)]
    found[17] = finding(17, "no answer from fd00::11 port 22")
    (one,) = error_report.merge_findings(found)
    message = "each with numbers of its own, w-0: refused on 10.0.0.0 port 22; "
    assert one.message == message + "but w-17: no answer from fd00::11 port 22"
    (each,) = error_report.merge_findings(finding(place, "no" + "o" * place) for place in range(17))
    assert each.message == "each in words of its own, w-0: no"


def test_what_is_of_another_kind_or_of_no_host_keeps_its_line() -> None:
    found = [*map(finding, range(17)), finding(3, "full", "shm"), finding(0)]
    plain = Finding("slots", Level.WARN, "odd")
    made = error_report.merge_findings([*found, plain, plain])
    assert [item.check for item in made] == ["mpi-versions", "shm", "slots", "slots"]


def test_those_that_say_something_else_are_named_with_it() -> None:
    found = [finding(place) for place in range(30)]
    found[7], found[9] = finding(7, "an older one"), finding(9, "an older one")
    (one,) = error_report.merge_findings(found)
    assert one.message == "no mpirun on its PATH; but w-7, w-9: an older one"
    assert len(one.hosts) == 30


def test_an_odd_number_is_named_where_the_others_have_the_same() -> None:
    found = [finding(place, "its MTU is 9000") for place in range(17)]
    (one,) = error_report.merge_findings([*found, finding(99, "its MTU is 1500")])
    assert one.message == "its MTU is 9000; but w-99: its MTU is 1500"


def test_where_each_says_it_in_words_of_its_own_the_first_is_shown() -> None:
    (one,) = error_report.merge_findings(
        finding(place, f"no entry for 10.0.0.{place}") for place in range(20)
    )
    assert one.message == "each with numbers of its own, w-0: no entry for 10.0.0.0"


def test_rows_that_differ_by_address_alone_are_one_with_the_odd_ones_first() -> None:
    rows = [row(place) for place in range(40)]
    rows[5] = row(5, state="DOWN")
    odd, usual = cluster_view.merge_rows(rows)
    assert odd == ("w-5", "eth0", "net1 .. net8 (8)", "mlx5_0:1", "DOWN", "400", "9000", "3")
    assert usual.worker == "39: w-0, w-1, w-2 and 36 more"


@pytest.mark.parametrize(
    ("cell", "shown"),
    [("net1 10.0.0.1, net2 10.1.0.1", "net1, net2"), ("RoCE", "RoCE"), ("net1", "net1")],
)
def test_addresses_are_left_out_of_a_list(cell: str, shown: str) -> None:
    rows = cluster_view.merge_rows([row(place, links=cell) for place in range(20)])
    assert [one.data for one in rows] == [shown]


def test_of_very_many_kinds_the_last_are_counted() -> None:
    rows = cluster_view.merge_rows([row(place, hca=f"mlx5_{place}:1") for place in range(100)])
    assert len(rows) == 16
    assert rows[-1].worker == "85 more, of other kinds"


def plan(count: int) -> Plan:
    per_host = {f"w-{at}": {"UCX_NET_DEVICES": f"mlx5_{at % 2}:1"} for at in range(count)}
    seen = tuple(WorkerNetwork(host, None, 1, None, Transport.UNKNOWN) for host in per_host)
    return Plan((), (), ("mpirun",), per_host=per_host, networks=seen)


def test_a_plan_is_short_as_text_and_whole_as_json() -> None:
    few, many = (render.plan(plan(count), ()) for count in (100, 1000))
    assert len(few.splitlines()) == len(many.splitlines()) == 11
    assert "500: w-1, w-3, w-5 and 497 more  UCX_NET_DEVICES  mlx5_1:1" in many
    whole = json.loads(render.plan_json(plan(1000), ()))
    assert (len(whole["data_network"]), len(whole["set_on_host"])) == (1000, 1000)


def test_each_value_of_a_variable_is_counted_where_there_are_too_many() -> None:
    per_host = {f"w-{at}": {"A": str(at), "B": "x"} for at in range(50)}
    lines = list(cluster_view.variable_lines(per_host))
    assert lines[0] == ("50: w-0, w-1, w-2 and 47 more", "B", "x")
    assert lines[-1] == ("35 more values", "", "")
    assert len(lines) == 16 + 1


def test_at_debug_each_host_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(log, "debug", lambda _event, message, **_fields: told.append(message))
    lines: list[Finding] = []
    monkeypatch.setattr(log, "finding", lines.append)
    error_report.say_findings([*map(finding, range(20)), finding(1, "full", "shm")])
    assert [len(item.hosts) for item in lines] == [20, 0]
    assert told == [f"[mpi-versions] w-{at}: no mpirun on its PATH" for at in range(20)]
