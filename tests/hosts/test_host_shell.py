"""The scripts that hosts get by SSH, in the shells that may read them, and what they print."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.facts import Host, HostAnswer, NoFacts
from mpiboot.hosts import host_shell
from mpiboot.hosts.remote_commands import worker_of
from mpiboot.ssh.attempt import Attempt, Outcome, Target
from mpiboot.system import programs
from mpiboot.worker.role import Launchers
from tests.fakes.programs import program

SHELLS = [shell for shell in ("sh", "bash", "dash", "busybox sh") if shutil.which(shell.split()[0])]
COMMANDS = (
    host_shell.gate(),
    host_shell.ask("run_script look", "facts"),
    host_shell.ask(host_shell.query("ranks", "no-such-launch")),
    host_shell.ask(host_shell.lacks("a", "b", "c")),
    host_shell.probe("10.244.0.11", "0-0", "launch"),
    host_shell.end_processes(("no-such-mark",)),
    host_shell.stop_ranks(15, "MPIBOOT_LAUNCH_ID=no-such-mark"),
    host_shell.ask(host_shell.JOB_IS_OVER),
    host_shell.ask("attempts w@2026-11-22T05:00:00Z@1a 1"),
    host_shell.job_failed("w@2026-11-22T05:00:00Z@1a", 0.0, "it's 100 % !\n*$(reboot) ~"),
    host_shell.gate(doctor=("doctor",)),
)


def run(shell: str = "sh", command: str = COMMANDS[0], **environ: str) -> str:
    done = subprocess.run(
        [*shell.split(), "-s"],
        input=command,
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("system", ["glibc", "musl"])
def test_a_process_of_a_launch_is_found_with_any_busybox(system: str, musl: str) -> None:
    """Debian's has its own programs in its shell, so that musl's needs another shell here.

    The mark is not the first of its variables.
    """
    mark = f"test-{os.urandom(8).hex()}"
    env = {"FIRST": "1", "PATH": os.environ["PATH"], "MPIBOOT_LAUNCH_ID": mark}
    shell, path = ("/bin/sh", musl) if system == "musl" else ("busybox sh", "/usr/bin:/bin")

    def answer(script: str) -> HostAnswer:
        return host_shell.read(run(shell, script, PATH=path))

    # It stays a shell: while a program is exchanged for another its environment is empty.
    words = ["sh", "-c", "echo; read -r _"]
    with subprocess.Popen(words, env=env, stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert mark in answer(host_shell.ask("launches")).launches
        assert child.poll() is None
        ended = answer(host_shell.end_processes(["no-such-launch", mark]))
        assert (ended.ended, ended.left) == (1, 0)
        assert child.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("shell", SHELLS)
def test_the_mpirun_of_a_path_tells_its_version(shell: str, tmp_path: Path) -> None:
    path = tmp_path / "mpirun"

    def asked(mpirun: str) -> tuple[str, str] | None:
        return host_shell.read(run(shell, host_shell.gate(mpirun))).mpirun_by_path

    assert asked(str(path)) == (str(path), "is not there")
    program(tmp_path, "mpirun", "echo hwloc >&2\necho 'mpirun (Open MPI) 5.0.7'\necho\necho Report")
    assert asked(str(path)) == (str(path), "mpirun (Open MPI) 5.0.7")
    # Intel's is a script that takes another from PATH; MPICH's version is in the second line.
    program(
        tmp_path, "mpiexec.hydra", "echo HYDRA build details:\necho '    Version:   4.3.2'\necho CC"
    )
    program(tmp_path, "mpirun", "mpiexec.hydra $@")
    told = asked(str(path))
    assert told == (str(path), "HYDRA build details: Version: 4.3.2")
    assert programs.recognise(*told or ("", "")).version == "4.3.2"
    assert asked("") is None
    assert asked("/with blank/$(mpirun)") is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "with blank"
    made.mkdir()
    return made


@pytest.mark.parametrize("script", [host_shell.ask("facts"), *COMMANDS[1:-1]])
@pytest.mark.parametrize("shell", SHELLS[1:])
def test_every_posix_shell_runs_the_same_script(shell: str, script: str) -> None:
    def steady(output: str) -> str:  # figures change from one moment to the next
        return re.sub(r"\d+", "N", output)

    assert steady(run(shell, script)) == steady(run("sh", script))


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("word", ["$(exit 9)", "a b", "a'b", "*", "!x", "grüße", "a;b", "", "-n"])
def test_words_reach_a_host_as_they_are(shell: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "answer").write_text(f"printf '%s|' \"$@\" > '{tmp_path}/words'")
    run(shell, host_shell.ask(host_shell.lacks(word, word, word)), MPIBOOT_WORKER_DIR=str(tmp_path))
    assert (tmp_path / "words").read_text() == f"lacks|{word}|{word}|{word or '/'}|"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_host_answers_by_the_workers_mpiboot_or_one_of_the_launchers_image(
    shell: str, tmp_path: Path
) -> None:
    command = host_shell.ask(host_shell.query("lacks", "/no/such", ":", "/"))
    (tmp_path / "facts.json").write_text("{}")

    def lacks(command: str) -> tuple[tuple[str, str], ...]:
        return host_shell.read(run(shell, command, MPIBOOT_WORKER_DIR=str(tmp_path))).lacks

    assert lacks(command) == (("file", "/no/such"),)
    assert lacks(command.replace(sys.executable, "/no/python")) == ()
    (tmp_path / "answer").write_text("""echo '{"version": 1, "lacks": [["name", "'"$*"'"]]}'""")
    assert lacks(command) == (("name", "lacks /no/such : /"),)


def test_attempts_and_their_ends_come_back_as_they_were_told(folder: Path) -> None:
    why = "it's 100 % of w-1's fault!\n*$(reboot) ~\u00e9" + "x" * 1000
    (folder / "facts.json").write_text("{}\n")  # else they are waited for
    os.mkfifo(folder / "sessions")
    fifo = os.open(folder / "sessions", os.O_RDWR | os.O_NONBLOCK)
    kept, output = Launchers(folder / "attempts", away=1, waits=1), ""
    for command in (
        host_shell.gate(attempt="a@1@x"),
        host_shell.job_failed("a@1@x", 0, why),
        host_shell.gate(attempt="b@2@y", may_disconnect=True),
    ):
        output = run(command=command, MPIBOOT_WORKER_DIR=str(folder))
        for line in os.read(fifo, 1 << 16).splitlines():
            kept.read_line(line, 0.0)
    os.close(fifo)
    assert (folder / "attempts").read_text().splitlines()[1] == "b@2@y "
    assert host_shell.read(output).attempts == (("a@1@x", why[:500].replace("\n", " ")),)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_worker_prints_its_facts_last_even_where_they_come_a_moment_late(
    shell: str, folder: Path
) -> None:
    """Its doctor's report, one line, comes before them."""

    def write() -> None:
        (folder / "new").write_text("mpiboot-oom 9\n")
        (folder / "new").rename(folder / "facts.json")

    (folder / "doctor").write_text("printf '{\\n \"a\": 1\\n}\\n'; echo odd >&2; exit 1\n")
    timer = threading.Timer(0.3, write)
    timer.start()
    command = host_shell.gate(doctor=("doctor",), workdir=str(folder / "gone"))
    output = run(shell, command, MPIBOOT_WORKER_DIR=str(folder))
    timer.join()
    answer = host_shell.read(f"Welcome to this image\n{output}")
    assert (answer.facts, answer.doctor) == ("mpiboot-oom 9\n", '{ "a": 1}')
    assert [what for what, _ in answer.lacks] == ["folder"]  # ranks can't start there
    again = host_shell.gate(doctor=("doctor",), workdir=str(folder))
    (folder / "doctor").unlink()
    answer = host_shell.read(run(shell, again, MPIBOOT_WORKER_DIR=str(folder)))
    assert (answer.doctor, answer.lacks) == ("", ())


def test_a_worker_without_its_facts_yet_is_late_and_nothing_else(folder: Path) -> None:
    """Naps that take no time let the command's patience pass at once."""
    program(folder, "sleep")
    answer = host_shell.read(run(MPIBOOT_WORKER_DIR=str(folder), PATH=f"{folder}:/usr/bin:/bin"))
    assert (answer.late, answer.facts, answer.mpirun) == (True, None, None)


@pytest.mark.parametrize("there", [True, False])
def test_a_worker_without_mpiboot_prints_what_plain_programs_know(
    tmp_path: Path, *, there: bool
) -> None:
    for name in ("head", "sh", "grep"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    if there:
        program(tmp_path, "mpirun", "echo 'mpirun (Open MPI) 5.0.8'; echo; echo Report")
    answer = host_shell.read(f"Welcome\n{run('/bin/sh', PATH=str(tmp_path))}")
    expected = (f"{tmp_path}/mpirun", "mpirun (Open MPI) 5.0.8\n\nReport") if there else None
    assert (answer.mpirun, answer.facts, answer.late) == (expected, None, False)


# ``int`` raises ValueError for more than 4,300 digits.
NUMBERS = [
    f"mpiboot-{word} {number} {number} /a\n"
    for word in ("left", "own")
    for number in ("x", "9" * 5000, "1.2.3", "\u0663")
]
PROCESSES = (
    "mpiboot-process\nMPIBOOT_LAUNCH_ID=b\nmpiboot-process\nMPIBOOT_LAUNCH_ID=a\n"
    "mpiboot-attempt a@b@c host%20lost\n"
)
LINK = {"eth0": {"rx_bytes": 1}}
COUNTS = f"mpiboot-answer {json.dumps({'version': 1, 'oom_kills': 3, 'counters': LINK})}\n"
RECORD = 'mpiboot-answer {"version": %s, "ranks": %s, "later": 1}\n'


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        *((output, {}) for output in ("", "garbage\n", "mpiboot-plain", "mpiboot-", *NUMBERS)),
        ("mpiboot-ended 4\nmpiboot-left 5\n", {"ended": 4, "left": 5}),
        ("mpiboot-ended -1\nmpiboot-left x\n", {}),
        ("mpiboot-lacks name train\nmpiboot-lacks name\n", {"lacks": (("name", "train"),)}),
        ("mpiboot-mpirun /a b c\n", {"mpirun_by_path": ("/a", "b c")}),
        ("mpiboot-late\n", {"late": True}),
        (PROCESSES, {"launches": ("a", "b"), "attempts": (("a@b@c", "host lost"),)}),
        ("mpiboot-facts\nmpiboot-oom 9\n", {"facts": "mpiboot-oom 9\n"}),
        (RECORD % (1, 2), {"version": 1, "ranks": 2}),
        (RECORD % (1, 2) + COUNTS, {"version": 1, "ranks": 2, "oom_kills": 3, "counters": LINK}),
        # A record of another version, or that can't be read, is unknown.
        *((RECORD % each, {}) for each in ((2, 2), (1, '"2"'), ("null", 2))),
        *((f"mpiboot-answer {text}\n", {}) for text in ("", "{", "[]", "{} {}", '{"ranks": 2}')),
    ],
)
def test_an_output_is_read_as_far_as_it_can_be(output: str, expected: dict[str, object]) -> None:
    assert host_shell.read(output) == replace(HostAnswer(), **expected)  # type: ignore[arg-type]


SESSION, OWN = "10.0.0.9 1 10.0.0.2 22", "10.0.0.1 3 10.0.0.2 22"


@pytest.mark.parametrize(
    ("connection", "table", "own", "held"),
    [
        (SESSION, "0016 0001", OWN, True),
        (SESSION, "0016 0002", OWN, False),  # it has ended
        (SESSION, "0016 0001", "", True),
        (SESSION, "0016 0002", "", True),  # its own isn't known: nobody is gone
        (SESSION, "0016 0002", "10.0.0.1 4 10.0.0.2 22", True),  # nor where it isn't in the table
        *((session, "0016 0001", OWN, False) for session in (SESSION[:-3], f"{SESSION} x", "")),
    ],
)
def test_a_launcher_is_connected_where_its_session_still_has_its_connection(
    connection: str, table: str, own: str, *, held: bool
) -> None:
    """``own`` is the connection by which it is queried."""
    rows = [
        f"   {at}: 0200000A:{ports.split()[0]} 0900000A:{ports.split()[1]} 01 00000000:00000000"
        for at, ports in enumerate((table, "0016 0003"))
    ]
    rows += [f"mpiboot-own {own}"] if own else []
    rows += ["mpiboot-process", "MPIBOOT_LAUNCH_ID=m", f"SSH_CONNECTION={connection}\n"]
    answer = host_shell.read("\n".join(rows))
    assert answer.launches == ("m",)
    assert answer.held == ((("m", "10.0.0.9"),) if held else ())


PLAIN = "mpiboot-plain\n/usr/bin/mpirun\nmpirun (Open MPI) 4.1.4\n"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (PLAIN, NoFacts.NO_MPIBOOT),
        ("mpiboot-late\n", NoFacts.PENDING),
        ("mpiboot-facts\n{}\n", NoFacts.UNREADABLE),
        ("mpiboot-facts\nnot json", NoFacts.UNREADABLE),
    ],
)
def test_why_there_are_no_facts_is_known(output: str, reason: NoFacts) -> None:
    attempt = Attempt(Target("w-1", "10.0.0.2", 2222, "mpi"), Outcome.OK, output=output)
    found = worker_of(Host("w-1"), attempt)
    assert (found.facts, found.no_facts, found.called_mpi) == (None, reason, None)
    assert (found.runs_mpiboot, found.mpi is None) == (output is not PLAIN, output is not PLAIN)
    assert found.pending is (reason is NoFacts.PENDING)
