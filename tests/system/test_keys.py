from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.system import keys

UID = os.getuid()
KINDS = ("ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
FORMS = [
    *((kind, form) for kind in KINDS for form in ("openssh", "pkcs1-pem", "pkcs8-pem")),
    ("ssh-ed25519", "openssh"),
]
needs_keygen = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen")


def write(path: Path, key: asyncssh.SSHKey, form: str = "openssh") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(key.export_private_key(form))
    path.chmod(0o644)
    return path


def public(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key("openssh").decode().split()[:2])


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_the_public_half_of_every_kind_is_read_with_and_without_ssh_keygen(
    kind: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = asyncssh.generate_private_key(kind)
    path = write(tmp_path / "key", key, form)

    assert keys.load(path).public == public(key)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert keys.load(path).public == public(key)


@needs_keygen
@pytest.mark.parametrize("form", ["openssh", "pkcs1-pem"])
def test_a_key_that_ssh_would_refuse_is_mended_in_the_copy(form: str, tmp_path: Path) -> None:
    """It has the line ends of Windows, and none after its last line."""
    key = asyncssh.generate_private_key("ssh-rsa")
    mounted = tmp_path / "id_rsa"
    mounted.write_bytes(key.export_private_key(form).rstrip().replace(b"\n", b"\r\n"))
    copied = keys.copy(keys.load(mounted), tmp_path / "key")
    argv = ["ssh-keygen", "-y", "-f", str(copied.path)]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert " ".join(shown.split()[:2]) == copied.public == public(key)
    assert copied.path.read_bytes().endswith(b"-----\n")


@needs_keygen
@pytest.mark.parametrize("form", ["RFC4716", "PKCS8", "PEM"])
def test_a_key_with_a_passphrase_is_refused(form: str, tmp_path: Path) -> None:
    mounted = tmp_path / "id_rsa"
    argv = ["ssh-keygen", "-q", "-t", "ecdsa", "-m", form, "-N", "secret", "-f", str(mounted)]
    subprocess.run(argv, check=True, timeout=60)
    with pytest.raises(MpibootError, match="locked with a passphrase") as caught:
        keys.load(mounted)
    assert caught.value.code == 77


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff\x80binary",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n",
        b"-----BEGIN EC PRIVATE KEY-----\n!!\n-----END EC PRIVATE KEY-----\n",
        b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_what_is_no_key_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_bytes(content)
    message = f"the key {tmp_path}/id_rsa is not a private key: "
    with pytest.raises(MpibootError, match=message) as caught:
        keys.load(tmp_path / "id_rsa")
    assert caught.value.finding.check == "ssh-key"
    with pytest.raises(MpibootError, match=f"{tmp_path} can't be read: Is a directory"):
        keys.load(tmp_path)


@pytest.mark.parametrize("name", keys.NAMES)
def test_a_named_folder_is_searched_for_every_usual_name(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, asyncssh.generate_private_key("ssh-ed25519"))
    assert keys.find(str(tmp_path), (), UID) == path


def as_nobody(*checks: str) -> subprocess.CompletedProcess[str]:
    """Run statements as a user who is not root, with what they need loaded before."""
    head = "import os; from mpiboot.system import keys; b'x'.decode('unicode_escape'); "
    head += "os.setuid(65534)"
    environ = {"PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    argv = [sys.executable, "-c", "\n".join((head, *checks))]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def opened() -> Iterator[str]:
    """A folder that another user may enter, with a key that this one may read."""
    if UID != 0:
        pytest.skip("closes a folder to another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        write(Path(name, "home/.ssh/id_rsa"), asyncssh.generate_private_key("ssh-ed25519"))
        yield name


@pytest.mark.parametrize(
    ("shut", "mode", "message", "hint"),
    [
        ("home", 0o700, "home has mode 0700 of uid 0", "sshAuthMountPath"),
        ("home/.ssh", 0o700, ".ssh has mode 0700 of uid 0", "fsGroup"),
        ("home/.ssh/id_rsa", 0o600, "id_rsa has mode 0600 of uid 0", "defaultMode"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_a_key_that_is_there_and_closed_is_an_error_at_once(
    opened: str, shut: str, mode: int, message: str, hint: str, *, named: bool
) -> None:
    Path(opened, shut).chmod(mode)
    folder = f"{opened}/home/.ssh"
    done = as_nobody(
        f"mount = '1 2 0:3 / {'/' if named else folder} ro - tmpfs t ro'",
        "keys.files.mount_table = lambda: mount",
        "def pause(seconds): raise AssertionError('it is waited for')",
        f"wanted = {folder if named else ''!r}",
        "try: keys.wait(wanted, (), 65534, 1000, pause)",
        "except keys.MpibootError as wrong: print(wrong.finding.message, wrong.finding.hint)",
    )
    assert message in done.stdout, done.stderr
    assert f"uid 65534 can't reach the key {folder}/" in done.stdout
    assert hint in done.stdout


def test_a_key_that_can_be_read_counts_also_where_another_place_is_closed(opened: str) -> None:
    shutil.copytree(f"{opened}/home", f"{opened}/closed")
    Path(opened, "closed").chmod(0o700)
    done = as_nobody(
        f"keys.files.mount_table = lambda: '1 2 0:3 / {opened}/closed/.ssh ro - tmpfs tmpfs ro'",
        f"print(keys.wait('', ('{opened}/home',), 65534, 0))",
    )
    assert done.stdout.strip() == f"{opened}/home/.ssh/id_rsa", done.stderr


def test_a_key_that_may_still_be_mounted_is_waited_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "mount").mkdir()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            write(tmp_path / "mount/id_rsa", key)

    assert keys.wait(str(tmp_path / "mount"), (), UID, 1000, pause) == tmp_path / "mount/id_rsa"
    assert pauses[:2] == [pauses[0], 2 * pauses[0]]
    message = f"mpiboot: waiting for the job's SSH key in {tmp_path / 'mount'}; gives up in 16m40s"
    assert capfd.readouterr().err.splitlines() == [message]
    assert pauses == sorted(pauses)
    assert pauses[-1] <= 1


def test_an_empty_or_missing_key_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("")

    assert keys.find(str(tmp_path / "none"), (), UID) is None
    with pytest.raises(MpibootError, match=f"no private SSH key in {tmp_path}"):
        keys.wait(str(tmp_path), (), UID, 0.0)


def test_mount_points_of_keys_are_found_wherever_they_are() -> None:
    table = (
        "1 2 8:1 / / rw - ext4 /dev/a rw\n"
        "no mount at all\n"
        "3 1 0:5 / /home/mpiuser/.ssh ro - tmpfs tmpfs ro\n"
        "4 1 0:5 /x /srv/with\\040blank/.ssh/id_rsa ro - tmpfs tmpfs ro\n"
        "5 1 0:5 / /proc rw - proc proc rw\n"
        "6 1 0:5 / /home/é/.ssh ro - tmpfs tmpfs ro\n"
        "6 1 0:5 / /srv/a\u3000b\u2028\udcff/.ssh ro - tmpfs tmpfs ro\n"
        # As a node has the volumes of its pods.
        "6 1 0:6 / /var/lib/kubelet/pods/1cbf1ac7-ca80-4f0f-9ccb-7a9d38f6a7c1/volumes/"
        "kubernetes.io~secret/ssh-auth rw - tmpfs tmpfs rw\n"
    )

    assert keys.mounts(table) == (
        *("/home/mpiuser/.ssh", "/srv/with blank/.ssh", "/home/é/.ssh"),
        "/srv/a\u3000b\u2028\udcff/.ssh",
    )
