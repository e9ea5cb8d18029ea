from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.job.mpirun_line import UserLine, read
from mpiboot.job.placement import Placement, chosen, daemons, default_policy, outside, place
from mpiboot.model import Finding, Host, Level

OPEN_MPI = ("openmpi4", "openmpi5")


def hosts(*slots: int) -> tuple[Host, ...]:
    return tuple(Host(f"w-{at}", count, slots_given=True) for at, count in enumerate(slots))


def placed(slots: tuple[int, ...], text: str, family: str = "openmpi4") -> Placement:
    line = read(["mpirun", *text.split(), "./prog"], family)
    return place(hosts(*slots), line, np=line.np, family=family)


def levels(findings: tuple[Finding, ...]) -> list[Level]:
    return [item.level for item in findings]


# Job maps of real runs of 4.1.4 and 5.0.11 (--display-map, daemons not started).
MEASURED = [
    ("", (2, 4, 2), (2, 4, 2)),
    ("-n 3", (2, 1, 0), (2, 1, 0)),
    ("-n 7", (2, 4, 1), (2, 4, 1)),
    ("-n 9", None, None),
    ("-n 3 --map-by node", (1, 1, 1), (1, 1, 1)),
    ("-n 5 --map-by node", (2, 2, 1), (2, 2, 1)),
    ("-n 7 --map-by node", (2, 3, 2), (2, 3, 2)),
    ("-N 1", (1, 1, 1), (1, 1, 1)),
    ("-N 2", (2, 2, 2), (2, 2, 2)),
    ("-N 3", None, None),
    ("-N 2 -n 3", (2, 1, 0), (2, 1, 0)),
    ("-N 2 -n 7", None, None),
    ("-N 4 --oversubscribe", (4, 4, 4), (4, 4, 4)),
    ("--pernode -n 2", (1, 1, 0), (1, 1, 0)),
    ("--map-by ppr:2:node -n 5", (2, 2, 1), (2, 2, 1)),
    ("--map-by ppr:3:node -n 2", (2, 0, 0), (2, 0, 0)),
    ("--map-by ppr:3:node -n 4", None, (2, 2, 0)),
    ("--map-by ppr:3:node -n 5", None, (2, 3, 0)),
    ("--map-by ppr:4:node --oversubscribe", (4, 4, 4), (4, 4, 4)),
    ("-n 9 --map-by slot --oversubscribe", (3, 4, 2), (3, 4, 2)),
    ("-n 12 --map-by slot --oversubscribe", (4, 5, 3), (4, 5, 3)),
    ("-n 17 --map-by slot:OVERSUBSCRIBE", (5, 7, 5), (5, 7, 5)),
    ("-n 12 --map-by node --oversubscribe", (4, 4, 4), (4, 4, 4)),
    ("-n 13 --map-by node:OVERSUBSCRIBE", (5, 4, 4), (5, 4, 4)),
    ("-n 5 --map-by slot:span", (2, 3, 0), (2, 3, 0)),
    ("-n 5 --map-by core", (2, 3, 0), (2, 3, 0)),
    ("--bynode -n 5", (2, 2, 1), (2, 2, 1)),
    ("--ppr 1:node", (1, 1, 1), (1, 1, 1)),
    ("-H w-1", (1,), (1,)),
    ("-H w-1:9", (9,), (9,)),
    ("-H w-2,w-0", (1, 1), (1, 1)),
    ("-H w-1,w-1", (2,), (2,)),
    ("-H w-1 -n 3", None, None),
]


@pytest.mark.parametrize(("text", "four", "five"), MEASURED)
def test_ranks_go_where_mpirun_was_seen_to_put_them(
    text: str, four: tuple[int, ...] | None, five: tuple[int, ...] | None
) -> None:
    for family, expected in zip(OPEN_MPI, (four, five), strict=True):
        found = placed((2, 4, 2), text, family)
        assert found.unclear == ""
        counts = tuple(count for _, count in found.ranks)
        assert counts == (expected or ())
        if expected is None:
            assert levels(found.findings)[-1:] == [Level.FAIL]


@pytest.mark.parametrize(
    ("slots", "np", "expected"),
    [
        ((2, 3, 1, 4), 7, (2, 3, 1, 1)),
        ((1, 1, 1, 7, 5), 14, (1, 1, 1, 7, 4)),
        ((1, 5, 1, 9, 1, 1, 7), 21, (1, 5, 1, 7, 1, 1, 5)),
        ((1, 4, 4), 4, (1, 2, 1)),
    ],
)
def test_4_deals_over_uneven_slots_as_it_was_seen_to(
    slots: tuple[int, ...], np: int, expected: tuple[int, ...]
) -> None:
    found = placed(slots, f"-n {np} --map-by node")
    assert tuple(count for _, count in found.ranks) == expected


def test_4_puts_its_own_host_first_wherever_the_hostfile_has_it() -> None:
    def order(family: str) -> list[tuple[str, int]]:
        return list(place(hosts(2, 1, 2), UserLine(), np=3, family=family, local=["w-1"]).ranks)

    assert order("openmpi4") == [("w-1", 1), ("w-0", 2), ("w-2", 0)]
    assert order("openmpi5") == [("w-0", 2), ("w-1", 1), ("w-2", 0)]


def test_ranks_over_the_slots_stop_with_what_is_asked_and_what_is_offered() -> None:
    (found,) = placed((4, 4), "-n 16").findings
    assert found.level is Level.FAIL
    assert found.said == (
        "16 ranks are asked for (-n on the mpirun line), and 2 hosts offer 8 slots"
    )
    assert "MPIBOOT_OVERSUBSCRIBE=true" in found.hint
    setting = place(hosts(1), UserLine(), np=2, family="openmpi5").findings
    assert setting[0].said == "2 ranks are asked for, and 1 host offers 1 slot"
    allowed = place(hosts(4, 4), UserLine(), np=16, family="openmpi4", oversubscribe=True)
    assert allowed.findings == ()


@pytest.mark.parametrize("family", OPEN_MPI)
def test_one_rank_on_purpose_passes_and_is_said(family: str) -> None:
    found = placed((1, 1, 1, 1), "-n 1", family)
    assert found.idle == ("w-1", "w-2", "w-3")
    (warning,) = found.findings
    assert warning.level is Level.WARN
    assert warning.said == ("3 of 4 hosts would get no rank: w-1, w-2, w-3 (1 rank is asked for)")


@pytest.mark.parametrize("family", OPEN_MPI)
def test_ranks_for_every_host_that_all_go_to_the_first_stop_the_job(family: str) -> None:
    (found,) = placed((2, 2), "-n 2", family).findings
    assert found.level is Level.FAIL
    assert found.said.startswith("1 of 2 hosts would get no rank: w-1, because 2 ranks fill")
    assert "--map-by node" in found.hint
    setting = place(hosts(2, 2), UserLine(), np=2, family=family)
    assert levels(setting.findings) == [Level.FAIL]


@pytest.mark.parametrize("mapping", ["--map-by slot", "--map-by ppr:2:node", "-N 2", "--byslot"])
def test_a_mapping_of_the_users_own_may_leave_hosts_idle_and_is_said(mapping: str) -> None:
    found = placed((2, 2), f"-n 2 {mapping}")
    assert levels(found.findings) == [Level.WARN]
    assert mapping.rsplit(maxsplit=1)[-1] in found.findings[0].said


def test_the_users_environment_decides_the_mapping_where_the_line_does_not() -> None:
    line = read(["mpirun", "-n", "2", "./prog"], "openmpi4")
    found = place(hosts(2, 2), line, np=2, family="openmpi4", policy="node")
    assert [count for _, count in found.ranks] == [1, 1]
    kept = place(hosts(2, 2), line, np=2, family="openmpi4", policy="slot")
    assert levels(kept.findings) == [Level.WARN]


def test_5_takes_modifiers_from_the_environment_when_the_policy_stands_there() -> None:
    line = read(["mpirun", "-n", "9", "--oversubscribe", "./prog"], "openmpi5")
    refused = place(hosts(2, 2), line, np=9, family="openmpi5", policy="slot")
    assert levels(refused.findings) == [Level.FAIL]
    allowed = place(hosts(2, 2), line, np=9, family="openmpi5", policy="slot:oversubscribe")
    assert [count for _, count in allowed.ranks] == [5, 4]
    assert default_policy("openmpi5", oversubscribe=True) == "slot:oversubscribe"
    assert default_policy("openmpi5", oversubscribe=False) == "slot"
    assert default_policy("openmpi4", oversubscribe=True) == "slot"


@pytest.mark.parametrize(
    "text",
    [
        "--rankfile x",
        "--map-by dist",
        "--map-by seq",
        "--map-by slot:pe=4",
        "--map-by ppr:1:socket",
        "--map-by socket --oversubscribe -n 20",
        "--novm",
        "--frobnicate",
        "-n 1 -H w-0 ./a : -n 1",
        "./a : -n 1",
    ],
)
def test_what_is_not_computed_is_said_to_be_unknown(text: str) -> None:
    found = placed((2, 2), text)
    assert found.ranks == ()
    assert found.unclear
    assert found.findings[-1].level is Level.UNKNOWN


def test_several_programs_fill_the_slots_one_after_the_other() -> None:
    assert placed((2, 4), "-n 2 ./a : -n 3").ranks == (("w-0", 2), ("w-1", 3))


def test_hosts_of_the_line_decide_and_what_they_leave_out_is_said() -> None:
    line = read(["mpirun", "-H", "w-2:3,W-0.,stranger", "./prog"], "openmpi4")
    known = hosts(1, 1, 1)
    assert [(host.name, host.slots) for host in chosen(known, line)] == [
        ("w-2", 3),
        ("w-0", 1),
        ("stranger", 1),
    ]
    assert outside(known, line) == ("stranger",)
    findings = place(known, line, np=None, family="openmpi4").findings
    assert [item.said for item in findings] == [
        "-H leaves out 1 of 3 hosts: w-1",
        "-H names stranger, which the hostfile does not have",
    ]


@pytest.mark.parametrize("family", OPEN_MPI)
def test_open_mpi_starts_daemons_on_every_host_even_for_one_rank(family: str) -> None:
    line = read(["mpirun", "-n", "1", "./prog"], family)
    assert daemons(hosts(1, 1, 1), line, ["w-0"]) == ("w-1", "w-2")
    assert daemons(hosts(1, 1), UserLine(), []) == ("w-0", "w-1")


def test_hosts_of_the_line_are_those_that_get_daemons() -> None:
    def started(text: str) -> tuple[str, ...]:
        return daemons(hosts(1, 1, 1), read(["mpirun", *text.split(), "x"], "openmpi4"), [])

    assert started("-H w-2,w-1 -n 1") == ("w-2", "w-1")
    assert started("-H localhost,w-1 -n 1") == ("w-1",)
    assert started("-n 1 -H w-1 x : -n 1 -H w-2") == ("w-1", "w-2")
    assert started("-H +n1") == ()
    assert started("--novm -n 1") == ()
    assert started("--frobnicate -n 1") == ("w-0", "w-1", "w-2")
    assert started("--frobnicate -H w-1") == ()


def test_hydra_starts_proxies_only_where_ranks_go_and_wraps_are_stopped() -> None:
    line = read(["mpiexec", "-n", "2", "./prog"], "mpich")
    assert daemons(hosts(2, 2), line, []) == ("w-0",)
    found = place(hosts(2, 2), read(["mpiexec", "-n", "5", "x"], "mpich"), np=5, family="mpich")
    assert [count for _, count in found.ranks] == [3, 2]
    assert levels(found.findings) == [Level.FAIL]
    assert place(hosts(2, 2), UserLine("intel"), np=2, family="intel").unclear


def test_no_hosts_have_no_placement() -> None:
    assert place((), UserLine(), np=1, family="openmpi4").unclear


_slots = st.lists(st.integers(1, 40), min_size=1, max_size=30)
_policy = st.sampled_from(["", "slot", "node", "slot:oversubscribe", "node:oversubscribe", "core"])


@given(
    slots=_slots,
    np=st.integers(1, 400),
    policy=_policy,
    family=st.sampled_from([*OPEN_MPI, "mpich"]),
    over=st.booleans(),
)
def test_all_ranks_are_placed_and_no_host_gets_more_than_its_slots_unless_allowed(
    *, slots: list[int], np: int, policy: str, family: str, over: bool
) -> None:
    line = UserLine(family, map_by=policy, mapped_by=policy)
    found = place(hosts(*slots), line, np=np, family=family, oversubscribe=over)
    over = over or policy.endswith("oversubscribe")
    assert all(count >= 0 for _, count in found.ranks)
    if found.ranks:
        assert sum(count for _, count in found.ranks) == np == found.total
        assert len(found.ranks) == len(slots)
    if found.ranks and not over and family != "mpich":
        assert all(count <= room for (_, count), room in zip(found.ranks, slots, strict=True))
    if np > sum(slots) and not over and not found.unclear:
        assert Level.FAIL in levels(found.findings)
    if np <= sum(slots) and policy in ("", "slot"):
        assert found.ranks
    if found.idle:
        assert found.findings


@given(
    slots=_slots,
    each=st.integers(1, 50),
    np=st.one_of(st.none(), st.integers(1, 400)),
    over=st.booleans(),
)
def test_ranks_per_host_are_never_more_than_asked(
    *, slots: list[int], each: int, np: int | None, over: bool
) -> None:
    for family in OPEN_MPI:
        line = UserLine(family, per_node=each, mapped_by=f"-N {each}")
        found = place(hosts(*slots), line, np=np, family=family, oversubscribe=over)
        assert all(0 <= count <= each for _, count in found.ranks)
        assert not found.ranks or np is None or found.total == np
        assert found.ranks or levels(found.findings) == [Level.FAIL]


@given(_slots, st.integers(1, 2**40))
def test_huge_numbers_are_computed_at_once(slots: list[int], np: int) -> None:
    for family in (*OPEN_MPI, "mpich"):
        for policy in ("slot", "node"):
            line = UserLine(family, map_by=policy, mapped_by=policy)
            found = place(hosts(*slots), line, np=np, family=family, oversubscribe=True)
            assert found.total == np
    big = [room * 2**24 for room in slots]
    for family in OPEN_MPI:
        line = UserLine(family, map_by="node", mapped_by="node")
        capped = min(np, sum(big))
        assert place(hosts(*big), line, np=capped, family=family).total == capped
