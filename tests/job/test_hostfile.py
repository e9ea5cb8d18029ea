from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host
from mpiboot.job.hostfile import Syntax, is_blank, parse, render


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


def test_bare_words_behind_a_host_mean_nothing_and_are_named() -> None:
    """As in Open MPI 4.1 and 5.0, which read what stands behind them."""
    read = parse("a fast slots=2\nb 4 rack-7\n", "f", "")
    assert read.hosts == (Host("a", 2, slots_given=True, line=1), Host("b", line=2))
    assert read.passed_over == ("f:1:3: 'fast'", "f:2:3: '4'", "f:2:5: 'rack-7'")


def test_a_binding_is_for_the_mpi_that_reads_it() -> None:
    (host,) = parse("a:2 binding=user:0,1", "f", "").hosts
    assert render([host], Syntax.COLON) == "a:2 binding=user:0,1\n"
    assert render([host], Syntax.SLOTS) == "a slots=2\n"


@pytest.mark.parametrize("most", ["max_slots", "max-slots", "slots_max", "slots-max"])
@pytest.mark.parametrize("user", ["user", "username", "user_name"])
def test_open_mpis_other_words_for_limit_and_user_are_read(most: str, user: str) -> None:
    (host,) = parse(f"a slots=2 {most}=4 {user}=me", "f", "").hosts
    assert (host.slots, host.max_slots, host.user) == (2, 4, "me")


def test_a_line_without_limit_takes_the_limit_off_the_host() -> None:
    (host,) = parse("a slots=2 max_slots=2\na slots=1\n", "f", "").hosts
    assert (host.slots, host.max_slots) == (3, None)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a slots=0", "1:9", "slots is '0', expected a whole number from 1"),
        ("# x\n\na slots=-1", "3:9", "'-1'"),
        ("a slots=abc", "1:9", "'abc'"),
        ("a slots=", "1:9", "''"),
        ("a slots=1.5", "1:9", "'1.5'"),
        ("a slots=99999999999", "1:9", "'99999999999'"),
        ("a slots=2147483648", "1:9", "'2147483648'"),
        ("a slots=\u0662", "1:9", "\\u0662"),
        ("a:0", "1:3", "slots of a is '0'"),
        ("a:", "1:3", "slots of a is ''"),
        ("a:x", "1:3", "'x'"),
        ("[fd00::1]:0", "1:11", "'0'"),
        ("a foo=bar", "1:3", "'foo', expected `slots=N`"),
        ("a slots=2 b;c", "1:11", "'b;c'"),
        ("a slots", "1:3", "'slots', expected `slots=N`"),
        ("a binding=$x", "1:11", "binding '$x'"),
        ("a =2", "1:3", "'=2'"),
        ("a slots=2 slots=3", "1:11", "slots is given twice"),
        ("a:2 slots=2", "1:5", "slots is given twice"),
        ("a slots=4 max_slots=2", "1:11", "max_slots is 2, expected at least the 4 slots"),
        ("a;reboot", "1:2", "';'"),
        ("$(reboot) slots=1", "1:1", "'$'"),
        ("`x`", "1:1", "'`'"),
        ("a'b", "1:2", '"\'"'),
        ("a,b", "1:2", "one host a line"),
        ("-oProxyCommand=x slots=1", "1:15", "'='"),
        ("-a slots=1", "1:1", "hyphen"),
        ("a..b", "1:3", "labels of 1 to 63"),
        (".", "1:1", "expected a host name"),
        ("x" * 64, "1:1", "labels of 1 to 63"),
        (".".join(["abcdefgh"] * 30), "1:1", "269 characters"),
        ("h\u00f6st", "1:2", "\\xf6"),
        ("a\x00b", "1:2", "control character '\\x00'"),
        ("a\x1b[2J slots=1", "1:2", "control character"),
        ("a\rb", "1:2", "control character '\\r'"),
        ("\x7fELF\x02\x01", "1:1", "not a text file"),
        ("\ufffd\ufffd", "1:1", "\\ufffd"),
        ("10.0.0.999", "1:1", "not an IPv4 address"),
        ("10.0.0", "1:1", "not an IPv4 address"),
        ("1234", "1:1", "not an IPv4 address"),
        ("[fd00::1", "1:1", "closing bracket"),
        ("[fd00::1]x", "1:10", "`:N`"),
        ("[10.0.0.1]", "1:2", "not an IPv6 address"),
        ("a:2:3", "1:1", "not an IPv6 address"),
        ("fe80::1%eth0", "1:1", "zone"),
        ("@a", "1:1", "user ''"),
        ("-l@a", "1:1", "user '-l'"),
        ("a b@c@d", "1:3", "'b@c@d'"),
        ("a user=$x", "1:8", "user '$x'"),
        ("me@a\nyou@a", "2:1", "which line 1 gives to user me"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_column(text: str, place: str, words: str) -> None:
    with pytest.raises(MpibootError) as caught:
        parse(text, "/etc/mpi/hostfile", "MPI_HOSTFILE")
    message = caught.value.finding.message
    assert message.startswith(f"/etc/mpi/hostfile:{place}: ")
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


def test_ten_thousand_hosts_are_read_twice_over() -> None:
    text = "".join(f"w-{n}.job.ns.svc slots=8\n" for n in range(10_000)) * 2
    found = parse(text, "f", "")
    assert len(found.hosts) == 10_000
    assert found.slots == 160_000
    assert parse(render(found.hosts, Syntax.SLOTS), "f", "").slots == 160_000


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


def _without_lines(found: tuple[Host, ...]) -> list[tuple[object, ...]]:
    return [(h.name, h.slots, h.slots_given, h.max_slots, h.user) for h in found]


@given(_hosts)
def test_what_is_written_with_slots_is_read_back(items: list[Host]) -> None:
    back = parse(render(items, Syntax.SLOTS), "f", "").hosts
    assert _without_lines(back) == _without_lines(tuple(items))
    assert [host.line for host in back] == list(range(1, len(items) + 1))


@given(_hosts)
def test_what_is_written_with_colons_is_read_back_but_for_limits(items: list[Host]) -> None:
    text = render(items, Syntax.COLON)
    assert "max_slots" not in text
    back = parse(text, "f", "").hosts
    assert [(h.name, h.slots, h.user) for h in back] == [(h.name, h.slots, h.user) for h in items]


@given(_hosts, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "  # x", " "]))
def test_line_ends_comments_and_repetition_change_nothing_else(
    items: list[Host], end: str, tail: str
) -> None:
    lines = render(items, Syntax.SLOTS).splitlines()
    text = end.join(line + tail for line in lines * 2)
    again = parse(text, "f", "").hosts
    assert [(h.name, h.slots) for h in again] == [(h.name, 2 * h.slots) for h in items]


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
        assert host.slots >= 1
        assert not set(host.name) - set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:"
        )
        assert not host.name.startswith("-")


def test_open_mpi_gets_bare_ipv6_and_hydra_gets_brackets() -> None:
    host = Host("fd00::1", 2, max_slots=3, user="me")
    assert render([host], Syntax.SLOTS) == "me@fd00::1 slots=2 max_slots=3\n"
    assert render([host], Syntax.COLON) == "me@[fd00::1]:2\n"


@pytest.mark.parametrize("syntax", list(Syntax))
def test_comments_are_kept_above_their_hosts(syntax: Syntax) -> None:
    text = "# rack 1\n\n#r\xfcck\tslots=9\nw-0:2 # the first\nw-1:2\n#end\nw-0:1#again\n# nobody's"
    found = parse(text, "f", "").hosts
    written = render(found, syntax).splitlines()
    assert [line for line in written if line.startswith("#")] == [
        "# rack 1",
        "# r?ck?slots=9",
        "# the first",
        "# end",
        "# again",
    ]
    assert written[5].startswith("w-0")
    again = parse("\n".join(written), "f", "").hosts
    assert [(host.name, host.slots) for host in again] == [("w-0", 3), ("w-1", 2)]
    # A comment makes no other host of one.
    assert found[1] == replace(found[1], notes=("changed",))
