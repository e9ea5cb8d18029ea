"""The child that waits for hosts, as the parent sees it: a program and what it hands over."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mpiboot.core.launch_names import KEEP_KEY, LAUNCH_DIR, LAUNCH_ID
from mpiboot.core.launch_spec import Failure, LaunchSpec, Result, from_line
from mpiboot.ssh.connections import PoolConfig

ROOT = Path(__file__).parents[2]
GUARD = 60.0

ENDS = """
import asyncio, gc, os, sys, threading
os.dup2(int(sys.argv[1]), 48)
from mpiboot.core.checks import error
from mpiboot.launcher import child, observation
from mpiboot.core.settings import resolve

async def wait(pod, program, reached):
    WAITS
    raise error("usage", "the hosts are ready")

child.launcher_pod = lambda *args, **named: None
observation.wait = wait
child.main(resolve({}, {}), ("mpirun", "true"), "")
"""
# A nameserver that doesn't answer holds a thread for as long as it likes.
HELD = "asyncio.ensure_future(asyncio.to_thread(threading.Event().wait))"
# What is kept of many hosts.
GROWS = """looks = []
    gc.callbacks.append(lambda phase, _: looks.append(phase))
    kept = [[] for _ in range(20_000)]
    assert gc.get_freeze_count() > 0 and not looks"""
# Two hosts that are ready.
READY = """
import asyncio, json, os, signal, sys
from dataclasses import replace
from pathlib import Path
os.dup2(int(sys.argv[1]), 48)
import asyncssh
from mpiboot.core.checks import error
from mpiboot.hosts.gate import GateResult
from mpiboot.job.mpirun_line import read
from mpiboot.launcher import child, observation
from mpiboot.launcher.setup import LauncherPod
from mpiboot.core.model import Finding, Level
from mpiboot.core.settings import resolve
from mpiboot.ssh.config import SshTimeouts
from mpiboot.ssh.connections import Connections
from mpiboot.system.keys import JobKey
from tests.fakes import plans

folder = Path(os.getcwd())

def pod(resolved, environ, **named):
    named.pop("needs_key", None)
    (folder / "named").write_text(repr(sorted(named.items())))
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(folder / "id")
    key = JobKey(folder / "id", "ssh-ed25519 JOB")
    return LauncherPod(resolved, environ, plans.ROOT, folder, key, 0.0, **named)

class Reached(child.ReachedWorkers):
    async def tell(self, failure, *, goes_on):
        names = [worker.host.name for worker in self.workers]
        (folder / "told").write_text(repr((names, failure.message, failure.code, goes_on)))

async def wait(launcher, program, reached):
    if sys.argv[2] == "bug":
        raise RuntimeError("nobody thought of it")
    seen = plans.observed()
    before = (("a@2026-01-01T00:00:00Z@1", "it failed"),)
    workers = tuple(replace(worker, attempts=before) for worker in seen.workers)
    if sys.argv[2] in ("refused", "signalled"):
        reached += workers[:1]
    if sys.argv[2] == "refused":
        raise error("names-unresolved", "one is missing")
    if sys.argv[2] == "signalled":
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
    seen = replace(seen, workers=workers, line=read(program, seen.mpi.family))
    passed = GateResult(seen.workers, (), {}, {})
    reached += seen.workers
    said = [Finding("slots", Level.WARN, text) for text in ("said before", "not yet said")]
    bad = Finding("slots", Level.FAIL, "a failure is no warning")
    kept = Connections(SshTimeouts(3, 30, 10, 3))
    given = (seen, passed, (*said, bad), (said[0],))
    return observation.Observation(*given, connections=kept, launch_id="its")

child.launcher_pod = pod
child.ReachedWorkers = Reached
observation.wait = wait
given = json.loads(sys.argv[3])
child.main(resolve(given["flags"], os.environ), tuple(sys.argv[4:]), given["attempt"])
"""


def handed_over(reader: int) -> Result:
    assert select.select([reader], [], [], GUARD)[0], "it hands nothing over"
    with open(reader, "rb", closefd=False) as result:
        return from_line(result.readline())


class Handed:
    """What a child of this test handed over, and what it said."""

    def __init__(self, folder: Path, *words: str, environ: dict[str, str] | None = None) -> None:
        own, its = socket.socketpair()
        # Without the marks of a job that runs these tests.
        env = {name: value for name, value in os.environ.items() if "MPI" not in name}
        env |= {"PYTHONPATH": str(ROOT), **(environ or {})}
        command = [sys.executable, "-c", READY, str(its.fileno()), *words]
        with subprocess.Popen(
            command, pass_fds=(its.fileno(),), stderr=subprocess.PIPE, cwd=folder, env=env
        ) as process:
            its.close()
            try:
                self.result = handed_over(own.fileno())
                if not isinstance(self.result, Failure):  # which ends by itself
                    own.close()
                self.message = process.communicate(timeout=GUARD)[1].decode()
                own.close()
                assert process.returncode == 0 or not isinstance(self.result, Failure)
                assert "Traceback" not in self.message or words[0] == "bug"
            finally:
                process.kill()

    @property
    def launch(self) -> LaunchSpec:
        assert isinstance(self.result, LaunchSpec)
        return self.result


def given(attempt: str = "", **flags: str) -> str:
    return json.dumps({"flags": flags, "attempt": attempt})


def test_the_launch_is_handed_over_with_its_folder_and_mark(tmp_path: Path) -> None:
    """Agents may ask from then on."""
    program = ("mpirun", "-n", "3", "-x", "TOKEN=hf_secret", "./train")
    made = Handed(tmp_path, "", given("me@2026-01-02T00:00:00Z@2", grace="9"), *program)
    spec = made.launch
    folder = f"{tmp_path}/launch-{os.getpid()}"  # of the parent, which is this test
    assert (spec.folder, spec.grace, spec.ranks) == (folder, 9.0, 3)
    assert spec.set_env[LAUNCH_DIR] == folder
    assert spec.set_env[LAUNCH_ID] == "its"
    assert spec.attempt == "me@2026-01-02T00:00:00Z@2"
    fifos = {path.name for path in Path(folder).rglob("*") if path.is_fifo()}
    assert fifos == {"events", "requests", *(remote.name for remote in spec.remote_hosts)}
    assert spec.earlier == "attempt 2; the last one (a of 2026-01-01T00:00:00Z) ended: it failed"
    named = [("attempt", spec.attempt), ("may_disconnect", False), ("pid", os.getpid())]
    assert (tmp_path / "named").read_text() == repr(named)
    assert f"mpiboot: {spec.earlier}\n" in made.message
    assert "mpiboot: starting mpirun " in made.message
    assert "hf_secret" not in made.message
    assert "not yet said" in made.message
    assert "said before" not in made.message
    assert "a failure is no warning" not in made.message


def test_a_launch_of_a_script_has_the_scripts_name_and_a_launch_within_one_its_mark(
    tmp_path: Path,
) -> None:
    """Workers are told of the end by the script's process, which stays."""
    environ = {"MPIBOOT_ATTEMPT": "script@2026-01-02T00:00:00Z@3", LAUNCH_ID: "outer"}
    environ[KEEP_KEY] = "1"
    made = Handed(tmp_path, "", given(), "mpirun", "./train", environ=environ)
    assert made.launch.attempt == ""
    assert made.launch.earlier.startswith("attempt 2")
    name = environ["MPIBOOT_ATTEMPT"]
    named = [("attempt", name), ("may_disconnect", True), ("pid", os.getpid())]
    assert (tmp_path / "named").read_text() == repr(named)
    assert LAUNCH_ID not in made.launch.set_env
    logins = PoolConfig.from_json(Path(made.launch.folder, "pool.json").read_text())
    assert [host.name for host in logins.hosts] == [HOST, "w-1.job.ns.svc"]


EARLIER = "attempt 2; the last one (a of 2026-01-01T00:00:00Z) ended: it failed"
HOST = "w-0.job.ns.svc"


@pytest.mark.parametrize(("attempt", "goes_on"), [("me@2026-01-02T00:00:00Z@2", False), ("", True)])
def test_who_was_reached_hears_why_the_launch_failed_and_the_message_has_the_attempt_before(
    tmp_path: Path, attempt: str, *, goes_on: bool
) -> None:
    environ = {} if attempt else {"MPIBOOT_ATTEMPT": "script@2026-01-02T00:00:00Z@3"}
    made = Handed(tmp_path, "refused", given(attempt), "mpirun", "./train", environ=environ)
    assert isinstance(made.result, Failure)
    message = made.result.message
    assert message.startswith("names-unresolved: one is missing\n")
    assert message.endswith(f"\n{EARLIER}\n")
    assert made.message.splitlines()[-1] == f"mpiboot: {EARLIER}"
    assert (tmp_path / "told").read_text() == repr(([HOST], message, 68, goes_on))


def test_a_signal_ends_the_wait_and_who_was_reached_hears_of_it(tmp_path: Path) -> None:
    made = Handed(tmp_path, "signalled", given("me@2026-01-02T00:00:00Z@2"), "mpirun", "./train")
    message = "signal: SIGTERM while waiting for hosts: nothing was started\n"
    assert made.result == Failure(143, "signal", message, held=False)
    assert (tmp_path / "told").read_text() == repr(([HOST], message, 143, False))


def test_a_launch_that_is_handed_over_tells_nobody(tmp_path: Path) -> None:
    """The parent does, at the job's end."""
    assert isinstance(Handed(tmp_path, "", given(), "mpirun", "./train").result, LaunchSpec)
    assert not (tmp_path / "told").exists()


def test_what_nobody_expected_is_a_bug_with_its_place(tmp_path: Path) -> None:
    made = Handed(tmp_path, "bug", given(), "mpirun", "./train")
    assert isinstance(made.result, Failure)
    assert (made.result.code, made.result.reference, made.result.held) == (70, "bug", True)
    assert "nobody thought of it" in made.result.message
    assert "RuntimeError: nobody thought of it" in made.message


@pytest.mark.parametrize("waits", [HELD, GROWS], ids=["held", "grows"])
def test_neither_a_thread_that_never_ends_nor_the_collector_delays_it(
    tmp_path: Path, waits: str
) -> None:
    """The collector looks at nothing that was loaded, and seldom at what is kept of hosts."""
    reader, writer = os.pipe()
    command = [sys.executable, "-c", ENDS.replace("WAITS", waits), str(writer)]
    with subprocess.Popen(
        command, pass_fds=(writer,), stderr=subprocess.PIPE, cwd=tmp_path
    ) as process:
        os.close(writer)
        try:
            handed = handed_over(reader)
            assert isinstance(handed, Failure)
            assert handed.reference == "usage"
            # It ends when nobody reads any more, and says nothing of what it leaves.
            os.close(reader)
            _, message = process.communicate(timeout=GUARD)
        finally:
            process.kill()
    first, hint = message.decode().splitlines()
    assert first == "mpiboot: error: [usage] the hosts are ready"
    assert hint.startswith("mpiboot:   ->")
