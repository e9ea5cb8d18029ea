from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core import log
from mpiboot.core.checks import failed
from mpiboot.core.model import Decision, Finding, Level, LogFormat, LogLevel, Source
from mpiboot.core.settings import ROWS, resolve
from mpiboot.job import render
from mpiboot.job.plan import Plan
from tests.fakes.plan_cases import kinds
from tests.fakes.plans import POD, observed, planned, reason

SECRET = "hunter2"


def test_columns_are_aligned_and_the_last_one_is_free() -> None:
    text = render.table(("a", "bbb", "c"), [("xxxx", "y", "long words here"), ("1", "2", "")])
    assert text == "a     bbb  c\nxxxx  y    long words here\n1     2\n"


@given(st.lists(st.text(st.characters(exclude_characters="=\0"), min_size=1), min_size=1))
def test_a_command_line_can_be_pasted(words: list[str]) -> None:
    assert shlex.split(render.command(words)) == words


DOMAIN = "job.default.svc.cluster.local"
FOUND = (
    Finding("ssh-key", Level.OK, "there"),
    Finding("slots", Level.WARN, "odd", "w-1", ("seen",), "do that"),
    failed("ssh-denied", "no", host="w-10"),
    Finding("sshd", Level.UNKNOWN, "not told"),
)


def test_findings_are_a_table_with_hints_and_evidence_below() -> None:
    lines = render.findings(FOUND).splitlines()
    assert lines[0] == "ok    this pod              there"
    assert lines[1] == "warn  w-1       slots       odd"
    assert lines[2].strip() == "seen"
    assert lines[3].strip() == "-> do that"
    assert lines[4] == "FAIL  w-10      ssh-denied  no"
    assert lines[5].strip().startswith("-> launcher and workers must mount")
    assert lines[-1].startswith("?     this pod  sshd ")
    assert render.findings(()) == ""


def test_the_termination_message_says_reference_sentence_hint_and_evidence_in_this_order() -> None:
    text = render.termination(
        Finding("slots", Level.FAIL, "too few", "w-1", ("a", "b"), "ask for less"),
        (Finding("sshd", Level.FAIL, "gone", "w-2"), Finding("role", Level.FAIL, "none")),
    )
    assert text == "slots: w-1: too few\n-> ask for less\na\nb\nw-2: gone\nthis pod: none\n"
    # A host whose reason is evidence is not told twice.
    missing = Finding("names-unresolved", Level.FAIL, "1 of 2", evidence=("w-1: DNS: NXDOMAIN",))
    one = Finding("names-unresolved", Level.FAIL, "DNS: NXDOMAIN", "w-1")
    assert render.termination(missing, (one,)).count("w-1") == 1


def test_of_many_hosts_with_one_trouble_a_few_are_shown_with_one_hint() -> None:
    missing = [
        failed("names-unresolved", "DNS: NXDOMAIN (asked 10.96.0.10)", host=f"w-{n}.{DOMAIN}")
        for n in range(64)
    ]
    missing = [replace(item, hint="look there") for item in missing]
    text = render.findings([*missing, Finding("shims", Level.WARN, "odd", hint="other")])
    assert text.count("-> look there") == 1
    assert text.count("-> other") == 1
    assert f"and 57 more: w-7.{DOMAIN}, w-8" in text
    assert len(text.splitlines()) <= 24  # a terminal's screen
    assert f" w-0.{DOMAIN} " in text


def test_what_several_hosts_have_is_not_told_of_this_pod() -> None:
    item = Finding("shm", Level.FAIL, "too small", hint="more", hosts=("w-0", "w-1"))
    assert render.findings([item]).splitlines()[0] == "FAIL  2 hosts  shm  too small (w-0, w-1)"
    assert render.termination(item).startswith("shm: 2 hosts (w-0, w-1): too small\n")
    assert "2 hosts (w-0, w-1): too small" in render.termination(FOUND[2], (item,))


def test_hosts_that_are_well_have_a_line_each() -> None:
    fine = [Finding("workers-unreachable", Level.OK, "22", f"w-{n}") for n in range(64)]
    assert len(render.findings(fine).splitlines()) == 64


def test_settings_are_shown_with_where_they_came_from() -> None:
    resolved = resolve({"slots": "4"}, {"MPIBOOT_FORWARD": "A,B", "START_SSHD": "yes"})
    lines = {line.split()[0]: line.split() for line in render.settings(resolved, ROWS).splitlines()}
    assert lines["MPIBOOT_SLOTS"][1:3] == ["4", "--slots"]
    assert lines["MPIBOOT_FORWARD"][1:3] == ["A,B", "MPIBOOT_FORWARD"]
    assert lines["MPIBOOT_START_SSHD"][1:3] == ["true", "START_SSHD"]
    assert lines["MPIBOOT_TIMEOUT"][1:3] == ["10m", "default"]
    assert lines["MPIBOOT_DNS_WAIT"][1:3] == ["-", "default"]


def test_a_plan_for_people_ends_with_the_command() -> None:
    ranks = Decision("ranks", "4", Source.DEFAULT, "all slots")
    made = (ranks, Decision("x", "", Source.FLAG, "y"))
    text = render.plan(Plan(made, (), ("mpirun", "./a b"), {"A": "1"}, ("B", "C")), FOUND)
    assert text.startswith("ok ")
    assert "  ranks  4  (default: all slots)\n  x      -  (flag: y)\n" in text
    assert text.endswith("\n  1 variable set, 2 removed: B, C\n\nmpirun './a b'\n")


def test_a_plan_in_json_masks_secrets() -> None:
    secret = {"A_TOKEN": SECRET}
    listed = {"OMPI_MCA_mca_base_env_list": f"A;B_TOKEN={SECRET}"}
    per_host = {"w-0": {**secret, "NCCL_IB_HCA": "mlx5_0"}}
    line = ("mpirun", f"A_TOKEN={SECRET}")
    plan = Plan((), (), line, secret | listed, ("B",), per_host=per_host)
    told = json.loads(render.plan_json(plan, ()))
    assert told["set_on_host"] == {"w-0": {"A_TOKEN": "(hidden)", "NCCL_IB_HCA": "mlx5_0"}}
    assert SECRET not in render.plan(plan, ())
    listed = {"OMPI_MCA_mca_base_env_list": "A;B_TOKEN=(hidden)"}
    assert told["set"] == {"A_TOKEN": "(hidden)", **listed}
    assert told["argv"] == ["mpirun", "A_TOKEN=(hidden)"]
    assert told["removed"] == ["B"]


def test_a_plans_lines_of_the_log_have_their_parts_as_fields_and_no_secret(
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.configure(level=LogLevel.DEBUG, form=LogFormat.JSON, role="launcher")
    secret = {"OMPI_MCA_btl_secret_token": SECRET, "A_TOKEN": SECRET, "MPIBOOT_FORWARD": "A_TOKEN"}
    environ = {**POD, **secret, "OMPI_MCA_pml": "ucx"}
    seen = kinds("sriov", "sriov").apply(observed("openmpi4", environ))
    plan = planned("./train", seen)
    for level, event, message, fields in render.log_lines(plan, seen):
        log.write(level, event, message, **fields)
    text = capfd.readouterr().err
    assert SECRET not in text
    records = [json.loads(line) for line in text.splitlines()]
    assert len([item for item in records if item["level"] == "info"]) <= 6
    by_event = {item["event"]: item for item in records}
    job = {"mpi": "openmpi4", "mpi_version": "4.1.4", "mpirun": "/usr/bin/mpirun"}
    assert by_event["job"].items() >= {**job, "hosts": 2, "ranks": 4}.items()
    value, source, why = reason(plan, "control-link")
    found = {"decision": "control-link", "value": value, "source": source, "reason": why}
    assert by_event["control-network"].items() >= found.items()
    assert by_event["user-settings"]["kept"] == ["OMPI_MCA_pml=ucx"]
    decisions = [item["decision"] for item in records if item["event"] == "plan"]
    assert decisions == [item.name for item in plan.decisions]
    rows = [item for item in records if item["event"] == "worker"]
    assert [(item["hca"], item["level"]) for item in rows] == [("mlx5_3:1", "debug")] * 2
