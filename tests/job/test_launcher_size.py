"""Whether the launcher's pod has room for its hosts: each limit, by values."""

from __future__ import annotations

import pytest

from mpiboot.core.model import Level
from mpiboot.job import pods
from mpiboot.job.plan_builder import LauncherLimits
from mpiboot.job.pods import NEEDS

MIB = 1 << 20
SSH, OWN = "openssh", "embedded"


def message(limits: LauncherLimits, hosts: int, way: str = SSH) -> list[tuple[str, str]]:
    found = pods.limit_findings(limits, way, hosts)
    assert {item.check for item in found} <= {"launcher-limits"}
    assert {item.level for item in found} <= {Level.WARN}
    return [(item.message, item.hint) for item in found]


def needs(hosts: int, way: str = SSH) -> tuple[int, int, int]:
    return pods.launcher_need(way, hosts)


def test_the_need_grows_with_each_host() -> None:
    row, mpirun = NEEDS[SSH], pods.MPIRUN
    assert needs(0) == (row.memory[0] + mpirun[0] << 10, row.processes[0], row.files[0])
    one, two = needs(1), needs(2)
    more = (row.memory[1] + mpirun[1] << 10, row.processes[1], row.files[1])
    assert tuple(b - a for a, b in zip(one, two, strict=True)) == more
    assert needs(5, "a user's own") == needs(5, SSH)
    assert needs(1000, OWN)[0] < needs(1000)[0]
    assert needs(1000, OWN)[2] > needs(1000)[2]


def test_enough_room_or_none_that_is_known_says_nothing() -> None:
    memory, processes, files = needs(1000)
    assert message(LauncherLimits(), 1000) == []
    fits = LauncherLimits(
        memory, 0, processes, 0, user_processes=processes, open_files=(1024, files)
    )
    assert message(fits, 1000) == []
    assert len(message(fits, 1001)) == 4
    assert message(LauncherLimits(memory=1), 0) == []


def test_memory_is_told_with_the_number_for_the_pods_spec() -> None:
    memory = needs(1000)[0]
    ((what, hint),) = message(LauncherLimits(memory=512 * MIB, memory_used=40 * MIB), 1000)
    assert what == (
        f"1,000 hosts need about {memory / 2**30:.4g} GiB of memory here, and the launcher's limit "
        "is 512 MiB: the kernel may end the job"
    )
    asked = int(hint.split("memory: ")[1].split("Mi")[0])
    assert hint == f"set resources.limits.memory: {asked}Mi in the launcher's container"
    assert asked % 256 == 0
    assert 1.25 * memory <= asked * MIB < 1.25 * memory + 256 * MIB


def test_what_runs_beside_mpiboot_needs_memory_and_processes_too() -> None:
    memory, processes, _ = needs(100)
    first = NEEDS[SSH]
    alone = LauncherLimits(memory, first.memory[0] << 10, processes, first.processes[0])
    assert message(alone, 100) == []
    beside = LauncherLimits(memory, (first.memory[0] << 10) + MIB, processes + 4, 26)
    (memory_said, _), (processes_said, hint) = message(beside, 100)
    assert memory_said.startswith(f"100 hosts need about {(memory + MIB) / MIB:.4g} MiB")
    wanted = processes + 26 - first.processes[0]
    assert processes_said == (
        f"100 hosts need about {wanted} processes here, and this pod may have {processes + 4} "
        "(pids.max): mpirun may not start some daemons"
    )
    assert hint == (
        "let the launcher's node give its pods 512 processes (podPidsLimit of its kubelet)"
    )


def test_a_users_limit_counts_what_the_user_runs() -> None:
    processes = needs(1)[1]
    assert message(LauncherLimits(user_processes=processes + 7, user_processes_used=7), 1) == []
    ((what, hint),) = message(
        LauncherLimits(user_processes=processes + 6, user_processes_used=7), 1
    )
    assert what == (
        f"1 host needs about {processes} processes here, and this user, who has 7 in this pod, may "
        f"have {processes + 6} (ulimit -u): mpirun may not start some daemons"
    )
    assert hint == "give the container runtime a LimitNPROC of 256 or more"


def test_only_a_hard_limit_of_open_files_can_be_too_small() -> None:
    files = needs(100)[2]
    assert message(LauncherLimits(open_files=(16, files)), 100) == []
    assert message(LauncherLimits(open_files=(16, None)), 100) == []
    ((what, hint),) = message(LauncherLimits(open_files=(16, 128)), 100)
    assert what == (
        f"100 hosts need about {files} open files in one process, and this pod's hard limit is 128 "
        "(ulimit -Hn): mpirun may not start some daemons"
    )
    assert hint == "give the container runtime a LimitNOFILE of 512 or more"


@pytest.mark.parametrize(
    ("limits", "value"),
    [
        ((None, None), ""),
        ((100_000, 100_000), ""),
        ((needs(1000)[2], None), ""),
        ((1024, 1024), ""),
        ((1024, 2048), "2048"),
        ((1024, 4096), "3840"),
        ((1024, None), "3840"),
    ],
)
def test_the_soft_limit_of_open_files_is_raised_as_far_as_needed(
    limits: tuple[int | None, int | None], value: str
) -> None:
    made = pods.open_files(LauncherLimits(open_files=limits), SSH, 1000)
    assert (made.value if made else "") == value
    if made:
        assert made.name == "open-files"
        assert made.reason == (
            "1000 hosts need about 3064 in one process, and the soft limit was 1024"
        )
    assert pods.open_files(LauncherLimits(open_files=(1, 100)), SSH, 0) is None
