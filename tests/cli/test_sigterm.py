"""Who keeps SIGTERM from mpiboot: the first process of its container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpiboot.cli import run

BASH = "0000000000010002"  # SIGINT and SIGCHLD
START = "bash /start.sh --password secret"


@pytest.mark.parametrize(
    ("line", "parent", "caught", "named"),
    [
        (START, 1, BASH, "bash /start.sh"),
        (START, 1, "0000000000004002", ""),
        (START, 1, "no number", ""),
        (START, 1, None, ""),
        (START, 6, BASH, ""),
        # What follows a script's name may be secret.
        ("bash -m /start.sh --password secret", 1, BASH, "bash -m /start.sh"),
        ("sh -ec text", 1, BASH, "sh -ec"),
        ("sh", 1, BASH, "sh"),
        ("exec ./x secret", 1, BASH, "exec ./x"),
    ],
)
def test_the_first_process_is_named_where_it_blocks_sigterm(
    line: str,
    parent: int,
    caught: str | None,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getppid", lambda: parent)
    (tmp_path / "1").mkdir()
    (tmp_path / "1/cmdline").write_text("".join(f"{word}\0" for word in line.split()))
    if caught is not None:
        (tmp_path / "1/status").write_text(f"Name:\tbash\nSigCgt:\t{caught}\nCapInh:\t0\n")
    assert run.sigterm_blocker(str(tmp_path)) == named
