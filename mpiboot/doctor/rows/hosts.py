"""The rows of a job's hosts beside each other, as a launcher judges them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mpiboot.core.model import Finding, Level
from mpiboot.doctor.host_report import HostReport, LauncherPlace
from mpiboot.doctor.judge import hosts, paths
from mpiboot.network.paths import PathSeen

_OK, _WARN, _FAIL, _UNKNOWN = Level.OK, Level.WARN, Level.FAIL, Level.UNKNOWN


@dataclass(frozen=True, slots=True)
class HostsCheck:
    """A check of all hosts together; ``judge`` gets what is known of each of them.

    A reference may have a row of one pod too; ``outcomes`` say what each level means here.
    """

    reference: str
    looks_at: str
    judge: hosts.Judge
    outcomes: Mapping[Level, str]


@dataclass(frozen=True, slots=True)
class MeasuredCheck:
    """A check of the ways between hosts that were measured; as ``HostsCheck``."""

    reference: str
    looks_at: str
    judge: Callable[[Sequence[PathSeen]], Iterable[Finding]]
    outcomes: Mapping[Level, str]


ROWS: Final = (
    HostsCheck(
        "hosts-missing",
        "which names have an address, and which never had one",
        hosts.missing,
        {_FAIL: "some have one and others none: their pods were never scheduled"},
    ),
    HostsCheck(
        "name-answers",
        "three answers for each name: addresses, IP versions, the search name, how long it took",
        hosts.names,
        {
            _OK: "the same each time, and soon",
            _WARN: "they change, take longer, or are of another IP version than the others'",
        },
    ),
    HostsCheck(
        "ssh-denied",
        "the key that was let in, and the host key that was shown",
        hosts.keys,
        {_OK: "it was let in", _FAIL: "it was refused"},
    ),
    HostsCheck(
        "launcher-unreached",
        "a TCP connection from each host to the launcher's control address, at a port that the "
        "kernel chose and at one of MPIBOOT_PORT_RANGE; the launcher's name there",
        hosts.launcher,
        {
            _OK: "it comes through",
            _FAIL: "it does not, as with a NetworkPolicy that lets SSH out and nothing in",
            _UNKNOWN: "the host has no program that could try",
        },
    ),
    HostsCheck(
        "hosts-differ",
        "of each host, in a session without a terminal: mpiboot, uid, mpirun, MPI's daemon, "
        "memlock, open files, processes, GPUs, RDMA devices, MTU of each link",
        hosts.differ,
        {_OK: "all have the same", _WARN: "some have another value than most"},
    ),
    HostsCheck(
        "mpi-daemon",
        "orted, prted or hydra_pmi_proxy on PATH of a session, where mpiboot does not run",
        hosts.daemons,
        {_WARN: "there is none"},
    ),
    HostsCheck(
        "worker-checks",
        "what each worker's own `mpiboot doctor` says, over the same session",
        hosts.own_checks,
        {_UNKNOWN: "mpiboot does not run there, or is too old"},
    ),
)

# Of --network: from a worker to each other one, of more than six a ring with chords.
MEASURED: Final = (
    MeasuredCheck(
        "network-reach",
        "TCP connections between workers on the control link and on every data link",
        paths.reach,
        {_OK: "all come through", _FAIL: "some do not", _UNKNOWN: "there was no time for some"},
    ),
    MeasuredCheck(
        "path-mtu",
        "the largest UDP packet that comes through unbroken (DF), up to the links' MTU; without "
        "UDP, whether large TCP packets come through",
        paths.path_mtu,
        {
            _OK: "packets of the links' MTU come through",
            _FAIL: "the path carries less, and tells nobody: large messages hang",
            _UNKNOWN: "UDP gets no answer",
        },
    ),
    MeasuredCheck(
        "path-speed",
        "the quickest of five round trips, and one TCP stream of half a second and 64 MiB at most "
        "between neighbours; no other measurement runs on these two hosts meanwhile",
        paths.speed,
        {_OK: "the figures", _WARN: "a way is four times slower than the middle one"},
    ),
)


def judge(reports: Sequence[HostReport], place: LauncherPlace) -> Iterator[Finding]:
    """Judge all hosts by every row."""
    for row in ROWS:
        yield from row.judge(reports, place)


def judge_measured(seen: Sequence[PathSeen]) -> Iterator[Finding]:
    """Judge all ways by every row."""
    for row in MEASURED:
        yield from row.judge(seen)
