from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Host, Worker
from mpiboot.job import job_hosts

OWN, FIRST, SECOND = "l-c@2026-11-22T06:00:00Z@3", "l-a@2026-11-22T05:00:00Z@1", "l-b@@2"
WORKER = Worker(Host("w-0"), "10.0.0.1", 22, "root", "10.0.0.9", None)


def message(*seen: tuple[tuple[str, str], ...], own: str = OWN) -> str:
    found = job_hosts.earlier([replace(WORKER, attempts=item) for item in seen], own)
    return found.message if found else ""


@pytest.mark.parametrize(
    "seen", [(), ((),), (((OWN, ""),), ()), (((OWN, "mpirun in this script failed"),),)]
)
def test_a_first_attempt_is_not_told(seen: tuple[tuple[tuple[str, str], ...], ...]) -> None:
    assert message(*seen) == ""


def test_the_last_one_is_told_with_its_end() -> None:
    expected = "attempt 2; the last one (l-a of 2026-11-22T05:00:00Z) ended: host-lost: w-1"
    assert message(((FIRST, "host-lost: w-1"),)) == expected
    assert message(((FIRST, "host-lost: w-1"), (OWN, ""))) == expected


def test_a_worker_that_was_not_told_or_is_new_knows_less() -> None:
    long = ((FIRST, "no"), (SECOND, ""))
    assert message((), long, ((SECOND, "it was out of memory"),)) == (
        "attempt 3; the last one (l-b) ended: it was out of memory"
    )
    assert (
        message(long) == "attempt 3; the last one (l-b) did not say how it ended (killed, or lost)"
    )


def test_a_launcher_without_a_name_is_a_part_of_a_job() -> None:
    assert message(((FIRST, "no"),), own="") == ""
