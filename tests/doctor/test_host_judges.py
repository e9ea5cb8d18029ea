"""Hosts judged beside each other, and the paths between them: each outcome, by values."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mpiboot.core import wording
from mpiboot.core.facts import NoFacts
from mpiboot.core.model import Finding, Level
from mpiboot.doctor import hosts, job, table
from mpiboot.doctor.checks import BY_REFERENCE, DoctorCheck, judge_all
from mpiboot.doctor.hosts import HostReport, LauncherPlace, NameLook
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.network.worker_pairs import Dial, Reached
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
# Of a host without facts which link is the control link is not known.
WITHOUT_CONTROL = {name: value for name, value in VALUES.items() if name != "mtu:eth0"}
WORKERS = plans.observed(listed=plans.hosts(1, 1, 1, 1, domain="")).workers
BARE = replace(WORKERS[0], facts=None)
ALIKE = HostReport("", WORKERS[0], NameLook(ADDRESS, 0.01), VALUES)


def reports(count: int = 4, **each: HostReport) -> tuple[HostReport, ...]:
    """Hosts that are alike, and those given by name (``w_1``) in place of theirs."""
    return tuple(
        replace(each.get(f"w_{n}", replace(ALIKE, worker=WORKERS[n])), host=f"w-{n}")
        for n in range(count)
    )


def with_values(**changed: str) -> HostReport:
    return replace(ALIKE, values={**VALUES, **changed})


def told(judge: DoctorCheck, *given: HostReport, place: LauncherPlace = PLACE) -> list[str]:
    """Each finding as ``LEVEL WHO: WHAT``."""
    return [
        f"{item.level.value} {','.join(item.hosts) or item.host or '-'}: {item.message}"
        for item in judge_all([judge], {"hosts": given, "place": place}, {})
    ]


@pytest.mark.parametrize(
    ("values", "usual", "outliers"),
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
    values: list[str], usual: tuple[str, int] | None, outliers: str
) -> None:
    found = wording.majority({f"w-{number}": value for number, value in enumerate(values)})
    assert (found and (found.usual, found.alike)) == usual
    assert (found.outliers_text if found else "") == outliers


# -- names -----------------------------------------------------------------------------------------


def test_names_that_never_existed_are_reported_where_others_exist() -> None:
    never = HostReport("", name=NameLook(unknown=True))
    (found,) = told(hosts.missing, *reports(4, w_1=never, w_3=never))
    assert found.startswith("fail w-1,w-3: 2 of 4 hosts have no address in DNS, the others have: ")
    # Where none exists yet, or a nameserver is silent, that proves nothing.
    assert told(hosts.missing, *reports(2, w_0=never, w_1=never)) == []
    assert told(hosts.missing, *reports(2, w_0=HostReport("", name=NameLook()))) == []
    assert told(hosts.missing, *reports(4)) == []


MOVED = (("10.0.0.1",), ("10.0.0.7",), ("10.0.0.1",))
BOTH = (("fd00::1", "10.0.0.1"), ("10.0.0.1", "fd00::1"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            NameLook(ADDRESS, 0.012, "w-1.job.ns.svc.cluster.local."),
            "ok -: 3 names: IPv4, in job.ns.svc.cluster.local., at most 12 ms, the same each time",
        ),
        (
            NameLook(MOVED, 0.01),
            "warn w-1: its name leads elsewhere each time: 10.0.0.1 or 10.0.0.7",
        ),
        (NameLook(ADDRESS, 5.02), "warn w-1: an answer for a name took 5.0 s"),
        (
            NameLook((("fd00::1",), ("fd00::1",)), 0.01),
            "warn w-1: their IP versions differ: w-1: IPv6; the others (2): IPv4",
        ),
        (
            NameLook(BOTH, 0.01),
            "warn w-1: their IP versions differ: w-1: IPv4 and IPv6; the others (2): IPv4",
        ),
    ],
)
def test_answers_for_names(name: NameLook, message: str) -> None:
    assert told(hosts.names, *reports(3, w_1=HostReport("", name=name))) == [message]


def test_hosts_without_a_name_have_no_answers_for_one() -> None:
    assert told(hosts.names, HostReport("10.0.0.1"), HostReport("w", name=NameLook())) == []


# -- the way back to the launcher ------------------------------------------------------------------

AT, BY_NAME, INSIDE = ("10.0.0.9", 40000), ("launcher", 40000), ("10.0.0.9", 5009)
THERE = "the launcher at 10.0.0.9 port 40000"
IN_RANGE = "the launcher at 10.0.0.9 port 5009, of MPIBOOT_PORT_RANGE=5000-5009"
REFUSED = "the connection is refused, although that port is listened at"
OUTSIDE = "ports outside that range it does not reach, which MPI does not need"
NO_NAME = "the name launcher does not resolve there, and MPI goes by the address"


@pytest.mark.parametrize(
    ("dials", "place", "message"),
    [
        ({AT: Reached.CONNECTED}, PLACE, f"ok w-0: reaches {THERE}"),
        (
            {AT: Reached.CONNECTED, BY_NAME: Reached.UNRESOLVED},
            PLACE,
            f"ok w-0: reaches {THERE}; {NO_NAME}",
        ),
        (
            {AT: Reached.SILENT},
            PLACE,
            f"fail w-0: can't connect to {THERE}: no answer in 4 s; MPI's daemons must",
        ),
        (
            {AT: Reached.REFUSED},
            PLACE,
            f"fail w-0: can't connect to {THERE}: {REFUSED}; MPI's daemons must",
        ),
        (
            {AT: Reached.NO_ROUTE},
            PLACE,
            f"fail w-0: can't connect to {THERE}: no route; MPI's daemons must",
        ),
        (
            {AT: Reached.UNKNOWN},
            PLACE,
            (
                f"unknown w-0: not known whether it reaches {THERE}: "
                "it has neither bash with timeout nor python3"
            ),
        ),
        (
            {AT: Reached.SILENT, INSIDE: Reached.CONNECTED},
            RANGE,
            f"ok w-0: reaches {IN_RANGE}; {OUTSIDE}",
        ),
        (
            {AT: Reached.CONNECTED, INSIDE: Reached.SILENT},
            RANGE,
            f"fail w-0: can't connect to {IN_RANGE}: no answer in 4 s; MPI's daemons must",
        ),
    ],
)
def test_whether_a_host_reaches_the_launcher(
    dials: dict[tuple[str, int], Reached], place: LauncherPlace, message: str
) -> None:
    assert told(hosts.launcher, HostReport("w-0", dials=dials), place=place) == [message]
    assert told(hosts.launcher, HostReport("w-0"), place=place) == []


def test_hosts_with_one_answer_are_reported_together_and_the_hint_once() -> None:
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
    ("name", "value", "what", "usual"),
    [
        ("uid", "1000", "sessions have the uid 1000", "0"),
        ("mpirun", "", "mpirun on PATH of a session is none", "/usr/bin/mpirun"),
        ("daemon", "/o/orted", "MPI's daemon on PATH of a session is /o/orted", "/usr/bin/orted"),
        ("memlock", "65536", "memlock of a session is 65536 bytes", "unlimited"),
        ("nofile", "1024", "the limit of open files of a session is 1024", "1048576"),
        ("nproc", "100", "the limit of processes of a session is 100", "unlimited"),
        ("mtu:net1", "1500", "the MTU of net1 is 1500", "9000"),
    ],
)
def test_a_host_that_differs_is_named_with_its_value(
    name: str, value: str, what: str, usual: str
) -> None:
    found = told(hosts.differ, *reports(4, w_2=with_values(**{name: value})))
    assert found == [f"warn w-2: {what}, of the others (3): {usual}"]


def test_another_mpiboot_or_none_differs() -> None:
    assert WORKERS[0].facts is not None
    newer = replace(WORKERS[0], facts=replace(WORKERS[0].facts, mpiboot="9"))
    workers = (WORKERS[0], newer, replace(BARE, no_facts=NoFacts.UNREADABLE), BARE)
    one = replace(ALIKE, values=WITHOUT_CONTROL)
    each = {f"w_{n}": replace(one, worker=worker) for n, worker in enumerate(workers)}
    assert told(hosts.differ, *reports(4, **each)) == [
        f"warn w-{n}: its version of mpiboot is {version}, of the others (1): 0"
        for n, version in ((1, "9"), (2, "another"), (3, "none"))
    ]


def test_devices_are_compared_here_for_hosts_whose_facts_the_plan_does_not_have() -> None:
    fewer = {"gpus": "7", "hcas": "7"}
    assert list(told(hosts.differ, *reports(4, w_1=with_values(**fewer)))) == [
        "ok -: 4 hosts have the same MPI, limits and links"
    ]
    bare = replace(ALIKE, worker=BARE, values={**WITHOUT_CONTROL, **fewer})
    found = told(hosts.differ, *reports(4, w_1=bare))
    assert "warn w-1: 7 GPUs in /dev, of the others (3): 8" in found
    assert "warn w-1: 7 devices in /dev/infiniband, of the others (3): 8" in found


def test_a_link_that_one_host_lacks_is_reported_and_one_that_it_has_more_is_not() -> None:
    lacks = {name: value for name, value in VALUES.items() if name != "mtu:net1"}
    assert told(hosts.differ, *reports(4, w_1=replace(ALIKE, values=lacks))) == [
        "warn w-1: the MTU of net1 is none, of the others (3): 9000"
    ]
    more = reports(4, w_1=with_values(**{"mtu:cali7": "1450"}))
    assert told(hosts.differ, *more) == ["ok -: 4 hosts have the same MPI, limits and links"]


def test_hosts_that_differ_from_each_other_are_reported_one_by_one_value() -> None:
    small, none = with_values(memlock="65536"), with_values(memlock="0")
    assert told(hosts.differ, *reports(4, w_1=small, w_2=none, w_3=small)) == [
        "warn w-0: memlock of a session is unlimited, of the others (2): 65536 bytes",
        "warn w-2: memlock of a session is 0 bytes, of the others (2): 65536 bytes",
    ]


# -- a worker's own checks -------------------------------------------------------------------------

TOO_OLD = "its mpiboot has no checks for a launcher, or they took too long"


def test_of_whom_the_own_checks_are_not_known() -> None:
    checked = replace(ALIKE, checks=())
    given = reports(4, w_0=checked, w_1=replace(ALIKE, worker=BARE), w_3=HostReport(""))
    message = "its limits, files and devices were not checked from within"
    assert told(hosts.own_checks, *given) == [
        f"unknown w-1: {message}: it does not run mpiboot",
        f"unknown w-2: {message}: {TOO_OLD}",
    ]


@pytest.mark.parametrize(
    ("daemon", "checks", "warns"),
    [("/usr/bin/orted", None, False), ("", None, True), ("", (), False)],
)
def test_a_host_without_mpiboot_and_without_a_daemon(
    daemon: str,
    checks: tuple[()] | None,
    warns: bool,  # noqa: FBT001 - a row of the table
) -> None:
    message = "warn w-0: none of orted, prted and hydra_pmi_proxy is on PATH of a session"
    one = HostReport("w-0", values={"daemon": daemon}, checks=checks)
    assert told(hosts.daemons, one) == [message] * warns


def test_the_keys_of_both_sides_are_shown() -> None:
    given = reports(3, w_0=replace(ALIKE, shown="SHA256:own"), w_2=replace(ALIKE, shown="SHA256:x"))
    assert told(hosts.keys, *given) == [
        "ok w-0: lets the key SHA256:own in, and shows the host key SHA256:own",
        "ok w-2: lets the key SHA256:own in, and shows the host key SHA256:x",
    ]


@pytest.mark.parametrize(
    ("check", "read"),
    [
        ("shm-full", ("shm-full", "full")),
        ("no-such", ("worker-checks", "no-such: full")),  # of a later mpiboot
    ],
)
def test_a_workers_own_checks_are_read(check: str, read: tuple[str, str]) -> None:
    item = {"check": check, "level": "warn", "message": "full", "host": "pod", "hint": "fix"}
    known = {**item, "group": "limits", "hosts": [], "evidence": ["a"], "later": 1}
    text = json.dumps({"version": 1, "findings": [known]})
    found = job._own_checks("w-0.job", HostAnswer(own_checks=text))
    name, message = read
    assert found == (Finding(name, WARN, message, "w-0.job", ("a",), "fix"),)


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "{}", '{"findings": 1}', '{"findings": [{"check": 1}]}']
)
def test_checks_that_can_not_be_read_are_none(text: str | None) -> None:
    assert job._own_checks("w-0", HostAnswer(own_checks=text)) is None


def test_what_several_hosts_find_is_said_once() -> None:
    found = [
        *(Finding("shm-full", OK, "0 of 64 MiB", f"w-{n}") for n in range(3)),
        Finding("memory-limit", OK, "1 MiB", "w-0"),
        Finding("memory-limit", OK, "2 MiB", "w-1"),
        Finding("shm-full", WARN, "full", "w-3", hint="fix"),
    ]
    alike = Finding("shm-full", OK, "0 of 64 MiB", hosts=("w-0", "w-1", "w-2"))
    assert hosts.merged(found) == [alike, *found[3:]]


def test_of_very_many_hosts_what_is_well_is_told_by_the_checks_title() -> None:
    names = [f"w-{number}" for number in range(17)]
    found = [Finding("memory-limit", OK, f"{name} MiB", name) for name in names]
    bad = [Finding("memory-limit", WARN, f"{name} MiB", name) for name in names[:2]]
    title = BY_REFERENCE["memory-limit"].title
    all_well = Finding("memory-limit", OK, title, hosts=tuple(names))
    assert hosts.merged([*found, *bad]) == [all_well, *bad]
    assert hosts.merged(found[:16]) == found[:16]
    same = [Finding("shm-full", OK, "same", name) for name in names]
    assert hosts.merged(same) == [Finding("shm-full", OK, "same", hosts=tuple(names))]


def test_every_row_is_judged() -> None:
    given = reports(2, w_1=replace(ALIKE, shown="SHA256:x", dials={AT: Reached.CONNECTED}))
    checks = {item.check for item in judge_all(table.HOSTS, {"hosts": given, "place": PLACE}, {})}
    assert checks == {
        *("name-answers", "ssh-denied", "launcher-unreached", "hosts-differ", "worker-checks")
    }


# -- the paths between hosts -----------------------------------------------------------------------

GOOD = Dial(
    *("w-0", "w-1", "10.0.0.2", 40001, 2.0, Reached.ANSWERED),
    link="eth0",
    wanted=1450,
    microseconds=100,
    mtu=1450,
    rate=125_000_000,
)
DATA = replace(GOOD, link="net1", control=False, address="10.1.0.2", wanted=9000, mtu=9000)
TO_1 = "w-0 to w-1 (10.0.0.2 by the control link eth0)"
DATA_TO_1 = "w-0 to w-1 (10.1.0.2 by the data link net1)"
SPEED = "a round trip takes 100 us (median), 100 us at most; one TCP stream carries 1 Gb/s"


def paths(*given: Dial) -> list[str]:
    """Each finding as ``LEVEL CHECK: WHAT``."""
    return [
        f"{item.level.value} {item.check}: {item.message}"
        for item in judge_all(table.PATHS, {"paths": given}, {})
    ]


def test_paths_that_are_well_are_told_in_three_lines() -> None:
    assert paths(GOOD, GOOD, DATA) == [
        "ok network-reach: 3 paths on eth0, net1: all come through",
        "ok path-mtu: packets as large as the links' MTU come through: 1450 on eth0, 9000 on net1",
        *(f"ok path-speed: on {link} {SPEED}, 1 Gb/s at least" for link in ("eth0", "net1")),
    ]
    assert paths() == []


@pytest.mark.parametrize(
    ("how", "why"),
    [(Reached.SILENT, "no answer"), (Reached.REFUSED, "refused"), (Reached.NO_ROUTE, "no route")],
)
def test_a_path_that_is_cut_fails(how: Reached, why: str) -> None:
    cut = replace(DATA, reached=how, microseconds=None, mtu=None, rate=None)
    assert paths(cut) == [f"fail network-reach: {DATA_TO_1}: {why}"]
    (one,) = hosts.reach([GOOD, cut])
    assert one.hint == BY_REFERENCE["network-reach"].hint
    (several,) = hosts.reach([cut] * 6)
    assert several.message == f"{DATA_TO_1}: {why}; 5 more"
    assert several.evidence == (f"{DATA_TO_1}: {why}",) * 3
    assert (several.host, several.hosts) == ("", ("w-0", "w-1"))
    others = [replace(cut, source="w-2"), replace(cut, source="w-1", target="w-3")]
    (at_one,) = hosts.reach([cut, *others])
    assert (at_one.host, at_one.hosts) == ("w-1", ())
    (anywhere,) = hosts.reach([cut, replace(cut, source="w-2", target="w-3")])
    assert (anywhere.host, anywhere.hosts) == ("", ())


LATE = replace(GOOD, reached=Reached.UNKNOWN, microseconds=None, mtu=None, rate=None)
STALLS = f"fail path-mtu: {TO_1}: small packets come through, large ones are lost"


@pytest.mark.parametrize(
    ("judge", "given", "message"),
    [
        (
            hosts.reach,
            [GOOD, LATE, LATE],
            f"unknown network-reach: not measured in time: 2 paths of 3, such as {TO_1}",
        ),
        (
            hosts.path_mtu,
            [GOOD, replace(DATA, mtu=1500)],
            (
                f"fail path-mtu: {DATA_TO_1}: packets of 1500 bytes come through, larger ones are "
                "lost; the links have 9000"
            ),
        ),
        (
            hosts.path_mtu,
            [replace(GOOD, mtu=None)],
            (
                f"unknown path-mtu: no answer by UDP on 1 path, such as {TO_1}; "
                "TCP's large packets come through"
            ),
        ),
        (hosts.path_mtu, [replace(GOOD, reached=Reached.STALLED, mtu=None, rate=None)], STALLS),
        (hosts.path_mtu, [replace(GOOD, reached=Reached.STALLED, mtu=1450, rate=None)], STALLS),
    ],
)
def test_a_path_that_is_not_well(judge: DoctorCheck, given: list[Dial], message: str) -> None:
    found = [f"{item.level.value} {item.check}: {item.message}" for item in judge(given)]
    assert found == [message]


def test_a_path_that_is_much_slower_than_the_others_is_named() -> None:
    slow = replace(GOOD, target="w-9", microseconds=9000, rate=12_500_000)
    given = [replace(GOOD, target=f"w-{number}") for number in range(1, 5)]
    where = "w-0 to w-9 (10.0.0.2 by the control link eth0)"
    outlier, figures = hosts.speed([*given, slow])
    assert outlier.message == f"{where}: a round trip takes 9 ms, of the others 100 us; 1 more"
    assert outlier.evidence == (f"{where}: one TCP stream carries 100 Mb/s, the others 1 Gb/s",)
    assert outlier.level.value == "warn"
    end = "9 ms at most; one TCP stream carries 1 Gb/s, 100 Mb/s at least"
    assert figures.message.endswith(end)
    # Of two there is no middle one, and what is quick enough is never slow.
    assert len(list(hosts.speed([GOOD, slow]))) == 1
    quick = replace(slow, microseconds=1900, rate=40_000_000)
    assert len(list(hosts.speed([*given, quick]))) == 1
