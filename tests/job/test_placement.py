from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.facts import Host
from mpiboot.core.model import Finding, Level, MpiFamily
from mpiboot.job.dialects import DIALECTS, MPICH, OPENMPI4, OPENMPI5, Dialect
from mpiboot.job.mpirun_line import UserLine, read
from mpiboot.job.placement import Placement, can_tell, chosen, daemons, place

OPEN_MPI = (OPENMPI4, OPENMPI5)
both = pytest.mark.parametrize("row", OPEN_MPI, ids=lambda row: row.family)


def hosts(*slots: int) -> tuple[Host, ...]:
    return tuple(Host(f"w-{at}", count, slots_given=True) for at, count in enumerate(slots))


def placed(slots: tuple[int, ...], text: str, row: Dialect = OPENMPI4) -> Placement:
    line = read(["mpirun", *text.split(), "./prog"], row.family)
    return place(hosts(*slots), line, row, np=line.np)


def levels(findings: tuple[Finding, ...]) -> list[Level]:
    return [item.level for item in findings]


# Which hosts of w-0 (2 slots), w-1 (4), w-2 (2) got a rank in real runs of 4.1.4 and 5.0.11
# (--display-map, daemons not started), and how many ranks there were; None where both refused.
MEASURED = [
    ("", "111", 8),
    ("-n 3", "110", 3),
    ("-n 7", "111", 7),
    ("-n 9", None, None),
    ("-n 3 --map-by node", "111", 3),
    ("-n 2 --map-by node", "110", 2),
    ("-n 7 --map-by node", "111", 7),
    ("-N 1", "111", 3),
    ("-N 2", "111", 6),
    ("-N 3", None, None),
    ("-N 2 -n 3", "110", 3),
    ("-N 2 -n 7", None, None),
    ("-N 4 --oversubscribe", "111", 12),
    ("--pernode -n 2", "110", 2),
    ("--map-by ppr:2:node -n 5", "111", 5),
    ("--map-by ppr:3:node -n 2", "100", 2),
    ("--map-by ppr:4:node --oversubscribe", "111", 12),
    ("-n 9 --map-by slot --oversubscribe", "111", 9),
    ("-n 17 --map-by slot:OVERSUBSCRIBE", "111", 17),
    ("-n 13 --map-by node:OVERSUBSCRIBE", "111", 13),
    ("-n 5 --map-by core", "110", 5),
    ("--bynode -n 5", "111", 5),
    ("--ppr 1:node", "111", 3),
    ("-H w-1", "1", 1),
    ("-H w-1:9", "1", 9),
    ("-H w-2,w-0", "11", 2),
    ("-H w-1,w-1", "1", 2),
    ("-H w-1 -n 3", None, None),
]


@both
@pytest.mark.parametrize(("text", "busy", "total"), MEASURED)
def test_ranks_go_where_mpirun_was_seen_to_put_them(
    text: str, busy: str | None, total: int | None, row: Dialect
) -> None:
    found = placed((2, 4, 2), text, row)
    line = read(["mpirun", *text.split(), "./prog"], row.family)
    assert found.left == ""
    if busy is None:
        assert f"{row.title} refuses more ranks than slots" in found.findings[-1].message
        return
    names = [host.name for host in chosen(hosts(2, 4, 2), line)]
    assert [name in found.idle for name in names] == [mark == "0" for mark in busy]
    assert found.total == total


def test_more_ranks_for_a_host_than_its_slots_are_left_to_mpirun() -> None:
    # 4.1 refuses them, 5.0 goes on at the next host.
    found = placed((2, 4, 2), "--map-by ppr:3:node -n 4")
    assert found.left == "--map-by ppr:3:node, where w-0 has 2 slots"
    assert (found.total, found.idle, found.findings) == (4, (), ())


def test_4_puts_its_own_host_first_wherever_the_hostfile_has_it() -> None:
    def idle(row: Dialect) -> tuple[str, ...]:
        return place(hosts(2, 1, 2), UserLine(), row, np=3, local=["w-1"]).idle

    assert idle(OPENMPI4) == ("w-2",)
    assert idle(OPENMPI5) == ("w-2",)
    first = place(hosts(2, 3, 2), UserLine(), OPENMPI4, np=3, local=["w-1"])
    assert first.idle == ("w-0", "w-2")


def test_ranks_over_the_slots_are_said_with_what_is_asked_and_what_is_offered() -> None:
    (found,) = placed((4, 4), "-n 16").findings
    assert found.level is Level.WARN
    assert found.message == (
        "16 ranks requested (-n on the mpirun line), and 2 hosts offer 8 slots: Open MPI 4.1 "
        "(ORTE) refuses more ranks than slots unless it is told to oversubscribe"
    )
    assert "MPIBOOT_OVERSUBSCRIBE=true" in found.hint
    setting = place(hosts(1), UserLine(), OPENMPI5, np=2).findings
    assert setting[0].message.startswith("2 ranks requested, and 1 host offers 1 slot: ")
    allowed = place(hosts(4, 4), UserLine(), OPENMPI4, np=16, oversubscribe=True)
    assert allowed.findings == ()


@both
def test_one_rank_on_purpose_passes_and_is_said(row: Dialect) -> None:
    found = placed((1, 1, 1, 1), "-n 1", row)
    assert found.idle == ("w-1", "w-2", "w-3")
    (warning,) = found.findings
    assert warning.level is Level.WARN
    assert warning.message == "3 of 4 hosts will get no rank: w-1, w-2, w-3 (1 rank asked for)"
    assert not warning.hint


@both
def test_ranks_for_every_host_that_all_go_to_the_first_are_said(row: Dialect) -> None:
    (found,) = placed((2, 2), "-n 2", row).findings
    assert found.level is Level.WARN
    assert found.message == "1 of 2 hosts will get no rank: w-1 (2 ranks asked for)"
    assert "--map-by node" in found.hint
    assert place(hosts(2, 2), UserLine(), row, np=2).findings == (found,)


@pytest.mark.parametrize("mapping", ["--map-by slot", "--map-by ppr:2:node", "-N 2", "--byslot"])
def test_a_mapping_of_the_users_own_may_leave_hosts_idle_and_is_said(mapping: str) -> None:
    found = placed((2, 2), f"-n 2 {mapping}")
    assert levels(found.findings) == [Level.WARN]
    assert mapping.rsplit(maxsplit=1)[-1] in found.findings[0].message


def test_the_users_environment_decides_the_mapping_where_the_line_does_not() -> None:
    line = read(["mpirun", "-n", "2", "./prog"], MpiFamily.OPENMPI4)
    assert place(hosts(2, 2), line, OPENMPI4, np=2, policy="node").idle == ()
    kept = place(hosts(2, 2), line, OPENMPI4, np=2, policy="slot")
    assert levels(kept.findings) == [Level.WARN]
    other = place(hosts(2, 2), line, OPENMPI4, np=2, policy="seq")
    assert (other.left, other.findings) == ("the mapping seq", ())


def test_5_takes_modifiers_from_the_environment_when_the_policy_stands_there() -> None:
    line = read(["mpirun", "-n", "9", "--oversubscribe", "./prog"], MpiFamily.OPENMPI5)
    refused = place(hosts(2, 2), line, OPENMPI5, np=9, policy="slot")
    assert levels(refused.findings) == [Level.WARN]
    allowed = place(hosts(2, 2), line, OPENMPI5, np=9, policy="slot:oversubscribe")
    assert (allowed.idle, allowed.findings) == ((), ())
    only = read(["mpirun", "-n", "9", "--map-by", ":oversubscribe", "./prog"], MpiFamily.OPENMPI4)
    assert place(hosts(2, 2), only, OPENMPI4, np=9, policy="node").findings == ()
    # `nooversubscribe` is no `oversubscribe`, and 4.1 heeds its environment's modifier too.
    for row, policy, found in (
        (OPENMPI5, "slot:nooversubscribe", [Level.WARN]),
        (OPENMPI4, "slot:nooversubscribe", [Level.WARN]),
        (OPENMPI4, "slot:OVERSUBSCRIBE", []),
    ):
        line = read(["mpirun", "-n", "9", "./prog"], row.family)
        assert levels(place(hosts(2, 2), line, row, np=9, policy=policy).findings) == found


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("--rankfile x", "--rankfile x"),
        ("--nolocal --tune x --rankfile y", "--tune x, --nolocal, --rankfile y"),
        ("--nolocal -n 9", "--nolocal"),
        ("--map-by slot:nolocal", "the mapping slot:nolocal"),
        ("--map-by dist", "the mapping dist"),
        ("--map-by seq", "the mapping seq"),
        ("--map-by slot:pe=4", "the mapping slot:pe=4"),
        ("--map-by ppr:1:socket", "the mapping ppr:1:socket"),
        ("--map-by ppr:0:node", "the mapping ppr:0:node"),
        ("--map-by ppr", "the mapping ppr"),
        ("--map-by socket --oversubscribe -n 20", "the mapping socket"),
        ("--tune x", "--tune x"),
        ("-n 2 --frobnicate 3 -n 9", "the line from --frobnicate on"),
        ("-n 1 -H w-0 ./a : -n 1", "several programs with hosts or numbers of their own"),
        ("./a : -n 1", "several programs with hosts or numbers of their own"),
    ],
)
@both
def test_every_other_placement_is_left_to_mpirun(text: str, left: str, row: Dialect) -> None:
    found = placed((2, 2), text, row)
    assert (found.left, found.idle) == (left, ())
    assert Level.FAIL not in levels(found.findings)


def test_several_programs_fill_the_slots_one_after_the_other() -> None:
    assert placed((2, 2, 1), "-n 2 ./a : -n 2").idle == ("w-2",)


def test_hosts_of_the_line_decide_and_what_they_leave_out_is_said() -> None:
    line = read(["mpirun", "-H", "w-2:3,W-0.,stranger", "./prog"], MpiFamily.OPENMPI4)
    known = hosts(1, 1, 1)
    assert [(host.name, host.slots) for host in chosen(known, line)] == [
        ("w-2", 3),
        ("w-0", 1),
        ("stranger", 1),
    ]
    findings = place(known, line, OPENMPI4, np=None).findings
    assert [item.message for item in findings] == [
        "-H leaves out 1 of 3 hosts: w-1",
        "-H names stranger, which the hostfile does not have",
    ]


def started(slots: tuple[int, ...], text: str, row: Dialect, *local: str) -> tuple[str, ...]:
    line = read(["mpirun", *text.split(), "x"], row.family)
    found = place(hosts(*slots), line, row, np=line.np, local=local)
    return daemons(hosts(*slots), line, row, found, local)


@both
def test_open_mpi_starts_daemons_on_every_host_even_for_one_rank(row: Dialect) -> None:
    assert started((1, 1, 1), "-n 1", row, "w-0") == ("w-1", "w-2")
    assert started((1, 1), "", row) == ("w-0", "w-1")


def test_hosts_of_the_line_are_those_that_get_daemons() -> None:
    def names(text: str) -> tuple[str, ...]:
        return started((1, 1, 1), text, OPENMPI4)

    assert names("-H w-2,w-1 -n 1") == ("w-2", "w-1")
    assert names("-H localhost,w-1 -n 1") == ("w-1",)
    assert names("-n 1 -H w-1 x : -n 1 -H w-2") == ("w-1", "w-2")
    assert names("-H +n1") == ()
    assert names("--novm -n 1") == ()
    assert names("--frobnicate -n 1") == ("w-0", "w-1", "w-2")
    assert names("--frobnicate -H w-1") == ()


def test_hydra_starts_proxies_only_where_ranks_go_and_takes_any_number() -> None:
    assert started((2, 2), "-n 2", MPICH) == ("w-0",)
    assert started((2, 2), "-n 3", MPICH) == ("w-0", "w-1")
    assert started((1, 1, 1), "-ppn 2 -n 3", MPICH) == ("w-0", "w-1")
    for text in ("-n 5", "-n 2 -host w-1", "-n 4 -hosts w-1,w-0", "-ppn 1 -n 3"):
        found = placed((2, 2), text, MPICH)
        assert Level.FAIL not in levels(found.findings)
        assert found.idle == ()


@pytest.mark.parametrize(
    ("row", "text", "environ", "path", "asked"),
    [
        (OPENMPI5, "-n 2", (), "/run/x/placement", True),
        (OPENMPI5, "-n 2", (), "/run/a,b/placement", False),  # a comma ends the value
        (OPENMPI5, "--runtime-options x", (), "/run/x/placement", False),
        (OPENMPI5, "--output-proctable", (), "/run/x/placement", False),
        (OPENMPI5, "--frobnicate", (), "/run/x/placement", False),
        (OPENMPI5, "", ("PRTE_MCA_schizo_base_runtime_options",), "/run/x/placement", False),
        (OPENMPI4, "", (), "/run/x/placement", False),
    ],
)
def test_mpirun_is_asked_for_its_table_of_ranks_where_it_would_write_it(
    row: Dialect, text: str, environ: tuple[str, ...], path: str, *, asked: bool
) -> None:
    line = read(["mpirun", *text.split(), "x"], row.family)
    assert can_tell(line, row, environ, path) is asked


_slots = st.lists(st.integers(1, 40), min_size=1, max_size=30)
_policy = st.sampled_from(["", "slot", "node", "slot:oversubscribe", "node:oversubscribe", "core"])


@given(
    slots=_slots,
    np=st.integers(1, 2**40),
    policy=_policy,
    row=st.sampled_from(list(DIALECTS.values())),
    over=st.booleans(),
)
def test_ranks_over_the_slots_are_said_unless_allowed_and_idle_hosts_are(
    *, slots: list[int], np: int, policy: str, row: Dialect, over: bool
) -> None:
    over = over or policy.endswith("oversubscribe")
    line = UserLine(map_by=policy, mapped_by=policy, oversubscribe=over)
    found = place(hosts(*slots), line, row, np=np)
    if found.left:
        assert (policy, over) == ("core", True)
        return
    assert levels(found.findings) in ([], [Level.WARN])
    refused = np > sum(slots) and not over and not row.wraps_around
    assert bool(found.findings) == bool(found.idle or refused)
    if np >= sum(slots):
        assert found.idle == ()
    if policy.startswith("node") and (over or np <= sum(slots)):
        assert len(found.idle) == max(0, len(slots) - np)


@given(
    slots=_slots,
    each=st.integers(1, 50),
    np=st.one_of(st.none(), st.integers(1, 400)),
    over=st.booleans(),
)
def test_as_many_hosts_get_ranks_as_a_number_per_host_needs(
    *, slots: list[int], each: int, np: int | None, over: bool
) -> None:
    for row in OPEN_MPI:
        line = UserLine(per_node=each, mapped_by=f"-N {each}")
        found = place(hosts(*slots), line, row, np=np, oversubscribe=over)
        if np is not None and np > each * len(slots):
            assert levels(found.findings) == [Level.WARN]
        elif over:
            busy = len(slots) if np is None else -(-np // each)
            assert len(found.idle) == len(slots) - busy
            assert found.total == (each * len(slots) if np is None else np)
        else:
            enough = all(each <= room for room in slots)
            assert not enough or Level.FAIL not in levels(found.findings)
