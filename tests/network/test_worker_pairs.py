from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.model import Level
from mpiboot.network.worker_pairs import (
    LAUNCHER,
    Dial,
    Reached,
    blocked_on_data,
    findings,
    neighbours,
)


def dialled(source: str, target: str, reached: Reached = Reached.ANSWERED) -> Dial:
    good = reached is Reached.ANSWERED
    own = seen = "10.244.0.11" if good else ""
    return Dial(source, target, "10.244.0.12", 40001, 2.0, reached, own, seen, 22)


def both(reached: Reached) -> list[Dial]:
    return [dialled("w-0", "w-1", reached), dialled("w-1", "w-0", reached)]


ALL = ("w-0", "w-1", "w-2", "w-3")


@pytest.mark.parametrize(
    ("hosts", "pairs"), [("", []), ("a", []), ("ab", ["ab"]), ("abc", ["ab", "bc", "ca"])]
)
def test_neighbours_are_a_ring(hosts: str, pairs: list[str]) -> None:
    assert ["".join(pair) for pair in neighbours(hosts)] == pairs


@pytest.mark.parametrize("bits", [1, 2, 5, 6, 9, 14, 0b101010, 0b100000, 0b011111])
def test_some_pair_lies_across_any_two_groups(bits: int) -> None:
    group = [bits >> number & 1 for number in range(max(2, bits.bit_length()))]
    across = [one for one, other in neighbours(range(len(group))) if group[one] != group[other]]
    assert across or len(set(group)) == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("answered 10.0.0.1 10.0.0.9 -", (Reached.ANSWERED, "10.0.0.1", "10.0.0.9", None)),
        ("connected fd00::1 - -", (Reached.CONNECTED, "fd00::1", "", None)),
        ("silent - - connected", (Reached.SILENT, "", "", Reached.CONNECTED)),
        ("refused 10.0.0.1 - refused", (Reached.REFUSED, "10.0.0.1", "", Reached.REFUSED)),
        ("silent - - odd", (Reached.SILENT, "", "", None)),
        ("odd - - silent", None),
        ("", None),
        ("answered 10.0.0.1", None),
        ("answered 10.0.0.1 10.0.0.9 - more", None),
        ("Traceback (most recent call last): in seven", None),
    ],
)
def test_a_workers_answer(line: str, expected: object) -> None:
    found = Dial("w-0", "w-1", "10.244.0.12", 40001, 2.0).answered(line)
    assert (found and (found.reached, found.own, found.seen, found.ssh)) == expected


def test_workers_that_all_answer_are_nothing_to_tell() -> None:
    assert findings(both(Reached.ANSWERED), ALL) == ()


def test_a_proxy_that_takes_the_connection_is_a_warning() -> None:
    (found,) = findings(both(Reached.CONNECTED), ALL)
    assert (found.check, found.level) == ("worker-pairs", Level.WARN)
    assert found.message == (
        "w-0 may not reach w-1 (10.244.0.12 port 40001): something accepts the connection, and it "
        "is not this launch's listener: a proxy does that, such as a service mesh's sidecar; 1 "
        "more of 2 that were tried (a warning only: what accepts it may pass MPI's connections on)"
    )
    assert "service mesh" in found.hint
    assert "MPIBOOT_PAIR_CHECK=0" in found.hint
    (found,) = findings([dialled("w-0", LAUNCHER, Reached.CONNECTED)], ALL)
    assert found.level is Level.WARN
    assert found.message.startswith("w-0 may not reach the launcher (10.244.0.12 port 40001): ")


@pytest.mark.parametrize(
    ("elsewhere", "level"), [("", Level.FAIL), ("they go another way", Level.WARN)]
)
def test_daemons_need_the_launcher_whatever_carries_mpis_messages(
    elsewhere: str, level: Level
) -> None:
    good, bad = both(Reached.ANSWERED), dialled("w-1", LAUNCHER, Reached.SILENT)
    (found,) = findings(
        [*good, bad, dialled("w-0", LAUNCHER)],
        ALL,
        "the data network is RoCE",
        daemons_optional=elsewhere,
    )
    assert (found.check, found.level) == ("worker-pairs", level)
    assert found.message.startswith(
        "w-1 can't reach the launcher (10.244.0.12 port 40001): no answer in 2 s, twice"
    )
    assert ("a warning only: they go another way" in found.message) == bool(elsewhere)
    assert "MPIBOOT_PAIR_CHECK=0" in found.hint
    # One that gets no daemon needs no launcher.
    assert findings([bad], ["w-0"]) == ()


def test_the_launcher_may_see_another_address() -> None:
    """As Open MPI's daemons may: its ranks alone are dropped for that."""
    assert findings([replace(dialled("w-0", LAUNCHER), seen="10.0.0.1")], ALL) == ()


def test_a_pair_that_nothing_passes_between_is_a_failure() -> None:
    first, second = both(Reached.SILENT)
    (found,) = findings([replace(first, ssh=Reached.CONNECTED), second], ALL)
    assert (found.check, found.level) == ("worker-pairs", Level.FAIL)
    assert (found.host, found.hosts) == ("", ())
    assert found.message == (
        "w-0 can't reach w-1 (10.244.0.12 port 40001): no answer in 2 s, twice; its SSH port 22 "
        "answers; 1 more of 2 that were tried"
    )
    assert found.evidence == (
        "w-1 can't reach w-0 (10.244.0.12 port 40001): no answer in 2 s, twice",
    )
    assert "NetworkPolicy" in found.hint
    assert "MPIBOOT_PAIR_CHECK=0" in found.hint


@pytest.mark.parametrize(
    ("reached", "message"),
    [
        (Reached.REFUSED, "a firewall or NetworkPolicy that rejects, as kube-router's do"),
        (Reached.NO_ROUTE, "no route"),
    ],
)
def test_how_it_was_refused_is_told(reached: Reached, message: str) -> None:
    one = replace(dialled("w-0", "w-1", reached), ssh=Reached.SILENT)
    (found,) = findings([one], ALL)
    assert found.level is Level.FAIL
    assert found.message.endswith(f"{message}; its SSH port 22 does not answer either")


@pytest.mark.parametrize("bad", ["blocked", "translated"])
def test_one_way_is_a_warning_and_a_failure_of_another_pair_comes_first(bad: str) -> None:
    wrong = dialled("w-0", "w-1", Reached.SILENT)
    if bad == "translated":
        wrong = replace(dialled("w-0", "w-1"), seen="10.244.0.1")
    (found,) = findings([wrong, dialled("w-1", "w-0")], ALL)
    assert found.level is Level.WARN
    assert "a warning only: the other way they connect" in found.message
    worse = replace(wrong, source="w-2", target="w-3")
    (found,) = findings([wrong, dialled("w-1", "w-0"), worse], ALL)
    assert found.level is Level.FAIL
    assert found.message.startswith("w-2 " if bad == "blocked" else "w-3 ")


def test_what_mpi_may_do_without_is_a_warning() -> None:
    (found,) = findings(both(Reached.SILENT), ALL, "the data network is RoCE")
    assert found.level is Level.WARN
    assert found.message == (
        "w-0 can't reach w-1 (10.244.0.12 port 40001): no answer in 2 s, twice; 1 more of 2 that "
        "were tried (a warning only: the data network is RoCE)"
    )


def test_hosts_without_ranks_are_left_out() -> None:
    assert findings(both(Reached.SILENT), ["w-0", "w-2"]) == ()
    assert findings(both(Reached.SILENT), ["w-1", "w-2"]) == ()
    assert len(findings(both(Reached.SILENT), ["w-0", "w-1"])) == 1


@pytest.mark.parametrize(
    ("own", "seen", "translated"),
    [
        ("10.0.0.1", "10.0.0.1", False),
        ("10.0.0.1", "10.0.0.2", True),
        ("", "10.0.0.2", False),
        ("10.0.0.1", "", False),
    ],
)
def test_where_both_addresses_are_known_they_tell_of_nat(
    own: str, seen: str, *, translated: bool
) -> None:
    assert replace(dialled("w-0", "w-1"), own=own, seen=seen).translated == translated


def test_another_address_than_the_own_is_named_with_both() -> None:
    first, second = (replace(item, seen="10.0.0.1") for item in both(Reached.ANSWERED))
    (found,) = findings([first, second], ALL)
    assert (found.check, found.level) == ("worker-address", Level.FAIL)
    assert found.message == (
        "w-1 sees connections of w-0 come from 10.0.0.1, not from its own address 10.244.0.11; 1 "
        "more of 2 that were tried"
    )


def test_an_mpi_that_is_not_known_to_check_addresses_is_warned_of_nat_alone() -> None:
    nat = [replace(item, seen="10.0.0.1") for item in both(Reached.ANSWERED)]
    (found,) = findings(nat, ALL, checks_address=False)
    assert (found.check, found.level) == ("worker-address", Level.WARN)
    (found,) = findings(both(Reached.SILENT), ALL, checks_address=False)
    assert (found.check, found.level) == ("worker-pairs", Level.FAIL)


def test_a_zone_is_no_other_address() -> None:
    one = replace(dialled("w-0", "w-1"), own="fe80::1%eth0", seen="fe80::1")
    assert findings([one], ALL) == ()


def test_many_are_told_by_a_few() -> None:
    names = [f"w-{number}" for number in range(20)]
    every = [dialled("w-0", name, Reached.SILENT) for name in names[1:]]
    (found,) = findings(every, names)
    assert "; 18 more of 19 that were tried" in found.message
    assert len(found.evidence) == 3


def test_where_tcp_does_not_pass_on_the_data_network() -> None:
    good, bad = both(Reached.ANSWERED), both(Reached.SILENT)
    assert blocked_on_data(()) == blocked_on_data(good) == ""
    one = "w-1 can't reach w-0 (10.244.0.12 port 40001): no answer in 2 s, twice"
    though = "; the control addresses answer"
    assert blocked_on_data([good[0], bad[1]]) == one + though
    first = one.replace("w-1 can't reach w-0", "w-0 can't reach w-1")
    assert blocked_on_data(reversed(bad)) == f"{first} (and 1 more){though}"


@pytest.mark.parametrize(
    ("reached", "why"),
    [
        (Reached.REFUSED, "a firewall or NetworkPolicy that rejects"),
        (Reached.NO_ROUTE, "no route"),
        (Reached.CONNECTED, "a service mesh's sidecar"),
    ],
)
def test_whatever_is_no_answer_keeps_sockets_off_the_data_network(
    reached: Reached, why: str
) -> None:
    assert why in blocked_on_data([dialled("w-0", "w-1", reached)])
    assert blocked_on_data([dialled("w-0", "w-1", Reached.UNKNOWN)]) == ""
