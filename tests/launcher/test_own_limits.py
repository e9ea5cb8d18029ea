"""What bounds this pod: files as the kernel writes them, both versions of control groups."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.job.plan_builder import LauncherLimits
from mpiboot.launcher import setup
from tests.fakes.plans import ROOT

UNLIMITED = str((1 << 63) - 4096)
USER = replace(ROOT, uid=1000, capabilities=0)


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def look(tmp_path: Path, cgroup: str) -> LauncherLimits:
    write(tmp_path / "proc/self", cgroup=cgroup)
    return setup.own_limits(ROOT, groups=tmp_path / "groups", proc=tmp_path / "proc")


def test_version_2_as_a_container_sees_its_own_group(tmp_path: Path) -> None:
    write(
        tmp_path / "groups",
        memory__max="536870912",
        memory__current="104857600",
        memory__stat="anon 1\ninactive_file 4857600\nactive_file 7",
        pids__max="1024",
        pids__current="7",
    )
    found = look(tmp_path, "0::/")
    assert (found.memory, found.memory_used) == (536870912, 100_000_000)
    assert (found.processes, found.processes_used) == (1024, 7)


def test_the_lowest_limit_of_a_hierarchy_counts(tmp_path: Path) -> None:
    pod = tmp_path / "groups/kubepods/pod1"
    write(pod.parent, memory__max="1000", memory__current="3", pids__max="50", pids__current="5")
    write(pod, memory__max="400", memory__current="2", pids__max="max", pids__current="4")
    write(pod / "box", memory__max="max", memory__current="1", pids__max="70", pids__current="3")
    found = look(tmp_path, "0::/kubepods/pod1/box")
    assert (found.memory, found.memory_used) == (400, 2)
    assert (found.processes, found.processes_used) == (50, 5)


def test_version_1_has_a_tree_for_each_controller(tmp_path: Path) -> None:
    memory = tmp_path / "groups/memory"
    write(memory / "a", memory__limit_in_bytes=UNLIMITED, memory__usage_in_bytes="9")
    write(
        memory,
        memory__limit_in_bytes="900",
        memory__usage_in_bytes="100",
        memory__stat="inactive_file 1\ntotal_inactive_file 30",
    )
    # A container's own group is its mount, though its path is the node's.
    write(tmp_path / "groups/pids", pids__max="64", pids__current="60")
    found = look(tmp_path, "4:memory:/a\n3:cpu,cpuacct:/x\n2:pids:/kubepods/pod1\n0::/")
    assert (found.memory, found.memory_used) == (900, 70)
    assert (found.processes, found.processes_used) == (64, 60)


@pytest.mark.parametrize("cgroup", ["", "0::/", "0::/../../x", "4:memory:/\n2:pids:/"])
def test_what_is_not_there_bounds_nothing(tmp_path: Path, cgroup: str) -> None:
    write(tmp_path / "groups", memory__max="max", memory__current="10", pids__max="max")
    found = look(tmp_path, cgroup)
    assert (found.memory, found.processes) == (None, None)


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    found = setup.own_limits(ROOT, groups=tmp_path, proc=tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = tuple(None if item == resource.RLIM_INFINITY else item for item in limits)
    assert found == LauncherLimits(open_files=(files[0], files[1]))


def test_a_user_is_bound_by_a_number_of_processes_and_root_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {resource.RLIMIT_NOFILE: (10, resource.RLIM_INFINITY), resource.RLIMIT_NPROC: (5, 9)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    for pid, tasks in ((1, ("1",)), (2, ("2", "3"))):
        for task in tasks:
            (tmp_path / f"{pid}/task/{task}").mkdir(parents=True)
    who = replace(USER, uid=os.getuid() or 1000)
    if not os.getuid():
        for folder in (tmp_path / "1", tmp_path / "2"):
            os.chown(folder, 1000, 0)
    found = setup.own_limits(who, groups=tmp_path, proc=tmp_path)
    assert (found.user_processes, found.user_processes_used) == (9, 3)
    assert found.open_files == (10, None)
    for capability in (21, 24):
        free = replace(who, capabilities=1 << capability)
        found = setup.own_limits(free, groups=tmp_path, proc=tmp_path)
        assert (found.user_processes, found.user_processes_used) == (None, 0)
    assert setup.own_limits(ROOT, groups=tmp_path, proc=tmp_path).user_processes is None
