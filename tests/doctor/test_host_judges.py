"""Hosts judged beside each other: each outcome of each row, by values."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mpiboot.core import wording
from mpiboot.core.model import Finding, Level, NoFacts
from mpiboot.doctor import hosts, job, table
from mpiboot.doctor.checks import BY_REFERENCE, DoctorCheck, judge_all
from mpiboot.doctor.hosts import HostReport, LauncherPlace, NameLook, OwnChecks
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.network.worker_pairs import Reached
from tests.fakes import plans

OK, WARN, FAIL, UNKNOWN = Level.OK, Level.WARN, Level.FAIL, Level.UNKNOWN
PLACE = LauncherPlace("launcher", "10.0.0.9", 40000, key="SHA256:own")
RANGE = replace(PLACE, range_port=5009, port_range="5000-5009")
ADDRESS = (("10.0.0.1",), ("10.0.0.1",))
VALUES = {
    "uid": "0",
    "mpirun": "/usr/bin/mpirun",
    "daemon": "/usr/bin/orted",
    "memlock": "unlimited",
    "nofile": "1048576",
    "nproc": "unlimited",
    "gpus": "8",
    "hcas": "8",
    "mtu:eth0": "1450",
    "mtu:net1": "9000",
}
LISTED = plans.hosts(1, 1, 1, 1, domain="")
WORKERS = plans.observed(listed=LISTED).workers
BARE = replace(WORKERS[0], facts=None)


def reports(count: int = 4, **each: HostReport) -> tuple[HostReport, ...]:
    """Hosts that are alike, and those given by name (``w_1``) in place of theirs."""
    listed = []
    for number in range(count):
        name = f"w-{number}"
        alike = HostReport(name, WORKERS[number], NameLook(ADDRESS, 0.01), VALUES)
        given = each.get(f"w_{number}", alike)
        listed.append(replace(given, host=name))
    return tuple(listed)


def told(judge: DoctorCheck, *given: HostReport, place: LauncherPlace = PLACE) -> list[str]:
    """Each finding as ``LEVEL WHO: WHAT``."""
    return [
        f"{item.level.value} {','.join(item.hosts) or item.host or '-'}: {item.message}"
        for item in judge_all([judge], {"hosts": given, "place": place}, {})
    ]


ALIKE = HostReport("", WORKERS[0], NameLook(ADDRESS, 0.01), VALUES)


def with_values(**changed: str) -> HostReport:
    return replace(
        ALIKE, values={**VALUES, **{name.replace("_", ":"): v for name, v in changed.items()}}
    )


# -- the majority ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "usual", "odd"),
    [
        ([], None, ""),
        (["8"], None, ""),
        (["8", "8"], None, ""),
        (["8", "7", "8"], ("8", 2), "w-1: 7"),
        (["7", "8", "8", "4", "7", "8"], ("8", 3), "w-0, w-4: 7; w-3: 4"),
        (["a", "b"], ("a", 1), "w-1: b"),
    ],
)
def test_the_value_of_most_hosts_is_the_usual_one(
    values: list[str], usual: tuple[str, int] | None, odd: str
) -> None:
    found = wording.majority({f"w-{number}": value for number, value in enumerate(values)})
    assert (found and (found.usual, found.count)) == usual
    assert (found.outliers_text if found else "") == odd


# -- names -----------------------------------------------------------------------------------------


def test_names_that_never_existed_are_told_where_others_exist() -> None:
    never = HostReport("", name=NameLook(unknown=True))
    assert told(hosts.missing, *reports(4, w_1=never, w_3=never)) == [
        (
            "fail w-1,w-3: 2 of 4 hosts have no address in DNS, the others have: their pods "
            "were never "
            "scheduled, or are not of the job's Service"
        )
    ]
    # Where none exists yet, or a nameserver is silent, that proves nothing.
    assert told(hosts.missing, *reports(2, w_0=never, w_1=never)) == []
    silent = HostReport("", name=NameLook())
    assert told(hosts.missing, *reports(2, w_0=silent)) == []
    assert told(hosts.missing, *reports(4)) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            NameLook(ADDRESS, 0.012, "w-1.job.ns.svc.cluster.local."),
            "ok -: 3 names: IPv4, in job.ns.svc.cluster.local., at most 12 ms, the same each time",
        ),
        (
            NameLook((("10.0.0.1",), ("10.0.0.7",), ("10.0.0.1",)), 0.01),
            "warn w-1: its name leads elsewhere each time: 10.0.0.1 or 10.0.0.7",
        ),
        (NameLook(ADDRESS, 5.02), "warn w-1: an answer for a name took 5.0 s"),
        (
            NameLook((("fd00::1",), ("fd00::1",)), 0.01),
            "warn w-1: their IP versions differ: w-1: IPv6; the others (2): IPv4",
        ),
        (
            NameLook((("fd00::1", "10.0.0.1"), ("10.0.0.1", "fd00::1")), 0.01),
            "warn w-1: their IP versions differ: w-1: IPv4 and IPv6; the others (2): IPv4",
        ),
    ],
)
def test_answers_for_names(name: NameLook, message: str) -> None:
    assert told(hosts.names, *reports(3, w_1=HostReport("", name=name))) == [message]


def test_hosts_without_a_name_have_no_answers_for_one() -> None:
    assert told(hosts.names, HostReport("10.0.0.1"), HostReport("w", name=NameLook())) == []


# -- the way back to the launcher ------------------------------------------------------------------

AT = ("10.0.0.9", 40000)
INSIDE = ("10.0.0.9", 5009)


@pytest.mark.parametrize(
    ("dials", "place", "message"),
    [
        ({}, PLACE, []),
        (
            {AT: Reached.CONNECTED},
            PLACE,
            ["ok w-0: reaches the launcher at 10.0.0.9 port 40000"],
        ),
        (
            {AT: Reached.CONNECTED, ("launcher", 40000): Reached.UNRESOLVED},
            PLACE,
            [
                (
                    "ok w-0: reaches the launcher at 10.0.0.9 port 40000; the name launcher "
                    "does not "
                    "resolve there, and MPI goes by the address"
                )
            ],
        ),
        *(
            (
                {AT: how},
                PLACE,
                [
                    (
                        "fail w-0: can't connect to the launcher at 10.0.0.9 port 40000: "
                        f"{why}; MPI's daemons must"
                    )
                ],
            )
            for how, why in (
                (Reached.SILENT, "no answer in 4 s"),
                (Reached.REFUSED, "the connection is refused, although that port is listened at"),
                (Reached.NO_ROUTE, "no route"),
            )
        ),
        (
            {AT: Reached.UNKNOWN},
            PLACE,
            [
                (
                    "unknown w-0: not known whether it reaches the launcher at 10.0.0.9 port "
                    "40000: it "
                    "has neither bash with timeout nor python3"
                )
            ],
        ),
        (
            {AT: Reached.SILENT, INSIDE: Reached.CONNECTED},
            RANGE,
            [
                (
                    "ok w-0: reaches the launcher at 10.0.0.9 port 5009, of "
                    "MPIBOOT_PORT_RANGE=5000-5009; ports outside that range it does not "
                    "reach, which "
                    "MPI does not need"
                )
            ],
        ),
        (
            {AT: Reached.CONNECTED, INSIDE: Reached.SILENT},
            RANGE,
            [
                (
                    "fail w-0: can't connect to the launcher at 10.0.0.9 port 5009, of "
                    "MPIBOOT_PORT_RANGE=5000-5009: no answer in 4 s; MPI's daemons must"
                )
            ],
        ),
    ],
)
def test_whether_a_host_reaches_the_launcher(
    dials: dict[tuple[str, int], Reached], place: LauncherPlace, message: list[str]
) -> None:
    one = HostReport("w-0", dials=dials)
    assert told(hosts.launcher, one, place=place) == message


def test_hosts_with_one_answer_are_told_together_and_the_mending_once() -> None:
    cut = {AT: Reached.SILENT}
    given = [HostReport(f"w-{n}", dials=cut if n else {AT: Reached.CONNECTED}) for n in range(3)]
    good, bad = hosts.launcher(given, PLACE)
    assert (good.host, good.level, good.hint) == ("w-0", OK, "")
    assert (bad.hosts, bad.level) == (("w-1", "w-2"), FAIL)
    assert bad.hint == BY_REFERENCE["launcher-unreached"].hint


# -- what hosts are compared by --------------------------------------------------------------------


def test_hosts_that_are_alike_are_said_to_be() -> None:
    assert told(hosts.differ, *reports()) == ["ok -: 4 hosts have the same MPI, limits and links"]
    assert told(hosts.differ, *reports(1)) == []
    assert told(hosts.differ, HostReport("gone"), HostReport("gone too")) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("uid", "1000", "sessions have the uid 1000, of the others (3): 0"),
        (
            "mpirun",
            "",
            "mpirun on PATH of a session is none, of the others (3): /usr/bin/mpirun",
        ),
        (
            "daemon",
            "/o/orted",
            "MPI's daemon on PATH of a session is /o/orted, of the others (3): /usr/bin/orted",
        ),
        ("memlock", "65536", "memlock of a session is 65536 bytes, of the others (3): unlimited"),
        (
            "nofile",
            "1024",
            "the limit of open files of a session is 1024, of the others (3): 1048576",
        ),
        (
            "nproc",
            "100",
            "the limit of processes of a session is 100, of the others (3): unlimited",
        ),
        ("mtu:net1", "1500", "the MTU of net1 is 1500, of the others (3): 9000"),
    ],
)
def test_a_host_that_differs_is_named_with_its_value(name: str, value: str, message: str) -> None:
    odd = replace(ALIKE, values={**VALUES, name: value})
    assert told(hosts.differ, *reports(4, w_2=odd)) == [f"warn w-2: {message}"]


def test_another_mpiboot_or_none_differs() -> None:
    assert WORKERS[0].facts is not None
    newer = replace(WORKERS[0], facts=replace(WORKERS[0].facts, mpiboot="9"))
    unread = replace(BARE, no_facts=NoFacts.UNREADABLE)
    each = {
        "w_1": replace(ALIKE, worker=newer),
        "w_2": replace(ALIKE, worker=unread),
        "w_3": replace(ALIKE, worker=BARE),
    }
    values = {**VALUES}
    del values["mtu:eth0"]  # the control link, which only hosts with facts are known to have
    each = {name: replace(one, values=values) for name, one in each.items()}
    assert told(hosts.differ, *reports(4, w_0=replace(ALIKE, values=values), **each)) == [
        "warn w-1: its version of mpiboot is 9, of the others (1): 0",
        "warn w-2: its version of mpiboot is another, of the others (1): 0",
        "warn w-3: its version of mpiboot is none, of the others (1): 0",
    ]


def test_devices_are_told_here_of_hosts_whose_facts_the_plan_does_not_have() -> None:
    fewer = {**VALUES, "gpus": "7", "hcas": "7"}
    del fewer["mtu:eth0"]
    known = reports(4, w_1=replace(ALIKE, values={**VALUES, "gpus": "7", "hcas": "7"}))
    assert [item for item in told(hosts.differ, *known) if item.startswith("warn")] == []
    bare = reports(4, w_1=replace(ALIKE, worker=BARE, values=fewer))
    found = told(hosts.differ, *bare)
    assert "warn w-1: 7 GPUs in /dev, of the others (3): 8" in found
    assert "warn w-1: 7 devices in /dev/infiniband, of the others (3): 8" in found


def test_a_link_that_one_host_has_not_is_told_and_one_that_it_has_more_is_not() -> None:
    fewer = {name: value for name, value in VALUES.items() if name != "mtu:net1"}
    lacks = reports(4, w_1=replace(ALIKE, values=fewer))
    assert told(hosts.differ, *lacks) == [
        "warn w-1: the MTU of net1 is none, of the others (3): 9000"
    ]
    more = reports(4, w_1=replace(ALIKE, values={**VALUES, "mtu:cali7": "1450"}))
    assert told(hosts.differ, *more) == ["ok -: 4 hosts have the same MPI, limits and links"]


def test_hosts_that_differ_from_each_other_are_told_one_by_one_value() -> None:
    small, none = with_values(memlock="65536"), with_values(memlock="0")
    assert told(hosts.differ, *reports(4, w_1=small, w_2=none, w_3=small)) == [
        "warn w-0: memlock of a session is unlimited, of the others (2): 65536 bytes",
        "warn w-2: memlock of a session is 0 bytes, of the others (2): 65536 bytes",
    ]


# -- a worker's own checks -------------------------------------------------------------------------


def test_of_whom_the_own_checks_are_not_known() -> None:
    checked = replace(ALIKE, checks=OwnChecks("1", ()))
    given = reports(4, w_0=checked, w_1=replace(ALIKE, worker=BARE), w_3=HostReport(""))
    assert told(hosts.own_checks, *given) == [
        (
            "unknown w-1: its limits, files and devices were not checked from within: it does "
            "not run "
            "mpiboot"
        ),
        (
            "unknown w-2: its limits, files and devices were not checked from within: its "
            "mpiboot has "
            "no checks for a launcher, or they took too long"
        ),
    ]


@pytest.mark.parametrize(
    ("daemon", "checks", "message"),
    [
        ("/usr/bin/orted", None, []),
        (
            "",
            None,
            ["warn w-0: none of orted, prted and hydra_pmi_proxy is on PATH of a session"],
        ),
        ("", OwnChecks("1", ()), []),
    ],
)
def test_a_host_without_mpiboot_and_without_a_daemon(
    daemon: str, checks: OwnChecks | None, message: list[str]
) -> None:
    one = HostReport("w-0", values={"daemon": daemon}, checks=checks)
    assert told(hosts.daemons, one) == message


def test_the_keys_of_both_sides_are_told() -> None:
    given = reports(3, w_0=replace(ALIKE, shown="SHA256:own"), w_2=replace(ALIKE, shown="SHA256:x"))
    assert told(hosts.keys, *given) == [
        "ok w-0: lets the key SHA256:own in, and shows the host key SHA256:own",
        "ok w-2: lets the key SHA256:own in, and shows the host key SHA256:x",
    ]


def test_a_workers_own_checks_are_read() -> None:
    item = {
        "group": "limits",
        "check": "shm-full",
        "level": "warn",
        "message": "full",
        "host": "pod",
        "hosts": [],
        "evidence": ["a"],
        "hint": "mend",
        "later": 1,
    }
    text = json.dumps({"version": 1, "mpiboot": "1.2", "findings": [item]})
    found = job._own_checks("w-0.job", HostAnswer(own_checks=text))
    assert found == OwnChecks(
        "1.2", (Finding("shm-full", WARN, "full", "w-0.job", ("a",), "mend"),)
    )
    # One that only a later mpiboot has is told by what it says.
    later = json.dumps({"mpiboot": "9", "findings": [{**item, "check": "no-such"}]})
    found = job._own_checks("w-0", HostAnswer(own_checks=later))
    assert found is not None
    assert [(one.check, one.message) for one in found.findings] == [
        ("worker-checks", "no-such: full")
    ]


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", "{}", '{"mpiboot": "1"}', '{"mpiboot": "1", "findings": [{"check": 1}]}'],
)
def test_checks_that_can_not_be_read_are_none(text: str | None) -> None:
    assert job._own_checks("w-0", HostAnswer(own_checks=text)) is None


def test_what_several_hosts_find_is_said_once() -> None:
    found = [
        *(Finding("shm-full", OK, "0 of 64 MiB", f"w-{n}") for n in range(3)),
        Finding("memory-limit", OK, "1 MiB", "w-0"),
        Finding("memory-limit", OK, "2 MiB", "w-1"),
        Finding("shm-full", WARN, "full", "w-3", hint="mend"),
    ]
    alike = Finding("shm-full", OK, "0 of 64 MiB", hosts=("w-0", "w-1", "w-2"))
    assert hosts.merged(found) == [alike, *found[3:]]


def test_of_very_many_hosts_what_is_well_is_told_by_the_checks_title() -> None:
    names = [f"w-{number}" for number in range(17)]
    found = [Finding("memory-limit", OK, f"{name} MiB", name) for name in names]
    bad = [Finding("memory-limit", WARN, f"{name} MiB", name) for name in names[:2]]
    title = BY_REFERENCE["memory-limit"].title
    assert hosts.merged([*found, *bad]) == [
        Finding("memory-limit", OK, title, hosts=tuple(names)),
        *bad,
    ]
    assert hosts.merged(found[:16]) == found[:16]
    same = [Finding("shm-full", OK, "same", name) for name in names]
    assert hosts.merged(same) == [Finding("shm-full", OK, "same", hosts=tuple(names))]


def test_every_row_is_judged() -> None:
    given = reports(2, w_1=replace(ALIKE, shown="SHA256:x", dials={AT: Reached.CONNECTED}))
    checks = {item.check for item in judge_all(table.HOSTS, {"hosts": given, "place": PLACE}, {})}
    assert checks == {
        *("name-answers", "ssh-denied", "launcher-unreached", "hosts-differ", "worker-checks"),
    }
