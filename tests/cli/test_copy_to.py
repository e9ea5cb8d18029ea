"""mpiboot's own folder, copied into a volume."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mpiboot.cli.main import copy_to
from mpiboot.core.checks import MpibootError

RECORD = "lib/python3.13/dist-packages/mpiboot-1.dist-info/RECORD"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    for name in ("bin/mpiboot", "lib/loader/mpiboot", RECORD, "libexec/python3"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    (made / "bin/mpiboot").chmod(0o755)
    return made


def contents(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_any_user_can_start_the_copy(home: Path, tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        message = copy_to(str(tmp_path / "volume"), home)
    finally:
        os.umask(old)
    assert message == f"{tmp_path}/volume/bin/mpiboot can be started"
    assert contents(tmp_path / "volume") == contents(home)
    assert {path.name for path in (tmp_path / "volume").iterdir()} == {"bin", "lib", "libexec"}
    mode = (tmp_path / "volume/bin/mpiboot").stat().st_mode
    assert stat.S_IMODE(mode) == 0o755
    assert stat.S_IMODE((tmp_path / "volume/lib").stat().st_mode) == 0o755


def test_an_init_container_that_runs_again_finds_it_there(home: Path, tmp_path: Path) -> None:
    (tmp_path / "volume/lost+found").mkdir(parents=True)  # a file system's own
    copy_to(str(tmp_path / "volume"), home)
    before = (tmp_path / "volume/lib").stat().st_ino
    assert copy_to(str(tmp_path / "volume"), home).endswith("is there already")
    assert (tmp_path / "volume/lib").stat().st_ino == before


@pytest.mark.parametrize("copied", [(), ("bin",), ("bin", "lib")])
def test_a_copy_that_was_killed_is_made_anew(
    home: Path, tmp_path: Path, copied: tuple[str, ...]
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / ".mpiboot-incomplete").touch()
    for name in copied:
        (volume / name).mkdir()
        (volume / name / "half").touch()
    copy_to(str(volume), home)
    assert contents(volume) == contents(home)


@pytest.mark.parametrize("there", ["lib/libc.so.6", "data", RECORD])
def test_other_files_are_left_alone(home: Path, tmp_path: Path, there: str) -> None:
    """Also another mpiboot: what runs from it would lose its files."""
    file = tmp_path / "volume" / there
    file.parent.mkdir(parents=True)
    file.write_text("theirs")
    with pytest.raises(MpibootError, match="is not empty") as raised:
        copy_to(str(tmp_path / "volume"), home)
    assert raised.value.code == 2
    assert contents(tmp_path / "volume") == {there: b"theirs"}


@pytest.mark.parametrize(
    ("target", "own", "code", "why"),
    [
        ("home/bin/mpiboot/x", "home", 73, "home/bin/mpiboot/x"),
        ("volume", "home", 73, "lib/fifo` is a named pipe"),
        ("volume", ".", 2, "runs by the Python of its image"),
    ],
    ids=["no folder", "no plain file", "an image's own Python"],
)
def test_what_cannot_be_copied_is_named(
    home: Path, tmp_path: Path, target: str, own: str, code: int, why: str
) -> None:
    os.mkfifo(home / "lib/fifo")
    with pytest.raises(MpibootError, match=why) as raised:
        copy_to(str(tmp_path / target), tmp_path / own)
    assert raised.value.code == code
    assert (tmp_path / "volume").exists() is ("fifo" in why)
