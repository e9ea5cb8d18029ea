"""The program that a launch agent becomes, as each machine's assembler makes it and as it runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.ssh_client import waiting_agent
from tests.fakes.worker import PATIENCE
from tests.waiting import until

SOURCES = Path(__file__).parents[2] / "scripts" / "waiting_agent"
HERE = os.uname().machine
# The assembler of a machine, what copies its code out of it, and what runs its programs here.
TOOLS = {
    machine: (
        ["as", "objcopy"]
        if machine == HERE
        else [f"{machine}-linux-gnu-{name}" for name in ("as", "objcopy")],
        [] if machine == HERE else [f"qemu-{machine}-static"],
    )
    for machine in waiting_agent.CODE
}


@pytest.fixture(params=[name for name in TOOLS if all(map(shutil.which, TOOLS[name][1]))])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Waiting:
    """One that waits, with its three files."""

    def __init__(self, folder: Path, machine: str, environ: dict[str, str]) -> None:
        program = folder / "waiting_agent"
        program.write_bytes(waiting_agent.program(machine))
        program.chmod(0o700)
        self.errors = folder / "errors"
        fifos = [folder / name for name in ("events", "requests", "answers")]
        for path in fifos:
            os.mkfifo(path)
        self.events, self.requests, self.answers = (os.open(path, os.O_RDWR) for path in fifos)
        lines = (
            "end w 12\n",
            "ended w ",
            " 12 TERM\n",
            " 12\n",
            str(self.errors),
            "it has ended\n",
            "",
        )
        quoted = [*TOOLS[machine][1], str(program), "agent", "w", *lines]
        text = f'exec "$@" 7<> {fifos[0]} 8<> {fifos[1]} 9< {fifos[2]}'
        self.process = subprocess.Popen(["sh", "-c", text, "sh", *quoted], env=environ)

    def wait_until_it_waits(self) -> Waiting:
        folder = Path(f"/proc/{self.process.pid}/fd")
        until(lambda: any("signalfd" in str(path.readlink()) for path in list(folder.iterdir())))
        return self

    def answer(self, text: str) -> int:
        if text:
            os.write(self.answers, text.encode())
        os.close(self.answers)
        self.answers = -1
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        for file in (self.events, self.requests, *([self.answers] if self.answers >= 0 else [])):
            os.close(file)


@pytest.fixture
def waiting(tmp_path: Path, machine: str) -> Iterator[Waiting]:
    # More than one page of the environment, which is let go of.
    made = Waiting(tmp_path, machine, {"PATH": os.environ["PATH"], "MUCH": "x" * 50_000})
    yield made.wait_until_it_waits()
    made.close()


@pytest.mark.parametrize("status", [0, 1, 77, 255])
def test_it_ends_with_the_status_that_it_is_told_and_tells_it(
    waiting: Waiting, status: int
) -> None:
    assert waiting.answer(f"{status}\n") == status
    assert os.read(waiting.events, 4096) == f"ended w {status} 12\n".encode()
    assert not waiting.errors.exists()


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "USR1", "USR2", "TERM"])
def test_a_signal_is_passed_on_and_told_with_the_end(waiting: Waiting, name: str) -> None:
    waiting.process.send_signal(getattr(signal, f"SIG{name}"))
    assert os.read(waiting.requests, 4096) == b"end w 12\n"
    assert waiting.answer("255\n") == 255
    assert os.read(waiting.events, 4096) == b"ended w 255 12 TERM\n"


def test_files_that_end_without_a_status_are_a_client_that_has_gone(waiting: Waiting) -> None:
    waiting.errors.write_text("before\n")
    assert waiting.answer("") == 255
    assert os.read(waiting.events, 4096) == b"ended w 255 12\n"
    assert waiting.errors.read_text() == "before\nit has ended\n"


def test_one_that_was_stopped_waits_on(waiting: Waiting) -> None:
    waiting.process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{waiting.process.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    waiting.process.send_signal(signal.SIGCONT)
    assert waiting.answer("3\n") == 3


def test_it_has_next_to_no_memory(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "MUCH": "x" * 100_000}
    waiting = Waiting(tmp_path, HERE, environ).wait_until_it_waits()
    rollup = Path(f"/proc/{waiting.process.pid}/smaps_rollup")
    until(lambda: int(rollup.read_text().partition("Private_Dirty:")[2].split()[0]) <= 20)
    waiting.close()


def test_the_code_is_what_the_assembler_makes_of_its_source(tmp_path: Path, machine: str) -> None:
    assembler, copier = TOOLS[machine][0]
    if not shutil.which(assembler):
        pytest.skip(f"no {assembler}")
    made, code = tmp_path / "object", tmp_path / "code"
    subprocess.run([assembler, "-o", made, SOURCES / f"{machine}.s"], check=True)
    subprocess.run([copier, "-O", "binary", "-j", ".text", made, code], check=True)
    assert code.read_bytes() == waiting_agent.CODE[machine][1]


def test_agents_find_it_where_it_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_agent.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [waiting_agent.NAME]
    (tmp_path / waiting_agent.NAME).unlink()
    # Another kind of program than this machine's, or what a sandbox doesn't let run.
    for broken in (b"\x7fELF no program", b"#!/bin/sh\nexit 3\n"):
        monkeypatch.setattr(waiting_agent, "program", lambda _, broken=broken: broken)
        waiting_agent.write(tmp_path)
        assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    assert waiting_agent.program("s390x") == b""
