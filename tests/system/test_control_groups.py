"""What a pod's control groups allow and what is in use, of trees as both versions make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.system import control_groups
from mpiboot.system.control_groups import Usage

POD, OWN = "kubepods/pod1", "kubepods/pod1/c1"


def tree(folder: Path, group: str, files: dict[str, str | bytes]) -> tuple[Path, Path]:
    """A file system of groups, and a /proc whose process is in ``group``."""
    for name, text in {"groups/x": "", "proc/self/cgroup": f"{group}\n", **files}.items():
        path = folder / (name if name.startswith("proc/") else f"groups/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "groups", folder / "proc"


NOW, MAX, STAT = "memory.current", "memory.max", "memory.stat"
V1_NOW, V1_MAX = "memory.usage_in_bytes", "memory.limit_in_bytes"
IN_USE = {NOW: "100\n", MAX: "200\n"}
V1 = {f"memory/{V1_NOW}": "5\n"}
V2_OWN = {f"{POD}/{NOW}": "90", f"{OWN}/{NOW}": "50", NOW: "800"}
V1_LARGE = {f"memory/{V1_MAX}": f"{(1 << 60) - 1}", **V1}
# The line of /proc/self/cgroup, the groups' files, and what is read: limit, use.
MEMORY: dict[str, tuple[str, dict[str, str | bytes], tuple[int | None, int] | None]] = {
    "the lowest limit, and its use": (
        f"0::/{OWN}",
        {**V2_OWN, MAX: "900", f"{POD}/{MAX}": "500", f"{OWN}/{MAX}": "700"},
        (500, 90),
    ),
    "without a limit the nearest group": (
        f"0::/{OWN}",
        {f"{POD}/{MAX}": "max", f"{POD}/{NOW}": "90", NOW: "800", f"{OWN}/{MAX}": "max"},
        (None, 90),
    ),
    "the node's path, the container's group mounted alone": (f"0::/{OWN}", {**IN_USE}, (200, 100)),
    "a path above a namespace": ("0::/../../c1", {**IN_USE}, (200, 100)),
    "version 1 among others": (
        "12:cpu:/a\n7:devices,memory:/a/b\n0::/",
        {f"memory/a/b/{V1_MAX}": "30\n", f"memory/a/b/{V1_NOW}": "7\n"},
        (30, 7),
    ),
    "version 1 without its path": (
        "12:cpu:/a\nnonsense\n7:memory:/a/b",
        {f"memory/{V1_MAX}": "30\n", **V1},
        (30, 5),
    ),
    "another controller's group": ("3:memoryx,cpu:/a", {f"memory/a/{V1_MAX}": "5\n"}, None),
    "the cache that goes first": ("0::/", {**IN_USE, STAT: "inactive_file 10\n"}, (200, 90)),
    # Version 1 has one row for the group itself and one with what is below it.
    "the cache of version 1": (
        "0::/",
        {**IN_USE, STAT: "inactive_file 10\ntotal_inactive_file 30\n"},
        (200, 70),
    ),
    "more cache than use": ("0::/", {**IN_USE, STAT: "inactive_file 1000\n"}, (200, 0)),
    "odd rows": ("0::/", {**IN_USE, STAT: "anon 5\nodd\nrow of many words\n"}, (200, 100)),
    "the largest limit": ("4:memory:/", {**V1_LARGE}, ((1 << 60) - 1, 5)),
    "a limit that no machine has": (
        "4:memory:/",
        {f"memory/{V1_MAX}": "9223372036854771712\n", **V1},
        (None, 5),
    ),
    "a limit whose use can't be read": ("0::/", {MAX: "5\n"}, (5, 0)),
    "outside of what is mounted": ("0::/../c1", {"../c1/memory.max": "1\n"}, None),
    "no text": ("0::/", dict.fromkeys((MAX, STAT, "memory.events"), b"\xff\xfe"), None),
}


@pytest.mark.parametrize(("line", "files", "found"), MEMORY.values(), ids=MEMORY)
def test_the_memory_of_a_process(
    tmp_path: Path,
    line: str,
    files: dict[str, str | bytes],
    found: tuple[int | None, int] | None,
) -> None:
    usage = Usage(*found, seen=True) if found else Usage(None, 0, seen=False)
    where = tree(tmp_path, line, files)
    assert control_groups.memory(*where) == usage
    assert control_groups.kills(*where) == 0
    assert control_groups.memory(tmp_path, tmp_path) == Usage(None, 0, seen=False)


V1_CPU = f"4:cpu,cpuacct:/{OWN}"
V1_QUOTA, V1_PERIOD = f"cpu/{OWN}/cpu.cfs_quota_us", {f"cpu/{OWN}/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("line", "files", "quota", "kills"),
    [
        ("", {"cpu.max": "max 100000\n"}, 0.0, 0),
        ("", {f"{POD}/cpu.max": "400000 100000\n", f"{OWN}/cpu.max": "150000 100000\n"}, 1.5, 0),
        ("", {f"{POD}/cpu.max": "400000 100000\n", f"{OWN}/cpu.max": "max 100000\n"}, 4.0, 0),
        ("", {"cpu.max": "nonsense\n"}, 0.0, 0),
        (V1_CPU, {V1_QUOTA: "200000", **V1_PERIOD}, 2.0, 0),
        (V1_CPU, {V1_QUOTA: "-1", **V1_PERIOD}, 0.0, 0),
        # The kills are those of the nearest group that counts them.
        ("", {f"{OWN}/memory.events": "a 3\noom_kill 2\n", "memory.events": "oom_kill 9"}, 0.0, 2),
        ("", {f"{OWN}/memory.events": "oom 3\n", "memory.oom_control": "oom_kill 4\n"}, 0.0, 4),
        ("", {"memory.events": "oom_kill many\n"}, 0.0, 0),
    ],
)
def test_the_cpus_and_the_memory_kills_of_a_process(
    tmp_path: Path, line: str, files: dict[str, str | bytes], quota: float, kills: int
) -> None:
    where = tree(tmp_path, line or f"0::/{OWN}", files)
    assert (control_groups.cpu_quota(*where), control_groups.kills(*where)) == (quota, kills)
