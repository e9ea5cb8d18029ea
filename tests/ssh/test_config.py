"""ssh's configuration as the real ssh reads it, a user's arguments, what ssh is set to do."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.model import HostKeys
from mpiboot.ssh.attempt import CommandEnd, Outcome, Target
from mpiboot.ssh.client import HostSettings, OpensshClient
from mpiboot.ssh.config import (
    ALIAS,
    LaunchHost,
    SshTimeouts,
    UserArgs,
    only_by_ssh,
    read_args,
    render,
    timeouts_from,
    unusable,
)
from tests.fakes import programs
from tests.fakes.plans import ROOT

SSH = shutil.which("ssh") or ""
needs_ssh = pytest.mark.skipif(not SSH, reason="no ssh on PATH")

ENTRIES = (
    LaunchHost("w-0", "10.244.0.5", 2222, "root"),
    LaunchHost("W-1", "fd00::5", 22, "mpiuser", "ssh-ed25519 SHOWN"),
    LaunchHost("w", "fe80::1%eth0", 22, "root"),
    # Hosts that join later.
    LaunchHost("a-*.job.svc", "%h", 2222, "mpi"),
    LaunchHost("a-*", "%h.job.svc", 2222, "mpi"),
)


def written(
    folder: Path,
    *,
    entries: Iterable[LaunchHost] = ENTRIES,
    user: str = "",
    host_keys: str = "job",
    path: str = "/run/mpiboot",
    keepalive: float = 300.0,
) -> Path:
    config = folder / "ssh_config"
    config.write_text(
        render(
            entries,
            key=f"{path}/key",
            known_hosts=f"{path}/known_hosts",
            host_keys=HostKeys(host_keys),
            keepalive=keepalive,
            user_args=read_args(user),
        )
    )
    return config


def asked(config: Path, host: str, *more: str) -> dict[str, str]:
    """What the real ssh makes of it, as launched by the agent."""
    argv = [SSH, "-G", "-F", str(config), *more, host]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    pairs = (line.partition(" ") for line in reversed(done.stdout.splitlines()))  # the first
    return {name: value for name, _, value in pairs}


# For every host, whatever the user's arguments and files say.
PINNED = {
    "stricthostkeychecking": "true",
    "userknownhostsfile": "/run/mpiboot/known_hosts",
    "globalknownhostsfile": "/dev/null",
    "hostkeyalias": ALIAS,
    "verifyhostkeydns": "false",
    "updatehostkeys": "false",
    "batchmode": "yes",
    "identitiesonly": "yes",
    "identityagent": "none",
    "forwardagent": "no",
    "forwardx11": "no",
    "clearallforwardings": "yes",
    "controlmaster": "false",
}
THEIRS = """\
StrictHostKeyChecking no
Compression yes
Port 9
KnownHostsCommand /x
VerifyHostKeyDNS yes
"""
OURS = {
    "serveraliveinterval": "30",
    "serveralivecountmax": "10",
    "identityfile": "/run/mpiboot/key",
}
LATER = {"hostname": "a-7.job.svc", "port": "2222", "user": "mpi"}
SWITCHES = "-A -X -Y -oForwardAgent=yes -oIdentityAgent=/run/agent -oControlMaster=yes"


@needs_ssh
@pytest.mark.parametrize(
    ("host", "user", "expected"),
    [
        ("w-0", "", {"hostname": "10.244.0.5", "port": "2222", "user": "root"} | OURS),
        ("W-1", "", {"hostname": "fd00::5", "port": "22", "user": "mpiuser"}),
        ("w", "", {"hostname": "fe80::1%eth0"}),
        ("a-7", "", LATER),
        ("a-7.job.svc", "", LATER),
        ("w-0", "-F theirs", {"compression": "yes", "port": "2222"}),
        ("w-0", "-p 9 -l bob -oStrictHostKeyChecking=no", {"port": "2222", "user": "root"}),
        ("w-0", "-oUserKnownHostsFile=/dev/null -i x", {"identityfile": "/run/mpiboot/key"}),
        (
            "w-0",
            "-C -oCompression=no -c aes128-ctr",
            {"compression": "yes", "ciphers": "aes128-ctr"},
        ),
        ("w-0", "-o ConnectionAttempts=10 -o ConnectionAttempts=11", {"connectionattempts": "10"}),
        ("w-0", "-oConnectTimeout=1m", {"connecttimeout": "60"}),
        ("w-0", "-o serveraliveinterval=7", {"serveraliveinterval": "7"}),
        ("w-0", "-o ServerAliveCountMax=2", {"serveralivecountmax": "2"}),
        ("W-1", SWITCHES, {}),
    ],
)
def test_what_ssh_takes_of_it(
    tmp_path: Path, host: str, user: str, expected: dict[str, str]
) -> None:
    (tmp_path / "theirs").write_text(THEIRS)
    config = written(tmp_path, user=user.replace("theirs", f"{tmp_path}/theirs"))
    found = asked(config, host)
    assert found.items() >= (PINNED | expected).items()
    assert found.get("knownhostscommand", "none") == "none"
    assert "IdentityFile ~/.ssh/id_ed25519\n" in config.read_text()


@needs_ssh
@pytest.mark.parametrize(
    ("host_keys", "strict"), [("job", "true"), ("accept-new", "accept-new"), ("off", "false")]
)
def test_host_keys_are_checked_as_the_setting_says(
    tmp_path: Path, host_keys: str, strict: str
) -> None:
    config = written(tmp_path, host_keys=host_keys)
    assert asked(config, "w-0")["stricthostkeychecking"] == strict
    assert asked(config, "w-0")["hostkeyalias"] == ALIAS
    own = ALIAS if host_keys == "job" else "[fd00::5]:22"
    assert asked(config, "W-1")["hostkeyalias"] == own


@needs_ssh
@pytest.mark.parametrize("name", ["a b", "a%d", "a %% b", 'say "hi" x', "it's", "#1"])
def test_odd_paths_reach_ssh_as_they_are(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    found = asked(written(tmp_path, path=path), "W-1")
    assert found["userknownhostsfile"] == f"{path}/known_hosts"
    # ssh -G shows this one before tokens are read.
    assert found["identityfile"] == f"{path}/key".replace("%", "%%")


@needs_ssh
def test_what_is_said_to_have_no_effect_is_all_that_has_none(tmp_path: Path) -> None:
    """Each option that mpiboot writes: a user's other value counts, or is told to be lost."""
    values = {
        "CheckHostIP": "yes", "UpdateHostKeys": "yes", "PreferredAuthentications": "password",
        "ConnectTimeout": "77", "ConnectionAttempts": "7", "ServerAliveInterval": "77",
        "ServerAliveCountMax": "7", "TCPKeepAlive": "no", "ForwardAgent": "yes",
        "ForwardX11": "yes", "ClearAllForwardings": "no", "ControlMaster": "yes",
        "ControlPath": "/x", "RequestTTY": "yes", "EscapeChar": "@", "LogLevel": "DEBUG3",
        "BatchMode": "no",
        "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/x", "GlobalKnownHostsFile": "/x",
        "VerifyHostKeyDNS": "yes", "NoHostAuthenticationForLocalhost": "yes",
        "KnownHostsCommand": "/x", "HostName": "x", "HostKeyAlias": "x",
    }  # fmt: skip
    plain = asked(written(tmp_path), "W-1")
    for keyword, value in values.items():
        args = read_args(f"-o {keyword}={value}")
        effect = asked(written(tmp_path, user=f"-o {keyword}={value}"), "W-1") != plain
        assert effect != bool(args.without_effect), keyword


def test_why_no_ssh_can_run() -> None:
    unknown = replace(ROOT, known=False)
    assert unusable("/bin/ssh", ROOT) == ""
    assert unusable("/bin/ssh", unknown) == "/bin/ssh refuses uid 0, which has no passwd entry"
    assert unusable("", ROOT) == "there is no ssh on PATH"


# A user's own arguments

TRUST = """
    KnownHostsCommand VerifyHostKeyDNS NoHostAuthenticationForLocalhost HostKeyAlias CheckHostIP
    UserKnownHostsFile GlobalKnownHostsFile UpdateHostKeys ControlMaster CASignatureAlgorithms
    RevokedHostKeys IgnoreUnknown Host Match Tunnel SessionType RemoteCommand PKCS11Provider
    LocalForward OptionToCome
"""


def lost(word: str) -> UserArgs:
    return UserArgs(without_effect=(word,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # What is new to mpiboot is a line of configuration.
        ("-4", UserArgs(("AddressFamily inet",))),
        ("-6", UserArgs(("AddressFamily inet6",))),
        ("-C", UserArgs(("Compression yes",))),
        ("-c aes128-ctr", UserArgs(("Ciphers aes128-ctr",))),
        ("-mhmac-sha2-256", UserArgs(("MACs hmac-sha2-256",))),
        ("-J jump", UserArgs(("ProxyJump jump",))),
        ("-b 10.0.0.1", UserArgs(("BindAddress 10.0.0.1",))),
        ("-Beth0", UserArgs(("BindInterface eth0",))),
        ("-ikey", UserArgs(("IdentityFile key",))),
        ("-o Compression=yes", UserArgs(("Compression yes",))),
        ("-oSendEnv=A=B", UserArgs(("SendEnv A=B",))),
        # Some flags stay words.
        ("-v -T", UserArgs(words=("-v", "-T"))),
        ("-vvn", UserArgs(words=("-v", "-v", "-n"))),
        ("-k", UserArgs(words=("-k",))),
        # The last file, and the first port and user.
        ("-F theirs", UserArgs(file="theirs")),
        ("-Fother -F theirs", UserArgs(file="theirs")),
        ("-p 22 -o Port=9 -lme -oUser=you", UserArgs(port=22, user="me")),
        # What mpiboot sets itself.
        ("-p x", lost("Port=x")),
        ("-S /run/x", lost("-S /run/x")),
        ("-o StrictHostKeyChecking=no", lost("StrictHostKeyChecking=no")),
        ("-o LocalCommand=x", lost("LocalCommand=x")),
        # What decides whose key is accepted, or is not for a launch.
        *((f"-o {name}=x", lost(f"{name}=x")) for name in TRUST.split()),
        ("-E log", lost("-E log")),
        ("-L 1:a:2", lost("-L 1:a:2")),
        ("-I lib", lost("-I lib")),
        *((f"-{letter}", lost(f"-{letter}")) for letter in "fNGMVsKqxaAXYt"),
        # What ssh itself would not take.
        ("-o x", lost("x")),
        ("word", lost("word")),
        ("-C -p", lost("-C -p")),
        ("-Z -C", lost("-Z -C")),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_a_users_arguments_are_read(text: str, expected: UserArgs) -> None:
    assert read_args(text) == expected


def test_what_asyncssh_does_itself_is_no_loss() -> None:
    own = "-C -p 9 -o ConnectTimeout=5 -oTCPKeepAlive=no -o PasswordAuthentication=no"
    assert only_by_ssh(read_args(own)) == ()
    more = read_args(f"{own} -4 -c aes128-ctr -v -i key -J host")
    assert only_by_ssh(more) == ("Ciphers aes128-ctr",)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *(("0", 0), ("7s", 7), ("2M", 120), ("1h", 3600), ("1d", 86400), ("1w", 604800)),
        *(("1h30m5", 5405), ("1234567", 1234567)),
        # Of what can't be read ssh itself complains.
        *((value, 30) for value in ("soon", "-5", "1y", "5 s", "1234567890", "9" * 5000, "")),
        # One way to read it is enough: with each way to part so many digits it would take years.
        *((value, 30) for value in ("1" * 60 + "x", "1s" * 60 + "x")),
    ],
)
def test_times_are_read_as_ssh_reads_them(value: str, seconds: int) -> None:
    line = f"ConnectTimeout {value}"
    assert timeouts_from(0, UserArgs((line,))) == SshTimeouts(3, seconds, 0, 0)


@pytest.mark.parametrize(
    ("keepalive", "interval", "probes"),
    [(0, 0, 0), (0.1, 1, 1), (3, 1, 3), (60, 6, 10), (90.5, 10, 10), (300, 30, 10), (900, 30, 30)],
)
def test_probes_fill_the_time_of_the_setting(keepalive: float, interval: int, probes: int) -> None:
    assert timeouts_from(keepalive, UserArgs()) == SshTimeouts(3, 30, interval, probes)
    # A user's first value counts, as with ssh.
    lines = ("serveralivecountmax 5", "ServerAliveCountMax 6", "ServerAliveInterval 4", "x 1")
    assert timeouts_from(keepalive, UserArgs(lines)) == SshTimeouts(3, 30, 4, 5)


# What ssh is set to do for a host (ssh -G), and its words where it does not get in

TARGET = Target("w-0", "10.0.0.1", 22, "me")
JUMP = "ssh -W [%h]:%p ssh://gate"


def client(folder: Path, text: str = "", args: str = "", program: str = SSH) -> OpensshClient:
    config = folder / "config"
    config.write_text(text)
    given = read_args(f"-F {config} {args}")
    return OpensshClient(program, given, "me", folder=lambda: folder)


def program(folder: Path, text: str) -> str:
    return str(programs.program(folder, "ssh", text))


@needs_ssh
@pytest.mark.parametrize(
    ("text", "args", "found"),
    [
        ("", "-l me", {}),
        ("", "-l you -p 2022", {"user": "you", "port": 2022}),
        ("User you\nPort 22", "", {"user": "you"}),
        ("Host w-*\n Port 9\nHost *\n User you", "", {"user": "you", "port": 9}),
        ("User me\nHost w-1\n Port 9", "", {}),
        ("User me\nHostName 10.0.0.1", "", {"host_name": "10.0.0.1"}),
        ("User me\nMatch host w-* exec true\n HostName %h.svc", "", {"host_name": "w-0.svc"}),
        ("User me\nProxyJump gate", "", {"proxied": True, "only_ssh": True, "proxy": JUMP}),
        ("User me\nProxyCommand nc %h %p", "", {"proxied": True, "only_ssh": True}),
        ("User me\nProxyCommand none", "", {}),
        ("User me\nBindAddress 10.0.0.1", "", {"only_ssh": True}),
        ("User me\nAddressFamily inet6", "", {}),
        ("User me", "-o Ciphers=aes128-ctr", {"only_ssh": True}),
        ("User me\nCiphers aes128-ctr", "", {}),
        ("User me\nSendEnv A B_*\nSetEnv C=1", "", {"send": ("A", "B_*"), "variables": ("C=1",)}),
    ],
)
async def test_what_is_set_for_a_host(
    tmp_path: Path, text: str, args: str, found: dict[str, object]
) -> None:
    settings = await client(tmp_path, text, args).settings("w-0")
    expected = HostSettings(**{"host_name": "w-0", **found, "keys": settings.keys})  # type: ignore[arg-type]
    assert settings == expected
    assert all(Path(key).name.startswith("id_") for key in settings.keys)


@needs_ssh
@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("Port 9\nHost *\n User you\nMatch all\n Compression yes", 1),
        ("Match !localuser nobody\n Port 9", 1),
        ("Host w-1\n Port 8\nHost *\n Port 9", 3),
        ("Match host w-1\n Port 8\nMatch all\n Port 9", 3),
        ("Port 9\nHostName %h.svc", 3),
    ],
    ids=["alike", "localuser", "Host", "Match", "HostName"],
)
async def test_ssh_is_asked_once_where_nothing_depends_on_the_host(
    tmp_path: Path, text: str, calls: int
) -> None:
    counting = program(tmp_path, f'echo >> {tmp_path}/calls\nexec {SSH} "$@"')
    asked = client(tmp_path, text, program=counting)
    ports = [(await asked.settings(name)).port for name in ("w-0", "w-1", "w-2", "w-0")]
    assert ports == [9, 8 if "8" in text else 9, 9, 9]
    assert len((tmp_path / "calls").read_text()) == calls


@needs_ssh
@pytest.mark.parametrize(
    ("other", "message"), [("", "prot"), ("echo Dropbear SSH client >&2; exit 1", "Dropbear SSH")]
)
async def test_an_ssh_that_cannot_tell_is_not_used(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], other: str, message: str
) -> None:
    asked = client(tmp_path, "Prot 9", program=program(tmp_path, other) if other else SSH)
    for name in ("w-0", "w-1"):
        assert await asked.settings(name) == HostSettings(name)
    assert not asked.usable
    said = " ".join(capfd.readouterr().err.split())
    assert said.count("its settings are not used") == 1
    assert message in said


@pytest.mark.parametrize(
    ("words", "status", "outcome"),
    [
        ("me@w-0: Permission denied (publickey).", 255, Outcome.KEY_REFUSED),
        ("Host key verification failed.", 255, Outcome.HOST_KEY_DIFFERS),
        (f"{'@' * 500} IS CHANGED! Host key verification failed.", 255, Outcome.HOST_KEY_DIFFERS),
        ("no matching cipher found. Their offer: x", 255, Outcome.PROTOCOL),
        ("Connection closed by 10.0.0.1 port 22", 255, Outcome.SSH_FAILED),
        ("sh: not found", 127, Outcome.COMMAND_FAILED),
        ("a banner", 0, Outcome.OK),
        ("no end within 50 s", None, Outcome.SLOW),
        ("[Errno 2] No such file or directory: '/bin/ssh'", None, Outcome.NO_SOCKET),
    ],
)
def test_sshs_own_words_tell_how_far_it_got(
    tmp_path: Path, words: str, status: int | None, outcome: Outcome
) -> None:
    # The user may have set a HostKeyAlias.
    (tmp_path / "known_hosts-w-0").write_text("an-alias ssh-ed25519 THEIRS\n")
    asked = client(tmp_path)
    errors = f"OpenSSH_9.2\ndebug1: x\n{words}\n"
    end = CommandEnd("hello\n", status, errors, timed_out="within" in words)
    found, good = asked.attempt(TARGET, end), outcome is Outcome.OK
    assert (found.outcome, words[-30:] in found.message) == (outcome, not good)
    assert asked.carried == ({"w-0"} if good else set())
    assert found.host_key == ("ssh-ed25519 THEIRS" if good else "")
    assert found.output == ("hello\n" if status in (0, 127) else "")
