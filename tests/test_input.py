"""What people get wrong, on the command line: one clear line, the right code, never a hang."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.fakes.cli import message, mpiboot
from tests.fakes.programs import program
from tests.fakes.worker import make_key


def key(folder: Path) -> None:
    make_key(folder / ".ssh/id_ed25519", "-t", "ed25519")


def wrong(
    folder: Path, code: int, reference: str, *words: str, env: dict[str, str] | None = None
) -> str:
    """The one line that has the reason; nothing else is on stdout, and no traceback anywhere."""
    done = mpiboot(folder, *words, env=env)
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("mpiboot: error: [")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"mpiboot: error: [{reference}] ")
    assert message(folder).startswith(f"{reference}: ") == (words[0] not in ("validate", "wait"))
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return lines[0]


# What each line may be, and how it is refused, is in tests/job/test_hostfile.py.
HOSTFILES = {
    "a program": (b"\x7fELF\x02\x01\x01\0\0", " (named by MPI_HOSTFILE) is not text: "),
    "not ASCII": (b"w\xfc-0\n", ":1: 'w\\ufffd-0'"),
    "no number": (b"good slots=2\nw-0 slots=abc\n", ":2: slots is 'abc', expected a whole number"),
    "for a shell": (b"$(touch MARK) slots=1\n", ":1: "),
}


@pytest.mark.parametrize(("content", "told"), HOSTFILES.values(), ids=HOSTFILES)
def test_a_hostfile_that_can_not_be_read(tmp_path: Path, content: bytes, told: str) -> None:
    key(tmp_path)
    path = tmp_path / "hostfile"
    path.write_bytes(content)
    words = ("wait", "--timeout", "0.5")
    said = wrong(tmp_path, 65, "hostfile-invalid", *words, env={"MPI_HOSTFILE": str(path)})
    assert f"{path}{told}" in said
    assert not (tmp_path / "MARK").exists()


def test_ten_thousand_hosts_end_at_the_deadline_and_each_is_named_once(tmp_path: Path) -> None:
    """Refused at once: nobody listens on these addresses."""
    key(tmp_path)
    hosts = [f"127.1.{number // 250}.{number % 250 + 2}" for number in range(10_000)]
    (tmp_path / "hostfile").write_text("".join(f"{host} slots=8\n" for host in hosts))
    env = {"MPI_HOSTFILE": str(tmp_path / "hostfile"), "MPIBOOT_LOG_FORMAT": "json"}
    # Time enough to ask each once, also where others work: who was not asked has no reason.
    done = mpiboot(tmp_path, "wait", "--timeout", "25", env=env)
    assert done.returncode == 69
    said = [item for item in map(json.loads, done.stderr.splitlines()) if "check" in item]
    assert "10000 of 10000 hosts are not ready" in said[0]["message"]
    assert len(said) <= 16, [item["message"] for item in said]  # a line for each state
    assert sorted(name for item in said for name in item.get("hosts", ())) == sorted(hosts)
    assert len(message(tmp_path)) <= 4096


@pytest.mark.parametrize(
    ("code", "reference", "words", "env", "told"),
    [
        (
            *(66, "hostfile-missing", ("wait", "--timeout", "0.3")),
            {"MPI_HOSTFILE": "/nowhere/hostfile"},
            "/nowhere/hostfile (named by MPI_HOSTFILE) does not exist after ",
        ),
        (
            *(127, "program-missing", ("launcher", "--", "mpirun", "./train")),
            {"MPI_HOSTFILE": "hostfile", "PATH": "/nowhere"},
            "no mpirun or mpiexec on PATH",
        ),
        (
            *(127, "program-missing", ("launcher", "--", "mpirun -n 2 ./train"), {}),
            "mpirun -n 2 ./train doesn't exist",
        ),
    ],
)
def test_what_is_missing_or_one_word(
    tmp_path: Path,
    code: int,
    reference: str,
    words: tuple[str, ...],
    env: dict[str, str],
    told: str,
) -> None:
    key(tmp_path)
    (tmp_path / "hostfile").write_text("127.0.0.1\n")
    if env.get("MPI_HOSTFILE") == "hostfile":
        env = {**env, "MPI_HOSTFILE": str(tmp_path / "hostfile")}
    assert told in wrong(tmp_path, code, reference, *words, env=env)


def test_a_question_to_mpirun_is_answered_without_hosts_and_keys(tmp_path: Path) -> None:
    program(tmp_path, "mpirun", "echo asked: $*\nexit 3")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = mpiboot(tmp_path, "launcher", "--", "mpirun", "--version", env=env)
    assert (done.returncode, done.stdout) == (3, "asked: --version\n")


def test_a_key_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("not a key")
    (tmp_path / "hostfile").write_text("w-0.invalid\n")
    env = {"MPIBOOT_SSH_KEY": str(path), "MPI_HOSTFILE": str(tmp_path / "hostfile")}
    told = wrong(tmp_path, 77, "ssh-key", "wait", "--timeout", "0.2", env=env)
    assert f"{path} is not a private key" in told


@pytest.mark.parametrize(
    ("words", "hostfile", "code", "reference"),
    [
        (("validate", "job"), "", 66, "hostfile-missing"),
        (("validate", "pairs"), "", 66, "hostfile-missing"),
        (("launcher", "--", "mpirun", "true"), "/", 65, "hostfile-invalid"),
    ],
)
def test_a_hostfile_that_is_wrong_is_told_before_a_key_is_waited_for(
    tmp_path: Path, words: tuple[str, ...], hostfile: str, code: int, reference: str
) -> None:
    env = {"MPIBOOT_SSH_KEY": str(tmp_path / "none"), "MPI_HOSTFILE": hostfile}
    wrong(tmp_path, code, reference, *words, env=env)


@pytest.mark.parametrize("place", ["/proc/mpiboot", "file/below"])
def test_a_runtime_folder_that_can_not_be_made(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    path = str(tmp_path / place)
    said = wrong(tmp_path, 73, "runtime-folder", "wait", env={"MPIBOOT_RUNTIME_DIR": path})
    assert path in said


def test_an_unknown_option_is_reported_before_any_wait(tmp_path: Path) -> None:
    key(tmp_path)
    program(tmp_path / "bin", "mpirun", "echo 'mpirun (Open MPI) 5.0.7'")
    (tmp_path / "hostfile").write_text("w-0.invalid slots=1\n")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    env = {"PATH": path, "MPI_HOSTFILE": str(tmp_path / "hostfile")}
    done = mpiboot(
        tmp_path, *["launcher", "--timeout", "2", "--", "mpirun", "--no-such", "true"], env=env
    )
    assert "[usage] --no-such is not an option" in done.stderr.partition("waiting for")[0]
