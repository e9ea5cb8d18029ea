from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.model import Decision, Source
from mpiboot.ssh import openssh
from tests.fakes.worker import free_port


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("", None),
        ("#Port 22\n", None),
        ("Port 2222\n", 2222),
        ("  port=2200  \n", 2200),
        ('Port "2201"\n', 2201),
        ("Port 0\n", None),
        ("Port x\nPort 99999\nPort 2202\n", 2202),
        ("Host other\n  Port 2203\n", None),
        ("Host other\n  Port 2203\nHost *\n  Port 2204\n", 2204),
        ("Match user x\nPort 2205\n", None),
    ],
)
def test_the_port_of_a_configuration_is_the_one_for_every_host(text: str, port: int | None) -> None:
    assert openssh.port_in(text) == port


# What Volcano's ssh plugin with --ssh-port=2206 mounts (v1.15.1, ssh.go, generateSSHConfig).
VOLCANO = """\
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
Host j-master-0
  HostName j-master-0.j
  Port 2206
Host j-worker-0
  HostName j-worker-0.j
  Port 2206
"""


@pytest.mark.parametrize(
    ("own", "port"), [("j-worker-0", 2206), ("j-master-0", 2206), ("other", None), ("", None)]
)
def test_the_port_of_a_volcano_job_is_that_of_its_own_pod(own: str, port: int | None) -> None:
    assert openssh.port_in(VOLCANO, own) == port


def test_the_clients_port_is_not_the_images_servers(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".sshd_config").write_text("Port 2207\n")
    assert openssh.client_port({}, str(tmp_path)) is None
    config = tmp_path / ".ssh/config"
    config.write_text(VOLCANO.replace("j-worker-0", socket.gethostname()))
    assert openssh.client_port({}, str(tmp_path)) == (2206, str(config))
    assert openssh.client_port({"HOME": str(tmp_path)}, "") == (2206, str(config))


def test_the_users_port_comes_first(tmp_path: Path) -> None:
    given = Decision("ssh-port", "999", Source.FLAG, "--ssh-port")
    assert openssh.choose_port(given, {}, str(tmp_path), "127.0.0.1") == given


@pytest.mark.parametrize("name", [".sshd_config", ".ssh/config"])
def test_a_configuration_in_the_home_folder_names_the_port(name: str, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / name).write_text(f"Port {port}\n")
    chosen = openssh.choose_port(None, {}, str(tmp_path), "127.0.0.1")
    assert chosen == Decision("ssh-port", str(port), Source.PLATFORM, f"Port in {tmp_path / name}")


def test_a_port_that_is_taken_is_left_for_a_usual_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / ".sshd_config").write_text(f"Port {port}\n")
        assert not openssh.can_bind("127.0.0.1", port)
        chosen = openssh.choose_port(None, {}, str(tmp_path), "127.0.0.1")
    assert chosen.value in ("22", "2222")
    assert f"{port} of {tmp_path}/.sshd_config can't be bound" in chosen.reason


def test_an_address_of_nobody_cannot_be_bound() -> None:
    assert not openssh.can_bind("192.0.2.1", 2222)
    assert not openssh.can_bind("2001:db8::1", 2222)


SSH_FREE = Decision("ssh-port", "22", Source.DEFAULT, "the default of SSH")
SSH_TAKEN = Decision("ssh-port", "2222", Source.DETECTED, "22 can't be bound here")


@pytest.mark.parametrize(("free", "chosen"), [({22}, SSH_FREE), ({2222}, SSH_TAKEN)])
def test_without_a_word_of_anybody_the_default_is_taken_where_it_can_be_bound(
    free: set[int], chosen: Decision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openssh, "named_port", lambda _environ, _home: None)
    monkeypatch.setattr(openssh, "can_bind", lambda _address, port: port in free)
    assert openssh.choose_port(None, {}, str(tmp_path), "127.0.0.1") == chosen
    # What the image names, and can't be bound, is told.
    monkeypatch.setattr(openssh, "named_port", lambda _environ, _home: (7, "/x"))
    reason = f"7 of /x can't be bound; {chosen.reason}"
    assert openssh.choose_port(None, {}, str(tmp_path), "127.0.0.1") == replace(
        chosen, reason=reason
    )
