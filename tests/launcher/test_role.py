"""What a launcher becomes: mpirun that only answers, a script's process, or a launch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from mpiboot.core.settings import resolve
from mpiboot.launcher import role
from mpiboot.launcher.role import RunsOnce
from mpiboot.supervisor import signals
from mpiboot.system import process


class Became(Exception):  # noqa: N818 - it is none
    """This process would be another one now."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was done, in its order; the last is what it became."""
    done: list[object] = []

    def becomes(name: str) -> Callable[..., NoReturn]:
        def become(*given: object, **named: object) -> NoReturn:
            done.append((name, *given, *named.values()))
            raise Became

        return become

    monkeypatch.setattr(signals, "block", lambda: done.append("signals wait"))
    monkeypatch.setattr(process, "replace", becomes("program"))
    monkeypatch.setattr(role, "_run_script", becomes("script"))
    monkeypatch.setattr(role, "_launch", becomes("launch"))
    return done


RESOLVED = resolve({}, {})


@pytest.mark.parametrize(
    ("mpi", "line", "straight"),
    [
        ("openmpi4", "mpirun --version", True),
        ("mpich", "mpiexec", True),
        ("openmpi4", "/usr/bin/mpirun -n 2 --bind-to core --help all", True),
        ("openmpi5", "mpirun --help=all", True),
        ("intel", "mpiexec.hydra -ppn -help", True),
        ("mpich", "mpirun -V -n 2 ./train", False),
        ("openmpi5", "mpirun -n 2 ./train --version", False),
        ("openmpi5", "./train --version", False),
    ],
)
def test_an_mpirun_that_only_prints_is_started_as_it_is(
    told: list[object], mpi: str, line: str, *, straight: bool
) -> None:
    program, environ = tuple(line.split()), {"A": "b"}
    with pytest.raises(Became):
        role.run(resolve({}, {"MPIBOOT_MPI": mpi}), program, environ)
    assert (told == [("program", program, environ)]) is straight


@pytest.mark.parametrize(
    ("message", "straight"), [("mpirun (Open MPI) 4.1.4", True), ("HYDRA build details:", False)]
)
def test_mpirun_itself_tells_what_its_options_mean(
    tmp_path: Path, message: str, *, straight: bool
) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\necho '{message}'\n")
    mpirun.chmod(0o755)
    line = ("mpirun", "-n", "2", "-V", "./train")
    assert role.prints(RESOLVED, line, {"PATH": str(tmp_path)}) is straight


@pytest.mark.parametrize("once", [None, RunsOnce("it calls mpirun", reaches_hosts=False)])
def test_signals_wait_for_the_process_that_stays(
    told: list[object], monkeypatch: pytest.MonkeyPatch, once: RunsOnce | None
) -> None:
    program, environ = ("./train", "-x"), {"A": "b"}
    monkeypatch.setattr(
        role, "runs_once", lambda *given: given == (RESOLVED, program, environ) and once
    )
    with pytest.raises(Became):
        role.run(RESOLVED, program, environ)
    launch = ("launch", RESOLVED, program, environ)
    assert told == ["signals wait", ("script", *launch[1:], once, False) if once else launch]


@pytest.mark.parametrize(
    ("line", "given", "measured"),
    [
        ("mpirun -n 2 ./train", {}, True),
        ("./train", {}, True),
        ("mpirun --version", {"MPIBOOT_MPI": "openmpi5"}, False),
        ("sleep infinity", {}, False),
        ("./script", {"MPIBOOT_SCRIPT": "on"}, True),
        ("./script", {"MPIBOOT_SCRIPT": "on", "MPIBOOT_SCRIPT_GATE": "off"}, False),
        ("./script", {"MPIBOOT_SCRIPT": "on", "MPIBOOT_HOSTFILE": ""}, False),
    ],
)
def test_the_network_is_measured_only_for_what_runs_on_the_hosts(
    told: list[object], tmp_path: Path, line: str, given: dict[str, str], *, measured: bool
) -> None:
    (tmp_path / "hostfile").touch()
    environ = {"MPIBOOT_HOSTFILE": str(tmp_path / "hostfile"), **given}
    with pytest.raises(Became):
        role.run(resolve({}, environ), tuple(line.split()), environ, lambda: told.append("now"))
    assert (told[0] == "now") is measured
    if "./script" in line:
        assert told[-1][-1] is measured  # type: ignore[index]
