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


IN_USE = {"memory.current": "100\n", "memory.max": "200\n"}
V1 = {"memory/memory.usage_in_bytes": "5\n"}
# The line of /proc/self/cgroup, the groups' files, and what is read.
MEMORY = {
    "the lowest limit, and its use": (
        f"0::/{OWN}",
        {
            "memory.max": "900\n", "memory.current": "800\n",
            f"{POD}/memory.max": "500\n", f"{POD}/memory.current": "90\n",
            f"{OWN}/memory.max": "700\n", f"{OWN}/memory.current": "50\n",
        },
        Usage(500, 90, seen=True),
    ),
    "without a limit the nearest group": (
        f"0::/{OWN}",
        {
            "memory.current": "800\n",
            f"{POD}/memory.max": "max\n", f"{POD}/memory.current": "90\n",
            f"{OWN}/memory.max": "max\n",
        },
        Usage(None, 90, seen=True),
    ),
    "the node's path, with the container's group mounted alone": (
        *(f"0::/{OWN}", IN_USE, Usage(200, 100, seen=True)),
    ),
    "a path above a namespace": ("0::/../../c1", IN_USE, Usage(200, 100, seen=True)),
    "version 1 among others": (
        "12:cpu:/a\n7:devices,memory:/a/b\n0::/",
        {"memory/a/b/memory.limit_in_bytes": "30\n", "memory/a/b/memory.usage_in_bytes": "7\n"},
        Usage(30, 7, seen=True),
    ),
    "version 1 without its path": (
        "12:cpu:/a\nnonsense\n7:memory:/a/b",
        {"memory/memory.limit_in_bytes": "30\n", **V1},
        Usage(30, 5, seen=True),
    ),
    "another controller's group": (
        *("3:memoryx,cpu:/a", {"memory/a/memory.limit_in_bytes": "5\n"}, Usage()),
    ),
    "the cache that goes first": (
        *("0::/", {**IN_USE, "memory.stat": "inactive_file 10\n"}, Usage(200, 90, seen=True)),
    ),
    # Version 1 has one row for the group itself and one with what is below it.
    "the cache of version 1": (
        "0::/",
        {**IN_USE, "memory.stat": "inactive_file 10\ntotal_inactive_file 30\n"},
        Usage(200, 70, seen=True),
    ),
    "more cache than use": (
        *("0::/", {**IN_USE, "memory.stat": "inactive_file 1000\n"}, Usage(200, 0, seen=True)),
    ),
    "odd rows": (
        "0::/",
        {**IN_USE, "memory.stat": "anon 5\nodd\nrow of many words\n"},
        Usage(200, 100, seen=True),
    ),
    "the largest limit": (
        "4:memory:/",
        {"memory/memory.limit_in_bytes": f"{(1 << 60) - 1}\n", **V1},
        Usage((1 << 60) - 1, 5, seen=True),
    ),
    "a limit that no machine has": (
        "4:memory:/",
        {"memory/memory.limit_in_bytes": "9223372036854771712\n", **V1},
        Usage(None, 5, seen=True),
    ),
    "a limit whose use can't be read": ("0::/", {"memory.max": "5\n"}, Usage(5, 0, seen=True)),
}  # fmt: skip


@pytest.mark.parametrize(("line", "files", "usage"), MEMORY.values(), ids=MEMORY)
def test_the_memory_of_a_process(
    tmp_path: Path, line: str, files: dict[str, str], usage: Usage
) -> None:
    assert control_groups.memory(*tree(tmp_path, line, files)) == usage


def test_a_group_outside_of_what_is_mounted_is_not_read(tmp_path: Path) -> None:
    groups, proc = tree(tmp_path, "0::/../c1", {})
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1/memory.max").write_text("1\n")
    assert control_groups.memory(groups, proc) == Usage()


def test_without_any_group_nothing_is_known(tmp_path: Path) -> None:
    assert control_groups.memory(tmp_path, tmp_path) == Usage(None, 0, seen=False)
    assert control_groups.kills(tmp_path, tmp_path) == 0


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


def test_what_is_no_text_is_passed_over(tmp_path: Path) -> None:
    groups, proc = tree(tmp_path, "0::/", {})
    for name in ("memory.max", "memory.events", "memory.stat"):
        (groups / name).write_bytes(b"\xff\xfe")
    assert control_groups.memory(groups, proc) == Usage()
    assert control_groups.kills(groups, proc) == 0


V1_CPU = f"4:cpu,cpuacct:/{OWN}"
V1_PERIOD = {f"cpu/{OWN}/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("line", "files", "quota"),
    [
        ("", {"cpu.max": "max 100000\n"}, 0.0),
        ("", {f"{POD}/cpu.max": "400000 100000\n", f"{OWN}/cpu.max": "150000 100000\n"}, 1.5),
        ("", {f"{POD}/cpu.max": "400000 100000\n", f"{OWN}/cpu.max": "max 100000\n"}, 4.0),
        ("", {"cpu.max": "nonsense\n"}, 0.0),
        ("", {}, 0.0),
        (V1_CPU, {f"cpu/{OWN}/cpu.cfs_quota_us": "200000", **V1_PERIOD}, 2.0),
        (V1_CPU, {f"cpu/{OWN}/cpu.cfs_quota_us": "-1", **V1_PERIOD}, 0.0),
    ],
)
def test_the_time_of_how_many_cpus_a_process_may_use(
    tmp_path: Path, line: str, files: dict[str, str], quota: float
) -> None:
    assert control_groups.cpu_quota(*tree(tmp_path, line or f"0::/{OWN}", files)) == quota
