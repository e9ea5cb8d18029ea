"""Each line of the summary, with its fields, and the plan as tables on a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core import log
from mpiboot.core.model import Decision, Mpi, MpiFamily, Source
from mpiboot.core.setting_types import LogLevel
from mpiboot.job import render
from mpiboot.job.plan import Plan
from mpiboot.job.plan_builder import Observed
from mpiboot.launcher import summary
from mpiboot.launcher.summary import SummaryLine
from mpiboot.network.cluster_view import HEADINGS
from tests.fakes import workers as w
from tests.fakes.plans import OPERATOR, POD, observed, planned


def told_of(plan: Plan, seen: Observed, *decisions: Decision) -> dict[str, SummaryLine]:
    """The lines of a plan with these decisions, by their events."""
    made = replace(plan, decisions=(*plan.decisions, *decisions))
    return {line.event: line for line in summary.lines(made, seen)}


def with_network() -> Observed:
    one = observed("openmpi5", {**POD, **OPERATOR})
    pairs = zip(one.workers, (w.sriov(0), w.sriov(1)), strict=True)
    return replace(one, workers=tuple(replace(mine, facts=it.facts) for mine, it in pairs))


PLAN = Plan((), (), ())


def test_an_unknown_mpi_is_told_without_a_name_and_a_number_of_ranks() -> None:
    one = observed("openmpi4", POD)
    unknown = replace(one, mpi=Mpi(MpiFamily.UNKNOWN, "", "/opt/mpirun", ""))
    line = told_of(replace(PLAN, ranks=None), unknown)["job"]
    assert line.message == (
        "unknown MPI (/opt/mpirun): as many ranks as mpirun decides on 2 hosts of "
        f"{one.hostfile.path}"
    )
    assert line.fields["ranks"] is None


@pytest.mark.parametrize(("link", "message"), [("eth0", "eth0"), ("", "not chosen")])
def test_the_control_link_is_told_where_one_was_looked_for(link: str, message: str) -> None:
    one = observed("openmpi4", POD)
    decision = Decision("control-link", link, Source.DETECTED, "so")
    line = told_of(PLAN, one, decision)["control-network"]
    text = f"control network (SSH, mpirun's daemons): {message} (so)"
    assert line == SummaryLine("control-network", text, {"link": link, "reason": "so"})
    assert [*told_of(PLAN, one)] == ["job"]


def test_what_is_kept_replaced_and_not_passed_on_is_told_apart() -> None:
    environ = {"OLD": "1", "SAME": "2", "EMPTY": "", "GONE": "3", "NONE": ""}
    one = replace(observed("openmpi4", POD), environ=environ)
    plan = replace(
        PLAN,
        set_env={"OLD": "9", "SAME": "2", "EMPTY": "5", "NEW": "6"},
        unset_env=("GONE", "NONE", "AGENT"),
        agent_env={"AGENT": "x"},
    )
    decisions = [
        Decision(name, "v", source, "so")
        for name, source in (
            ("A", Source.FLAG),
            ("B", Source.ENVIRONMENT),
            ("C", Source.DETECTED),
            ("hostfile", Source.FLAG),
        )
    ]
    line = told_of(plan, one, *decisions)["user-settings"]
    assert line == SummaryLine(
        "user-settings",
        "your settings kept: A=v, B=v; replaced: OLD; not passed on: GONE",
        {"kept": ["A=v", "B=v"], "replaced": ["OLD"], "removed": ["GONE"]},
    )
    unknown = replace(one, mpi=Mpi(MpiFamily.UNKNOWN, "", "", ""))
    assert "user-settings" not in told_of(plan, unknown, *decisions)
    assert "user-settings" not in told_of(PLAN, one)


def test_rates_that_differ_are_not_told() -> None:
    one = with_network()
    made = planned("./train", one, {})
    rows = tuple(replace(row, rate=rate) for row, rate in zip(made.rows, "12", strict=True))
    assert " Gb/s" not in told_of(replace(made, rows=rows), one)["data-network"].message
    assert " Gb/s" in told_of(made, one)["data-network"].message


Told = list[tuple[str, str, dict[str, object]]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What is logged at debug."""
    found: Told = []
    monkeypatch.setattr(log, "shows", lambda level: level is LogLevel.DEBUG)
    monkeypatch.setattr(
        log, "debug", lambda event, message, **fields: found.append((event, message, fields))
    )
    return found


@pytest.mark.parametrize("width", [0, 100])
def test_on_a_terminal_the_plan_is_a_table_and_workers_are_one_everywhere(
    monkeypatch: pytest.MonkeyPatch, told: Told, width: int
) -> None:
    monkeypatch.setattr(log, "width", lambda: width)
    one = with_network()
    made = planned("./train", one, {})
    summary.say(made, one)
    workers = render.workers(made.rows, width - len(log.BELOW) if width else None).rstrip("\n")
    assert told[-1] == ("worker", f"the data network:\n{workers}", {})
    if width:
        table = render.decisions(made.decisions, width - len(log.BELOW)).rstrip("\n")
        assert told[:-1] == [("plan", f"the plan:\n{table}", {})]
        return
    assert told[:-1] == [
        (
            "plan",
            render.decision(item),
            {
                "value": item.value,
                "source": item.source.value,
                "decision": item.name,
                "reason": item.reason,
            },
        )
        for item in made.decisions
    ]
    told.clear()
    summary.say(replace(made, rows=()), one)
    assert {event for event, _, _ in told} == {"plan"}


def test_as_json_each_worker_is_a_record(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.setattr(log, "width", lambda: 100)
    monkeypatch.setattr(log, "is_json", lambda: True)
    one = with_network()
    made = planned("./train", one, {})
    summary.say(made, one)
    workers = [(message, fields) for event, message, fields in told if event == "worker"]
    assert len(workers) == len(made.rows) == 2
    for (message, fields), row in zip(workers, made.rows, strict=True):
        assert [*fields.values()] == [*row.cells]
        cells = zip(HEADINGS, row.cells, strict=True)
        assert message == ", ".join(f"{name} {cell}" for name, cell in cells if cell)
        assert [*fields] == [name.lower() for name in HEADINGS]
    assert len(told) == len(made.decisions) + 2
