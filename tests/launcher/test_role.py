"""What a launcher becomes: mpirun that only answers, a command's process, or a launch's."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn
from unittest.mock import Mock

import pytest

from mpiboot.core.settings import resolve
from mpiboot.launcher import role, shims
from mpiboot.supervisor import signals
from mpiboot.system import process
from tests.fakes.programs import program


class Became(Exception):  # noqa: N818 - it is none
    """This process would be another one now."""


@pytest.fixture(autouse=True)
def _environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher takes its process's environment over; here that is the tests' own."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was done, in its order; the last is what it became."""
    done: list[object] = []

    def becomes(name: str) -> Callable[..., NoReturn]:
        def become(*given: object, **named: object) -> NoReturn:
            done.append((name, *given, *named.values()))
            raise Became

        return become

    def block() -> set[int]:
        done.append("signals wait")
        return MASK

    monkeypatch.setattr(signals, "block", block)
    monkeypatch.setattr(process, "replace", becomes("program"))
    monkeypatch.setattr(role, "run_once", becomes("once"))
    monkeypatch.setattr(role, "_launch", becomes("launch"))
    return done


RESOLVED = resolve({}, {})
MASK = {int(signal.SIGWINCH)}


@pytest.mark.parametrize(
    ("mpi", "line", "became"),
    [
        ("openmpi4", "mpirun --version", "program"),
        ("mpich", "mpiexec", "program"),
        ("openmpi4", "/usr/bin/mpirun -n 2 --bind-to core --help all", "program"),
        ("openmpi5", "mpirun --help=all", "program"),
        ("mpich", "mpirun -V -n 2 ./train", "launch"),
        ("openmpi5", "mpirun -n 2 ./train --version", "launch"),
        ("mpich", "/opt/mpi/bin/mpiexec.hydra ./train", "launch"),
        ("openmpi4", "oshrun ./train", "launch"),
        ("openmpi4", "mpirun.openmpi ./train", "launch"),
        ("openmpi5", "./train --version", "once"),
        ("openmpi4", "./mpirun.sh", "once"),
        ("openmpi4", "bash -c mpirun", "once"),
        ("openmpi4", "srun ./train", "once"),
    ],
)
def test_an_mpirun_that_only_prints_is_started_as_it_is_and_a_command_runs_once(
    told: list[object], mpi: str, line: str, became: str
) -> None:
    """Signals wait for the process that stays, beside a launch or a command."""
    resolved, program, environ = resolve({}, {"MPIBOOT_MPI": mpi}), tuple(line.split()), {"A": "b"}
    with pytest.raises(Became):
        role.be_launcher(resolved, program, environ)
    stays = ["signals wait", (became, resolved, program, environ, MASK)]
    assert told == ([(became, program, environ)] if became == "program" else stays)


@pytest.mark.parametrize(
    ("message", "straight"), [("mpirun (Open MPI) 4.1.4", True), ("HYDRA build details:", False)]
)
def test_mpirun_itself_tells_what_its_options_mean(
    tmp_path: Path, message: str, *, straight: bool
) -> None:
    program(tmp_path, "mpirun", f"echo '{message}'")
    line = ("mpirun", "-n", "2", "-V", "./train")
    assert role.prints(RESOLVED, line, {"PATH": str(tmp_path)}) is straight


@pytest.mark.parametrize("attempt", ["me@now@1", ""])
def test_a_command_has_its_settings_its_folder_and_its_name_for_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attempt: str
) -> None:
    made = Mock(side_effect=Became)
    monkeypatch.setattr(role, "CommandRun", made)
    monkeypatch.setattr(role, "run", lambda _settings, _mask, work: asyncio.run(work(None)))
    monkeypatch.setattr(role, "new_attempt", lambda *_: attempt)
    flags = {"runtime_dir": str(tmp_path / "run"), "grace": "7", "timeout": "9"}
    environ = {"PATH": os.environ["PATH"], "A": "b"}
    resolved = resolve(flags, environ)
    for _ in range(2):  # what an earlier one with this number has left is no obstacle
        with pytest.raises(Became):
            role.run_once(resolved, ("sh", "x"), environ, MASK)
    _, settings, program, env, folder = made.call_args.args
    own = str(folder)
    assert (settings, program) == (resolved, ("sh", "x"))
    env = dict(env)
    programs, _, path = env.pop("PATH").partition(":")
    assert (programs, path) == (f"{own}/bin", os.environ["PATH"])
    assert env.pop("MPIBOOT_COMMAND_DIR") == own
    assert Path(own, "wanted").is_fifo()
    assert Path(own, "bin/mpirun").is_symlink()
    named = {"MPIBOOT_ATTEMPT": attempt} if attempt else {}
    given = {f"MPIBOOT_{name.upper()}": value for name, value in flags.items()}
    agents = shims.command_variables({}, shims.AGENT)
    assert env == {"A": "b", **given, **named, **agents, "MPIBOOT_ROLE": "launcher"}
    ours = {name for name in env if name.startswith("MPIBOOT_")} | {"MPIBOOT_COMMAND_DIR"}
    assert shims.emptied(f"{programs}/mpirun", {}).keys() == ours
    assert shims.without_command({**env, "MPIBOOT_COMMAND_DIR": own}, ())[0].keys() == (
        env.keys() - agents | {"MPIBOOT_COMMAND_DIR"}
    )


@pytest.mark.parametrize(
    ("wanted", "environ", "own", "named"),
    [
        ("after-job", {}, False, True),
        ("auto", {}, True, True),
        ("auto", {}, False, False),  # as by kubectl exec
        ("never", {}, True, False),
        ("after-job", {"MPIBOOT_LAUNCH_ID": "x"}, True, False),
        ("after-job", {"MPIBOOT_ATTEMPT": "x"}, True, False),
    ],
)
def test_workers_know_a_launcher_by_name_where_it_is_the_whole_job(
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    environ: Mapping[str, str],
    *,
    own: bool,
    named: bool,
) -> None:
    monkeypatch.setattr(process, "is_containers_own", lambda: own)
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(nodename="a-launcher.ns 'x'"))
    setting = resolve({"worker_exit": wanted}, {}).settings.worker_exit
    found, again = (role.new_attempt(setting, environ) for _ in range(2))
    if not named:
        assert found == ""
        return
    host, since, number = found.split("@")
    assert host == "a-launcher.nsx"
    assert (len(since), since[-1]) == (len("2026-01-02T00:00:00Z"), "Z")
    assert len(number) == 8
    assert found != again


def test_a_command_of_another_user_is_there_and_a_terminals_signal_is_not_sent_again() -> None:
    running = role.CommandRun(Mock(), RESOLVED, ("sudo",), {}, Path())
    running._send = Mock(side_effect=PermissionError)
    assert running._signal(0)
    running._receive(signal.SIGINT, by_terminal=True)
    running._receive(signal.SIGINT, by_terminal=False)
    assert running._send.call_count == 2
