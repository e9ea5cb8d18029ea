from __future__ import annotations

from pathlib import Path

from mpiboot.system import executables


def test_folders_and_plain_files_are_no_programs(tmp_path: Path) -> None:
    (tmp_path / "mpirun").mkdir()
    (tmp_path / "text").write_text("x")
    found = tmp_path / "program"
    found.write_text("")
    found.chmod(0o755)

    assert executables.find(str(found), "") == str(found)
    assert executables.find("program", f"/nowhere:{tmp_path}") == str(found)
    assert executables.find("mpirun", str(tmp_path)) is None
    assert executables.find("text", str(tmp_path)) is None
    assert executables.find("sh", executables.DEFAULT_PATH) is not None


def test_a_script_is_told_from_a_program(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    assert executables.is_script(str(tmp_path / "script"))
    assert not executables.is_script("/bin/sh")
    assert not executables.is_script("")
    assert not executables.is_script(str(tmp_path))
