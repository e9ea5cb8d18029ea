from __future__ import annotations

from mpiboot.core.facts import Host
from mpiboot.hosts.progress import HostState, Stage, fields, finding, line, states


def of(*names: str) -> tuple[HostState, ...]:
    return states([Host(name) for name in names])


def test_a_line_says_how_many_are_ready_and_what_the_others_wait_for() -> None:
    known = of(*(f"w-{number}.job.ns.svc" for number in range(64)))
    for state in known:
        state.stage = Stage.READY
    known[3].stage, known[3].reason = Stage.SSH, "connection refused"
    known[9].stage, known[9].reason = Stage.DNS, "NXDOMAIN"

    assert line(known) == (
        "62/64 hosts ready, waiting for SSH on w-3 (connection refused), DNS for w-9 (NXDOMAIN)"
    )


def test_many_hosts_with_one_reason_are_one_group() -> None:
    known = of(*(f"w-{number}" for number in range(1000)))
    for state in known:
        state.reason = "NXDOMAIN"

    assert line(known) == (
        "0/1000 hosts ready, waiting for DNS for w-0, w-1, w-2 and 997 more (NXDOMAIN)"
    )


def test_many_reasons_are_not_all_listed() -> None:
    known = of(*(f"w-{number}" for number in range(10)))
    for number, state in enumerate(known):
        state.reason = f"reason {number}"

    assert line(known).endswith("6 more for other reasons")


def test_all_ready_waits_for_nothing() -> None:
    known = of("w-0")
    known[0].stage = Stage.READY

    assert line(known) == "1/1 hosts ready"


def test_names_are_whole_where_their_first_parts_are_alike_and_addresses_always() -> None:
    assert [state.label for state in of("w-0.a", "w-0.b")] == ["w-0.a", "w-0.b"]
    assert [state.label for state in of("10.0.0.1", "10.0.0.2")] == ["10.0.0.1", "10.0.0.2"]
    assert [state.label for state in of("fd00::1", "w-0.b")] == ["fd00::1", "w-0"]


def test_fields_have_full_names_and_an_end() -> None:
    record = fields(of(*(f"w-{number}.job" for number in range(100))))

    assert (record["ready"], record["total"]) == (0, 100)
    waiting = record["waiting"]
    assert isinstance(waiting, list)
    assert len(waiting) == 50
    assert waiting[0] == {"host": "w-0.job", "stage": "dns", "reason": ""}


def test_a_finding_has_the_last_reason_in_full() -> None:
    state = of("w-0.job")[0]
    state.reason, state.detail = "NXDOMAIN", "NXDOMAIN (asked 10.96.0.10)"

    found = finding(state)
    assert (found.check, found.host) == ("names-unresolved", "w-0.job")
    assert found.message == "DNS: NXDOMAIN (asked 10.96.0.10)"

    state.resolved, state.stage = True, Stage.SSH
    assert finding(state).check == "workers-unreachable"


def test_a_finding_says_as_much_as_is_known() -> None:
    state = of("w-0.job")[0]
    assert finding(state).message == "DNS: no answer yet"
    state.reason = "NXDOMAIN"
    assert finding(state).message == "DNS: NXDOMAIN"
    usual = finding(state).hint
    assert "headless Service" in usual
    state.hint = "do this"
    assert finding(state).hint == "do this"


def test_who_is_furthest_is_told_first_then_the_largest_group() -> None:
    known = of(*(f"w-{number}" for number in range(6)))
    for number, (stage, reason) in enumerate(
        [
            (Stage.DNS, "a"),
            (Stage.DNS, "b"),
            (Stage.DNS, "b"),
            (Stage.SSH, "c"),
            (Stage.READY, ""),
            (Stage.SSH, ""),
        ]
    ):
        known[number].stage, known[number].reason = stage, reason
    assert line(known) == (
        "1/6 hosts ready, waiting for SSH on w-3 (c), SSH on w-5, DNS for w-1, w-2 (b), "
        "DNS for w-0 (a)"
    )
    assert fields(known)["ready"] == 1
