from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.errors import MpibootError
from mpiboot.launcher import launch_folder
from mpiboot.settings import resolve
from mpiboot.system import keys
from tests.fakes import plans
from tests.fakes.worker import HAVE_SSH, make_key


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


@pytest.mark.skipif(not HAVE_SSH, reason="no ssh-keygen")
def test_every_file_of_a_launch_is_private(tmp_path: Path) -> None:
    key = keys.load(make_key(tmp_path / "id"))
    seen = plans.observed()
    seen = replace(seen, environ={**seen.environ, "PATH": os.environ["PATH"]})
    where = launch_folder.paths(tmp_path)
    plan = replace(plans.planned(seen=seen), per_host={"w-0": {"A": "b"}})
    launch = launch_folder.Launch(plan, seen, {}, key, resolve({}, seen.environ), where)
    before = os.umask(0)  # nothing else guards them
    try:
        launch.write()
        launch.spec({}, {}, (), attempt="")
    finally:
        os.umask(before)
    folder = Path(where.launch_dir)
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}
    assert {"hosts", "w-0.env", "agent.conf", "ssh_config", "known_hosts", "key"} <= modes.keys()
    open_to_others = {name: oct(mode) for name, mode in modes.items() if mode & 0o077}
    assert open_to_others == {}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
