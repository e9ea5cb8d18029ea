"""How an end is reported: the log, the termination message, the job's record."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpiboot.core import log
from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.model import LogFormat, LogLevel
from mpiboot.supervisor.job import Verdict
from mpiboot.supervisor.report import (
    log_end,
    log_not_started,
    phases,
    remove_record,
    why,
    write_record,
)
from tests.fakes import launches

SPEC: dict[str, Any] = {"hosts": 2, "ranks": 4}
WORKERS = ("w-1: its name no longer resolves", "w-2: /dev/shm is full")
HINT, BROKEN = BY_REFERENCE["host-lost"].hint, "ssh: broken pipe"
LOST = Verdict(69, "host-lost", "it was lost", "w-1", evidence=(BROKEN,), reported=WORKERS)
LOOK = "look closer: kubectl exec w-1 -- mpiboot doctor"


class Reports:
    """The termination message, and what was logged."""

    def __init__(self, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.path, self._capfd = path, capfd
        path.touch()

    def logged(self) -> list[str]:
        return self._capfd.readouterr().err.splitlines()

    def end(self, verdict: Verdict, earlier: str = "", **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of the spec
        """Log an end as JSON; give its record."""
        log.configure(form=LogFormat.JSON, role="launcher")
        made = launches.spec(**{**SPEC, **spec}, flags={"termination_log": str(self.path)})
        log_end(verdict, made, 61.23456, earlier)
        return dict(json.loads(self.logged()[-1]))

    def not_started(self, failure: Verdict) -> dict[str, Any]:
        log.configure(form=LogFormat.JSON)
        log_not_started(failure, 1.23456, str(self.path))
        return dict(json.loads(self.logged()[-1]))

    def message(self) -> list[str]:
        return self.path.read_text().splitlines()


@pytest.fixture
def reports(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Reports:
    return Reports(tmp_path / "termination-log", capfd)


def test_every_field_of_a_failure(reports: Reports) -> None:
    verdict = replace(LOST, rank=3, signal="SIGSEGV")
    record = reports.end(verdict, earlier="attempt 2")
    assert why(verdict) == f"host-lost: w-1: it was lost; {WORKERS[0]}, exit 69"
    assert record.pop("message").startswith(
        "[host-lost] job ended: 1m1s, 2 hosts, 4 ranks, exit 69: w-1: it was lost; w-1: its name"
    )
    assert {name: record[name] for name in record if name not in ("format", "time")} == {
        "cause": WORKERS[0],
        "event": "ended",
        "evidence": [WORKERS[1], BROKEN],
        "exit": 69,
        "hint": f"{HINT}\n{LOOK}",
        "host": "w-1",
        "hosts": 2,
        "level": "error",
        "rank": 3,
        "ranks": 4,
        "reference": "host-lost",
        "reason": "it was lost",
        "role": "launcher",
        "seconds": 61.235,
        "signal": "SIGSEGV",
    }
    lines = [f"-> {HINT}", f"-> {LOOK}", *WORKERS, BROKEN, "attempt 2"]
    assert reports.message() == ["host-lost: w-1: it was lost", *lines]


@pytest.mark.parametrize(
    ("verdict", "name", "line"),
    [
        (Verdict(0, "", "fine"), "", "1 rank, exit 0: fine"),
        (Verdict(143, "", "by TERM", by_signal=True), "signal", "1 rank, exit 143: by TERM"),
        (Verdict(3, "", "it failed", "w-2"), "program", "1 rank, exit 3: w-2: it failed"),
    ],
)
def test_ends_that_have_no_row(reports: Reports, verdict: Verdict, name: str, line: str) -> None:
    record, failed = reports.end(verdict, hosts=1, ranks=1), name == "program"
    mark = "[program] " if failed else ""
    assert record["message"] == f"{mark}job ended: 1m1s, 1 host, {line}"
    level = "error" if failed else "info"
    assert (record["level"], record["cause"]) == (level, verdict.message)
    assert record["reference"] == name
    reason = line.partition(": ")[2]
    assert why(verdict) == (f"{name}: {reason}, exit {verdict.code}" if name else "")
    assert reports.message() == ([f"{name}: {reason}"] if name else [])


IN_A_WORKER = " in a worker: kubectl exec POD -- mpiboot doctor"
DESCRIBE = ": kubectl describe pod -n train w-1; kubectl logs -n train w-1 (with --previous"


@pytest.mark.parametrize(
    ("host", "gone", "message"),
    [
        ("w-1", False, ": kubectl exec w-1 -- mpiboot doctor"),
        ("w-1.pi.train.svc.cluster.local", False, ": kubectl exec -n train w-1 -- mpiboot doctor"),
        ("3d-unet-0", False, ": kubectl exec 3d-unet-0 -- mpiboot doctor"),
        ("10.0.0.1", False, IN_A_WORKER),
        ("fd00::1", False, IN_A_WORKER),
        ("", False, IN_A_WORKER),
        # Nobody is sent into a container that has ended.
        ("w-1.pi.train.svc", True, DESCRIBE),
    ],
)
def test_the_doctor_is_run_in_the_pod_that_is_named(
    reports: Reports, host: str, message: str, *, gone: bool
) -> None:
    hints = reports.end(replace(LOST, host=host, gone=gone))["hint"].splitlines()
    assert hints[-1].startswith(f"look closer{message}")
    assert ("kubectl exec" in hints[-1]) is not gone


# A name that does not resolve may have no pod to exec into.
GONE = "look closer: kubectl describe pod w-1; kubectl logs w-1 (with --previous where its "
NO_NAME = "names-unresolved: w-1\n-> its hint\nevidence\n"


@pytest.mark.parametrize(
    ("failure", "look"),
    [
        (Verdict(68, "names-unresolved", NO_NAME, host="w-1"), f"{GONE}container runs again)"),
        (Verdict(69, "workers-unreachable", "x\n", host="w-1"), LOOK),
        # What no worker can explain needs no doctor.
        (Verdict(143, "signal", "x\n", by_signal=True, host="w-1"), ""),
        (Verdict(127, "program-missing", "program-missing: no mpirun on PATH\n"), ""),
    ],
)
def test_a_job_that_did_not_start(reports: Reports, failure: Verdict, look: str) -> None:
    """The doctor is run where a host is known."""
    record = reports.not_started(failure)
    what = f"1.2 s, exit {failure.code} ({failure.reference})"
    assert record["message"] == f"job did not start: {what}"
    assert (record["level"], record["event"]) == (
        "error" if not failure.by_signal else "info",
        "ended",
    )
    fields = (record["seconds"], record["exit"], record["reference"], record.get("hint", ""))
    assert fields == (1.235, failure.code, failure.reference, look)
    first, *rest = failure.message.splitlines()
    assert reports.message() == [first, *[f"-> {look}"] * bool(look), *rest]


NO_TRANSPORT = {"planned": "none", "verdict": "none", "message": "", "hosts": {}, "moved": {}}


def test_a_record_of_the_job_is_the_end_for_programs(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    flags = {"termination_log": str(tmp_path / "none")}
    fields = log_end(LOST, launches.spec(**SPEC, flags=flags), 61.23456)
    more = {"phases": {"names": 4.0}, "transport": {"planned": "RoCE"}}
    write_record(str(path), {**fields, **more})
    transport = {"transport": NO_TRANSPORT | {"planned": "RoCE"}}
    assert json.loads(path.read_text()) == {"version": 1, **fields, **more, **transport}
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    # The end of a command is added to that of its last launch.
    write_record(str(path), {"exit": 0})
    found = json.loads(path.read_text())
    assert (found["exit"], found["ranks"], found["transport"]["planned"]) == (0, 4, "RoCE")
    remove_record(str(path))
    assert not path.exists()


def test_phases_are_the_seconds_between_times() -> None:
    seconds = {"names": 4.0, "ssh": 1.25, "plan": 0.5, "run": 50.0, "end": 0.25}
    assert phases((1000.0, 1004.0, 1005.25, 1005.75, 1055.75, 1056.0)) == seconds
    assert phases((1000.0, 1056.0)) == {}


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize("level", [LogLevel.INFO, LogLevel.ERROR])
def test_the_record_may_be_a_line_of_the_log_whatever_else_is_logged(
    reports: Reports, form: LogFormat, level: LogLevel
) -> None:
    log.configure(form=form, level=level)
    os.write(2, b"" if level is LogLevel.INFO else b"a rank's line without its end")
    remove_record("-")
    write_record("-", {"exit": 0, "seconds": 1.5})
    line = json.loads(reports.logged()[-1])
    assert (line["event"], line["exit"], line["seconds"]) == ("job-record", 0, 1.5)
    assert not Path("-").exists()


def test_a_record_that_can_not_be_written_is_a_warning(tmp_path: Path, reports: Reports) -> None:
    device = tmp_path / "stdout"
    device.symlink_to("/dev/stdout")
    for path in (device, tmp_path, tmp_path / "no" / "job.json"):
        remove_record(str(path))
        write_record(str(path), {"exit": 0})
        assert "warning: MPIBOOT_JOB_RECORD" in reports.logged()[0]
    assert device.is_symlink()
