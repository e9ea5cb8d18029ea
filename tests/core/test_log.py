from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.core import log
from mpiboot.core.model import Finding, Level
from mpiboot.core.setting_types import LogFormat, LogLevel
from mpiboot.job import render


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    log.configure()


def test_people_read_plain_words_on_stderr_and_nothing_on_stdout(
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.info("gate", "2/4 hosts ready", ready=2)
    log.warning("dns", "an answer\nflips", hint="look at the\nresolvers")
    log.error("ssh", "refused")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "mpiboot: 2/4 hosts ready",
        "mpiboot: warning: an answer",
        "mpiboot:   flips",
        "mpiboot:   -> look at the",
        "mpiboot:      resolvers",
        "mpiboot: error: refused",
    ]


def test_a_finding_of_several_hosts_names_the_first_and_json_all(
    capfd: pytest.CaptureFixture[str],
) -> None:
    item = Finding("shm", Level.WARN, "too small", hosts=tuple(f"w-{n}" for n in range(9)))
    log.finding(item)
    message = "[shm] 9 hosts (w-0, w-1, w-2, w-3 and 5 more): too small"
    assert capfd.readouterr().err == f"mpiboot: warning: {message}\n"
    log.configure(form=LogFormat.JSON)
    log.finding(item)
    assert len(json.loads(capfd.readouterr().err)["hosts"]) == 9


def test_json_is_one_valid_object_a_line_whatever_a_message_holds(
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.configure(form=LogFormat.JSON, role="launcher")
    messages = ['quote " and \\', "two\nlines", "\u00e9\u2028\u0000", "", "\udce9 not UTF-8"]
    for message in messages:
        log.info("event", message, number=1, listed=["a\nb"], nothing=None)
    lines = capfd.readouterr().err.split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(messages)
    for line, message in zip(lines, messages, strict=True):
        record = json.loads(line)
        assert record["event"] == "event"
        assert record["role"] == "launcher"
        assert record["level"] == "info"
        assert record["time"].endswith("Z")
        assert record["listed"] == ["a\nb"]
        assert record["nothing"] is None
        assert record["message"] == message or "\udce9" in message


def test_only_lines_at_or_above_the_level_are_written(capfd: pytest.CaptureFixture[str]) -> None:
    for level, shown in zip(LogLevel, (4, 3, 2, 1), strict=True):
        log.configure(level=level)
        log.debug("e", "a")
        log.info("e", "b")
        log.warning("e", "c")
        log.error("e", "d")
        assert len(capfd.readouterr().err.splitlines()) == shown


@pytest.mark.parametrize(
    ("level", "mark"),
    [
        (Level.FAIL, "error: "),
        (Level.WARN, "warning: "),
        (Level.UNKNOWN, "warning: "),
        (Level.OK, ""),
    ],
)
def test_a_finding_is_said_with_reference_host_evidence_and_hint(
    level: Level, mark: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log.finding(Finding("ssh-key", level, "no key", "w-0", ("line 1", "line 2"), "mount it"))
    assert capfd.readouterr().err.splitlines() == [
        f"mpiboot: {mark}[ssh-key] w-0: no key",
        "mpiboot:   line 1",
        "mpiboot:   line 2",
        "mpiboot:   -> mount it",
    ]


def test_of_much_evidence_people_are_shown_a_screen_and_json_has_all(
    capfd: pytest.CaptureFixture[str],
) -> None:
    item = Finding("ssh-key", Level.FAIL, "no", "", tuple(map(str, range(64))), "mount it")
    log.finding(item)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) <= 27
    assert lines[-2:] == ["mpiboot:   ... and 40 more", "mpiboot:   -> mount it"]
    log.configure(form=LogFormat.JSON)
    log.finding(item)
    assert len(json.loads(capfd.readouterr().err)["evidence"]) == 64


def on_a_terminal(expression: str, columns: int, **environ: str) -> str:
    """What a process prints of the log's own state where a terminal reads its stderr."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, columns, 0, 0))
    done = subprocess.run(
        [sys.executable, "-c", f"from mpiboot.core import log; print({expression})"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        check=True,
    )
    os.close(ours)
    os.close(theirs)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("columns", "size", "found"),
    [("40", 77, "40"), ("", 77, "77"), ("none", 77, "77"), ("", 0, "80")],
)
def test_the_width_is_the_terminals_or_what_columns_says(
    columns: str, size: int, found: str
) -> None:
    assert on_a_terminal("log.width(2), log.width(1)", size, COLUMNS=columns) == f"{found} None"


def test_a_finding_in_json_has_its_parts_as_fields(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure(form=LogFormat.JSON)
    log.finding(Finding("ssh-key", Level.FAIL, "no key", "w-0", ("line",), "mount it"))
    log.finding(Finding("shm", Level.WARN, "small"))
    whole, bare = map(json.loads, capfd.readouterr().err.splitlines())
    assert whole["check"] == whole["event"] == "ssh-key"
    assert (whole["level"], whole["host"]) == ("error", "w-0")
    assert (whole["evidence"], whole["hint"]) == (["line"], "mount it")
    assert not {"host", "hosts", "evidence", "role"} & bare.keys()
    assert (bare["check"], bare["hint"], bare["message"]) == ("shm", "", "[shm] small")


def test_a_reader_that_is_gone_never_fails_the_job() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = "import signal; signal.signal(signal.SIGPIPE, signal.SIG_IGN)\n"
    code += "from mpiboot.core import log; log.info('e', 'hello'); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], stderr=writing, stdout=subprocess.PIPE, timeout=60, check=True
    )
    os.close(writing)
    assert done.stdout == b"alive\n"


@pytest.mark.parametrize(("form", "written"), [("json", "\n"), ("human", "")])
def test_a_line_that_another_process_left_open_is_ended_where_each_is_a_record(
    form: str, written: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure(form=LogFormat(form))
    log.fresh_line()
    assert capfd.readouterr().err == written


@pytest.mark.parametrize(
    ("code", "reference", "level", "message"),
    [
        (0, "", "info", "ended: exit 0"),
        (69, "host-lost", "error", "ended: exit 69 (host-lost)"),
        (143, "signal", "info", "ended: exit 143 (signal)"),
    ],
)
def test_the_end_is_a_record_and_no_line_for_people(
    code: int, reference: str, level: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log.ended(code, reference)
    assert capfd.readouterr().err == ""
    log.configure(form=LogFormat.JSON)
    log.ended(code, reference)
    record = json.loads(capfd.readouterr().err)
    assert (record["event"], record["level"], record["message"]) == ("ended", level, message)
    assert (record["exit"], record["reference"]) == (code, reference)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("form", list(LogFormat))
def test_no_line_has_a_secret_whatever_wrote_it(
    form: LogFormat, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    message = "unknown option --hf-token=SECRET for AccountKey=SECRET"
    log.configure(form=form)
    log.warning("usage", message, hint="write `./a --token SECRET`", argv=["-x", "A_KEY=SECRET"])
    log.record("job-record", "the record", reason=message)
    item = Finding("usage", Level.FAIL, message, evidence=("https://me:SECRET@x/",))
    log.finding(item)
    path = tmp_path / "termination-log"
    path.touch()
    log.write_termination(str(path), message)
    shown = capfd.readouterr().err + path.read_text() + render.findings((item,))
    shown += render.as_json({"findings": [item], "argv": ["./a", "--token", "SECRET"]})
    assert "SECRET" not in shown
    assert shown.count("--hf-token=(hidden)") == 6
    assert "--ssh-key /keys/id" in log.without_secrets("name it with --ssh-key /keys/id")


def test_a_full_disk_does_not_make_the_termination_message_fail() -> None:
    log.write_termination("/dev/full", "text")


def test_the_termination_message_is_cut_at_a_whole_character(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.write_text("x" * 9000)
    before = path.stat().st_ino

    log.write_termination(str(path), "a" + "é" * 4000)

    data = path.read_bytes()
    assert len(data) == 4095
    assert data.decode() == "a" + "é" * 2047
    assert path.stat().st_ino == before


def test_no_termination_message_is_made_where_no_file_is(tmp_path: Path) -> None:
    log.write_termination(str(tmp_path / "none"), "text")

    assert not (tmp_path / "none").exists()
