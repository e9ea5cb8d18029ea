from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.core import log


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_does_not_make_the_termination_message_fail() -> None:
    log.write_termination("/dev/full", "text")


def test_the_termination_message_is_cut_at_a_whole_character(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.write_text("x" * 9000)
    before = path.stat().st_ino

    log.write_termination(str(path), "a" + "é" * 4000)

    data = path.read_bytes()
    assert len(data) == 4095
    assert data.decode() == "a" + "é" * 2047
    assert path.stat().st_ino == before


def test_no_termination_message_is_made_where_no_file_is(tmp_path: Path) -> None:
    log.write_termination(str(tmp_path / "none"), "text")

    assert not (tmp_path / "none").exists()
