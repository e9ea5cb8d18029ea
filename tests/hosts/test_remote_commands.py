"""Workers after the gate: facts and networks that are waited for, launches and leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host, HostAnswer, NoFacts, Worker, facts_to_json
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.core.model import LogFormat
from mpiboot.core.settings import Settings, resolve
from mpiboot.hosts import host_shell, remote_commands
from mpiboot.hosts.remote_commands import fetch_facts, job_id, new_launch_id, wait_until_settled
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.ssh.attempt import CommandEnd
from mpiboot.ssh.pool import Pool
from tests.fakes import plans
from tests.fakes.pool import reaching
from tests.fakes.programs import program
from tests.fakes.sshd import Behaviour, Job, sshd

FACTS = plans.worker(Host("a"), 1, None).facts


def worker(name: str, port: int = 1) -> Worker:
    return Worker(Host(name), "127.0.0.1", port, "root", "127.0.0.1", None)


def network(worker: Worker, *pending: str) -> WorkerNetwork:
    return WorkerNetwork(worker.host.name, None, 1, None, Transport.UNKNOWN, pending=pending)


def late(port: int = 1) -> Worker:
    return replace(worker("a", port), user="runner", no_facts=NoFacts.PENDING)


@pytest.fixture(autouse=True)
def as_json() -> None:
    log.configure(form=LogFormat.JSON)


@dataclass
class Here:
    """A worker ``a``, its private folder, its server, and a pool that reaches it."""

    folder: Path
    server: Behaviour
    late: Worker
    pool: Pool

    async def fetch(self, worker: Worker) -> Worker:
        return await fetch_facts(self.pool, worker)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    """Naps take no time, so that its patience ends at once."""
    program(tmp_path, "sleep")
    job, path = Job(tmp_path), f"{tmp_path}:{os.environ['PATH']}"
    server = Behaviour(job, environment={"MPIBOOT_WORKER_DIR": str(tmp_path), "PATH": path})
    async with sshd(server) as port, reaching(job.path, late(port)) as pool:
        yield Here(tmp_path, server, late(port), pool)


async def test_facts_that_are_late_are_gathered_anew_until_they_are_there(here: Here) -> None:
    assert FACTS is not None
    (here.folder / "kept").write_text(facts_to_json(FACTS))
    look = f"[ -e {here.folder}/tried ] && cp {here.folder}/kept {here.folder}/facts.json"
    (here.folder / "look").write_text(f"{look}; : > {here.folder}/tried")
    ((found,), _) = await wait_until_settled(
        (here.late,), network, Settings(timeout=60), here.fetch
    )
    assert (found.facts, found.mpi, found.pending) == (FACTS, FACTS.mpi, False)
    assert here.server.commands == [host_shell.ask("run_script look", "facts")] * 2


async def test_facts_that_never_come_end_the_launch_with_the_reason(here: Here) -> None:
    record = '{"version": 1, "facts_error": "the driver hangs"}'
    (here.folder / "look").write_text(f"echo 'mpiboot-answer {record}'")
    seen: list[Worker] = []

    def decide(one: Worker) -> WorkerNetwork:
        seen.append(one)
        return network(one)

    settings = Settings(timeout=0)
    while True:  # a busy machine needs more than two seconds
        settings = replace(settings, timeout=settings.timeout + 2)
        with pytest.raises(MpibootError) as caught:
            await wait_until_settled((here.late, worker("b")), decide, settings, here.fetch)
        if any(item.facts_error for item in seen):
            break
    message = "it has not gathered its facts yet: the driver hangs"
    assert (caught.value.finding.check, caught.value.code) == ("worker-facts", 75)
    assert caught.value.finding.message.startswith("1 of 2 workers did not gather their facts")
    (other,) = caught.value.others
    assert (other.check, other.host, other.message) == ("worker-facts", "a", message)


@pytest.mark.parametrize("known", [late(), plans.worker(Host("a"), 1, None)])
@pytest.mark.parametrize("end", [CommandEnd("mpiboot-plain\n", 0), CommandEnd(error="gone")])
async def test_a_worker_that_answers_no_more_stays_as_it_was(
    known: Worker, end: CommandEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: object) -> CommandEnd:
        return end

    pool = Pool(None)
    monkeypatch.setattr(pool, "run", run)
    assert await fetch_facts(pool, known) is known


@pytest.mark.parametrize(
    ("workers", "flags"), [((late(),), {"data_network": "off"}), ((worker("a"), worker("b")), {})]
)
async def test_with_nothing_to_wait_for_nobody_is_queried(
    workers: tuple[Worker, ...], flags: dict[str, str]
) -> None:
    settings = resolve(flags, {}).settings
    fetch = partial(fetch_facts, Pool(None))
    assert (await wait_until_settled(workers, network, settings, fetch))[0] == workers


class Quick:
    """Time that passes by pauses alone; ``becomes`` is what ``fetch`` gives of a worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses, self.names = list[float](), set[str]()
        self.becomes: Callable[[Worker], Worker] = lambda one: one
        asyncs = SimpleNamespace(**{**vars(asyncio), "sleep": self._sleep})
        monkeypatch.setattr(remote_commands, "asyncio", asyncs)
        clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(self.pauses))
        monkeypatch.setattr(remote_commands, "time", clock)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def fetch(self, worker: Worker) -> Worker:
        self.names.add(worker.host.name)
        return self.becomes(worker)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Quick:
    return Quick(monkeypatch)


async def test_workers_are_queried_ever_less_often_until_the_deadline(
    quick: Quick, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MpibootError):
        await wait_until_settled((late(), worker("b")), network, Settings(timeout=20), quick.fetch)
    assert (quick.pauses[0], max(quick.pauses), sum(quick.pauses)) == (0.5, 5.0, 20.0)
    assert quick.names == {"a"}
    (line,) = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert (line["event"], line["hosts"]) == ("data-network", 1)
    assert line["message"] == "waiting for the data network of a (its facts)"


NOT_READY = (
    "the data network of 2 hosts is not ready after %s: w-0 (port mlx5_0:1 is INIT, not yet "
    "ACTIVE), w-1 (port mlx5_1:1 is ARMED, not yet ACTIVE); the start goes on without it "
    "(MPIBOOT_DATA_NETWORK=require waits until the deadline)"
)


@pytest.mark.parametrize(
    ("given", "seconds", "warned"),
    [
        ({"timeout": "600"}, 60.0, NOT_READY % "1m"),
        ({"timeout": "600", "data_network": "require"}, 600.0, ""),
        ({"timeout": "7"}, 7.0, NOT_READY % "7 s"),
    ],
)
async def test_a_data_network_that_is_not_required_holds_the_start_for_a_minute(
    quick: Quick,
    capfd: pytest.CaptureFixture[str],
    given: dict[str, str],
    seconds: float,
    warned: str,
) -> None:
    states = {"w-0": "port mlx5_0:1 is INIT", "w-1": "port mlx5_1:1 is ARMED"}

    def decide(one: Worker) -> WorkerNetwork:
        state = states.get(one.host.name)
        return network(one, *([f"{state}, not yet ACTIVE"] if state else []))

    workers = tuple(worker(name) for name in ("w-0", "w-1", "w-2"))
    settings = resolve(given, {}).settings
    found, networks = await wait_until_settled(workers, decide, settings, quick.fetch)
    assert (found, set(networks), quick.names) == (workers, {"w-0", "w-1", "w-2"}, set(states))
    assert sum(quick.pauses) == seconds
    lines = map(json.loads, capfd.readouterr().err.splitlines())
    warnings = [line["message"] for line in lines if line["level"] == "warning"]
    assert warnings == [warned] * bool(warned)


async def test_facts_are_waited_for_longer_than_a_data_network(quick: Quick) -> None:
    def decide(one: Worker) -> WorkerNetwork:
        return network(one, *([] if one.pending else ["port x is INIT"]))

    unreadable = replace(late(), no_facts=NoFacts.UNREADABLE)
    quick.becomes = lambda one: unreadable if sum(quick.pauses) > 90 else one
    settings = Settings(timeout=600)
    ((found,), _) = await wait_until_settled((late(),), decide, settings, quick.fetch)
    assert not found.pending
    assert 90 < sum(quick.pauses) < 100


# Of this process alone: workers here see all of this machine, and so the marks of other tests.
KEY = f"ssh-ed25519 {os.getpid()}"
BARE = f"{job_id(KEY)}-0123456789abcdef"
MARK = f"{BARE}@pi-launcher-x@2026-01-02T03:04:05Z"
WAITS = "echo; read -r _"
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process with a mark, which stays a shell: in an exec it has no environment."""
    with contextlib.ExitStack() as ends:

        def make(mark: str, script: str = WAITS, **environ: str) -> subprocess.Popen[bytes]:
            env = {"PATH": os.environ["PATH"], **environ} | ({LAUNCH_ID: mark} if mark else {})
            made = subprocess.Popen(["sh", "-c", script], env=env, stdin=-1, stdout=-1)
            ends.callback(made.communicate)
            ends.callback(made.kill)
            assert made.stdout is not None
            made.stdout.readline()
            return made

        yield make


def marked(*marks: str, held: tuple[tuple[str, str], ...] = ()) -> Worker:
    where = "127.0.0.2", 22, "root", "10.0.0.1"
    return Worker(Host("w-1"), *where, None, answer=HostAnswer(launches=marks, held=held))


def test_the_id_of_a_launch_has_its_job_its_launcher_and_its_start() -> None:
    first, second = new_launch_id(KEY), new_launch_id(KEY)
    assert first != second
    job, _, rest = first.partition("-")
    assert (job, rest.split("@")[1]) == (job_id(KEY), socket.gethostname())
    assert not first.startswith(job_id("another key"))
    assert all(char.isalnum() or char in "-@.:" for char in first)


def test_only_launches_of_this_job_that_are_not_of_this_pod_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, other = new_launch_id(KEY), new_launch_id("another key")
    monkeypatch.setattr(remote_commands, "running_here", lambda: {here})
    odd = ("$(reboot)", f"{job_id(KEY)}-'; reboot")
    assert remote_commands.earlier_launches(marked(here, MARK, other, *odd), KEY) == (MARK,)
    monkeypatch.setattr(remote_commands, "running_here", None)  # without one it is not read
    assert remote_commands.earlier_launches(marked(), KEY) == ()


SINCE = " since 2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ((), ""),
        (((MARK, "10.0.0.9"),), f"in use by launcher pi-launcher-x (10.0.0.9){SINCE}"),
        (((MARK, ""),), f"in use by launcher pi-launcher-x{SINCE}"),  # it came by kubectl
        (((new_launch_id("another key"), "10.0.0.9"),), ""),
    ],
)
def test_who_is_connected_to_a_worker_is_named(
    held: tuple[tuple[str, str], ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = marked(*(launch for launch, _ in held), held=held)
    monkeypatch.setattr(remote_commands, "running_here", set[str])
    assert remote_commands.holder(seen, KEY) == message
    monkeypatch.setattr(remote_commands, "running_here", lambda: {launch for launch, _ in held})
    assert remote_commands.holder(seen, KEY) == ""


def test_marked_processes_are_ended_and_others_are_not(start: Start) -> None:
    """What is stopped, too, and what saves at a TERM, or ignores it."""
    old, new = new_launch_id(KEY), new_launch_id(KEY)
    first, stopped, other = start(old), start(old), start(new)
    stopped.send_signal(signal.SIGSTOP)
    saving = start(old, "trap 'sleep 0.3; exit 7' TERM; echo; while :; do sleep 0.05; done")
    stubborn = start(old, "trap '' TERM; echo; while :; do sleep 1000; done")
    command = host_shell.end_processes([old])
    done = subprocess.run(command, shell=True, stdout=-1, text=True, check=True)
    assert host_shell.read(done.stdout).left == 0
    assert {first.wait(60), stopped.wait(60)} == {-signal.SIGTERM}
    assert (saving.wait(60), stubborn.wait(60)) == (7, -signal.SIGKILL)
    assert other.poll() is None


async def test_what_was_ended_and_what_could_not_be_is_a_line_each(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_commands, "running_here", set[str])
    mark, pool = new_launch_id(KEY), Pool(None)
    workers = [replace(marked(mark), host=Host(f"w-{number}")) for number in range(4)]
    workers.append(replace(marked(), host=Host("nobody queries it")))

    async def run(name: str, command: str, _: float) -> CommandEnd:
        assert command == host_shell.end_processes([mark])
        number = int(name.removeprefix("w-"))
        words = f"mpiboot-ended 2\nmpiboot-left {number % 2}\n" if number < 3 else ""
        return CommandEnd(words, 0 if words else None)

    monkeypatch.setattr(pool, "run", run)
    await remote_commands.end_leftovers(workers, KEY, pool)
    ended, left = map(json.loads, capfd.readouterr().err.splitlines())
    message = "w-0, w-1, w-2: ended 6 processes left by an earlier launcher of this job"
    assert (ended["message"], ended["hosts"], ended["processes"]) == (message, 3, 6)
    assert left["message"].startswith("w-1: 1 process of an earlier launcher of this job ")
