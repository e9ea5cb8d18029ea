"""A command that is no launch, and the launcher's process that stays beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.core.launch_spec import KEY, LAUNCHES, LOGINS, PASSED_BY
from tests.launcher.test_run import LAUNCHER, Rig, ended, heard, last, ready
from tests.supervisor.answering import gone


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.end()


def beside(rig: Rig, *words: str, **more: object) -> subprocess.Popen[bytes]:
    """Start it beside a command."""
    given = {"flags": rig.flags, "program": words, "folder": str(rig.folder), **more}
    argv = [*LAUNCHER, "command", json.dumps(given)]
    return rig.start_launcher(subprocess.DEVNULL, args=argv)


HINT = "-> it called no mpirun (sudo, su, env -i hide one): `mpirun /bin/sh -c 'exit "


@pytest.mark.parametrize(
    ("launches", "code", "said", "termination"),
    [
        (None, 0, f"ended with 0\n  {HINT}", HINT),
        (None, 5, f"ended with 5\n  {HINT}", f"program: /bin/sh ended with 5\n{HINT}"),
        ([], 0, "ended with 0\n", ""),
        ([], 5, "[program] /bin/sh ended with 5\n", "program: /bin/sh ended with 5\n"),
        ([("mpirun a", 3)], 0, "warning: [launch] /bin/sh ended with 0, but its mpirun ended", ""),
        ([("mpirun a", 3), ("mpirun a", 0)], 0, "ended with 0\n", ""),
        ([("mpirun a", 0), ("mpirun a", 3)], 0, "but its mpirun ended with 3 (a pipe", ""),
        ([("mpirun a", 3), ("mpiexec a", 0)], 0, "but its mpirun ended with 3", ""),
        ([("mpirun a", 3), ("mpirun b", 0)], 0, "but its mpirun ended with 3", ""),
        ([("mpirun a", 3), ("/bin/orterun b", 4)], 0, "but its orterun ended with 4", ""),
    ],
)
def test_its_end_is_told_with_what_its_launches_did(
    rig: Rig, launches: list[tuple[str, int]] | None, code: int, said: str, termination: str
) -> None:
    rig.flags["job_record"] = str(rig.folder / "record")
    if launches is not None:
        lines = (json.dumps((line.split(), code, ())) + "\n" for line, code in launches)
        (rig.folder / LAUNCHES).write_text("".join(lines) + '[["mpirun", "./a')  # a full disk
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
    (rig.folder / PASSED_BY).touch()
    if launch:
        (rig.folder / LAUNCHES).touch()
    code, message = ended(beside(rig, "/bin/true"))
    assert code == 0
    assert ("its mpirun was not mpiboot's" in message) is not launch
    assert "it called no mpirun" not in message


def test_a_script_removes_the_key_of_its_logins(rig: Rig) -> None:
    key = rig.folder / LOGINS / KEY
    key.parent.mkdir()
    key.write_text("secret")
    assert ended(beside(rig, "/bin/sh", "-c", f"[ -e {key} ] && exit 4"))[0] == 4
    assert not key.exists()


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ("exit 0", 0, ""),
        ("echo launch: why > LOG", 0, ""),  # a later launch was good
        ("exit 7", 7, "program: /bin/sh ended with 7\n"),
        ("kill -KILL $$", 137, "program: /bin/sh ended with 137\n"),
        ("kill -TERM $PPID; wait", 143, "signal: /bin/sh ended with 143\n"),
        # As an mpirun below it writes.
        ("echo host-lost: w-1 > LOG; exit 69", 69, "host-lost: w-1\n"),
    ],
)
def test_a_script_that_failed_is_the_reason_where_nothing_below_it_wrote_a_better_one(
    rig: Rig, script: str, code: int, message: str
) -> None:
    rig.log.write_text("before\n")  # of another command in this container
    (rig.folder / LAUNCHES).touch()
    process = beside(rig, "/bin/sh", "-c", script.replace("LOG", str(rig.log)))
    assert ended(process)[0] == code
    assert rig.log.read_text() == message


def test_the_first_signal_counts_and_all_are_passed_on(rig: Rig) -> None:
    trap = 'trap "echo hup >&2" HUP; trap "exit 0" TERM; trap "echo usr >&2" USR1'
    rig.flags["grace"] = "600"
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
    text = "trap '' TERM; sleep 1000 & echo $!; echo ready; while :; do sleep 1; done"
    rig.flags["grace"] = "0"
    process = beside(rig, "/bin/sh", "-c", text)
    assert process.stdout is not None
    below = int(process.stdout.readline())
    ready(process)
    process.send_signal(signal.SIGTERM)
    code, message = ended(process)
    assert code == 143
    assert "warning: /bin/sh did not end in time; killing it" in message
    while not gone(below):
        os.sched_yield()
