"""What records say of themselves, and how lengths of time are written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import GidType, Host, LinkLayer, NoFacts, PortState, Worker
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import lasting, took
from tests.fakes import plans


@pytest.mark.parametrize("word", [GidType, LinkLayer, PortState])
def test_a_word_that_is_not_known_here_reads_as_the_empty_one(
    word: type[GidType | LinkLayer | PortState],
) -> None:
    assert word("a newer kernel's word") is word("") is word.UNKNOWN
    assert [word(item.value) for item in word] == list(word)


def test_a_finding_is_of_this_pod_until_a_host_is_named() -> None:
    found = Finding("slots", Level.WARN, "odd")
    assert found.where == ""
    assert found.on(()) == found
    assert found.on(("w-0",)) == replace(found, host="w-0")
    assert found.on(("w-0",)).where == "w-0"
    several = found.on(("w-0",)).on(["w-0", "w-1"])
    assert several == replace(found, hosts=("w-0", "w-1"))
    assert several.where == "2 hosts (w-0, w-1)"


def test_whether_a_worker_runs_mpiboot_is_known_by_its_facts_or_their_lack() -> None:
    bare = Worker(Host("w-0"), "10.0.0.1", 22, "root", "10.0.0.9", None)
    lacks = {reason: replace(bare, no_facts=reason) for reason in NoFacts}
    runs = {reason for reason, worker in lacks.items() if worker.runs_mpiboot}
    assert runs == {NoFacts.PENDING, NoFacts.UNREADABLE}
    assert {reason for reason, worker in lacks.items() if worker.pending} == {NoFacts.PENDING}
    known = replace(bare, facts=plans.worker(Host("w-0"), 0, None).facts)
    assert (known.runs_mpiboot, known.pending) == (True, False)


def test_a_length_of_time_is_in_its_two_largest_units() -> None:
    times = (0, -3, 45.4, 60, 500, 3601, 2.6e6)
    assert " ".join(map(lasting, times)) == "0s 0s 45s 1m 8m20s 1h1s 30d2h"
    assert [took(seconds) for seconds in (0.24, 59, 60, 500)] == ["0.2 s", "59 s", "1m", "8m20s"]
