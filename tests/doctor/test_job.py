"""What doctor finds at a launcher's hosts: each, and beside each other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mpiboot.core.checks import BY_REFERENCE, error
from mpiboot.core.facts import HostAnswer, Link, NoFacts, Worker
from mpiboot.core.model import Finding, Level
from mpiboot.core.settings import resolve
from mpiboot.doctor import role
from mpiboot.doctor.role import HostReport
from mpiboot.hosts.gate import GateResult
from mpiboot.launcher import look
from mpiboot.launcher.prepare import Observation
from mpiboot.launcher.setup import LauncherPod
from mpiboot.network.worker_pairs import Dial, Reached
from mpiboot.system.keys import JobKey
from tests.fakes import plans


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What a look at the hosts returns; a test changes it."""
    observed = plans.observed(listed=plans.hosts(2, 2, 1), local=plans.hosts(2, 2, 1)[:1])
    made = SimpleNamespace(observed=observed, findings=(), dialled=(), raises=None)

    def looked(*_: object) -> tuple[Observation, LauncherPod]:
        if made.raises:
            raise made.raises
        seen = made.observed
        passed = GateResult(seen.workers, seen.local, {}, made.findings)
        pod = LauncherPod(
            *(resolve({}, {}), {}, plans.ROOT, tmp_path, 0.0),
            key=JobKey(tmp_path, "ssh-ed25519 AAAA"),
        )
        return Observation(seen, passed, cast("Any", None), made.dialled), pod

    monkeypatch.setattr(look, "look", looked)
    return made


def found_of_job() -> list[Finding]:
    return list(role.of_job(resolve({}, plans.POD), plans.POD))


def test_every_host_that_is_well_is_told_with_its_server_and_mpi(seen: SimpleNamespace) -> None:
    first, second = seen.observed.workers
    bare = replace(second, facts=None, mpi=plans.MPIS["openmpi5"])
    facts = replace(first.facts, sshd="embedded", mpi=None)
    workers = (replace(first, facts=facts), bare)
    seen.observed = replace(seen.observed, workers=workers)
    found = {
        (item.check, item.host): item.message
        for item in found_of_job()
        if item.level is Level.OK and item.check != "hosts-differ"
    }
    assert found == {
        ("hostfile-missing", ""): "the hostfile is /etc/mpi/hostfile, named by default",
        ("hostfile-invalid", ""): "3 hosts",
        ("names-unresolved", "w-0.job.ns.svc"): "this pod itself",
        ("workers-unreachable", "w-1.job.ns.svc"): "10.244.0.11 port 22, embedded, no mpirun",
        ("workers-unreachable", "w-2.job.ns.svc"): (
            "10.244.0.12 port 22, sshd, mpirun (Open MPI) 5.0.7"
        ),
    }


def test_what_the_gate_and_the_plan_find_is_told(seen: SimpleNamespace) -> None:
    late = Finding("worker-facts", Level.FAIL, "late", "w-1")
    seen.findings = (late,)
    first, second = seen.observed.workers
    seen.observed = replace(seen.observed, workers=(first, replace(second, address=first.address)))
    found = found_of_job()
    assert late in found
    assert "settings-conflict" in [item.check for item in found if item.level is Level.FAIL]


def test_workers_that_reach_each_other_are_told_where_it_was_tried(seen: SimpleNamespace) -> None:
    one, other = (worker.host.name for worker in seen.observed.workers)

    def messages(*reached: Reached) -> list[str]:
        here = ("10.244.0.11", "10.244.0.11", 22)
        seen.dialled = tuple(
            Dial(one, other, "10.244.0.12", 4000, 2.0, item, *here, item) for item in reached
        )
        return [item.message for item in found_of_job() if item.check == "worker-pairs"]

    good = "workers reach each other and the launcher: 1 connection tried"
    assert messages() == []
    assert messages(Reached.ANSWERED) == [good]
    bad = messages(Reached.ANSWERED, Reached.SILENT)
    assert bad
    assert not [message for message in bad if "reach each other and" in message]


def test_a_look_that_fails_is_what_is_found(seen: SimpleNamespace) -> None:
    seen.raises = error("hostfile-missing", "there is none")
    assert found_of_job() == [seen.raises.finding]


def test_a_workers_own_checks_are_told_but_for_what_the_plan_says_of_it(
    seen: SimpleNamespace,
) -> None:
    one, other = seen.observed.workers
    first, second = one.host.name, other.host.name
    assert other.facts is not None
    other = replace(other, facts=replace(other.facts, mpi=plans.MPIS["openmpi5"]))
    item = {"level": "warn", "message": "x", "evidence": [], "hint": "mend"}
    found = [{**item, "check": "shm-full"}, {**item, "check": "mpi-versions"}]
    output = json.dumps({"mpiboot": "1", "findings": found})
    workers = tuple(replace(worker, answer=HostAnswer(doctor=output)) for worker in (one, other))
    seen.observed = replace(seen.observed, workers=workers)
    listed = [
        (item.check, " ".join(item.hosts) or item.host, item.message) for item in found_of_job()
    ]
    assert ("shm-full", f"{first} {second}", "x") in listed
    differ = "/usr/bin/mpirun: mpirun (Open MPI) 5.0.7; the launcher: mpirun (Open MPI) 4.1.4"
    assert [item for item in listed if item[0] == "mpi-versions"] == [
        ("mpi-versions", first, "x"),
        ("mpi-versions", second, differ),
    ]


OK, WARN = Level.OK, Level.WARN
SESSION = {
    "uid": "0",
    "locked memory": "unlimited",
    "open files": "1048576",
    "processes": "unlimited",
}
WORKERS = plans.observed(listed=plans.hosts(1, 1, 1, 1, domain="")).workers
BARE = replace(WORKERS[0], facts=None)
ALIKE = HostReport(WORKERS[0], session=SESSION)
ALL_ALIKE = "ok -: 4 hosts have the same limits and links"


def reports(count: int = 4, **each: HostReport) -> tuple[HostReport, ...]:
    """Hosts that are alike, and those given by name (``w_1``) in place of theirs."""
    given = [each.get(f"w_{n}", ALIKE._replace(worker=WORKERS[n])) for n in range(count)]
    return tuple(
        one._replace(worker=replace(one.worker, host=WORKERS[n].host))
        for n, one in enumerate(given)
    )


def with_session(changed: dict[str, str]) -> HostReport:
    return ALIKE._replace(session={**SESSION, **changed})


def with_links(worker: Worker, *links: Link) -> HostReport:
    assert worker.facts is not None
    every = (*worker.facts.links, *links)
    return ALIKE._replace(worker=replace(worker, facts=replace(worker.facts, links=every)))


def shown(found: Iterable[Finding]) -> list[str]:
    return [
        f"{item.level.value} {','.join(item.hosts) or item.host or '-'}: {item.message}"
        for item in found
    ]


def differing(**each: HostReport) -> list[str]:
    return shown(role.differ(reports(4, **each)))


def test_hosts_that_are_alike() -> None:
    assert differing() == [ALL_ALIKE]
    assert shown(role.differ(reports(1))) == []


def test_a_host_that_differs_is_named_with_its_value_and_what_mends_it() -> None:
    (found,) = role.differ(reports(4, w_2=with_session({"open files": "1024"})))
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
    each = {f"w_{n}": ALIKE._replace(worker=worker) for n, worker in enumerate(workers)}
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
            ALIKE._replace(worker=replace(BARE, no_facts=NoFacts.PENDING)),
            "warn w-1: version of mpiboot: another; the others (3): 0",
        ),
    ],
)
def test_all_links_but_the_control_link_are_compared(second: HostReport, found: str) -> None:
    usual = {f"w_{n}": with_links(WORKERS[n], NET1) for n in range(4)}
    assert differing(**{**usual, "w_1": second}) == [found]


def test_of_whom_the_own_checks_are_not_known() -> None:
    checked = ALIKE._replace(checks=())
    given = reports(4, w_0=checked, w_1=ALIKE._replace(worker=BARE), w_3=checked)
    message = "its limits, files and devices were not checked from within"
    assert shown(role.unchecked(given)) == [
        f"unknown w-1: {message}: it does not run mpiboot",
        f"unknown w-2: {message}: its mpiboot has no checks for a launcher, or they took too long",
    ]


def test_a_workers_own_checks_are_read() -> None:
    item = {"level": "warn", "message": "full", "host": "pod", "hint": "fix", "hosts": []}
    known = {**item, "group": "limits", "evidence": ["a"], "later": 1}
    found = [{**known, "check": check} for check in ("shm-full", "no-such")]  # of a later mpiboot
    text = json.dumps({"version": 1, "findings": found, "session": {"uid": "0", "later": 1}})
    report = role.host_report(replace(WORKERS[0], answer=HostAnswer(doctor=text)))
    assert report.checks == (
        Finding("shm-full", WARN, "full", "w-0", ("a",), "fix"),
        Finding("worker-checks", WARN, "no-such: full", "w-0", ("a",), "fix"),
    )
    assert report.session == {"uid": "0", "later": "1"}
    for broken in ("", "{", "[]", '{"findings": 1}', '{"findings": [{"check": 1}]}'):
        worker = replace(WORKERS[0], answer=HostAnswer(doctor=broken))
        assert role.host_report(worker) == HostReport(worker)


def test_what_several_hosts_find_is_said_once() -> None:
    found = [
        *(Finding("shm-full", OK, "0 of 64 MiB", f"w-{n}") for n in range(3)),
        Finding("memory-limit", OK, "1 MiB", "w-0"),
        Finding("memory-limit", OK, "2 MiB", "w-1"),
        Finding("shm-full", WARN, "full", "w-3", hint="fix"),
    ]
    alike = Finding("shm-full", OK, "0 of 64 MiB", hosts=("w-0", "w-1", "w-2"))
    assert role.merged(found) == [alike, *found[3:]]


def test_of_very_many_hosts_what_is_well_is_told_by_the_checks_title() -> None:
    names = [f"w-{number}" for number in range(17)]
    found = [Finding("memory-limit", OK, f"{name} MiB", name) for name in names]
    bad = [Finding("memory-limit", WARN, f"{name} MiB", name) for name in names[:2]]
    title = BY_REFERENCE["memory-limit"].title
    all_well = Finding("memory-limit", OK, title, hosts=tuple(names))
    assert role.merged([*found, *bad]) == [all_well, *bad]
    assert role.merged(found[:16]) == found[:16]
    same = [Finding("shm-full", OK, "same", name) for name in names]
    assert role.merged(same) == [Finding("shm-full", OK, "same", hosts=tuple(names))]
