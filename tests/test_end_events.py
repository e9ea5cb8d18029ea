"""As JSON every run has one event ``ended``, its last, whatever the command and its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.cli import GUARD, environment, mpiboot
from tests.fakes.worker import Worker, make_key

JSON = {"MPIBOOT_LOG_FORMAT": "json"}


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def end(text: str) -> tuple[str, int, str]:
    """Level, exit code and reference of the end, which is logged once and last."""
    events = records(text)
    assert [item["event"] for item in events].count("ended") == 1
    last = events[-1]
    assert last["event"] == "ended"
    return last["level"], last["exit"], last["reference"]


def own_job(folder: Path) -> dict[str, str]:
    """A job whose one host is this machine: nobody has to be reached."""
    (folder / "hostfile").write_text(f"{socket.gethostname()}\n")
    key = make_key(folder / "key")
    return {"MPIBOOT_HOSTFILE": str(folder / "hostfile"), "MPIBOOT_SSH_KEY": str(key), **JSON}


OFFLINE = "plan --offline --mpi openmpi5 -- ./train"
GOOD = ("wait", "wait --json", OFFLINE, "facts", "settings", "--version")


@pytest.mark.parametrize("words", [*GOOD, "wait --help"])
def test_a_command_that_succeeds_has_an_end(tmp_path: Path, words: str) -> None:
    done = mpiboot(tmp_path, *words.split(), env=own_job(tmp_path))
    assert (done.returncode, end(done.stderr)) == (0, ("info", 0, ""))


def test_doctor_ends_with_what_it_found(tmp_path: Path) -> None:
    env = own_job(tmp_path)
    found = mpiboot(tmp_path, "doctor", env=env)
    assert end(found.stderr)[1] == found.returncode
    found = mpiboot(tmp_path, "doctor", env={**env, "MPIBOOT_SSH_KEY": "/none"})
    assert (found.returncode, end(found.stderr)) == (1, ("error", 1, "ssh-key"))


def test_a_failure_has_hint_and_evidence_as_fields(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("no-such-host.invalid\n")
    env = {**own_job(tmp_path), "MPIBOOT_HOSTFILE": str(tmp_path / "none"), "MPIBOOT_TIMEOUT": "0"}
    done = mpiboot(tmp_path, "wait", env=env)
    assert (done.returncode, end(done.stderr)) == (68, ("error", 68, "names-unresolved"))
    told = next(item for item in records(done.stderr) if item.get("check") == "names-unresolved")
    assert "headless Service" in told["hint"]
    assert [line.partition(":")[0] for line in told["evidence"]] == ["no-such-host.invalid"]


ENDS = {"exit 0": ("info", 0, ""), "exit 3": ("error", 3, "program")}


@pytest.mark.parametrize("script", ENDS)
def test_a_command_that_is_no_launch_ends_as_its_program_does(tmp_path: Path, script: str) -> None:
    done = mpiboot(tmp_path, "launcher", "--", "sh", "-c", script, env=own_job(tmp_path))
    assert (done.returncode, end(done.stderr)) == (ENDS[script][1], ENDS[script])


@pytest.mark.parametrize("script", ["", "exit 3"])
def test_a_worker_ends_with_a_signal_or_its_program(tmp_path: Path, script: str) -> None:
    program = ("sh", "-c", script) if script else ()
    worker = Worker(tmp_path, "embedded", program, JSON).start()
    if not program:
        worker.wait_for("listens on")
    code = worker.stop() if not program else worker.wait()
    worker.stop()
    ends = ENDS[script or "exit 0"]
    assert (code, end(worker.log)) == (ends[1], ends)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_an_end_and_no_failure(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "empty").touch()
    words = [sys.executable, "-m", "mpiboot", "wait", "--hostfile", "empty"]
    env = environment(tmp_path, own_job(tmp_path))
    with subprocess.Popen(words, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        text = ""
        while "waiting for the hostfile" not in text:
            text += child.stderr.readline()
        os.kill(child.pid, number)
        assert child.wait(GUARD) == 128 + number
        assert end(text + child.stderr.read()) == ("info", 128 + number, "signal")
