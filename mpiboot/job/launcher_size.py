"""Whether the launcher's pod has room for its hosts: what they will need, against its limits. Pure.

Kubernetes ends a container that needs more memory than its limit, and a process that can't be
forked or a file that can't be opened fails somewhere in mpirun, with no word of the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mpiboot.core.model import Decision, Finding, Level, Source, SshKind
from mpiboot.core.setting_types import LaunchAgent
from mpiboot.core.wording import size_of

_MIB: Final = 1 << 20
CHECK: Final = "launcher-limits"
# A recommendation has so much more than what was measured, in steps that are easily written.
_SPARE: Final = 1.25
_MEMORY_STEP: Final = 256
_STEP: Final = 256


@dataclass(frozen=True, slots=True)
class LauncherLimits:
    """What this pod may use; None where nothing bounds it, or the bound can't be seen.

    ``memory`` and ``processes`` (its control group's) are of the whole container, with what is in
    use of them already, ``memory`` in bytes without what the kernel can take back at once.
    ``user_processes`` are those that this user may have (RLIMIT_NPROC), None for root, who is not
    bound by it. ``open_files`` are those of one process (RLIMIT_NOFILE): the soft limit with which
    mpirun would start, and the hard one.
    """

    memory: int | None = None
    memory_used: int = 0
    processes: int | None = None
    processes_used: int = 0
    user_processes: int | None = None
    user_processes_used: int = 0
    open_files: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True, slots=True)
class Need:
    """What one way to the hosts needs: so much at all, and so much more for each host.

    ``memory`` in KiB, of all processes but mpirun; ``processes`` of the whole launcher; ``files``
    of the process that has most of them.
    """

    memory: tuple[int, int]
    processes: tuple[int, int]
    files: tuple[int, int]


# Measured by `scripts/bench/scale` with 16, 64, 256 and 1,000 hosts, rounded up.
NEEDS: Final = {
    SshKind.OPENSSH.value: Need((96 << 10, 1600), (16, 2), (64, 3)),
    SshKind.EMBEDDED.value: Need((96 << 10, 256), (16, 1), (64, 5)),
    # kubectl 1.32 by itself, waiting for an API server without TLS: 34 MiB that all of them share,
    # and 13 MiB each, rounded up for what was not there. Its threads count as processes.
    LaunchAgent.KUBECTL.value: Need((136 << 10, 18 << 10), (16, 10), (64, 3)),
}
# mpirun itself, KiB, and what it has of each host.
MPIRUN: Final = (16 << 10, 32)


def need(way: str, hosts: int) -> tuple[int, int, int]:
    """Give bytes of memory, processes and open files that so many hosts need."""
    row = NEEDS.get(way, NEEDS[SshKind.OPENSSH.value])
    memory = row.memory[0] + MPIRUN[0] + hosts * (row.memory[1] + MPIRUN[1])
    processes, files = (first + hosts * each for first, each in (row.processes, row.files))
    return memory << 10, processes, files


def recommended(way: str, hosts: int) -> int:
    """Give the MiB of memory that a launcher's limit should have for so many hosts."""
    return _rounded(need(way, hosts)[0] * _SPARE / _MIB, _MEMORY_STEP)


def findings(limits: LauncherLimits, way: str, hosts: int) -> tuple[Finding, ...]:
    """Compare what hosts need with what this pod has; each limit that is too small is a warning.

    Args:
        limits: this pod's.
        way: what the launch agents use, as ``NEEDS`` has it; another counts as ssh.
        hosts: how many have an agent.
    """
    if not hosts:
        return ()
    memory, processes, files = need(way, hosts)
    first = NEEDS.get(way, NEEDS[SshKind.OPENSSH.value])
    # What is here already is a part of the constant, unless the user runs more beside it.
    memory += max(0, limits.memory_used - (first.memory[0] << 10))
    found = []
    if limits.memory is not None and memory > limits.memory:
        asked = _rounded(memory * _SPARE / _MIB, _MEMORY_STEP)
        found.append(
            _warn(
                f"{_hosts(hosts)} about {size_of(memory)} of memory here, and the launcher's limit "
                f"is {size_of(limits.memory)}: the kernel may end the job",
                f"set resources.limits.memory: {asked}Mi in the launcher's container",
            )
        )
    more = max(0, limits.processes_used - first.processes[0])
    if limits.processes is not None and processes + more > limits.processes:
        asked = _rounded((processes + more) * _SPARE, _STEP)
        found.append(
            _warn(
                f"{_hosts(hosts)} about {processes + more} processes here, and this pod may have "
                f"{limits.processes} (pids.max): mpirun may not start some daemons",
                f"let the launcher's node give its pods {asked} processes (podPidsLimit of its "
                "kubelet)",
            )
        )
    more = limits.user_processes_used
    if limits.user_processes is not None and processes + more > limits.user_processes:
        asked = _rounded((processes + more) * _SPARE, _STEP)
        found.append(
            _warn(
                f"{_hosts(hosts)} about {processes} processes here, and this user, who has {more} "
                f"in this pod, may have {limits.user_processes} (ulimit -u): mpirun may not start "
                "some daemons",
                f"give the container runtime a LimitNPROC of {asked} or more",
            )
        )
    hard = limits.open_files[1]
    if hard is not None and files > hard:
        asked = _rounded(files * _SPARE, _STEP)
        found.append(
            _warn(
                f"{_hosts(hosts)} about {files} open files in one process, and this pod's hard "
                f"limit is {hard} (ulimit -Hn): mpirun may not start some daemons",
                f"give the container runtime a LimitNOFILE of {asked} or more",
            )
        )
    return tuple(found)


def open_files(limits: LauncherLimits, way: str, hosts: int) -> Decision | None:
    """Decide with how many open files mpirun and its parent start; None: the limit stays.

    The soft limit is raised as far as the hosts need it and no further: old programs close every
    number below it one by one.
    """
    soft, hard = limits.open_files
    files = need(way, hosts)[2]
    if not hosts or soft is None or files <= soft:
        return None
    wanted = _rounded(files * _SPARE, _STEP)
    wanted = wanted if hard is None else min(hard, wanted)
    if wanted <= soft:
        return None
    because = f"{hosts} hosts need about {files} in one process, and the soft limit was {soft}"
    return Decision("open-files", str(wanted), Source.DETECTED, because)


def _hosts(count: int) -> str:
    return "1 host needs" if count == 1 else f"{count:,} hosts need"


def _rounded(number: float, step: int) -> int:
    return -(-int(number) // step) * step


def _warn(said: str, hint: str) -> Finding:
    return Finding(CHECK, Level.WARN, said, hint=hint)
