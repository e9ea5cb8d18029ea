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


MEMORY, PROCESSES, FILES = needs(100)
FIRST = NEEDS[SSH]
LOST = "mpirun may not start some daemons"


@pytest.mark.parametrize(
    ("fits", "limits", "message_", "hint"),
    [
        (
            # What is there already is a part of the need; what runs beside it is not.
            LauncherLimits(MEMORY, FIRST.memory[0] << 10),
            LauncherLimits(MEMORY, (FIRST.memory[0] << 10) + MIB),
            (
                f"{(MEMORY + MIB) / MIB:.4g} MiB of memory here, and the launcher's limit is "
                f"{MEMORY / MIB:.4g} MiB: the kernel may end the job"
            ),
            "set resources.limits.memory: 512Mi in the launcher's container",
        ),
        (
            LauncherLimits(processes=PROCESSES, processes_used=FIRST.processes[0]),
            LauncherLimits(processes=PROCESSES, processes_used=FIRST.processes[0] + 1),
            f"{PROCESSES + 1} processes here, and this pod may have {PROCESSES} (pids.max): {LOST}",
            "let the launcher's node give its pods 512 processes (podPidsLimit of its kubelet)",
        ),
        (
            LauncherLimits(user_processes=PROCESSES + 7, user_processes_used=7),
            LauncherLimits(user_processes=PROCESSES + 6, user_processes_used=7),
            (
                f"{PROCESSES} processes here, and this user, who has 7 in this pod, may have "
                f"{PROCESSES + 6} (ulimit -u): {LOST}"
            ),
            "give the container runtime a LimitNPROC of 512 or more",
        ),
        (
            LauncherLimits(open_files=(16, FILES)),
            LauncherLimits(open_files=(16, 128)),
            (
                f"{FILES} open files in one process, and this pod's hard limit is 128 "
                f"(ulimit -Hn): {LOST}"
            ),
            "give the container runtime a LimitNOFILE of 512 or more",
        ),
    ],
)
def test_a_limit_that_is_too_small_is_told_with_what_to_set(
    fits: LauncherLimits, limits: LauncherLimits, message_: str, hint: str
) -> None:
    assert message(fits, 100) == message(LauncherLimits(open_files=(16, None)), 100) == []
    assert message(limits, 100) == [(f"100 hosts need about {message_}", hint)]
    ((what, _),) = message(LauncherLimits(memory=64 * MIB), 1)
    assert what.startswith("1 host needs about ")


def test_a_quarter_more_memory_is_asked_for_than_is_needed() -> None:
    memory = needs(1000)[0]
    ((what, hint),) = message(LauncherLimits(memory=512 * MIB), 1000)
    assert what.startswith(f"1,000 hosts need about {memory / 2**30:.4g} GiB of memory here")
    asked = int(hint.split("memory: ")[1].split("Mi")[0])
    assert asked % 256 == 0
    assert 1.25 * memory <= asked * MIB < 1.25 * memory + 256 * MIB


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
