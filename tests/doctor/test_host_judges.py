"""Hosts judged beside each other: each outcome, by values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.facts import Link, NoFacts, Worker
from mpiboot.core.model import Finding, Level
from mpiboot.doctor import job
from mpiboot.doctor.job import HostReport
from tests.fakes import plans

OK, WARN = Level.OK, Level.WARN
SESSION = {
    "uid": "0",
    "locked memory": "unlimited",
    "open files": "1048576",
    "processes": "unlimited",
}
WORKERS = plans.observed(listed=plans.hosts(1, 1, 1, 1, domain="")).workers
BARE = replace(WORKERS[0], facts=None)
ALIKE = HostReport("", WORKERS[0], session=SESSION)
ALL_ALIKE = "ok -: 4 hosts have the same limits and links"


def reports(count: int = 4, **each: HostReport) -> tuple[HostReport, ...]:
    """Hosts that are alike, and those given by name (``w_1``) in place of theirs."""
    return tuple(
        replace(each.get(f"w_{n}", replace(ALIKE, worker=WORKERS[n])), host=f"w-{n}")
        for n in range(count)
    )


def with_session(changed: dict[str, str]) -> HostReport:
    return replace(ALIKE, session={**SESSION, **changed})


def with_links(worker: Worker, *links: Link) -> HostReport:
    assert worker.facts is not None
    every = (*worker.facts.links, *links)
    return replace(ALIKE, worker=replace(worker, facts=replace(worker.facts, links=every)))


def shown(found: Iterable[Finding]) -> list[str]:
    return [
        f"{item.level.value} {','.join(item.hosts) or item.host or '-'}: {item.message}"
        for item in found
    ]


def differing(**each: HostReport) -> list[str]:
    return shown(job.differ(reports(4, **each)))


def test_hosts_that_are_alike() -> None:
    assert differing() == [ALL_ALIKE]
    assert shown(job.differ(reports(1))) == []
    assert shown(job.differ((HostReport("gone"), HostReport("gone too")))) == []


def test_a_host_that_differs_is_named_with_its_value_and_what_mends_it() -> None:
    (found,) = job.differ(reports(4, w_2=with_session({"open files": "1024"})))
    assert shown([found]) == ["warn w-2: open files of a session: 1024; the others (3): 1048576"]
    assert "LimitNOFILE" in found.hint
    small, none = (with_session({"locked memory": value}) for value in ("65536", "0"))
    assert differing(w_1=small, w_2=none, w_3=small) == [
        "warn w-0: locked memory of a session: unlimited; the others (2): 65536",
        "warn w-2: locked memory of a session: 0; the others (2): 65536",
    ]


def test_another_mpiboot_or_none_differs() -> None:
    assert WORKERS[0].facts is not None
    newer = replace(WORKERS[0], facts=replace(WORKERS[0].facts, mpiboot="9"))
    workers = (WORKERS[0], newer, replace(BARE, no_facts=NoFacts.UNREADABLE), BARE)
    each = {f"w_{n}": replace(ALIKE, worker=worker) for n, worker in enumerate(workers)}
    assert differing(**each) == [
        f"warn w-{n}: version of mpiboot: {version}; the others (1): 0"
        for n, version in ((1, "9"), (2, "another"), (3, "none"))
    ]


NET1 = Link(7, "net1", "macvlan", up=True, mtu=9000, addresses=())


@pytest.mark.parametrize(
    ("second", "found"),
    [
        (with_links(WORKERS[1], NET1), ALL_ALIKE),
        (
            with_links(WORKERS[1], replace(NET1, mtu=1500)),
            "warn w-1: link net1: MTU 1500; the others (3): MTU 9000",
        ),
        (with_links(WORKERS[1]), "warn w-1: link net1: none; the others (3): MTU 9000"),
        (with_links(WORKERS[1], NET1, replace(NET1, index=8, name="cali7")), ALL_ALIKE),
        (  # a host without facts lacks none
            replace(ALIKE, worker=replace(BARE, no_facts=NoFacts.PENDING)),
            "warn w-1: version of mpiboot: another; the others (3): 0",
        ),
    ],
)
def test_all_links_but_the_control_link_are_compared(second: HostReport, found: str) -> None:
    usual = {f"w_{n}": with_links(WORKERS[n], NET1) for n in range(4)}
    assert differing(**{**usual, "w_1": second}) == [found]


def test_of_whom_the_own_checks_are_not_known() -> None:
    checked = replace(ALIKE, checks=())
    given = reports(4, w_0=checked, w_1=replace(ALIKE, worker=BARE), w_3=HostReport(""))
    message = "its limits, files and devices were not checked from within"
    assert shown(job.own_checks(given)) == [
        f"unknown w-1: {message}: it does not run mpiboot",
        f"unknown w-2: {message}: its mpiboot has no checks for a launcher, or they took too long",
    ]


def test_a_workers_own_checks_are_read() -> None:
    item = {"level": "warn", "message": "full", "host": "pod", "hint": "fix", "hosts": []}
    known = {**item, "group": "limits", "evidence": ["a"], "later": 1}
    found = [{**known, "check": check} for check in ("shm-full", "no-such")]  # of a later mpiboot
    text = json.dumps({"version": 1, "findings": found, "session": {"uid": "0", "later": 1}})
    report = job.with_doctor(HostReport("w-0.job"), text)
    assert report.checks == (
        Finding("shm-full", WARN, "full", "w-0.job", ("a",), "fix"),
        Finding("worker-checks", WARN, "no-such: full", "w-0.job", ("a",), "fix"),
    )
    assert report.session == {"uid": "0", "later": "1"}
    for broken in ("", "{", "[]", '{"findings": 1}', '{"findings": [{"check": 1}]}'):
        assert job.with_doctor(HostReport("w-0"), broken) == HostReport("w-0")


def test_what_several_hosts_find_is_said_once() -> None:
    found = [
        *(Finding("shm-full", OK, "0 of 64 MiB", f"w-{n}") for n in range(3)),
        Finding("memory-limit", OK, "1 MiB", "w-0"),
        Finding("memory-limit", OK, "2 MiB", "w-1"),
        Finding("shm-full", WARN, "full", "w-3", hint="fix"),
    ]
    alike = Finding("shm-full", OK, "0 of 64 MiB", hosts=("w-0", "w-1", "w-2"))
    assert job.merged(found) == [alike, *found[3:]]


def test_of_very_many_hosts_what_is_well_is_told_by_the_checks_title() -> None:
    names = [f"w-{number}" for number in range(17)]
    found = [Finding("memory-limit", OK, f"{name} MiB", name) for name in names]
    bad = [Finding("memory-limit", WARN, f"{name} MiB", name) for name in names[:2]]
    title = BY_REFERENCE["memory-limit"].title
    all_well = Finding("memory-limit", OK, title, hosts=tuple(names))
    assert job.merged([*found, *bad]) == [all_well, *bad]
    assert job.merged(found[:16]) == found[:16]
    same = [Finding("shm-full", OK, "same", name) for name in names]
    assert job.merged(same) == [Finding("shm-full", OK, "same", hosts=tuple(names))]
