"""What a pod's control groups allow and what is in use, of trees as both versions make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.system import control_groups
from mpiboot.system.control_groups import Usage

POD, OWN = "kubepods/pod1", "kubepods/pod1/c1"


def tree(folder: Path, group: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A file system of groups, and a /proc whose process is in ``group``."""
    for name, text in {"groups/x": "", "proc/self/cgroup": f"{group}\n", **files}.items():
        path = folder / (name if name.startswith("proc/") else f"groups/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "groups", folder / "proc"


def test_the_lowest_limit_counts_with_what_is_in_use_of_it(tmp_path: Path) -> None:
    files = {
        "memory.max": "900\n", "memory.current": "800\n",
        f"{POD}/memory.max": "500\n", f"{POD}/memory.current": "90\n",
        f"{OWN}/memory.max": "700\n", f"{OWN}/memory.current": "50\n",
    }  # fmt: skip
    assert control_groups.memory(*tree(tmp_path, f"0::/{OWN}", files)) == Usage(500, 90, seen=True)


def test_without_a_limit_it_is_the_nearest_group_that_tells(tmp_path: Path) -> None:
    files = {
        "memory.current": "800\n",
        f"{POD}/memory.max": "max\n", f"{POD}/memory.current": "90\n",
        f"{OWN}/memory.max": "max\n",
    }  # fmt: skip
    assert control_groups.memory(*tree(tmp_path, f"0::/{OWN}", files)) == Usage(None, 90, seen=True)


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        # The node's path, with this container's own group mounted alone; one above a namespace.
        (f"0::/{OWN}", ""),
        ("0::/../../c1", ""),
        ("12:cpu:/a\n7:devices,memory:/a/b\n0::/", "memory/a/b/"),
        ("12:cpu:/a\nnonsense\n7:memory:/a/b", "memory/"),
    ],
)
def test_the_groups_of_a_process_are_found(tmp_path: Path, line: str, folder: str) -> None:
    files = {f"{folder}memory.max": "30\n", f"{folder}memory.current": "7\n"}
    assert control_groups.memory(*tree(tmp_path, line, files)) == Usage(30, 7, seen=True)


def test_a_group_outside_of_what_is_mounted_is_not_read(tmp_path: Path) -> None:
    groups, proc = tree(tmp_path, "0::/../c1", {})
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1/memory.max").write_text("1\n")
    assert control_groups.memory(groups, proc) == Usage()


def test_another_controllers_group_is_not_asked(tmp_path: Path) -> None:
    files = {"memory/a/memory.limit_in_bytes": "5\n"}
    assert control_groups.memory(*tree(tmp_path, "3:memoryx,cpu:/a", files)) == Usage()


def test_without_any_group_nothing_is_known(tmp_path: Path) -> None:
    assert control_groups.memory(tmp_path, tmp_path) == Usage(None, 0, seen=False)
    assert control_groups.kills(tmp_path, tmp_path) == 0


@pytest.mark.parametrize(
    ("stat", "used"),
    [
        ("inactive_file 10\n", 90),
        # Version 1 has one row for the group itself and one with what is below it.
        ("inactive_file 10\ntotal_inactive_file 30\n", 70),
        ("inactive_file 1000\n", 0),
        ("anon 5\nodd\nrow of many words\n", 100),
    ],
)
def test_the_cache_that_goes_first_is_not_in_use(tmp_path: Path, stat: str, used: int) -> None:
    files = {"memory.current": "100\n", "memory.max": "200\n", "memory.stat": stat}
    where = tree(tmp_path, "0::/", files)
    assert control_groups.memory(*where) == Usage(200, used, seen=True)


@pytest.mark.parametrize("limit", [(1 << 60) - 1, 1 << 60, 9223372036854771712])
def test_a_limit_that_no_machine_has_is_none(tmp_path: Path, limit: int) -> None:
    files = {"memory/memory.limit_in_bytes": f"{limit}\n", "memory/memory.usage_in_bytes": "5\n"}
    found = control_groups.memory(*tree(tmp_path, "4:memory:/", files))
    assert found == Usage(limit if limit < 1 << 60 else None, 5, seen=True)


def test_a_limit_counts_though_its_use_can_not_be_read(tmp_path: Path) -> None:
    assert control_groups.memory(*tree(tmp_path, "0::/", {"memory.max": "5\n"})) == Usage(
        5, 0, seen=True
    )


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({f"{OWN}/memory.events": "oom 3\noom_kill 2\n", "memory.events": "oom_kill 9\n"}, 2),
        ({f"{OWN}/memory.events": "oom 3\n", "memory.oom_control": "oom_kill 4\n"}, 4),
        ({"memory.events": "oom_kill many\n"}, 0),
    ],
)
def test_kills_are_those_of_the_nearest_group_that_counts(
    tmp_path: Path, files: dict[str, str], count: int
) -> None:
    assert control_groups.kills(*tree(tmp_path, f"0::/{OWN}", files)) == count


def test_a_limit_is_named_as_the_cause_where_the_kernel_killed_for_it(tmp_path: Path) -> None:
    files = {"memory.max": f"{1 << 30}\n", "memory.events": "oom_kill 1\n"}
    where = tree(tmp_path, "0::/", files)
    message = "this container's memory limit, 1 GiB, was reached (oom_kill 1)"
    assert control_groups.used_up(0, *where) == message
    assert control_groups.used_up(1, *where) == ""  # it was before
    (where[0] / "memory.events").write_text("oom_kill 0\n")
    assert control_groups.used_up(0, *where) == ""


def test_what_is_no_text_is_passed_over(tmp_path: Path) -> None:
    groups, proc = tree(tmp_path, "0::/", {})
    for name in ("memory.max", "memory.events", "memory.stat"):
        (groups / name).write_bytes(b"\xff\xfe")
    assert control_groups.memory(groups, proc) == Usage()
    assert control_groups.kills(groups, proc) == 0


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "max 100000\n"}, 0.0),
        ({f"{POD}/cpu.max": "400000 100000\n", f"{OWN}/cpu.max": "150000 100000\n"}, 1.5),
        ({f"{POD}/cpu.max": "400000 100000\n", f"{OWN}/cpu.max": "max 100000\n"}, 4.0),
        ({"cpu.max": "nonsense\n"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_time_of_how_many_cpus_a_process_may_use(
    tmp_path: Path, files: dict[str, str], quota: float
) -> None:
    assert control_groups.cpu_quota(*tree(tmp_path, f"0::/{OWN}", files)) == quota


@pytest.mark.parametrize(("limit", "quota"), [("200000", 2.0), ("-1", 0.0)])
def test_the_same_of_version_1(tmp_path: Path, limit: str, quota: float) -> None:
    files = {f"cpu/{OWN}/cpu.cfs_quota_us": limit, f"cpu/{OWN}/cpu.cfs_period_us": "100000"}
    assert control_groups.cpu_quota(*tree(tmp_path, f"4:cpu,cpuacct:/{OWN}", files)) == quota
