"""An error is reported once; of very many hosts one line a kind, with those that differ named."""

from __future__ import annotations

import errno
import json
import platform

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import Finding, Level, LogLevel
from mpiboot.hosts import error_report
from mpiboot.job import render
from mpiboot.job.plan import Plan
from mpiboot.network import cluster_view
from mpiboot.network.records import Transport, WorkerNetwork


def test_what_is_reported_as_evidence_is_not_reported_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    first = Finding("names-unresolved", Level.FAIL, "2 of 9 hosts", evidence=("w-0: NXDOMAIN",))
    known = Finding("names-unresolved", Level.FAIL, "NXDOMAIN", host="w-0")
    other = Finding("slots", Level.FAIL, "too few", host="w-1")
    text = error_report.report(MpibootError(first, (known, other)))
    message = capfd.readouterr().err
    assert [message.count(words) for words in ("NXDOMAIN", "2 of 9 hosts", "too few")] == [1] * 3
    assert text.startswith("names-unresolved: 2 of 9 hosts\n")


FILES = "this process may open no more files (ulimit -n): Too many open files"
TASKS = "this pod may start no more processes (pids.max, ulimit -u): Resource unavailable"


@pytest.mark.parametrize(
    ("wrong", "check", "message"),
    [
        (OSError(errno.EMFILE, "Too many open files", "/x"), "launcher-limits", FILES),
        (OSError(errno.EAGAIN, "Resource unavailable"), "launcher-limits", TASKS),
        (OSError(errno.ENOENT, "gone"), "bug", "FileNotFoundError: [Errno 2] gone"),
        (OSError("gone"), "bug", "OSError: gone"),
        (
            *(ModuleNotFoundError("no", name="click"), "python-modules"),
            f"Python {platform.python_version()} does not find click",
        ),
        (ModuleNotFoundError("no", name="mpiboot.gone"), "bug", "ModuleNotFoundError: no"),
    ],
)
def test_a_limit_that_was_reached_and_a_module_that_is_missing_are_no_bug(
    wrong: Exception, check: str, message: str
) -> None:
    found = error_report.bug(wrong).finding
    assert (found.check, found.message) == (check, message)
    assert ("pip install mpiboot" in found.hint) == (check == "python-modules")


def finding(place: int, message: str = "alike", check: str = "mpi-versions") -> Finding:
    return Finding(check, Level.WARN, message, host=f"w-{place}", hint="install it")


def of(count: int, message: str, **others: str) -> list[Finding]:
    """Findings of so many hosts, # for the host's number, and of others, as w_1."""
    found = [finding(place, message.replace("#", f"{place}")) for place in range(count)]
    return found + [finding(int(name[2:]), text) for name, text in others.items()]


ODD = ", ".join(f"w-{at}: no {at}" for at in range(1, 5))


@pytest.mark.parametrize(
    ("found", "hosts", "message"),
    [
        (of(17, "alike"), 17, "alike"),
        (of(30, "alike", w_37="odd", w_39="odd"), 32, "alike; but w-37, w-39: odd"),
        (of(20, "no #"), 20, f"no 0; but {ODD} and 15 more"),
    ],
)
def test_of_more_than_sixteen_hosts_one_line_stands_for_all(
    found: list[Finding], hosts: int, message: str
) -> None:
    (one,) = error_report.merge_findings(found)
    assert (len(one.hosts), one.message, one.hint) == (hosts, message, "install it")
    assert one.where == f"{hosts} hosts (w-0, w-1, w-2, w-3 and {hosts - 4} more)"


def test_what_is_of_another_kind_or_of_no_host_keeps_its_line() -> None:
    few = of(16, "alike")
    assert error_report.merge_findings(few) == tuple(few)
    plain = Finding("slots", Level.WARN, "odd")
    made = error_report.merge_findings([*of(18, "alike"), finding(3, "full", "shm"), plain, plain])
    assert [item.check for item in made] == ["mpi-versions", "shm", "slots", "slots"]


def test_at_debug_each_host_has_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure(level=LogLevel.DEBUG)
    logged = error_report.report_findings([*of(20, "alike"), finding(1, "full", "shm")])
    assert [len(item.hosts) for item in logged] == [20, 0]
    lines = [line for line in capfd.readouterr().err.splitlines() if "[mpi-versions] w-" in line]
    assert lines == [f"mpiboot: [mpi-versions] w-{at}: alike" for at in range(20)]


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
    per_host = {f"w-{at}": {"A": str(at), "B": "x"} for at in range(50)}
    lines = list(cluster_view.variable_lines(per_host))
    assert lines[0] == ("50: w-0, w-1, w-2 and 47 more", "B", "x")
    assert (len(lines), lines[-1]) == (17, ("35 more values", "", ""))
