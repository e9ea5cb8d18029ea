"""A program that starts processes by itself, and the launcher's process that stays beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.launch_names import KEY
from mpiboot.core.launch_spec import ScriptSpec
from mpiboot.supervisor import parent
from tests.supervisor.test_parent import PARENT, Rig, ended, gone, heard, last, ready

# Waits for who connects to it, and writes its number where it is looked for.
CLIENT = "import os, pathlib, signal, sys; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); "
CLIENT += "signal.pause()"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.end()


def shell(rig: Rig, text: str) -> ScriptSpec:
    return ScriptSpec(("/bin/sh", "-c", text), str(rig.folder), {"ADDED": "a b"})


def beside(rig: Rig, *words: str, what: str = "script") -> subprocess.Popen[bytes]:
    """Start it beside a program that waits for no host, or beside nothing."""
    process = subprocess.Popen(
        [*PARENT, what, rig.options.to_json(), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=rig.environ,
    )
    rig.started.append(process)
    return process


@pytest.mark.parametrize("code", [0, 5])
def test_a_program_whose_hosts_are_ready_gets_what_was_found_and_its_code_is_the_end(
    rig: Rig, code: int
) -> None:
    (rig.folder / KEY).touch()
    rig.hand_over(shell(rig, f'echo "$ADDED"; exit {code}'))
    process = rig.start_parent()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, b"a b\n")
    mark = "error: [program] " if code else ""
    assert last(err.decode()) == f"mpiboot: {mark}/bin/sh ended with {code}"
    assert rig.log.read_text() == (f"program: /bin/sh ended with {code}\n" if code else "")
    assert not (rig.folder / KEY).exists()


def test_mpiboots_own_client_serves_its_logins_and_ends_with_it(rig: Rig) -> None:
    pid = rig.folder / "pid"
    text = f"until [ -s {pid} ]; do sleep 0.05; done; [ -S {rig.folder}/client.sock ] && exit 4"
    client = (sys.executable, "-S", "-c", CLIENT, str(pid))
    rig.hand_over(replace(shell(rig, text), client=client))
    assert ended(rig.start_parent())[0] == 4
    assert gone(int(pid.read_text()))


def test_without_that_client_it_is_said_and_the_program_runs(rig: Rig) -> None:
    rig.hand_over(replace(shell(rig, "exit 6"), client=("/nowhere/none",)))
    code, message = ended(rig.start_parent())
    assert code == 6
    assert "error: mpiboot's own SSH client: No such file or directory" in message


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


def test_who_has_nothing_to_run_stays_until_a_signal_ends_it(rig: Rig) -> None:
    process = beside(rig, what="stay")
    heard(process, "nothing to run: staying for `kubectl exec` until a signal comes")
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGINT)
    code, _ = ended(process)
    assert code == 130


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
