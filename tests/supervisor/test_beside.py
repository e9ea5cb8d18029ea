"""A command that is no launch, and the launcher's process that stays beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.launch_names import ATTEMPT, KEY, LAUNCHES, LOGINS, OVER, PASSED_BY, POOL, WANTED
from mpiboot.supervisor import parent
from tests.supervisor.test_parent import PARENT, Rig, ended, gone, heard, last, ready


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.end()


def beside(rig: Rig, *words: str) -> subprocess.Popen[bytes]:
    """Start it beside a command."""
    process = subprocess.Popen(
        [*PARENT, "command", rig.options.to_json(), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=rig.environ,
    )
    rig.started.append(process)
    return process


HINT = "`mpirun ./train` runs it on the 2 hosts of /etc/mpi/hostfile"


@pytest.mark.parametrize(
    ("launches", "code", "said", "termination"),
    [
        (
            None,
            0,
            f"ended with 0\n  -> it called no mpirun: {HINT}",
            f"-> it called no mpirun: {HINT}",
        ),
        (None, 5, "ended with 5\n  -> it called no mpirun", "program: /bin/sh ended with 5\n-> it"),
        ([], 0, "ended with 0\n", ""),
        ([], 5, "[program] /bin/sh ended with 5\n", "program: /bin/sh ended with 5\n"),
        (
            [("mpirun", "a", 3)],
            0,
            "warning: [launch] /bin/sh ended with 0, but its mpirun ended",
            "",
        ),
        ([("mpirun", "a", 3), ("mpirun", "a", 0)], 0, "ended with 0\n", ""),
        ([("mpirun", "a", 0), ("mpirun", "a", 3)], 0, "but its mpirun ended with 3 (a pipe", ""),
        ([("mpirun", "a", 3), ("mpiexec", "a", 0)], 0, "but its mpirun ended with 3", ""),
        ([("mpirun", "a", 3), ("mpirun", "b", 0)], 0, "but its mpirun ended with 3", ""),
        ([("mpirun", "a", 3), ("orterun", "b", 4)], 0, "but its orterun ended with 4", ""),
    ],
)
def test_its_end_is_told_with_what_its_launches_did(
    rig: Rig,
    launches: list[tuple[str, str, int]] | None,
    code: int,
    said: str,
    termination: str,
) -> None:
    rig.options = replace(
        rig.options, folder=str(rig.folder), hint=HINT, job_record=str(rig.folder / "record")
    )
    if launches is not None:
        lines = (json.dumps(line) + "\n" for line in launches)
        (rig.folder / LAUNCHES).write_text("".join(lines))
    process = beside(rig, "/bin/sh", "-c", f"exit {code}")
    out, err = process.communicate(timeout=60)
    text = err.decode().replace("mpiboot:  ", " ")
    assert (process.returncode, out) == (code, b"")
    assert said in text
    assert termination in rig.log.read_text()
    record = json.loads((rig.folder / "record").read_text())
    failed = "its " in said
    assert record["exit"] == code
    assert record["reason"].startswith(f"/bin/sh ended with {code}")
    assert (", but its " in record["reason"]) is failed
    assert rig.log.read_text().startswith("launch: /bin/sh ended with 0, but its ") is failed


@pytest.mark.parametrize("launch", [False, True])
def test_an_mpirun_that_was_not_mpiboots_is_told_where_no_other_was(
    rig: Rig, *, launch: bool
) -> None:
    rig.options = replace(rig.options, folder=str(rig.folder), hint=HINT)
    (rig.folder / PASSED_BY).touch()
    if launch:
        (rig.folder / LAUNCHES).touch()
    code, message = ended(beside(rig, "/bin/true"))
    assert code == 0
    assert ("its mpirun was not mpiboot's" in message) is not launch
    assert HINT not in message


def test_a_failure_that_a_later_launch_made_good_is_not_in_the_termination_message(
    rig: Rig,
) -> None:
    rig.options = replace(rig.options, folder=str(rig.folder))
    lines = [["mpirun", "a", 3], ["mpirun", "a", 0]]
    (rig.folder / LAUNCHES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    process = beside(rig, "/bin/sh", "-c", f"echo program: why > {rig.log}")
    assert ended(process)[0] == 0
    assert rig.log.read_text() == ""


# Waits for the end of whoever started it, and reports.
GATE = "import os, pathlib, select, sys; folder = pathlib.Path(sys.argv[1]); "


def test_a_gate_begins_with_the_first_ssh_that_asks_and_ends_with_the_command(rig: Rig) -> None:
    os.mkfifo(rig.folder / WANTED)
    pid = rig.folder / "pid"
    text = "(folder / 'pid').write_text(str(os.getpid())); select.select([], [], [])"
    gate = (sys.executable, "-S", "-c", GATE + text, str(rig.folder))
    rig.options = replace(rig.options, folder=str(rig.folder), gate=gate, hint=HINT)
    script = f"sleep 0.3; [ ! -e {pid} ] || exit 9; echo 1<> {rig.folder}/wanted; "
    process = beside(rig, "/bin/sh", "-c", f"{script}until [ -s {pid} ]; do sleep 0.05; done")
    code, message = ended(process)
    assert (code, last(message)) == (0, "mpiboot: /bin/sh ended with 0")
    assert gone(int(pid.read_text()))


@pytest.mark.parametrize("gate", [(sys.executable, "-c", "raise SystemExit(7)"), ("/nowhere/it",)])
def test_a_gate_that_can_not_run_is_told_to_who_waits_for_it(
    rig: Rig, gate: tuple[str, ...]
) -> None:
    os.mkfifo(rig.folder / WANTED)
    rig.options = replace(rig.options, folder=str(rig.folder), gate=gate)
    over = rig.folder / OVER
    script = f"echo 1<> {rig.folder}/wanted; until [ -s {over} ]; do sleep 0.05; done; cat {over}"
    process = beside(rig, "/bin/sh", "-c", script)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.startswith(b"ssh: the gate ")
    assert b"error: the gate " in err


def test_the_key_of_its_logins_is_gone_at_its_end(rig: Rig) -> None:
    os.mkfifo(rig.folder / WANTED)
    (rig.folder / LOGINS).mkdir()
    (rig.folder / LOGINS / KEY).touch()
    gate = (sys.executable, "-S", "-c", GATE + "(folder / 'over').touch()", str(rig.folder))
    rig.options = replace(rig.options, folder=str(rig.folder), gate=gate)
    until_over = f"until [ -e {rig.folder}/over ]; do sleep 0.05; done"
    process = beside(rig, "/bin/sh", "-c", f"echo 1<> {rig.folder}/wanted; {until_over}; exit 4")
    assert ended(process)[0] == 4
    assert not (rig.folder / LOGINS / KEY).exists()


# Answers a query, and notes what it was.
NOTED = """
import json, os, pathlib, sys
pathlib.Path(sys.argv[1], "began").touch()
query = json.loads(os.read(48, 1000))
pathlib.Path(sys.argv[1], "asked").write_text(json.dumps([*sys.argv[2:], *query[1:]]))
os.write(48, json.dumps([query[0], True]).encode() + b"\\n")
os.read(48, 1)
"""


@pytest.mark.parametrize("where", ["the gate", "a gate without hosts", "a launch", "pods"])
def test_workers_are_told_of_its_end_by_its_gate_or_by_what_knows_its_last_launch(
    rig: Rig, where: str
) -> None:
    """Pods that kubectl enters run no worker of mpiboot's."""
    os.mkfifo(rig.folder / WANTED)
    launch = rig.folder / "launch-7"
    launch.mkdir()
    if where != "pods":
        (launch / POOL).touch()
    if where == "the gate":
        (rig.folder / LOGINS).mkdir()
    program = (sys.executable, "-S", "-c", NOTED, str(rig.folder))
    rig.options = replace(
        rig.options,
        folder=str(rig.folder),
        gate=(*program, "gate"),
        notifier=program,
        last_launches=str(rig.folder),
    )
    rig.environ[ATTEMPT] = "l@1@a"
    wish = f"cd {rig.folder}; echo 1<> {WANTED}; until [ -e began ]; do sleep 0.05; done; "
    wish = wish if "gate" in where else ""
    assert ended(beside(rig, "/bin/sh", "-c", f"{wish}exit 7"))[0] == 7
    asked = rig.folder / "asked"
    if where == "pods":
        assert not asked.exists()
        return
    first, *query = json.loads(asked.read_text())
    assert first == ("gate" if where == "the gate" else str(launch))
    assert query == ["notify", "l@1@a", "0.0", "program: /bin/sh ended with 7"]


def test_the_first_signal_counts_and_all_are_passed_on(rig: Rig) -> None:
    rig.options = replace(rig.options, grace=600.0)
    trap = 'trap "echo hup >&2" HUP; trap "exit 0" TERM; trap "echo usr >&2" USR1'
    process = beside(rig, "/bin/sh", "-c", f"{trap}; echo ready; while :; do sleep 0.1; done")
    ready(process)
    for number, word in ((signal.SIGUSR1, "usr"), (signal.SIGHUP, "hup")):
        process.send_signal(number)
        heard(process, word)
    process.send_signal(signal.SIGTERM)
    code, message = ended(process)
    assert code == 128 + signal.SIGHUP
    assert last(message) == "mpiboot: /bin/sh ended with 129"


def test_a_program_that_does_not_end_is_killed_when_its_time_is_over(rig: Rig) -> None:
    rig.options = replace(rig.options, grace=0.0)
    text = "trap '' TERM; sleep 1000 & echo $!; echo ready; while :; do sleep 1; done"
    process = beside(rig, "/bin/sh", "-c", text)
    assert process.stdout is not None
    below = int(process.stdout.readline())
    ready(process)
    process.send_signal(signal.SIGTERM)
    code, message = ended(process)
    assert code == 143
    assert "warning: /bin/sh did not end in time and is killed" in message
    while not gone(below):
        os.sched_yield()


def test_the_last_of_the_launches_below_is_found(tmp_path: Path) -> None:
    assert parent.launches(str(tmp_path / "none")) == {}
    assert parent.last_launch(str(tmp_path / "none")) == ""
    for name, when in (("launch-1", 50), ("launch-22", 90), ("launch-3", 70), ("other", 99)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (when, when))
    assert parent.launches(str(tmp_path)) == {
        str(tmp_path / name): when
        for name, when in (("launch-1", 50), ("launch-22", 90), ("launch-3", 70))
    }
    assert parent.last_launch(str(tmp_path)) == str(tmp_path / "launch-22")
