from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mpiboot.errors import MpibootError
from mpiboot.launcher import launch_folder


def test_each_launch_below_a_script_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert launch_folder.paths(tmp_path, 1).launch_dir == f"{tmp_path}/launch"
    assert launch_folder.paths(tmp_path, 57).launch_dir == f"{tmp_path}/launch-57"


@pytest.mark.parametrize("odd", ["a b", "a\tb", "a${HOME}b"])
def test_a_folder_that_mpirun_or_ssh_would_read_as_another_is_refused(
    tmp_path: Path, odd: str
) -> None:
    with pytest.raises(MpibootError, match="runtime folder") as raised:
        launch_folder.paths(tmp_path / odd)
    assert repr(str(tmp_path / odd)) in raised.value.finding.said


def test_folders_of_launches_that_are_over_are_taken_away(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    kept = ["launch", f"launch-{os.getpid()}", "launches", "key-7"]
    for name in (*kept, f"launch-{ended.pid}"):
        (tmp_path / name).mkdir()
    launch_folder._tidy(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(kept)
