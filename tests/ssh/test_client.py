"""What the real ssh is set to do for a host, and its words where it does not get in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mpiboot.ssh.attempt import Outcome, Target
from mpiboot.ssh.client import HostSettings, OpensshClient
from mpiboot.ssh.commands import CommandEnd
from mpiboot.ssh.config import read_args

SSH = shutil.which("ssh") or ""
TARGET = Target("w-0", "10.0.0.1", 22, "me")
JUMP = "ssh -W [%h]:%p ssh://gate"
pytestmark = pytest.mark.skipif(not SSH, reason="no ssh on PATH")


def client(folder: Path, text: str = "", args: str = "", program: str = SSH) -> OpensshClient:
    config = folder / "config"
    config.write_text(text)
    given = read_args(f"-F {config} {args}")
    return OpensshClient(program, given, "me", folder=lambda: folder)


def counting(folder: Path) -> str:
    """An ssh that notes each call."""
    program = folder / "ssh"
    program.write_text(f'#!/bin/sh\necho >> {folder}/calls\nexec {SSH} "$@"\n')
    program.chmod(0o755)
    return str(program)


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
    asked = client(tmp_path, text, program=counting(tmp_path))
    ports = [(await asked.settings(name)).port for name in ("w-0", "w-1", "w-2", "w-0")]
    assert ports == [9, 8 if "8" in text else 9, 9, 9]
    assert len((tmp_path / "calls").read_text()) == calls


@pytest.mark.parametrize("what", ["a wrong word", "no OpenSSH"])
async def test_an_ssh_that_cannot_tell_is_not_used(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], what: str
) -> None:
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\necho Dropbear SSH client >&2\nexit 1\n")
    program.chmod(0o755)
    asked = client(tmp_path, "Prot 9", program=SSH if what == "a wrong word" else str(program))
    assert [await asked.settings(name) for name in ("w-0", "w-1")] == [
        HostSettings("w-0"),
        HostSettings("w-1"),
    ]
    assert not asked.usable
    said = " ".join(capfd.readouterr().err.split())
    assert said.count("its settings are not used") == 1
    assert ("prot" if what == "a wrong word" else "Dropbear SSH client") in said


@pytest.mark.parametrize(
    ("words", "status", "outcome"),
    [
        ("me@w-0: Permission denied (publickey).", 255, Outcome.KEY_REFUSED),
        ("Host key verification failed.", 255, Outcome.HOST_KEY_DIFFERS),
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
    asked = client(tmp_path)
    end = CommandEnd(
        "hello\n", status, f"OpenSSH_9.2\ndebug1: x\n{words}\n", timed_out="within" in words
    )
    found = asked.attempt(TARGET, end)
    assert (found.outcome, words in found.message) == (outcome, outcome is not Outcome.OK)
    assert asked.carried == ({"w-0"} if outcome is Outcome.OK else set())
    assert found.output == ("hello\n" if status in (0, 127) else "")


def test_a_host_key_that_is_new_is_noted_by_ssh(tmp_path: Path) -> None:
    (tmp_path / "known_hosts-w-0").write_text("a-users-alias ssh-ed25519 THEIRS\n")
    found = client(tmp_path).attempt(TARGET, CommandEnd("", 0))
    assert found.host_key == "ssh-ed25519 THEIRS"
