"""The settings of an OpenSSH server that runs: read by its own program, judged for one user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.model import Level
from mpiboot.doctor import looks, pod
from mpiboot.doctor.pod import SshdSettings
from tests.fakes import plans

# Of OpenSSH 9.2 (Debian 12), `sshd -T -C user=root,host=localhost,addr=127.0.0.1`, in part.
SAID = """port 22
addressfamily any
permitrootlogin without-password
pubkeyauthentication yes
strictmodes yes
authorizedkeysfile .ssh/authorized_keys .ssh/authorized_keys2
authenticationmethods any
maxstartups 10:30:100
"""


def judged(**values: str) -> list[tuple[Level, str]]:
    told = looks.parsed(SAID) | {name: (value,) for name, value in values.items()}
    server = SshdSettings(22, "/usr/sbin/sshd", told)
    found = list(pod.sshd_settings((server,), plans.ROOT))
    assert all(item.hint or item.level is Level.OK for item in found)
    return [(item.level, item.message) for item in found]


def test_a_server_as_it_is_installed_takes_roots_key() -> None:
    assert judged() == [(Level.OK, "sshd on port 22 takes the keys of root")]
    assert list(pod.sshd_settings((), plans.ROOT)) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pubkeyauthentication": "no"}, "PubkeyAuthentication no"),
        ({"authenticationmethods": "password"}, "AuthenticationMethods password"),
        ({"permitrootlogin": "no"}, "PermitRootLogin no"),
        ({"permitrootlogin": "forced-commands-only"}, "PermitRootLogin forced-commands-only"),
        ({"allowusers": "mpi ops@10.*"}, "AllowUsers mpi ops@10.*"),
        ({"denyusers": "ro*"}, "DenyUsers ro*"),
    ],
)
def test_a_setting_that_keeps_this_user_out_fails(values: Mapping[str, str], message: str) -> None:
    assert judged(**values) == [(Level.FAIL, f"sshd on port 22 lets root not in: {message}")]


def test_a_user_other_than_root_is_not_kept_out_by_what_is_said_of_root() -> None:
    told = looks.parsed(SAID) | {"permitrootlogin": ("no",), "allowusers": ("uid*",)}
    part = (SshdSettings(22, "/usr/sbin/sshd", told),)
    assert [item.level for item in pod.sshd_settings(part, plans.NOBODY)] == [Level.OK]


@pytest.mark.parametrize(
    ("strict", "mode", "owner", "message"),
    [
        ("yes", 0o644, 0, ""),
        ("yes", 0o664, 0, "StrictModes yes, and others may write /root/.ssh (mode 0664)"),
        ("yes", 0o700, 7, "StrictModes yes, and /root/.ssh is of uid 7"),
        ("no", 0o666, 7, ""),
    ],
)
def test_strict_modes_are_judged_by_mode_and_owner(
    strict: str, mode: int, owner: int, message: str
) -> None:
    told = looks.parsed(SAID) | {"strictmodes": (strict,)}
    server = SshdSettings(22, "/usr/sbin/sshd", told, (("/root/.ssh", mode, owner),))
    (found,) = pod.sshd_settings((server,), plans.ROOT)
    assert (found.level is Level.FAIL, message in found.message) == (bool(message), True)


def test_a_server_that_cannot_be_asked_is_unknown_with_its_words() -> None:
    server = SshdSettings(22, "/usr/sbin/sshd", {}, wrong="no hostkeys available -- exiting.")
    (found,) = pod.sshd_settings((server,), plans.ROOT)
    assert found.level is Level.UNKNOWN
    assert found.message.endswith("does not tell its settings: no hostkeys available -- exiting.")


@pytest.mark.parametrize(
    ("cmdline", "argv"),
    [
        (
            "sshd: /usr/sbin/sshd -D -f /etc/a [listener] 0 of 10-100 startups\0\0",
            ("/usr/sbin/sshd", "-D", "-f", "/etc/a"),
        ),
        ("/usr/sbin/sshd\0-De\0", ("/usr/sbin/sshd", "-De")),
        ("/opt/mpiboot/bin/python\0-m\0mpiboot\0", ()),
        ("", ()),
    ],
)
def test_a_servers_command_line_is_read_also_out_of_its_title(
    cmdline: str, argv: tuple[str, ...]
) -> None:
    assert looks.arguments(cmdline) == argv


def test_the_server_is_asked_with_its_own_options_and_only_those_that_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "home/.ssh/authorized_keys"
    keys.parent.mkdir(parents=True, mode=0o700)
    keys.write_text("")
    keys.chmod(0o664)
    program = tmp_path / "sshd"
    program.write_text(
        f"#!/bin/sh\n[ $1 = -T ] || exit 1\nshift 3\necho asked $@\ncat <<E\n{SAID}E\n"
    )
    program.chmod(0o755)
    title = f"sshd: {program} -D -e -f /etc/job -oPort=7 -4 [listener] 0 of 10-100 startups"
    (tmp_path / "77").mkdir()
    (tmp_path / "77/cmdline").write_text(title)
    monkeypatch.setattr(looks, "process_of", lambda port: 77 if port == 22 else 0)
    who = replace(plans.ROOT, home=str(tmp_path / "home"))
    (seen,) = looks.sshd_settings((22, 2222), who, tmp_path)
    assert seen.values["asked"] == ("-f /etc/job -oPort=7",)
    assert [(path, mode) for path, mode, _ in seen.keys[:2]] == [
        (str(keys), 0o664),
        (str(keys.parent), 0o700),
    ]
    assert seen.keys[-1][0] == str(tmp_path / "home")
    program.write_text("#!/bin/sh\necho first >&2\necho 'no hostkeys' >&2\nexit 1\n")
    (seen,) = looks.sshd_settings((22,), who, tmp_path)
    assert (seen.wrong, seen.values) == ("no hostkeys", {})
    program.unlink()
    (seen,) = looks.sshd_settings((22,), who, tmp_path)
    assert seen.wrong.startswith("FileNotFoundError")
