from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.model import Finding, Level
from mpiboot.network.worker_pairs import LAUNCHER, Dial, Reached, blocked_on_data, neighbours
from mpiboot.network.worker_pairs import findings as judged

ANSWERED, SILENT, CONNECTED = Reached.ANSWERED, Reached.SILENT, Reached.CONNECTED
ALL = ("w-0", "w-1", "w-2", "w-3")
SILENCE = "no answer in 2 s, twice"
AT = "(10.244.0.12 port 40001)"
MORE = "; 1 more of 2 that were tried"


def dialled(source: str, target: str, reached: Reached = ANSWERED) -> Dial:
    own = seen = "10.244.0.11" if reached is ANSWERED else ""
    return Dial(source, target, "10.244.0.12", 40001, 2.0, reached, own, seen, 22)


def both(reached: Reached) -> list[Dial]:
    return [dialled("w-0", "w-1", reached), dialled("w-1", "w-0", reached)]


def nat(dial: Dial) -> Dial:
    return replace(dial, seen="10.0.0.1")


def only(dials: list[Dial], optional: str = "", **more: object) -> Finding:
    (found,) = judged(dials, ALL, optional, **more)  # type: ignore[arg-type]
    return found


def test_neighbours_are_a_ring_and_some_pair_lies_across_any_two_groups() -> None:
    for hosts, pairs in {"": [], "a": [], "ab": ["ab"], "abc": ["ab", "bc", "ca"]}.items():
        assert ["".join(pair) for pair in neighbours(hosts)] == pairs
    for bits in (1, 2, 5, 6, 9, 14, 0b101010, 0b100000, 0b011111):
        group = [bits >> number & 1 for number in range(max(2, bits.bit_length()))]
        across = [one for one, other in neighbours(range(len(group))) if group[one] != group[other]]
        assert across or len(set(group)) == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("answered 10.0.0.1 10.0.0.9 -", (ANSWERED, "10.0.0.1", "10.0.0.9", None)),
        ("connected fd00::1 - -", (CONNECTED, "fd00::1", "", None)),
        ("silent - - connected", (SILENT, "", "", CONNECTED)),
        ("refused 10.0.0.1 - refused", (Reached.REFUSED, "10.0.0.1", "", Reached.REFUSED)),
        ("silent - - odd", (SILENT, "", "", None)),
        *((line, None) for line in ("odd - - silent", "", "answered 10.0.0.1")),
        ("answered 10.0.0.1 10.0.0.9 - more", None),
        ("Traceback (most recent call last): in seven", None),
    ],
)
def test_a_workers_answer(line: str, expected: object) -> None:
    asked = Dial("w-0", "w-1", "10.244.0.12", 40001, 2.0)
    found = asked.answered(line)
    if expected is None:
        assert found is asked
    else:
        assert (found.reached, found.own, found.seen, found.ssh) == expected


@pytest.mark.parametrize(
    ("dials", "hosts"),
    [
        (both(ANSWERED), ALL),
        # Open MPI's daemons may be seen under another address: ranks alone are dropped for that.
        ([nat(dialled("w-0", LAUNCHER))], ALL),
        # A zone is no other address.
        ([replace(dialled("w-0", "w-1"), own="fe80::1%eth0", seen="fe80::1")], ALL),
        # Who gets no daemon needs nobody.
        ([dialled("w-1", LAUNCHER, SILENT)], ("w-0",)),
        (both(SILENT), ("w-0", "w-2")),
        (both(SILENT), ("w-1", "w-2")),
    ],
)
def test_what_is_nothing_to_tell(dials: list[Dial], hosts: tuple[str, ...]) -> None:
    assert judged(dials, hosts) == ()


@pytest.mark.parametrize(
    ("elsewhere", "level"), [("", Level.FAIL), ("they go another way", Level.WARN)]
)
def test_daemons_need_the_launcher_whatever_carries_mpis_messages(
    elsewhere: str, level: Level
) -> None:
    bad = [*both(ANSWERED), dialled("w-1", LAUNCHER, SILENT), dialled("w-0", LAUNCHER)]
    found = only(bad, "the data network is RoCE", daemons_optional=elsewhere)
    assert (found.check, found.level) == ("worker-pairs", level)
    assert found.message.startswith(f"w-1 can't reach the launcher {AT}: {SILENCE}")
    assert ("a warning only: they go another way" in found.message) == bool(elsewhere)
    assert "MPIBOOT_PAIR_CHECK=0" in found.hint


def test_a_pair_that_nothing_passes_between_is_a_failure() -> None:
    first, second = both(SILENT)
    found = only([replace(first, ssh=CONNECTED), second])
    assert (found.check, found.level, found.host) == ("worker-pairs", Level.FAIL, "")
    assert found.message == (f"w-0 can't reach w-1 {AT}: {SILENCE}; its SSH port 22 answers{MORE}")
    assert found.evidence == (f"w-1 can't reach w-0 {AT}: {SILENCE}",)
    assert "NetworkPolicy" in found.hint
    assert "MPIBOOT_PAIR_CHECK=0" in found.hint
    # Of many a few are shown.
    names = [f"w-{number}" for number in range(20)]
    (many,) = judged([dialled("w-0", name, SILENT) for name in names[1:]], names)
    assert "; 18 more of 19 that were tried" in many.message
    assert len(many.evidence) == 3
    # What MPI may do without is a warning.
    found = only(both(SILENT), "the data network is RoCE")
    assert found.level is Level.WARN
    assert found.message.endswith(f"{MORE} (a warning only: the data network is RoCE)")


@pytest.mark.parametrize(
    ("reached", "how", "why"),
    [
        (Reached.REFUSED, "can't", "a firewall or NetworkPolicy that rejects, as kube-router's do"),
        (Reached.NO_ROUTE, "can't", "no route"),
        (CONNECTED, "may not", "a proxy does that, such as a service mesh's sidecar"),
    ],
)
def test_how_it_was_refused_is_told(reached: Reached, how: str, why: str) -> None:
    one = replace(dialled("w-0", "w-1", reached), ssh=SILENT)
    for found in (only([one]), only([replace(one, target=LAUNCHER)])):
        assert (found.check, found.level is Level.FAIL) == ("worker-pairs", reached.blocked)
        assert found.message.startswith(f"w-0 {how} reach ")
        assert f"{why}; its SSH port 22 does not answer either" in found.message
        # What accepts it may pass MPI's connections on.
        assert ("a warning only: what accepts it" in found.message) == (reached is CONNECTED)
        assert ("service mesh" in found.hint) == (reached is CONNECTED)
        assert "MPIBOOT_PAIR_CHECK=0" in found.hint
    assert why in blocked_on_data([one])


@pytest.mark.parametrize("bad", ["blocked", "translated"])
def test_one_way_is_a_warning_and_a_failure_of_another_pair_comes_first(bad: str) -> None:
    wrong = dialled("w-0", "w-1", SILENT) if bad == "blocked" else nat(dialled("w-0", "w-1"))
    found = only([wrong, dialled("w-1", "w-0")])
    assert found.level is Level.WARN
    assert "a warning only: the other way they connect" in found.message
    found = only([wrong, dialled("w-1", "w-0"), replace(wrong, source="w-2", target="w-3")])
    assert found.level is Level.FAIL
    assert found.message.startswith("w-2 " if bad == "blocked" else "w-3 ")


def test_another_address_than_the_own_is_named_with_both() -> None:
    for own, seen in (("10.0.0.1", "10.0.0.1"), ("", "10.0.0.2"), ("10.0.0.1", "")):
        assert not replace(dialled("w-0", "w-1"), own=own, seen=seen).translated
    pairs = [*map(nat, both(ANSWERED))]
    found = only(pairs)
    assert (found.check, found.level) == ("worker-address", Level.FAIL)
    other = "come from 10.0.0.1, not from its own address 10.244.0.11"
    assert found.message == f"w-1 sees connections of w-0 {other}{MORE}"
    # An MPI that is not known to check addresses is warned of NAT alone.
    assert only(pairs, checks_address=False).level is Level.WARN
    assert only(both(SILENT), checks_address=False).level is Level.FAIL


def test_where_tcp_does_not_pass_on_the_data_network() -> None:
    good, bad = both(ANSWERED), both(SILENT)
    assert blocked_on_data(()) == blocked_on_data(good) == ""
    assert blocked_on_data([dialled("w-0", "w-1", Reached.UNKNOWN)]) == ""
    though = "; the control addresses answer"
    assert blocked_on_data([good[0], bad[1]]) == f"w-1 can't reach w-0 {AT}: {SILENCE}{though}"
    first = f"w-0 can't reach w-1 {AT}: {SILENCE} (and 1 more){though}"
    assert blocked_on_data(reversed(bad)) == first
