"""The archive for a support ticket: what is in it, what is not, and how large it may be."""

from __future__ import annotations

import io
import os
import pty
import stat
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from mpiboot.doctor import bundle

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "geheim-4711"


def unpacked(data: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        found = {}
        for item in file.getmembers():
            assert item.mode == 0o600
            content = file.extractfile(item)
            assert content is not None
            found[item.name.removeprefix("mpiboot-bundle/")] = content.read().decode()
        return found


def asked(*words: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "MPIBOOT_ROLE": "worker", **environ}
    line = [sys.executable, "-m", "mpiboot", "doctor", "--bundle", *words]
    return subprocess.run(line, env=env, capture_output=True, timeout=300, check=False)


def test_what_is_in_it(tmp_path: Path) -> None:
    """A secret of the environment is nowhere, also not where another variable repeats it."""
    path = tmp_path / "bundle.tar.gz"
    path.write_text("an older one")
    log = tmp_path / "termination"
    log.write_text(f"program: it ended with {SECRET}\n")
    environ = {
        "API_TOKEN": SECRET,
        "UCX_COPY": f"--with {SECRET}",
        "NCCL_DEBUG": "INFO",
        "DOCKER_AUTH_CONFIG": '{"auths": {"r.io": {"auth": "bWU6aHVudGVyMg=="}}}',
        "ALERTS": "https://hooks.example.com/services/T0/B0/hunter2",
        "DATABASE": "Server=db;Uid=me;Pwd=hunter2",
    }
    done = asked(str(path), MPIBOOT_TERMINATION_LOG=str(log), **environ)
    assert (done.returncode, done.stdout) == (0, b"")
    assert f"mpiboot: {path}: ".encode() in done.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(item.name for item in tmp_path.iterdir()) == ["bundle.tar.gz", "termination"]
    found = unpacked(path.read_bytes())
    assert list(found) == [
        *("README.txt", "doctor.json", "doctor-ranks.json", "facts.json", "settings.json"),
        *("versions.txt", "environment.txt", "first-process.txt", "termination-log.txt"),
    ]
    assert "API_TOKEN=(hidden)\n" in found["environment.txt"]
    assert "UCX_COPY=--with (hidden)\n" in found["environment.txt"]
    assert "NCCL_DEBUG=INFO\n" in found["environment.txt"]
    for name in ("DOCKER_AUTH_CONFIG", "ALERTS", "DATABASE"):
        assert f"{name}=(hidden)\n" in found["environment.txt"]
        assert environ[name] not in "".join(found.values())
    assert found["termination-log.txt"] == "program: it ended with (hidden)\n"
    assert SECRET not in "".join(found.values())
    assert '"findings"' in found["doctor.json"]
    assert "kubectl logs" in found["README.txt"]


def test_to_standard_output_it_is_the_archive_alone() -> None:
    done = asked("-")
    assert done.returncode == 0
    assert "doctor.json" in unpacked(done.stdout)
    assert b"mpiboot: standard output: " in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no/such/bundle", "there is no folder"),
        (f"{'x' * 300}/bundle", "there is no folder"),  # what the kernel refuses to look at
        ("", "it is a folder"),
    ],
)
def test_a_file_that_cant_be_written_is_one_line(tmp_path: Path, name: str, message: str) -> None:
    done = asked(str(tmp_path / name))
    assert (done.returncode, done.stdout) == (2, b"")
    lines = done.stderr.decode().splitlines()
    assert lines[0].startswith("mpiboot: error: [usage] --bundle ")
    assert message in lines[0]
    assert len(lines) == 2
    assert lines[1].startswith("mpiboot:   -> name a file")


def test_a_terminal_gets_no_archive() -> None:
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "mpiboot", "doctor", "--bundle", "-"]
    done = subprocess.run(line, stdout=theirs, stderr=subprocess.PIPE, timeout=300, check=False)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    assert b"standard output is a terminal" in done.stderr


def test_the_bound_is_kept_and_told() -> None:
    parts = {"a": "x" * 50, "b": "é" * 100, "c": "y" * 90, "d": "z" * 10}
    data, message = bundle.pack(parts, "about", most=101, whole=250)
    found = unpacked(data)
    assert message == "cut to 101 bytes: b; left out, as all may have 250 bytes: c"
    assert list(found) == ["README.txt", "a", "b", "d"]
    assert found["b"] == "é" * 50 + "\n[cut here: 200 bytes in all]\n"
    assert found["README.txt"] == f"about\n  a\n  b\n  d\n\n{message}\n"


def test_only_known_variables_are_shown_with_their_values() -> None:
    environ = {
        "EMPTY": "",
        "HOME": "/home/me",
        "MPIBOOT_MPIRUN_ARGS": "--password hunter2",
        "OMPI_MCA_btl": "self",
        "TF_TOKEN": "hunter2",
        "X": "hunter2",
    }
    assert bundle.environment(environ).splitlines() == [
        "EMPTY=",
        "HOME=/home/me",
        "MPIBOOT_MPIRUN_ARGS=--password (hidden)",
        "OMPI_MCA_btl=self",
        "TF_TOKEN=(hidden)",
        "X=(hidden)",
    ]


def test_secrets_by_their_values() -> None:
    environ = {
        "API_TOKEN": SECRET,
        "A_PASSWORD": "x",
        "MAX_TOKENS": "1234567",
        "OTHER": "words here",
        "ALERTS": "https://hooks.example.com/T0",
        "DATABASE": "Server=db;Uid=me",
        "MASTER_ADDR": "tcp://w-0.job",
    }
    text = f"{SECRET} {SECRET}! x 1234567 words here; "
    shown = text.replace(SECRET, "(hidden)")
    text += "--to https://hooks.example.com/T0 Server=db;Uid=me tcp://w-0.job"
    found = bundle.without_secrets({"a": text}, environ)
    assert found["a"] == f"{shown}--to (hidden) (hidden) tcp://w-0.job"
