from __future__ import annotations

import shutil
import string
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.setting_types import HostKeys
from mpiboot.ssh.config import (
    ALIAS,
    COSTLY_KEX,
    LaunchHost,
    SshTimeouts,
    UserArgs,
    only_by_ssh,
    patience,
    read_args,
    render,
    unusable,
)
from mpiboot.ssh.openssh import contains_string
from tests.fakes.plans import ROOT

SSH = shutil.which("ssh") or ""
needs_ssh = pytest.mark.skipif(not SSH, reason="no ssh on PATH")

ENTRIES = (
    LaunchHost("w-0.job.ns.svc", "10.244.0.5", 2222, "root"),
    LaunchHost("W-1", "fd00::5", 22, "mpiuser", "ssh-ed25519 SHOWN"),
    LaunchHost("10.244.0.7", "10.244.0.7", 222, "root"),
)


def written(
    folder: Path,
    *,
    entries: Iterable[LaunchHost] = ENTRIES,
    user: str = "",
    host_keys: str = "job",
    key: str = "/run/mpiboot/key",
    known_hosts: str = "/run/mpiboot/known_hosts",
    keepalive: float = 300.0,
    costly_kex: bool = False,
) -> Path:
    path = folder / "ssh_config"
    path.write_text(
        render(
            entries,
            key=key,
            known_hosts=known_hosts,
            host_keys=HostKeys(host_keys),
            keepalive=keepalive,
            user_args=read_args(user),
            costly_kex=costly_kex,
        )
    )
    return path


def asked(config: Path, host: str, *more: str) -> dict[str, str]:
    """What the real ssh makes of it, as launched by the agent."""
    done = subprocess.run(
        [SSH, "-G", "-F", str(config), *more, host], capture_output=True, text=True, check=True
    )
    pairs = (line.partition(" ") for line in reversed(done.stdout.splitlines()))  # the first
    return {name: value for name, _, value in pairs}


@needs_ssh
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_ssh_takes_what_was_verified_of_each_host(tmp_path: Path, entry: LaunchHost) -> None:
    found = asked(written(tmp_path), entry.name)
    assert found["hostname"] == entry.address
    assert found["port"] == str(entry.port)
    assert found["user"] == entry.user
    assert "IdentityFile ~/.ssh/id_ed25519\n" in (tmp_path / "ssh_config").read_text()
    assert found["hostkeyalias"] == ALIAS
    assert found["stricthostkeychecking"] == "true"
    assert found["userknownhostsfile"] == "/run/mpiboot/known_hosts"
    assert found["globalknownhostsfile"] == "/dev/null"
    assert found["identityfile"] == "/run/mpiboot/key"
    assert found["batchmode"] == "yes"
    assert found["identitiesonly"] == "yes"
    assert found["serveraliveinterval"] == "30"
    assert found["serveralivecountmax"] == "10"


@needs_ssh
@pytest.mark.parametrize("name", ["a-7", "a-7.job.svc"])
def test_a_host_that_joined_later_is_known_by_the_jobs_key(tmp_path: Path, name: str) -> None:
    later = (
        LaunchHost("a-*.job.svc", "%h", 2222, "mpi"),
        LaunchHost("a-*", "%h.job.svc", 2222, "mpi"),
    )
    found = asked(written(tmp_path, entries=(*ENTRIES, *later)), name)
    assert (found["hostname"], found["port"], found["user"]) == ("a-7.job.svc", "2222", "mpi")
    assert found["hostkeyalias"] == ALIAS
    assert found["stricthostkeychecking"] == "true"
    assert found["identityfile"] == "/run/mpiboot/key"


@needs_ssh
@pytest.mark.skipif(not contains_string(SSH, COSTLY_KEX), reason="an ssh without sntrup761")
def test_a_key_exchange_that_costs_much_is_left_out_unless_the_user_names_it(
    tmp_path: Path,
) -> None:
    left = asked(written(tmp_path), "W-1")["kexalgorithms"].split(",")
    assert any(COSTLY_KEX in name for name in left)
    found = asked(written(tmp_path, costly_kex=True), "W-1")["kexalgorithms"].split(",")
    assert found == [name for name in left if COSTLY_KEX not in name]
    theirs = "sntrup761x25519-sha512@openssh.com"
    config = written(tmp_path, costly_kex=True, user=f"-o KexAlgorithms={theirs}")
    assert asked(config, "W-1")["kexalgorithms"] == theirs


@needs_ssh
def test_a_users_arguments_never_switch_checking_off(tmp_path: Path) -> None:
    theirs = "-o StrictHostKeyChecking=no -p 9 -i x -v -oUserKnownHostsFile=/dev/null -l bob"
    args = read_args(theirs)
    assert args.words == ("-v",)
    assert set(args.without_effect) == {"StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"}
    config = written(tmp_path, user=theirs)
    assert asked(config, "w-0.job.ns.svc", *args.words) == {
        **asked(written(tmp_path), "w-0.job.ns.svc"),
        "loglevel": "DEBUG",
        "identityfile": ANY,  # theirs comes behind
    }


@needs_ssh
def test_the_operators_arguments_are_kept_where_they_say_something_new(tmp_path: Path) -> None:
    found = asked(
        written(tmp_path, user="-o ConnectionAttempts=10 -C -oCompression=no -c aes128-ctr"),
        "w-0.job.ns.svc",
    )
    assert found["compression"] == "yes"
    assert found["ciphers"] == "aes128-ctr"


@needs_ssh
def test_a_users_own_configuration_file_comes_behind_ours(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    lines = "StrictHostKeyChecking no", "Compression yes", "Port 9", "KnownHostsCommand /x"
    theirs.write_text("".join(f"{line}\n" for line in (*lines, "VerifyHostKeyDNS yes")))
    args = read_args(f"-F {theirs}")
    assert args.words == ()
    found = asked(written(tmp_path, user=f"-F {theirs}"), "w-0.job.ns.svc")
    assert (found["stricthostkeychecking"], found["port"]) == ("true", "2222")
    assert found["compression"] == "yes"
    assert (found["verifyhostkeydns"], found.get("knownhostscommand", "none")) == ("false", "none")


@needs_ssh
@pytest.mark.parametrize(
    ("host_keys", "strict"), [("job", "true"), ("accept-new", "accept-new"), ("off", "false")]
)
def test_host_keys_are_checked_as_the_setting_says(
    tmp_path: Path, host_keys: str, strict: str
) -> None:
    config = written(tmp_path, host_keys=host_keys)
    assert asked(config, "w-0.job.ns.svc")["stricthostkeychecking"] == strict
    assert asked(config, "w-0.job.ns.svc")["hostkeyalias"] == ALIAS
    own = ALIAS if host_keys == "job" else "[fd00::5]:22"
    assert asked(config, "W-1")["hostkeyalias"] == own


@needs_ssh
@pytest.mark.parametrize(
    "name", ["a b/known", "a%d/known", "a %% b/known", 'say "hi" x/known', "it's/known", "#1/known"]
)
def test_odd_paths_reach_ssh_as_they_are(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    found = asked(written(tmp_path, key=path, known_hosts=path), "W-1")
    assert found["userknownhostsfile"] == path
    # ssh -G shows this one before tokens are read.
    assert found["identityfile"] == path.replace("%", "%%")


@needs_ssh
def test_an_address_with_a_zone_is_no_token(tmp_path: Path) -> None:
    entry = LaunchHost("w", "fe80::1%eth0", 22, "root")
    assert asked(written(tmp_path, entries=[entry]), "w")["hostname"] == "fe80::1%eth0"


@needs_ssh
@given(keepalive=st.just(0.0) | st.floats(0.001, 1e6))
def test_a_keepalive_is_as_long_as_asked_and_off_only_at_zero(
    tmp_path_factory: pytest.TempPathFactory, keepalive: float
) -> None:
    folder = tmp_path_factory.getbasetemp()
    lines = written(folder, keepalive=keepalive).read_text().splitlines()
    (interval,) = (int(line.split()[1]) for line in lines if "ServerAliveInterval" in line)
    assert (interval == 0) == (keepalive == 0)
    (probes,) = (int(line.split()[1]) for line in lines if "ServerAliveCountMax" in line)
    assert interval <= 30
    assert keepalive <= interval * probes <= keepalive + interval


@needs_ssh
def test_how_long_is_waited_is_the_users_to_say(tmp_path: Path) -> None:
    theirs = "-o ConnectionAttempts=10 -oConnectTimeout=1m -o serveraliveinterval=7"
    theirs += " -o ServerAliveCountMax=2 -o TCPKeepAlive=no -o ConnectionAttempts=11"
    args = read_args(theirs)
    assert args.without_effect == ()
    assert patience(30.0, args) == SshTimeouts(attempts=10, timeout=60, interval=7, probes=2)
    assert patience(30.0, UserArgs()) == SshTimeouts(attempts=3, timeout=30, interval=3, probes=10)
    assert only_by_ssh(args) == ()
    found = asked(written(tmp_path, user=theirs), "w-0.job.ns.svc")
    assert found["connectionattempts"] == "10"
    assert found["connecttimeout"] == "60"
    assert found["serveraliveinterval"] == "7"
    assert found["serveralivecountmax"] == "2"
    assert found["tcpkeepalive"] == "no"


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


@needs_ssh
def test_no_agent_and_no_forwarding_whatever_the_user_asks(tmp_path: Path) -> None:
    args = read_args("-A -X -Y -o ForwardAgent=yes -o IdentityAgent=SSH_AUTH_SOCK")
    assert args.words == ()
    assert len(args.without_effect) == 4
    theirs = "-A -X -Y -oForwardAgent=yes -oIdentityAgent=/run/agent"
    found = asked(written(tmp_path, user=theirs), "W-1", *args.words)
    assert found["forwardagent"] == "no"
    assert found["forwardx11"] == "no"
    assert found["clearallforwardings"] == "yes"
    assert found["identityagent"] == "none"
    # Nobody's connection is shared, and no server's other keys are taken over.
    assert (found["controlmaster"], found.get("controlpath")) == ("false", None)
    assert found["updatehostkeys"] == "false"
    assert asked(written(tmp_path), "W-1", "-a")["forwardagent"] == "no"


@given(st.text(alphabet=string.printable))
def test_any_arguments_are_read(text: str) -> None:
    assert all("\n" not in line for line in read_args(text).lines)


@pytest.mark.parametrize(
    ("ssh", "known", "why"),
    [
        ("/bin/ssh", True, ""),
        ("/bin/ssh", False, "/bin/ssh refuses uid 0, which has no passwd entry"),
        ("", True, "there is no ssh on PATH"),
    ],
)
def test_why_no_ssh_can_run_is_told(ssh: str, why: str, *, known: bool) -> None:
    assert unusable(ssh, replace(ROOT, known=known)) == why
