from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host, Hostfile
from mpiboot.job.hostfile import is_blank, parse, render

LABEL = "a" * 63


def read(text: str) -> Hostfile:
    return parse(text, "f", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("w-0.job.ns.svc slots=2\n", "w-0.job.ns.svc 2"),
        ("w-0 slots = 2\n", "w-0 2"),
        ("w-0  slots=  2  \n", "w-0 2"),
        ("w-0 cpu=2", "w-0 2"),
        ("w-0 count=2 port=22", "w-0 2"),
        ("w-0:4\n", "w-0 4"),
        ("w-0\n", "w-0 1"),
        ("w-0 slots=0\nw-1:0\n[fd00::1]:0", "w-0 0, w-1 0, fd00::1 0"),
        ("\tw-0 slots=007\n", "w-0 7"),
        ("w-0 slots=2147483647\n", "w-0 2147483647"),
        ("# all\n\n   \nw-0 slots=2 # tail\n#end", "w-0 2"),
        ("w-0#tail", "w-0 1"),
        ("w-0 slots=2\r\nw-1:3\r\n", "w-0 2, w-1 3"),
        ("\ufeffw-0:2\n", "w-0 2"),
        ("10.244.0.5 slots=2\n10.244.0.6:3", "10.244.0.5 2, 10.244.0.6 3"),
        ("[fd00::1]\n[fd00::2]:4\nfd00::3 slots=2", "fd00::1 1, fd00::2 4, fd00::3 2"),
        ("under_score slots=1\nW-0.Upper:2", "under_score 1, W-0.Upper 2"),
        ("w-0.job.ns.svc. slots=2\n", "w-0.job.ns.svc. 2"),
        ("b slots=1\na slots=2\nb slots=4\n", "b 5, a 2"),
        ("a\nA.:2\n", "a 3"),
        ("[fd00::1]:2\nfd00:0::1", "fd00::1 3"),
        (f"{LABEL}.{LABEL}:2", f"{LABEL}.{LABEL} 2"),
        # As in Open MPI 4.1 and 5.0 a bare word means nothing.
        ("a fast slots=2\nb 4 rack-7\n", "a 2, b 1"),
    ],
)
def test_every_syntax_in_use_is_read(text: str, expected: str) -> None:
    assert ", ".join(f"{host.name} {host.slots}" for host in read(text).hosts) == expected


def test_a_host_keeps_user_limit_and_the_line_that_names_it_first() -> None:
    text = "# head\nme@a slots=2 max_slots=4\nb max-slots=3\nc:2 user=you\na:1 max-slots=2"
    assert read(text).hosts == (
        Host("a", 3, slots_given=True, max_slots=6, user="me", line=2),
        Host("b", 1, slots_given=False, max_slots=3, line=3),
        Host("c", 2, slots_given=True, user="you", line=4),
    )
    for most in ("max_slots", "max-slots", "slots_max", "slots-max"):
        for user in ("user", "username", "user_name"):
            (host,) = read(f"a slots=2 {most}=4 {user}=me").hosts
            assert (host.slots, host.max_slots, host.user) == (2, 4, "me")
    # A line without a limit takes it off the host.
    assert read("a slots=2 max_slots=2\na slots=1\n").hosts[0].max_slots is None


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        # Without a number each line is a slot to Open MPI 4.1 and 5.0, as one behind a number is;
        # over a second number they end ("multiple definitions of the slot count").
        *(("a\na\n", 2), ("a slots=2\na\n", 3), ("a\n\nA. slots=2\n", 3), ("a:2\nb\na:2", 4))
    ],
)
def test_a_second_line_for_a_host_is_added_up(text: str, slots: int) -> None:
    found = read(text)
    assert (found.hosts[0].slots, found.hosts[0].slots_given) == (slots, True)


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
        ("x" * 2_000_000, 1, "at most 63 between dots"),
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
    ids=lambda value: str(value)[:20],
)
def test_what_is_wrong_is_said_with_file_and_line(text: str, line: int, words: str) -> None:
    with pytest.raises(MpibootError) as caught:
        parse(text, "/etc/mpi/hostfile", "MPI_HOSTFILE")
    message = caught.value.finding.message
    assert message.startswith(f"/etc/mpi/hostfile:{line}: ")
    assert words in message
    assert (caught.value.code, message.isascii(), message.isprintable()) == (65, True, True)
    assert len(message) < 300
    assert "MPI_HOSTFILE" in caught.value.finding.evidence[0]


def test_a_file_without_hosts_is_blank_and_an_error_to_read() -> None:
    for text in ("", "\n", "# only\n  # comments\r\n\r\n", "\ufeff", " \t \n"):
        assert is_blank(text)
        with pytest.raises(MpibootError, match="has no hosts"):
            read(text)
    assert not any(map(is_blank, ("a", "# x\na", "\x00", "!")))


_label = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,20}[a-z0-9_])?", fullmatch=True)
_name = (
    st.lists(_label, min_size=1, max_size=4)
    .map(".".join)
    .filter(lambda name: not name.replace(".", "").isdigit())
)
_user = st.one_of(st.just(""), st.from_regex(r"[a-z][a-z0-9_.-]{0,10}", fullmatch=True))


@st.composite
def _host(draw: st.DrawFn) -> Host:
    slots = draw(st.integers(1, 10_000))
    most = draw(st.one_of(st.none(), st.integers(slots, 20_000)))
    name = draw(st.one_of(_name, st.ip_addresses().map(str)))
    return Host(name, slots, slots_given=True, max_slots=most, user=draw(_user))


@given(st.lists(_host(), min_size=1, max_size=20, unique_by=lambda host: host.name))
def test_what_is_written_is_read_back_but_for_limits_behind_colons(items: list[Host]) -> None:
    back = read(render(items)).hosts
    assert list(back) == [replace(host, line=at) for at, host in enumerate(items, start=1)]
    text = render(items, colon=True)
    assert "max_slots" not in text
    assert [replace(host, line=0) for host in read(text).hosts] == [
        replace(host, max_slots=None) for host in items
    ]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_one_line_and_nothing_a_shell_reads(text: str) -> None:
    wrong, found = None, tuple[Host, ...]()
    try:
        found = read(text).hosts
    except MpibootError as caught:
        wrong = caught.finding
    assert wrong is None or (wrong.check == "hostfile-invalid" and wrong.message.isprintable())
    for host in found:
        assert host.slots >= 0
        assert host.name.isascii()
        assert all(item.isalnum() or item in "._-:" for item in host.name)
        assert not host.name.startswith("-")


@pytest.mark.parametrize(
    ("text", "open_mpi", "hydra"),
    [
        ("me@[fd00::1]:2 max_slots=3", "me@fd00::1 slots=2 max_slots=3\n", "me@[fd00::1]:2\n"),
        ("a:2 binding=user:0,1", "a slots=2\n", "a:2 binding=user:0,1\n"),
        ("a\nb:2", "a\nb slots=2\n", "a\nb:2\n"),
        # MPICH dies of `host:0`, and Intel MPI leaves that host out.
        ("a slots=0\nb:2", "a slots=0\nb slots=2\n", "b:2\n"),
        ("a:0\nb:0", "a slots=0\nb slots=0\n", "a:0\nb:0\n"),
    ],
)
def test_each_mpi_gets_the_form_that_it_reads(text: str, open_mpi: str, hydra: str) -> None:
    hosts = read(text).hosts
    assert (render(hosts), render(hosts, colon=True)) == (open_mpi, hydra)
