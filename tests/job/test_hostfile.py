from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host
from mpiboot.job.hostfile import is_blank, parse, render


def hosts(text: str) -> list[tuple[str, int]]:
    return [(host.name, host.slots) for host in parse(text, "/etc/mpi/hostfile", "").hosts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("w-0.job.ns.svc slots=2\n", [("w-0.job.ns.svc", 2)]),
        ("w-0 slots = 2\n", [("w-0", 2)]),
        ("w-0  slots=  2  \n", [("w-0", 2)]),
        ("w-0 cpu=2", [("w-0", 2)]),
        ("w-0 count=2 port=22", [("w-0", 2)]),
        ("w-0:4\n", [("w-0", 4)]),
        ("w-0\n", [("w-0", 1)]),
        ("w-0 slots=0\nw-1:0\n[fd00::1]:0", [("w-0", 0), ("w-1", 0), ("fd00::1", 0)]),
        ("\tw-0 slots=007\n", [("w-0", 7)]),
        ("w-0 slots=2147483647\n", [("w-0", 2147483647)]),
        ("# all\n\n   \nw-0 slots=2 # tail\n#end", [("w-0", 2)]),
        ("w-0#tail", [("w-0", 1)]),
        ("w-0 slots=2\r\nw-1:3\r\n", [("w-0", 2), ("w-1", 3)]),
        ("\ufeffw-0:2\n", [("w-0", 2)]),
        ("10.244.0.5 slots=2\n10.244.0.6:3", [("10.244.0.5", 2), ("10.244.0.6", 3)]),
        (
            "[fd00::1]\n[fd00::2]:4\nfd00::3 slots=2",
            [("fd00::1", 1), ("fd00::2", 4), ("fd00::3", 2)],
        ),
        ("under_score slots=1\nW-0.Upper:2", [("under_score", 1), ("W-0.Upper", 2)]),
        ("w-0.job.ns.svc. slots=2\n", [("w-0.job.ns.svc.", 2)]),
        ("b slots=1\na slots=2\nb slots=4\n", [("b", 5), ("a", 2)]),
        ("a\na\n", [("a", 2)]),
        ("a\nA.:2\n", [("a", 3)]),
        ("[fd00::1]:2\nfd00:0::1", [("fd00::1", 3)]),
        ("a" * 63 + "." + "b" * 63 + ":2", [("a" * 63 + "." + "b" * 63, 2)]),
    ],
)
def test_every_syntax_in_use_is_read(text: str, expected: list[tuple[str, int]]) -> None:
    assert hosts(text) == expected


def test_a_host_keeps_user_limit_and_the_line_that_names_it_first() -> None:
    text = "# head\nme@a slots=2 max_slots=4\nb max-slots=3\nc:2 user=you\na:1 max-slots=2"
    assert parse(text, "f", "").hosts == (
        Host("a", 3, slots_given=True, max_slots=6, user="me", line=2),
        Host("b", 1, slots_given=False, max_slots=3, line=3),
        Host("c", 2, slots_given=True, user="you", line=4),
    )


def test_bare_words_behind_a_host_mean_nothing() -> None:
    """As in Open MPI 4.1 and 5.0, which read what stands behind them."""
    read = parse("a fast slots=2\nb 4 rack-7\n", "f", "")
    assert read.hosts == (Host("a", 2, slots_given=True, line=1), Host("b", line=2))
    assert read.remarks == ()


@pytest.mark.parametrize(
    ("text", "slots", "said"),
    [
        # Without a number each line is a slot to Open MPI 4.1 and 5.0, as one behind a number is.
        ("a\na\n", 2, ""),
        ("a slots=2\na\n", 3, ""),
        ("a\n\nA. slots=2\n", 3, "f:3: A. again, after line 1: 3 slots in all, where Open MPI"),
        ("a:2\nb\na:2", 4, "f:3: a again, after line 1: 4 slots in all, where Open MPI"),
    ],
)
def test_a_second_number_for_a_host_is_added_up_and_said(text: str, slots: int, said: str) -> None:
    """Open MPI ends over it: "multiple definitions of the slot count"."""
    read = parse(text, "f", "")
    assert (read.hosts[0].slots, read.hosts[0].slots_given) == (slots, True)
    assert [remark.startswith(said) for remark in read.remarks] == [True] * bool(said)


def test_a_binding_is_for_the_mpi_that_reads_it() -> None:
    (host,) = parse("a:2 binding=user:0,1", "f", "").hosts
    assert render([host], colon=True) == "a:2 binding=user:0,1\n"
    assert render([host]) == "a slots=2\n"


@pytest.mark.parametrize("most", ["max_slots", "max-slots", "slots_max", "slots-max"])
@pytest.mark.parametrize("user", ["user", "username", "user_name"])
def test_open_mpis_other_words_for_limit_and_user_are_read(most: str, user: str) -> None:
    (host,) = parse(f"a slots=2 {most}=4 {user}=me", "f", "").hosts
    assert (host.slots, host.max_slots, host.user) == (2, 4, "me")


def test_a_line_without_limit_takes_the_limit_off_the_host() -> None:
    (host,) = parse("a slots=2 max_slots=2\na slots=1\n", "f", "").hosts
    assert (host.slots, host.max_slots) == (3, None)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a slots=-1", 1, "'a slots=-1', expected `host slots=N` or `host:N`"),
        ("# x\n\na slots=abc", 3, "slots is 'abc', expected a whole number"),
        ("a slots=2147483648", 1, "'2147483648', expected a whole number up to 2147483647"),
        (f"a slots={'9' * 5000}", 1, "slots is '999"),
        ("a:x", 1, "slots is 'x'"),
        ("a foo=bar", 1, "'foo', expected `slots=N`"),
        ("a slots", 1, "'slots', expected `slots=N`"),
        ("a slots=2 slots=3", 1, "slots is given twice"),
        ("a:2 slots=2", 1, "slots is given twice"),
        ("me@a user=me", 1, "user is given twice"),
        ("a;reboot", 1, "'a;reboot'"),
        ("$(reboot) slots=1", 1, "'$(reboot) slots=1'"),
        ("a'b", 1, '"a\'b"'),
        ("a,b", 1, "one host a line"),
        ("-oProxyCommand=x slots=1", 1, "'-oProxyCommand=x slots=1'"),
        ("x" * 64, 1, "at most 63 between dots"),
        (".".join(["abcdefgh"] * 30), 1, "has 269 characters, at most 253 fit"),
        ("h\u00f6st", 1, "'h\\xf6st'"),
        ("a\x00b", 1, "'a\\x00b'"),
        ("a\x1b[2J slots=1", 1, "'a\\x1b[2J slots=1'"),
        ("[10.0.0.1]", 1, "'10.0.0.1' is not an IPv6 address"),
        ("a:2:3", 1, "'a:2:3' is not an IPv6 address"),
        ("fe80::1%eth0", 1, "'fe80::1%eth0'"),
        ("-l@a", 1, "'-l@a'"),
        ("a user=-l", 1, "'a user=-l'"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(text: str, line: int, words: str) -> None:
    with pytest.raises(MpibootError) as caught:
        parse(text, "/etc/mpi/hostfile", "MPI_HOSTFILE")
    message = caught.value.finding.message
    assert message.startswith(f"/etc/mpi/hostfile:{line}: ")
    assert words in message
    assert caught.value.code == 65
    assert message.isascii()
    assert message.isprintable()
    assert "MPI_HOSTFILE" in caught.value.finding.evidence[0]


@pytest.mark.parametrize("text", ["", "\n", "# only\n  # comments\r\n\r\n", "\ufeff", " \t \n"])
def test_a_file_without_hosts_is_blank_and_an_error_to_read(text: str) -> None:
    assert is_blank(text)
    with pytest.raises(MpibootError, match="has no hosts"):
        parse(text, "f", "")


@pytest.mark.parametrize("text", ["a", "# x\na", "\x00", "!"])
def test_a_file_with_anything_else_is_not_blank(text: str) -> None:
    assert not is_blank(text)


def test_one_endless_line_is_refused_quickly_and_shown_short() -> None:
    with pytest.raises(MpibootError) as caught:
        parse("x" * 2_000_000, "f", "")
    assert len(str(caught.value)) < 300


_label = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,20}[a-z0-9_])?", fullmatch=True)
_name = (
    st.lists(_label, min_size=1, max_size=4)
    .map(".".join)
    .filter(lambda name: not name.replace(".", "").isdigit())
)
_address = st.ip_addresses().map(str)
_user = st.one_of(st.just(""), st.from_regex(r"[a-z][a-z0-9_.-]{0,10}", fullmatch=True))


@st.composite
def _host(draw: st.DrawFn) -> Host:
    slots = draw(st.integers(1, 10_000))
    most = draw(st.one_of(st.none(), st.integers(slots, 20_000)))
    name = draw(st.one_of(_name, _address))
    return Host(name, slots, slots_given=True, max_slots=most, user=draw(_user))


_hosts = st.lists(_host(), min_size=1, max_size=20, unique_by=lambda host: host.name)


@given(_hosts)
def test_what_is_written_is_read_back_but_for_limits_behind_colons(items: list[Host]) -> None:
    back = parse(render(items), "f", "").hosts
    assert list(back) == [replace(host, line=at) for at, host in enumerate(items, start=1)]
    text = render(items, colon=True)
    assert "max_slots" not in text
    assert [replace(host, line=0) for host in parse(text, "f", "").hosts] == [
        replace(host, max_slots=None) for host in items
    ]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_one_line_and_nothing_a_shell_reads(text: str) -> None:
    wrong = None
    found: tuple[Host, ...] = ()
    try:
        found = parse(text, "f", "").hosts
    except MpibootError as caught:
        wrong = caught.finding
    assert wrong is None or (wrong.check == "hostfile-invalid" and wrong.message.isprintable())
    for host in found:
        assert host.slots >= 0
        assert not set(host.name) - set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:"
        )
        assert not host.name.startswith("-")


def test_open_mpi_gets_bare_ipv6_and_hydra_gets_brackets() -> None:
    host = Host("fd00::1", 2, slots_given=True, max_slots=3, user="me")
    assert render([host]) == "me@fd00::1 slots=2 max_slots=3\n"
    assert render([host], colon=True) == "me@[fd00::1]:2\n"


def test_a_host_without_a_number_stays_without_one() -> None:
    read = parse("a\nb:2", "f", "")
    assert render(read.hosts) == "a\nb slots=2\n"
    assert render(read.hosts, colon=True) == "a\nb:2\n"
    assert read.size == "2 hosts, some without a number of slots"


def test_hydra_does_not_get_the_hosts_of_no_slots_unless_all_are() -> None:
    """MPICH dies of `host:0`, and Intel MPI leaves that host out."""
    assert render(parse("a slots=0\nb:2", "f", "").hosts, colon=True) == "b:2\n"
    assert render(parse("a:0\nb:0", "f", "").hosts, colon=True) == "a:0\nb:0\n"
    assert render(parse("a:0\nb:2", "f", "").hosts) == "a slots=0\nb slots=2\n"
