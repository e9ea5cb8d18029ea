from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot import log
from mpiboot.checks import BY_REFERENCE
from mpiboot.choices import LogFormat
from mpiboot.parent.events import Verdict
from mpiboot.parent.launch_spec import LaunchSpec
from mpiboot.parent.report import tell

LOST = Verdict(69, "host-lost", "it was lost", "w-1", evidence=("ssh: broken pipe",))
WORKERS = ("w-1: its name does not resolve any more", "w-2: /dev/shm is full")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    log.configure()


def spec() -> LaunchSpec:
    return LaunchSpec((), "openmpi4", (), 2, 4, 30.0, 20.0, "/nowhere")


def test_the_end_as_fields_has_cause_evidence_and_hint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure(form=LogFormat.JSON, role="launcher")
    tell(LOST, spec(), 5.0, str(tmp_path / "none"), WORKERS)
    told = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert (told["event"], told["cause"]) == ("ended", WORKERS[0])
    assert told["evidence"] == [WORKERS[1], "ssh: broken pipe"]
    assert told["hint"] == BY_REFERENCE["host-lost"].hint != ""


def test_the_same_for_people_is_below_the_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tell(LOST, spec(), 5.0, str(tmp_path / "none"), WORKERS)
    first, *below = capfd.readouterr().err.splitlines()
    assert first.endswith(f"exit 69: w-1: it was lost; {WORKERS[0]}")
    assert below == [
        f"mpiboot:   {WORKERS[1]}",
        "mpiboot:   ssh: broken pipe",
        f"mpiboot:   -> {BY_REFERENCE['host-lost'].hint}",
    ]
