"""What a launcher's doctor has seen of one host: frozen values. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.model import Finding, Level, Worker
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.network.worker_pairs import WORDS, Reached


@dataclass(frozen=True, slots=True)
class NameLook:
    """What was said of a host's name when it was asked for several times.

    ``answers`` are the addresses of each time that had any; ``seconds`` is how long the first one
    took; ``found_as`` the absolute name that had them, empty where no nameserver was asked;
    ``unknown`` tells that the nameservers know no such name, or no address of it.
    """

    answers: tuple[tuple[str, ...], ...] = ()
    seconds: float = 0.0
    found_as: str = ""
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class OwnChecks:
    """What the worker's own doctor found there, and by which version of mpiboot."""

    mpiboot: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class HostReport:
    """One host of the hostfile; ``worker`` is None where it was not reached.

    ``values`` are what hosts are compared by, by their names in ``libexec/doctor_questions``;
    ``dials`` is how it went to connect to the launcher, by address or name and port; ``shown`` the
    fingerprint of the host key; ``checks`` is None where the host has no doctor of its own.
    """

    host: str
    worker: Worker | None = None
    name: NameLook | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    dials: Mapping[tuple[str, int], Reached] = field(default_factory=dict)
    shown: str = ""
    checks: OwnChecks | None = None


def own_checks(host: str, answer: HostAnswer) -> OwnChecks | None:
    """Read what a worker's doctor has printed; None where it has none, or where it is broken."""
    try:
        told = json.loads(answer.own_checks or "")
        return OwnChecks(
            str(told["mpiboot"]), tuple(_finding(host, item) for item in told["findings"])
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _finding(host: str, item: Mapping[str, Any]) -> Finding:
    check, said = str(item["check"]), str(item["said"])
    if check not in BY_REFERENCE:  # its mpiboot is a later one
        check, said = "worker-checks", f"{check}: {said}"
    evidence = tuple(map(str, item["evidence"]))
    return Finding(check, Level(item["level"]), said, host, evidence, str(item["hint"]))


def dials(answer: HostAnswer) -> dict[tuple[str, int], Reached]:
    """Read a host's tries to connect to the launcher, by address or name and port."""
    return {
        (address, int(port)): WORDS[how]
        for address, port, how in answer.dials
        if port.isdecimal() and how in WORDS
    }


@dataclass(frozen=True, slots=True)
class LauncherPlace:
    """Where hosts try to reach the launcher while they are looked at, and with which key it came.

    ``name`` is its host name; ``port`` one that the kernel chose, ``range_port`` one of
    ``port_range`` (0: no range is set, or none of it is free). A try takes ``seconds`` at most.
    """

    name: str = ""
    address: str = ""
    port: int = 0
    range_port: int = 0
    port_range: str = ""
    seconds: int = 4
    key: str = ""
