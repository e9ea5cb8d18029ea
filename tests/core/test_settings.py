from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core import settings
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import HostKeys, Level, Source


def test_without_flags_and_variables_every_value_is_the_rows_default() -> None:
    found = settings.resolve({}, {})
    assert (found.settings, found.warnings) == (settings.Settings(), ())
    assert set(found.given.values()) == {settings.Given(Source.DEFAULT)}
    assert str(found.given["timeout"]) == "default"


@pytest.mark.parametrize("row", settings.ROWS, ids=lambda row: row.name)
def test_every_row_is_whole_and_its_default_can_be_written_as_text(row: settings.Setting) -> None:
    assert row.help.endswith(".")
    assert row.help.isascii()
    assert row.parse.kind
    assert row.roles
    assert (row.parse is settings.boolean) == isinstance(row.default, bool)
    if row.default in (None, "", ()):
        return
    text = settings.shown(row.default)
    assert row.parse.read(text) == row.default
    found = settings.resolve({row.name: text}, {})
    assert getattr(found.settings, row.name) == row.default
    assert found.given[row.name] == settings.Given(Source.FLAG, "--" + row.name.replace("_", "-"))


def test_no_flag_or_variable_is_used_twice() -> None:
    variables = [row.variable for row in settings.ROWS]
    older = [name for row in settings.ROWS for name in row.older]
    everything = [*variables, *older, *settings.INTERNAL]
    assert len(everything) == len(set(everything))
    common = [row.name for row in settings.ROWS if row.common]
    assert sorted(common) == sorted(settings._COMMON.split())


def test_a_flag_wins_over_the_variable_and_that_over_older_names() -> None:
    environ = {"MPIBOOT_TIMEOUT": "20", "MPI_HOSTFILE": "/old"}
    environ |= {"MPI_DNS_WAIT_SECONDS": "3", "MPIBOOT_DNS_WAIT": "4"}
    found = settings.resolve({"timeout": "10"}, environ)
    values = found.settings
    assert (values.timeout, values.dns_wait, values.hostfile) == (10, 4, "/old")
    names = [str(found.given[name]) for name in ("timeout", "dns_wait", "hostfile")]
    assert names == ["--timeout", "MPIBOOT_DNS_WAIT", "MPI_HOSTFILE"]
    assert [item.message for item in found.warnings] == [
        "MPIBOOT_TIMEOUT=20 is not used: --timeout=10 comes first",
        "MPI_DNS_WAIT_SECONDS=3 is not used: MPIBOOT_DNS_WAIT=4 comes first",
    ]


def test_two_names_of_one_value_are_no_warning_and_an_empty_one_is_not_given() -> None:
    environ = {"MPI_HOSTFILE": "/a", "MPIBOOT_HOSTFILE": "/a"}
    assert settings.resolve({"hostfile": "/a"}, environ).warnings == ()
    found = settings.resolve({}, {"MPIBOOT_TIMEOUT": "", "MPI_HOSTFILE": "", "START_SSHD": ""})
    assert (found.settings, found.warnings) == (settings.Settings(), ())


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("MPI_HOSTFILE", "/etc/mpi/hostfile", "hostfile", "/etc/mpi/hostfile"),
        ("MPI_DNS_WAIT_SECONDS", "120", "dns_wait", 120.0),
        ("REWRITE_MPI_HOSTFILE_FQDN", "true", "rewrite_fqdn", "on"),
        ("REWRITE_MPI_HOSTFILE_FQDN", "false", "rewrite_fqdn", "off"),
        ("START_SSHD", "true", "start_sshd", True),
    ],
)
def test_older_names_keep_their_meaning(name: str, text: str, field: str, value: object) -> None:
    found = settings.resolve({}, {name: text})
    assert getattr(found.settings, field) == value
    assert found.given[field] == settings.Given(Source.ENVIRONMENT, name)


def test_an_unknown_variable_is_a_warning_with_the_nearest_name() -> None:
    known = dict.fromkeys(settings.INTERNAL, "x") | {"PATH": "/bin"}
    near, far = settings.resolve({}, {"MPIBOOT_TIMOUT": "3", "MPIBOOT_XYZZY": "", **known}).warnings
    assert (near.level, near.check) == (Level.WARN, "usage")
    assert near.message == "MPIBOOT_TIMOUT is not a setting of mpiboot and is ignored"
    assert near.hint == "did you mean MPIBOOT_TIMEOUT?"
    assert far.message.startswith("MPIBOOT_XYZZY ")
    assert far.hint


@pytest.mark.parametrize("name", [name for name in settings.REMOVED if name[0] != "-"])
def test_a_removed_setting_is_reported_with_its_new_way_and_is_not_read(name: str) -> None:
    found = settings.resolve({}, {name: "x", "MPI_NP": "9"})
    assert (found.settings, found.warnings) == (settings.Settings(), ())
    (only,) = found.removed
    assert (only.level, only.hint) == (Level.WARN, settings.REMOVED[name])
    assert only.message == f"{name} was removed from mpiboot"
    assert settings.resolve({}, {name: ""}).removed == ()


def test_a_services_variables_are_the_clusters_and_no_settings() -> None:
    """A Service called mpiboot-ssh gives every pod of its namespace these."""
    service = {
        "MPIBOOT_SSH_SERVICE_HOST": "10.96.0.7",
        "MPIBOOT_SSH_SERVICE_PORT": "22",
        "MPIBOOT_SSH_SERVICE_PORT_SSH": "22",
        "MPIBOOT_SSH_PORT": "tcp://10.96.0.7:22",
        "MPIBOOT_SSH_PORT_22_TCP": "tcp://10.96.0.7:22",
        "MPIBOOT_SSH_PORT_22_TCP_ADDR": "10.96.0.7",
        "MPIBOOT_SSH_PORT_22_TCP_PROTO": "tcp",
    }
    found = settings.resolve({}, service)
    assert (found.settings, found.warnings) == (settings.Settings(), ())
    assert settings.resolve({}, {**service, "MPIBOOT_SSH_PORT": "2222"}).settings.ssh_port == 2222


@pytest.mark.parametrize("lines", ["\n", " "])
def test_a_key_that_is_given_instead_of_its_path_is_never_shown(lines: str) -> None:
    words = ("-----BEGIN OPENSSH PRIVATE KEY-----", "b3BlbnNzaC1r", "-----END ...")
    key = lines.join(words)
    with pytest.raises(MpibootError) as caught:
        settings.resolve({}, {"MPIBOOT_SSH_KEY": key})
    expected = "MPIBOOT_SSH_KEY is (hidden): expected the path of the key, not the key itself"
    assert caught.value.finding.message == expected
    (warning,) = settings.resolve({"ssh_key": "/k"}, {"MPIBOOT_SSH_KEY": key}).warnings
    assert "b3BlbnNzaC1r" not in warning.message


TIME, WHOLE = "a number of seconds", "a whole number from 1"


@pytest.mark.parametrize(
    ("name", "texts", "expected"),
    [
        ("timeout", ("soon", "-1", "inf", "nan", "m"), TIME),
        ("timeout", ("2147483648", "600000h"), "at most 2147483647 seconds"),
        ("launch_timeout", ("soon",), TIME),
        ("launch_timeout", ("0s",), "more than 0 seconds, such as"),
        ("slots", ("0", "-4", "4.0", "four", "\u0664"), WHOLE),
        ("slots", ("2147483648", "9" * 5000), f"{WHOLE} to 2147483647"),
        ("replicas", ("150001",), f"{WHOLE} to 150000"),
        ("ssh_port", ("0", "65536", "ssh", "9" * 5000), f"{WHOLE} to 65535"),
        ("rank_env", ("maybe", "2"), "true or false"),
        ("rewrite_fqdn", ("sometimes",), "one of off, on, auto"),
        ("host_keys", ("none",), "one of job, accept-new, off"),
        ("sshd", ("dropbear",), "one of auto, openssh, embedded"),
        ("ssh_user", ("a\nb",), "a value without control characters"),
        ("runtime_dir", ("/a\x00b",), "a value without control characters"),
        ("port_range", ("1023-1030", "5001-5000", "5000-65536"), "a range within 1024-65535"),
        ("port_range", ("5000-", "-5000", "a-b"), "a range within 1024-65535"),
    ],
)
def test_a_value_that_cannot_be_read_is_one_line_with_its_name_and_what_was_expected(
    name: str, texts: tuple[str, ...], expected: str
) -> None:
    row = next(row for row in settings.ROWS if row.name == name)
    for text in texts:
        for flags, environ, shown in (({name: text}, {}, row.flag), ({}, {row.variable: text}, "")):
            with pytest.raises(MpibootError) as caught:
                settings.resolve(flags, environ)
            assert (caught.value.code, caught.value.finding.check) == (2, "usage")
            message = str(caught.value)
            assert message.startswith(f"{shown or row.variable} is ")
            assert expected in message
            assert "\n" not in message


def test_lengths_of_time_have_units_and_a_range_of_ports_needs_no_privilege() -> None:
    texts = ("600", "90s", "10m", "1h", "1d", "0.5", " 5 S")
    assert [settings.seconds.read(text) for text in texts] == [600, 90, 600, 3600, 86400, 0.5, 5]
    found = [settings.ports.read(text) for text in ("1024-1024", "40000-40099", "5000")]
    assert found == ["1024-1024", "40000-40099", "5000-5000"]


def test_yes_and_no_have_many_spellings_and_lists_are_split_at_commas_and_blanks() -> None:
    assert all(settings.boolean.read(text) for text in ("true", "TRUE", "1", "yes", "on", " true "))
    assert not any(settings.boolean.read(text) for text in ("false", "0", "No", "off"))
    assert settings.words.read(" A,B  C_*,\nD ") == ("A", "B", "C_*", "D")
    assert settings.words.read(" , ") == ()


@given(st.sampled_from(settings.ROWS), st.text(max_size=20))
def test_any_text_is_read_or_refused_in_one_printable_line(
    row: settings.Setting, text: str
) -> None:
    wrong = ""
    try:
        settings.resolve({row.name: text}, {})
    except MpibootError as caught:
        wrong = str(caught)
    assert wrong.isprintable()


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), ("", ""), ((), ""), (True, "true"), (False, "false"), (30.0, "30s"), (0.5, "0.5s"),
     (600.0, "10m"), (90.0, "90s"), (0.0, "0s"), (30 * 86400.0, "30d"), (5400.0, "90m"),
     (7, "7"), (("a", "b"), "a,b"), ("x", "x"), (HostKeys.ACCEPT_NEW, "accept-new")],
)  # fmt: skip
def test_a_value_is_shown_as_a_user_would_write_it(value: object, shown: str) -> None:
    assert settings.shown(value) == shown
