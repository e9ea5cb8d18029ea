"""Shims: links that lead to mpiboot, and the real programs behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot import shims
from mpiboot.errors import MpibootError


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program mpiboot, as an image has it."""
    path = program(tmp_path / "venv", "mpiboot")
    monkeypatch.setattr("sys.argv", [str(path)])
    return path


def program(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_what_was_installed_is_removed_and_nothing_else(own: Path, tmp_path: Path) -> None:
    folder = tmp_path / "front"
    shims.install(str(folder), {"PATH": "/nowhere"})
    assert {path.name for path in folder.iterdir()} == set(shims.NAMES)
    assert all(path.resolve() == own for path in folder.iterdir())
    shims.install(str(folder), {"PATH": "/nowhere"})
    program(folder, "other")
    shims.remove(str(folder))
    assert [path.name for path in folder.iterdir()] == ["other"]


def test_a_real_program_is_never_replaced(own: Path, tmp_path: Path) -> None:
    real = program(tmp_path / "front", "mpirun")
    with pytest.raises(MpibootError, match="is no shim of mpiboot"):
        shims.install(str(real.parent), {"PATH": ""})
    assert not real.is_symlink()
    assert own.is_file()


def test_the_real_program_is_found_behind_any_number_of_shims(own: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shims.install(str(tmp_path / name), {"PATH": ""})
    real = program(tmp_path / "c", "mpirun")
    path = ":".join(str(tmp_path / name) for name in "abc")
    assert own.is_file()
    found = shims.enter("mpirun", {"PATH": path})
    assert found == {"PATH": str(real.parent), "program": "mpirun"}


def test_only_shims_on_the_path_are_an_error(own: Path, tmp_path: Path) -> None:
    shims.install(str(tmp_path / "a"), {"PATH": ""})
    assert own.is_file()
    with pytest.raises(MpibootError, match="own shim"):
        shims.enter("mpirun", {"PATH": str(tmp_path / "a")})
