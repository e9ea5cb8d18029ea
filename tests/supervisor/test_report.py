from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpiboot.core import log
from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.launch_spec import Failure, LaunchSpec
from mpiboot.core.setting_types import LogFormat, LogLevel
from mpiboot.supervisor.report import (
    log_end,
    log_not_started,
    phases,
    remove_record,
    why,
    write_record,
)
from mpiboot.supervisor.state import Verdict

WORKERS = ("w-1: its name does not resolve any more", "w-2: /dev/shm is full")
LOST = Verdict(
    *(69, "host-lost", "it was lost", "w-1"), evidence=("ssh: broken pipe",), reported=WORKERS
)
LOOK = "look closer: kubectl exec w-1 -- mpiboot doctor"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    log.configure()


def spec() -> LaunchSpec:
    return LaunchSpec((), "openmpi4", (), 2, 4, 30.0, 20.0, "/nowhere")


def test_the_end_as_fields_has_cause_evidence_and_hint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure(form=LogFormat.JSON, role="launcher")
    log_end(LOST, spec(), 5.0, str(tmp_path / "none"))
    told = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert (told["event"], told["cause"]) == ("ended", WORKERS[0])
    assert told["evidence"] == [WORKERS[1], "ssh: broken pipe"]
    assert told["hint"] == f"{BY_REFERENCE['host-lost'].hint}\n{LOOK}"


def test_the_same_for_people_is_below_the_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log_end(LOST, spec(), 5.0, str(tmp_path / "none"))
    first, *below = capfd.readouterr().err.splitlines()
    assert first.endswith(f"exit 69: w-1: it was lost; {WORKERS[0]}")
    assert below == [
        f"mpiboot:   {WORKERS[1]}",
        "mpiboot:   ssh: broken pipe",
        f"mpiboot:   -> {BY_REFERENCE['host-lost'].hint}",
        f"mpiboot:      {LOOK}",
    ]


def told(capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(capfd.readouterr().err.splitlines()[-1])
    del record["time"]
    return record


def test_every_field_of_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log.configure(form=LogFormat.JSON, role="launcher")
    path = tmp_path / "termination-log"
    path.touch()
    verdict = replace(LOST, rank=3, signal="SIGSEGV")
    log_end(verdict, replace(spec(), earlier="attempt 2"), 61.23456, str(path))
    hint = BY_REFERENCE["host-lost"].hint
    assert why(verdict) == f"host-lost: w-1: it was lost; {WORKERS[0]}, exit 69"
    record = told(capfd)
    assert record.pop("message").startswith(
        "[host-lost] job ended: 1m1s, 2 hosts, 4 ranks, exit 69: w-1: it was lost; w-1: its name"
    )
    assert {name: record[name] for name in record if name not in ("role", "format")} == {
        "cause": WORKERS[0],
        "event": "ended",
        "evidence": [WORKERS[1], "ssh: broken pipe"],
        "exit": 69,
        "hint": f"{hint}\n{LOOK}",
        "host": "w-1",
        "hosts": 2,
        "level": "error",
        "rank": 3,
        "ranks": 4,
        "reference": "host-lost",
        "reason": "it was lost",
        "seconds": 61.235,
        "signal": "SIGSEGV",
    }
    lines = [f"-> {hint}", f"-> {LOOK}", *WORKERS, "ssh: broken pipe", "attempt 2"]
    assert path.read_text().splitlines() == ["host-lost: w-1: it was lost", *lines]


@pytest.mark.parametrize(
    ("verdict", "level", "line"),
    [
        (Verdict(0, "", "the program succeeded"), "info", "exit 0: the program succeeded"),
        (
            Verdict(143, "", "ended by SIGTERM", by_signal=True),
            "info",
            "exit 143: ended by SIGTERM",
        ),
        (Verdict(3, "", "it failed", "w-2"), "error", "exit 3: w-2: it failed"),
    ],
)
def test_ends_that_have_no_row(
    verdict: Verdict, level: str, line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure(form=LogFormat.JSON)
    path = tmp_path / "termination-log"
    path.touch()
    small = replace(spec(), hosts=1, ranks=1)
    log_end(verdict, small, 5.0, str(path))
    record = told(capfd)
    mark = "[program] " if level == "error" else ""
    assert record["message"] == f"{mark}job ended: 5 s, 1 host, 1 rank, {line}"
    assert (record["level"], record["cause"]) == (level, verdict.message)
    name = {0: "", 143: "signal", 3: "program"}[verdict.code]
    assert record["reference"] == name
    where = "w-2: " if verdict.host else ""
    assert why(verdict) == (
        f"{name}: {where}{verdict.message}, exit {verdict.code}" if name else ""
    )
    assert path.read_text() == (f"{name}: {where}{verdict.message}\n" if name else "")


@pytest.mark.parametrize(
    ("failed", "shown"), [("mpi", 1), ("mpirun", 1), ("program", 0), ("host-names", 0)]
)
def test_where_the_program_is_not_to_blame_mpiboots_own_variables_are_shown(
    failed: str, shown: int, tmp_path: Path
) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    variables = {"OMPI_MCA_btl": "self,tcp", "PATH": "/bin", "FI_PROVIDER": "tcp"}
    variables["OMPI_MCA_mca_base_env_list"] = "A;API_TOKEN=hunter22"
    verdict = Verdict(14, "", "it failed", failed=failed)
    log_end(verdict, replace(spec(), set_env=variables), 5.0, str(path))
    line = "mpiboot had set FI_PROVIDER=tcp, OMPI_MCA_btl=self,tcp, OMPI_MCA_mca_base_env_list "
    line += "(`mpiboot plan` says why)"
    hint = ["-> give the job a shorter name, or use Open MPI 5.0"] * (failed == "host-names")
    assert path.read_text().splitlines() == [f"{failed}: it failed", *hint, *[line] * shown]


def test_nobody_is_sent_into_a_container_that_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    host = "pi-worker-1.pi.train.svc"
    log_end(Verdict(69, "host-lost", "it was lost", host, gone=True), spec(), 5.0, str(path))
    text = path.read_text()
    assert "kubectl describe pod -n train pi-worker-1; kubectl logs -n train pi-worker-1" in text
    assert "kubectl exec" not in text


def test_a_number_of_ranks_that_is_not_known_is_not_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log_end(Verdict(0, "", "fine"), replace(spec(), ranks=None), 0.04, str(tmp_path / "none"))
    assert "job ended: 0 s, 2 hosts, exit 0: fine" in capfd.readouterr().err


@pytest.mark.parametrize(("held", "level"), [(True, "error"), (False, "info")])
def test_a_job_that_did_not_start(
    level: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], *, held: bool
) -> None:
    log.configure(form=LogFormat.JSON)
    path = tmp_path / "termination-log"
    path.touch()
    text = "names-unresolved: w-1\n-> its hint\nevidence\n"
    failure = Failure(68, "names-unresolved", text, held=held, host="w-1")
    log_not_started(failure, 1.23456, str(path))
    record = told(capfd)
    assert record["message"] == "job did not start: 1.2 s, exit 68 (names-unresolved)"
    assert (record["level"], record["event"]) == (level, "ended")
    assert (record["seconds"], record["exit"]) == (1.235, 68)
    assert record["reference"] == "names-unresolved"
    # A name that does not resolve may have no pod to exec into.
    look = "look closer: kubectl describe pod w-1"
    assert record.get("hint", "") == (look if held else "")
    added = f"-> {look}\n" if held else ""
    assert path.read_text() == f"names-unresolved: w-1\n-> its hint\n{added}evidence\n"


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("w-1", ": kubectl exec w-1 -- mpiboot doctor"),
        ("w-1.pi.train.svc", ": kubectl exec -n train w-1 -- mpiboot doctor"),
        ("w-1.pi.train.svc.cluster.local", ": kubectl exec -n train w-1 -- mpiboot doctor"),
        ("10.0.0.1", " in a worker: kubectl exec POD -- mpiboot doctor"),
        ("fd00::1", " in a worker: kubectl exec POD -- mpiboot doctor"),
        ("", " in a worker: kubectl exec POD -- mpiboot doctor"),
    ],
)
def test_the_doctor_is_asked_in_the_pod_that_is_named(
    host: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log_end(replace(LOST, host=host), spec(), 5.0, str(tmp_path / "none"))
    assert capfd.readouterr().err.splitlines()[-1] == f"mpiboot:      look closer{message}"


def test_before_the_start_the_doctor_is_asked_where_a_host_is_known(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    failure = Failure(69, "workers-unreachable", "x\n", host="w-1.pi.train.svc")
    log_not_started(failure, 1.0, str(path))
    look = "look closer: kubectl exec -n train w-1 -- mpiboot doctor"
    assert path.read_text() == f"x\n-> {look}\n"
    assert look in capfd.readouterr().err


@pytest.mark.parametrize(
    "failure",
    [
        Failure(2, "usage", "usage: no such option\n"),
        Failure(70, "bug", "bug: ended without a result\n"),
        Failure(143, "signal", "x\n", held=False),
        Failure(73, "tmpdir", "tmpdir: of the launcher, which has ended\n"),
        Failure(77, "ssh-key", "ssh-key: none in the launcher's pod\n"),
        Failure(127, "program-missing", "program-missing: no mpirun on PATH\n"),
    ],
)
def test_what_no_worker_can_explain_needs_no_doctor(
    failure: Failure, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    log_not_started(failure, 1.0, str(path))
    assert path.read_text() == failure.message
    assert "doctor" not in capfd.readouterr().err


NO_TRANSPORT = {"planned": "none", "verdict": "none", "message": "", "hosts": {}, "moved": {}}
NOTHING = {"version": 1, "hosts": [], "ranks": None, "phases": {}, "transport": NO_TRANSPORT}


def test_a_record_of_the_job_is_the_end_for_programs(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    fields = log_end(LOST, spec(), 61.23456, str(tmp_path / "none"))
    phases = {"names": 4.0}
    write_record(str(path), {**fields, "phases": phases, "transport": {"planned": "RoCE"}})
    record = json.loads(path.read_text())
    transport = NO_TRANSPORT | {"planned": "RoCE"}
    assert record == {**fields, "version": 1, "phases": phases, "transport": transport}
    assert (record["exit"], record["reference"], record["seconds"]) == (69, "host-lost", 61.235)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_of_a_job_that_did_not_start(tmp_path: Path) -> None:
    text = "names-unresolved: w-0: no answer\n-> a hint\n"
    failure = Failure(68, "names-unresolved", text, held=False)
    fields = log_not_started(failure, 1.0, str(tmp_path / "none"))
    path = tmp_path / "job.json"
    write_record(str(path), fields)
    reason = {"exit": 68, "reference": "names-unresolved", "reason": "w-0: no answer"}
    assert json.loads(path.read_text()) == {**NOTHING, **reason, "seconds": 1.0}


def test_a_commands_end_is_added_to_that_of_its_last_launch(tmp_path: Path) -> None:
    path = str(tmp_path / "job.json")
    write_record(path, {"exit": 3, "ranks": 2, "transport": {"planned": "TCP"}})
    write_record(path, {"exit": 0})
    found = json.loads(Path(path).read_text())
    assert (found["exit"], found["ranks"], found["transport"]["planned"]) == (0, 2, "TCP")


@pytest.mark.parametrize(
    ("times", "found"),
    [
        (
            (1000.0, 1004.0, 1005.25, 1005.75, 1055.75, 1056.0),
            {"names": 4.0, "ssh": 1.25, "plan": 0.5, "run": 50.0, "end": 0.25},
        ),
        ((1000.0, 1056.0), {}),
    ],
)
def test_phases_are_the_seconds_between_times(
    times: tuple[float, ...], found: dict[str, float]
) -> None:
    assert phases(times) == found


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize("level", [LogLevel.INFO, LogLevel.ERROR])
def test_the_record_may_be_a_line_of_the_log_whatever_else_is_logged(
    capfd: pytest.CaptureFixture[str], form: LogFormat, level: LogLevel
) -> None:
    log.configure(form=form, level=level)
    os.write(2, b"" if level is LogLevel.INFO else b"a rank's line without its end")
    remove_record("-")
    write_record("-", {"exit": 0, "seconds": 1.5})
    log.configure()
    out, err = capfd.readouterr()
    line = json.loads(err.splitlines()[-1])
    assert (line["event"], line["exit"], line["seconds"]) == ("job-record", 0, 1.5)
    assert out == ""


def test_a_record_that_can_not_be_written_is_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    device = tmp_path / "stdout"
    device.symlink_to("/dev/stdout")
    for path in (device, tmp_path, tmp_path / "no" / "job.json"):
        remove_record(str(path))
        write_record(str(path), {"exit": 0})
        assert "warning: MPIBOOT_JOB_RECORD" in capfd.readouterr().err
    assert device.is_symlink()


def test_the_record_of_an_earlier_job_goes_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text("{}")
    remove_record(str(path))
    assert not path.exists()
