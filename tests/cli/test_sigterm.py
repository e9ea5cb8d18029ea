"""Who keeps SIGTERM from mpiboot: the first process of its container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpiboot.cli import run


@pytest.mark.parametrize(
    ("parent", "caught", "kept"),
    [
        (1, "0000000000010002", "bash /start.sh"),  # SIGINT and SIGCHLD, as bash has them
        (1, "0000000000004002", ""),
        (1, "no number", ""),
        (1, None, ""),
        (6, "0000000000010002", ""),
    ],
)
def test_who_keeps_sigterm_from_mpiboot(
    parent: int, caught: str | None, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getppid", lambda: parent)
    (tmp_path / "1").mkdir()
    (tmp_path / "1/cmdline").write_text("bash\0/start.sh\0--password\0secret\0")
    if caught is not None:
        (tmp_path / "1/status").write_text(f"Name:\tbash\nSigCgt:\t{caught}\nCapInh:\t0\n")
    assert run.sigterm_blocker(str(tmp_path)) == kept


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("bash -m /start.sh --password secret", "bash -m /start.sh"),
        ("sh -ec text", "sh -ec"),
        ("sh", "sh"),
        ("exec ./x secret", "exec ./x"),
    ],
)
def test_of_the_first_process_nothing_secret_is_told(
    line: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 1)
    (tmp_path / "1").mkdir()
    (tmp_path / "1/cmdline").write_text("".join(f"{word}\0" for word in line.split()))
    (tmp_path / "1/status").write_text("Name:\tsh\nSigCgt:\t0000000000010002\nCapInh:\t0\n")
    assert run.sigterm_blocker(str(tmp_path)) == named
