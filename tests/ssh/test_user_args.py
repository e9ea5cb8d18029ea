"""A user's own ssh arguments, word by word."""

from __future__ import annotations

import pytest

from mpiboot.ssh.config import SshTimeouts, UserArgs, only_by_ssh, patience, read_args


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("-4", "AddressFamily inet"),
        ("-6", "AddressFamily inet6"),
        ("-C", "Compression yes"),
        ("-c aes128-ctr", "Ciphers aes128-ctr"),
        ("-mhmac-sha2-256", "MACs hmac-sha2-256"),
        ("-J jump", "ProxyJump jump"),
        ("-b 10.0.0.1", "BindAddress 10.0.0.1"),
        ("-Beth0", "BindInterface eth0"),
        ("-ikey", "IdentityFile key"),
        ("-c none", "Ciphers none"),
        ("-o Compression=yes", "Compression yes"),
        ("-oSendEnv=A=B", "SendEnv A=B"),
    ],
)
def test_what_says_something_new_is_a_line_of_configuration(text: str, line: str) -> None:
    assert read_args(text) == UserArgs((line,))


TRUST = """
    KnownHostsCommand VerifyHostKeyDNS NoHostAuthenticationForLocalhost HostKeyAlias CheckHostIP
    UserKnownHostsFile GlobalKnownHostsFile UpdateHostKeys ControlMaster CASignatureAlgorithms
    RevokedHostKeys IgnoreUnknown Host Match Tunnel SessionType RemoteCommand PKCS11Provider
    LocalForward OptionToCome
"""


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        # What mpiboot sets itself.
        ("-p x", "Port=x"),
        ("-S /run/x", "-S /run/x"),
        ("-o StrictHostKeyChecking=no", "StrictHostKeyChecking=no"),
        ("-o LocalCommand=x", "LocalCommand=x"),
        # What decides whose key is accepted, or is not for a launch.
        *((f"-o {name}=x", f"{name}=x") for name in TRUST.split()),
        ("-E log", "-E log"),
        ("-L 1:a:2", "-L 1:a:2"),
        ("-I lib", "-I lib"),
        *((f"-{letter}", f"-{letter}") for letter in "fNGMVsKqxaAXYt"),
        # What ssh itself would not take.
        ("-o x", "x"),
        ("-ox", "x"),
        ("word", "word"),
        ("-C -p", "-C -p"),
        ("-Z -C", "-Z -C"),
    ],
)
def test_what_is_not_passed_on_is_told_to_have_no_effect(text: str, lost: str) -> None:
    assert read_args(text) == UserArgs(without_effect=(lost,))


@pytest.mark.parametrize(
    ("text", "words"), [("-v -T", ("-v", "-T")), ("-vvn", ("-v", "-v", "-n")), ("-k", ("-k",))]
)
def test_some_flags_stay_words_of_the_command_line(text: str, words: tuple[str, ...]) -> None:
    assert read_args(text) == UserArgs(words=words)
    assert only_by_ssh(read_args(text)) == ()


@pytest.mark.parametrize("text", ["-F theirs", "-Fother -F theirs"])
def test_the_last_file_is_read_instead_of_sshs_own(text: str) -> None:
    assert read_args(text) == UserArgs(file="theirs")


def test_the_first_port_and_user_are_the_gates() -> None:
    assert read_args("-p 22 -o Port=9 -lme -oUser=you") == UserArgs(port=22, user="me")


def test_what_the_pool_does_by_itself_is_no_loss() -> None:
    own = "-C -p 9 -o ConnectTimeout=5 -oTCPKeepAlive=no -o PasswordAuthentication=no"
    assert only_by_ssh(read_args(own)) == ()
    assert only_by_ssh(read_args(f"{own} -4 -c aes128-ctr -v -i key -J host")) == (
        "Ciphers aes128-ctr",
    )


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        ("7s", 7),
        ("2M", 120),
        ("1h", 3600),
        ("1d", 86400),
        ("1w", 604800),
        ("1h30m5", 5405),
        # Of what can't be read ssh itself complains.
        ("soon", 30),
        ("-5", 30),
        ("1y", 30),
        ("5 s", 30),
        ("1234567", 1234567),
        ("1234567890", 30),
        ("9" * 5000, 30),
        # One way to read it is enough: with each way to part so many digits it would take years.
        ("1" * 60 + "x", 30),
        ("1s" * 60 + "x", 30),
        ("", 30),
    ],
)
def test_times_are_read_as_ssh_reads_them(value: str, seconds: int) -> None:
    line = f"ConnectTimeout {value}"
    assert patience(0, UserArgs((line,))) == SshTimeouts(3, seconds, 0, 0)


def test_the_users_first_value_counts_as_with_ssh() -> None:
    lines = ("serveralivecountmax 5", "ServerAliveCountMax 6", "ServerAliveInterval 4", "x 1")
    assert patience(30, UserArgs(lines)) == SshTimeouts(3, 30, 4, 5)


@pytest.mark.parametrize(
    ("keepalive", "interval", "probes"),
    [(0, 0, 0), (0.1, 1, 1), (3, 1, 3), (60, 6, 10), (90.5, 10, 10), (300, 30, 10), (900, 30, 30)],
)
def test_probes_fill_the_time_of_the_setting(keepalive: float, interval: int, probes: int) -> None:
    assert patience(keepalive, UserArgs()) == SshTimeouts(3, 30, interval, probes)
