from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpiboot.core import log
from mpiboot.core.model import Finding, Level, LogFormat, LogLevel
from mpiboot.job import render


@pytest.fixture
def err(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What was logged since the last call; nothing on stdout."""

    def read() -> str:
        out, text = capfd.readouterr()
        assert out == ""
        return text

    return read


def test_people_read_plain_words_on_stderr(err: Callable[[], str]) -> None:
    log.info("gate", "2/4 hosts ready", ready=2)
    log.warning("dns", "an answer\nflips", hint="look at the\nresolvers")
    log.error("ssh", "refused")
    assert err().splitlines() == [
        "mpiboot: 2/4 hosts ready",
        "mpiboot: warning: an answer",
        "mpiboot:   flips",
        "mpiboot:   -> look at the",
        "mpiboot:      resolvers",
        "mpiboot: error: refused",
    ]


def test_json_is_one_valid_object_a_line_whatever_a_message_holds(err: Callable[[], str]) -> None:
    log.configure(form=LogFormat.JSON, role="launcher")
    messages = ['quote " and \\', "two\nlines", "\u00e9\u2028\u0000", "", "\udce9 not UTF-8"]
    for message in messages:
        log.info("event", message, number=1, listed=["a\nb"], nothing=None)
    lines = err().split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(messages)
    for line, message in zip(lines, messages, strict=True):
        record = json.loads(line)
        assert record["time"].endswith("Z")
        known = {"event": "event", "role": "launcher", "level": "info", "format": 1, "number": 1}
        assert record.items() >= {**known, "listed": ["a\nb"], "nothing": None}.items()
        assert record["message"] == message or "\udce9" in message


def test_only_lines_at_or_above_the_level_are_written(err: Callable[[], str]) -> None:
    for level, shown in zip(LogLevel, (4, 3, 2, 1), strict=True):
        log.configure(level=level)
        log.debug("e", "a")
        log.info("e", "b")
        log.warning("e", "c")
        log.error("e", "d")
        assert len(err().splitlines()) == shown


@pytest.mark.parametrize(
    ("level", "mark"),
    [
        (Level.FAIL, "error: "),
        (Level.WARN, "warning: "),
        (Level.UNKNOWN, "warning: "),
        (Level.OK, ""),
    ],
)
def test_a_finding_has_reference_host_evidence_and_hint(
    level: Level, mark: str, err: Callable[[], str]
) -> None:
    item = Finding("ssh-key", level, "no key", "w-0", ("line 1", "line 2"), "mount it")
    log.finding(item)
    assert err().splitlines() == [
        f"mpiboot: {mark}[ssh-key] w-0: no key",
        "mpiboot:   line 1",
        "mpiboot:   line 2",
        "mpiboot:   -> mount it",
    ]
    log.configure(form=LogFormat.JSON)
    log.finding(item)
    log.finding(Finding("shm", Level.WARN, "small"))
    whole, bare = map(json.loads, err().splitlines())
    assert whole["check"] == whole["event"] == "ssh-key"
    assert (whole["level"], whole["host"]) == ((mark or "info: ")[:-2], "w-0")
    assert (whole["evidence"], whole["hint"]) == (["line 1", "line 2"], "mount it")
    assert not {"host", "hosts", "evidence", "role"} & bare.keys()
    assert (bare["check"], bare["hint"], bare["message"]) == ("shm", "", "[shm] small")


def test_of_many_hosts_and_much_evidence_people_are_shown_a_screen_and_json_has_all(
    err: Callable[[], str],
) -> None:
    hosts, evidence = tuple(f"w-{n}" for n in range(9)), tuple(map(str, range(64)))
    item = Finding("shm", Level.WARN, "small", "", evidence, "mount it", hosts)
    log.finding(item)
    lines = err().splitlines()
    assert lines[0] == "mpiboot: warning: [shm] 9 hosts (w-0, w-1, w-2, w-3 and 5 more): small"
    assert len(lines) <= 27
    assert lines[-2:] == ["mpiboot:   ... and 40 more", "mpiboot:   -> mount it"]
    log.configure(form=LogFormat.JSON)
    log.finding(item)
    record = json.loads(err())
    assert (record["hosts"], record["evidence"]) == (list(hosts), list(evidence))


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
    form: str, written: str, err: Callable[[], str]
) -> None:
    log.configure(form=LogFormat(form))
    log.fresh_line()
    assert err() == written


@pytest.mark.parametrize(
    ("code", "reference", "level", "message"),
    [
        (0, "", "info", "ended: exit 0"),
        (69, "host-lost", "error", "ended: exit 69 (host-lost)"),
        (143, "signal", "info", "ended: exit 143 (signal)"),
    ],
)
def test_the_end_is_a_record_and_no_line_for_people(
    code: int, reference: str, level: str, message: str, err: Callable[[], str]
) -> None:
    log.ended(code, reference)
    assert err() == ""
    log.configure(form=LogFormat.JSON)
    log.ended(code, reference)
    record = json.loads(err())
    assert (record["event"], record["level"], record["message"]) == ("ended", level, message)
    assert (record["exit"], record["reference"]) == (code, reference)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("form", list(LogFormat))
def test_no_line_has_a_secret_whatever_wrote_it(
    form: LogFormat, tmp_path: Path, err: Callable[[], str]
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
    shown = err() + path.read_text() + render.findings((item,))
    shown += render.as_json({"findings": [item], "argv": ["./a", "--token", "SECRET"]})
    assert "SECRET" not in shown
    assert shown.count("--hf-token=(hidden)") == 6
    assert "--ssh-key /keys/id" in log.without_secrets("name it with --ssh-key /keys/id")


def test_the_termination_message_is_cut_at_a_whole_character(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.write_text("x" * 9000)
    before = path.stat().st_ino
    log.write_termination(str(path), "a" + "é" * 4000)
    assert path.read_bytes().decode() == "a" + "é" * 2047
    assert path.stat().st_ino == before
    for never_fails in ("/dev/full", str(tmp_path / "none")):
        log.write_termination(never_fails, "text")
    assert not (tmp_path / "none").exists()


def test_an_exception_is_logged_where_no_module_can_be_loaded(
    err: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without a free descriptor goes on."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "traceback", None)
        try:
            int("odd")
        except ValueError as wrong:
            log.failed("a watcher", wrong)
    assert f"[bug] a watcher failed at {__file__}:" in err()
