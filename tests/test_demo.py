"""The README's demo without containers, as a user runs it: a real mpirun over loopback workers."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "scripts" / "demo_loopback.py"
# A guard against a hang; the demo itself has a shorter one.
GUARD = 200
RECORD = runpy.run_path(str(ROOT / "scripts" / "record"))


def environment(folder: Path) -> Path:
    """The Python of a virtual environment in which the demo can install what it needs."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (found,) = folder.glob("lib/python3*/site-packages")
    # The project's packages without mpiboot itself, which the demo takes from the checkout.
    (found / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def ran(argv: Sequence[str | Path], on: str) -> str:
    """What a demo prints that ends well, with a rank in each slot of the hosts."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=GUARD, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    ranks = re.findall(rf"\| rank (\d) of 8 on {on}$", done.stdout, re.MULTILINE)
    assert sorted(ranks) == [(str(rank), str(rank // 2)) for rank in range(8)]
    return done.stdout


@pytest.mark.full
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun here")
def test_the_demo_without_containers_runs_a_rank_in_every_slot(tmp_path: Path) -> None:
    """It takes mpi4py from PyPI where it isn't there."""
    python = environment(tmp_path / "environment")
    printed = ran([python, DEMO], r"worker-(\d), sum of all ranks 28")
    assert "left out" in printed
    assert printed.count("sshd (embedded) listens on 127.0.0.1") == 4


@pytest.mark.full
@pytest.mark.pods
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("runc") is None, reason="needs root, runc")
def test_the_demo_in_containers_runs_a_rank_in_every_slot() -> None:
    demo = ROOT / "scripts/demo_pods.py"
    printed = ran([sys.executable, demo, "openmpi-5.0"], r"pi-worker-(\d)")
    assert "termination message | names-unresolved: 1 of 2 hosts" in printed
    assert "host-key-differs" in printed
    recorded = [line for _, _, line in RECORD["lines"](RECORD["CAST"].read_text())]
    assert without_figures(printed.splitlines()) == without_figures(recorded)


def without_figures(lines: Iterable[str]) -> set[str]:
    """What the demo says, without what differs from run to run: numbers, keys, who comes next."""
    said = {
        re.sub(
            r"\d+(\.\d+)?|SHA256:\S+|AAAA\S+|pi-launcher-\w+| [KM]iB| bytes",
            "N",
            " ".join(line.split()),
        )
        for line in lines
        if not line.startswith("setup: ") and " hosts ready, waiting for " not in line
    }
    return said - {""}


def test_the_recording_in_the_readme_is_drawn_from_the_demos_own() -> None:
    assert RECORD["SVG"].read_text() == RECORD["drawn"](RECORD["CAST"].read_text())
    assert "(docs/demo.svg)" in (ROOT / "README.md").read_text()


def test_the_readme_begins_with_the_three_commands() -> None:
    text = (ROOT / "README.md").read_text()
    commands = re.findall(r"^(scripts/\S+)", text, re.MULTILINE)
    assert commands == ["scripts/demo", "scripts/play", "scripts/test"]
    assert all(os.access(ROOT / command, os.X_OK) for command in commands)
