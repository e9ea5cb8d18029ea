"""The scripts that hosts get by SSH, in the shells that may read them, and what they print."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.core.facts import NoFacts
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.hosts.pipeline import facts_of
from mpiboot.system import programs
from mpiboot.worker.role import Launchers

SHELLS = [shell for shell in ("sh", "bash", "dash", "busybox sh") if shutil.which(shell.split()[0])]
COMMANDS = (
    host_shell.gate(),
    host_shell.ask("look", "facts"),
    host_shell.ask("memory", "memory_sizes", host_shell.query("ranks", "no-such-launch")),
    host_shell.ask(host_shell.lacks("a", "b", "c")),
    host_shell.probe("10.244.0.11", "", "launch"),
    host_shell.end_processes(("no-such-mark",)),
    host_shell.stop_ranks(15, 1, "MPIBOOT_LAUNCH_ID=no-such-mark"),
    host_shell.order(host_shell.JOB_IS_OVER),
    host_shell.ask("attempts w@2026-11-22T05:00:00Z@1a 1"),
    host_shell.job_failed("w@2026-11-22T05:00:00Z@1a", 0.0, "it's 100 % !\n*$(reboot) ~"),
    host_shell.gate(doctor=("doctor",)),
)


def run(shell: str = "sh", command: str = COMMANDS[0], **environ: str) -> str:
    done = subprocess.run(
        [*shell.split(), "-s"],
        input=command,
        env={"PATH": "/usr/bin:/bin", "SHELL": "/bin/any", **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def marked() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A process with a launch's mark, which is not the first of its variables; and that mark."""
    mark = f"test-{os.urandom(8).hex()}"
    env = {"FIRST": "1", "PATH": os.environ["PATH"], "MPIBOOT_LAUNCH_ID": mark}
    # It stays a shell: while a program is exchanged for another its environment is empty.
    child = subprocess.Popen(["sh", "-c", "echo; read -r _"], env=env, stdin=-1, stdout=-1)
    assert child.stdout is not None
    child.stdout.readline()
    yield mark, child
    child.kill()
    child.communicate()


@pytest.mark.parametrize("system", ["glibc", "musl"])
def test_a_process_of_a_launch_is_found_with_any_busybox(
    system: str, musl: str, marked: tuple[str, subprocess.Popen[bytes]]
) -> None:
    """Debian's has its own programs in its shell, so that musl's needs another shell here."""
    mark, child = marked
    shell, path = ("/bin/sh", musl) if system == "musl" else ("busybox sh", "/usr/bin:/bin")

    def answer(script: str) -> HostAnswer:
        return host_shell.read(run(shell, script, PATH=path))

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
    path.write_text(
        "#!/bin/sh\necho hwloc >&2\necho 'mpirun (Open MPI) 5.0.7'\necho\necho Report\n"
    )
    path.chmod(0o755)
    assert asked(str(path)) == (str(path), "mpirun (Open MPI) 5.0.7")
    # Intel's is a script that takes another from PATH; MPICH's version is in the second line.
    path.rename(tmp_path / "mpiexec.hydra").write_text(
        "#!/bin/sh\necho HYDRA build details:\necho '    Version:   4.3.2'\necho '    CC: gcc'\n"
    )
    path.write_text("#!/bin/sh\nmpiexec.hydra $@\n")
    path.chmod(0o755)
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


@pytest.mark.parametrize("script", [host_shell.ask("memory", "facts"), *COMMANDS[1:-1]])
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
def test_a_host_tells_that_ranks_can_not_start_where_mpirun_does(
    shell: str, tmp_path: Path
) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        command = host_shell.gate(workdir=str(path))
        lacks = () if path == tmp_path else (("folder", str(path)),)
        assert host_shell.read(run(shell, command)).lacks == lacks


@pytest.mark.parametrize("shell", SHELLS)
def test_facts_are_brought_back_by_any_posix_shell(shell: str, folder: Path) -> None:
    (folder / "facts.json").write_text('{"a": 1}\n')

    output = run(shell, MPIBOOT_WORKER_DIR=str(folder))

    assert host_shell.read(f"Welcome to this image\n{output}").facts == '{"a": 1}\n'


def test_facts_that_come_a_moment_late_are_waited_for(folder: Path) -> None:
    def write() -> None:
        (folder / "new").write_text("{}\n")
        (folder / "new").rename(folder / "facts.json")

    timer = threading.Timer(0.3, write)
    timer.start()
    output = run(MPIBOOT_WORKER_DIR=str(folder))
    timer.join()

    assert host_shell.read(output).facts == "{}\n"


def test_a_worker_without_its_facts_yet_is_late_and_nothing_else(folder: Path) -> None:
    """Naps that take no time let the command's patience pass at once."""
    nap = folder / "sleep"
    nap.write_text("#!/bin/sh\n")
    nap.chmod(0o755)

    answer = host_shell.read(run(MPIBOOT_WORKER_DIR=str(folder), PATH=f"{folder}:/usr/bin:/bin"))

    assert (answer.late, answer.facts, answer.mpirun) == (True, None, None)
    assert facts_of(answer) == (None, NoFacts.LATE)


@pytest.mark.parametrize(
    ("look", "why", "facts"),
    [
        ("echo noise; echo noise >&2; echo new > facts.json", "", "new\n"),
        (
            "echo 1; echo 'mpiboot: error: no memory' >&2; exit 70",
            "mpiboot: error: no memory",
            "old\n",
        ),
    ],
)
def test_a_worker_gathers_its_facts_anew_or_reports_why_not(
    folder: Path, look: str, why: str, facts: str
) -> None:
    (folder / "look").write_text(f"cd '{folder}'; {look}")
    (folder / "facts.json").write_text("old\n")
    answer = host_shell.read(run(command=COMMANDS[1], MPIBOOT_WORKER_DIR=str(folder)))
    assert (answer.look_failed, answer.facts) == (why, facts)


def test_a_worker_without_mpiboot_tells_what_plain_programs_know(tmp_path: Path) -> None:
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.8'; echo; echo Report\n")
    program.chmod(0o755)
    output = run(PATH=f"{tmp_path}:/usr/bin:/bin")

    answer = host_shell.read("Welcome to this image\n" + output)

    assert answer.mpirun == (str(program), "mpirun (Open MPI) 5.0.8\n\nReport")
    assert facts_of(answer) == (None, NoFacts.NO_MPIBOOT)


def test_a_worker_without_mpirun_has_no_mpi(tmp_path: Path) -> None:
    for name in ("head", "sh", "grep"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    output = run("/bin/sh", PATH=str(tmp_path))

    assert "mpiboot-plain\n" in output
    assert host_shell.read(output).mpirun is None


@pytest.mark.parametrize(
    ("record", "ranks"),
    [
        ('{"version": 1, "ranks": 2, "later": 1}', 2),
        *(
            (record, None)
            for record in ('{"version": 2, "ranks": 2}', '{"ranks": 2}', "", "{", "[]", "{} {}")
        ),
        ('{"version": 1, "ranks": "2"}', None),
    ],
)
def test_a_record_of_another_version_is_unknown(record: str, ranks: int | None) -> None:
    answer = host_shell.read(f"mpiboot-oom 3\nmpiboot-answer {record}\n")
    assert (answer.version and answer.ranks, answer.oom_kills) == (ranks, 3)


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


# ``int`` raises ValueError for more than 4,300 digits.
NUMBERS = [
    f"mpiboot-{word} {number} {number} /a\n"
    for word in ("oom", "own")
    for number in ("x", "9" * 5000, "1.2.3", "\u0663")
]


@pytest.mark.parametrize("output", ["", "garbage\n", "mpiboot-plain", "mpiboot-", *NUMBERS])
def test_an_output_that_cannot_be_read_is_no_answer(output: str) -> None:
    assert host_shell.read(output) == HostAnswer()


def test_facts_of_another_version_are_not_taken_for_a_worker_without_mpiboot() -> None:
    answer = host_shell.read("mpiboot-facts\nnot json")
    assert facts_of(answer) == (None, NoFacts.UNREADABLE)


def test_the_present_state_comes_before_the_facts() -> None:
    output = (
        "mpiboot-oom 3\nmpiboot-process\nMPIBOOT_LAUNCH_ID=b\n"
        "mpiboot-process\nMPIBOOT_LAUNCH_ID=a\nmpiboot-attempt a@b@c\n"
        "mpiboot-facts\nmpiboot-oom 9\n"
    )
    assert host_shell.read(output) == HostAnswer(
        oom_kills=3, launches=("a", "b"), attempts=(("a@b@c", ""),), facts="mpiboot-oom 9\n"
    )
    assert host_shell.read("Welcome\n") == HostAnswer()


def test_attempts_and_their_ends_come_back_as_they_were_told(folder: Path) -> None:
    why = "it's 100 % of w-1's fault!\n*$(reboot) ~\u00e9" + "x" * 1000
    (folder / "facts.json").write_text("{}\n")  # else they are waited for
    os.mkfifo(folder / "sessions")
    fifo = os.open(folder / "sessions", os.O_RDWR | os.O_NONBLOCK)
    kept = Launchers(folder / "attempts", away=1, waits=1)
    told = [host_shell.gate(attempt="a@1@x"), host_shell.job_failed("a@1@x", 0, why)]
    output = ""
    for command in (*told, host_shell.gate(attempt="b@2@y", may_disconnect=True)):
        output = run(command=command, MPIBOOT_WORKER_DIR=str(folder))
        for line in os.read(fifo, 1 << 16).splitlines():
            kept.read_line(line, 0.0)
    os.close(fifo)

    assert (folder / "attempts").read_text().splitlines()[1] == "b@2@y "
    assert host_shell.read(output).attempts == (("a@1@x", why[:500].replace("\n", " ")),)


@pytest.mark.parametrize(
    ("connection", "table", "own", "held"),
    [
        ("10.0.0.9 1 10.0.0.2 22", "0016 0001", "3 22", True),
        ("10.0.0.9 1 10.0.0.2 22", "0016 0002", "3 22", False),  # it has ended
        ("10.0.0.9 1 10.0.0.2 22", "0016 0001", "", True),
        ("10.0.0.9 1 10.0.0.2 22", "0016 0002", "", True),  # its own isn't known: nobody is gone
        ("10.0.0.9 1 10.0.0.2 22", "0016 0002", "4 22", True),  # nor where it isn't in the table
        ("10.0.0.9 1 10.0.0.2", "0016 0001", "3 22", False),
        ("10.0.0.9 1 10.0.0.2 22 x", "0016 0001", "3 22", False),
        ("10.0.0.9 x 10.0.0.2 22", "0016 0001", "3 22", False),
        ("", "0016 0001", "3 22", False),
    ],
)
def test_a_launcher_is_connected_where_its_session_still_has_its_connection(
    connection: str,
    table: str,
    own: str,
    held: bool,  # noqa: FBT001 - a row of the table
) -> None:
    """``own`` is the connection by which it is asked: far port and near port."""
    rows = [
        f"   {at}: 0200000A:{ports.split()[0]} 0900000A:{ports.split()[1]} 01 00000000:00000000"
        for at, ports in enumerate((table, "0016 0003"))
    ]
    lines = [
        *rows,
        *([f"mpiboot-own {own}"] if own else []),
        "mpiboot-process",
        "MPIBOOT_LAUNCH_ID=m",
        f"SSH_CONNECTION={connection}",
    ]
    answer = host_shell.read("\n".join(lines) + "\n")
    assert answer.launches == ("m",)
    assert answer.held == ((("m", "10.0.0.9"),) if held else ())


def test_numbers_names_and_reasons_are_read_where_they_are_some() -> None:
    answer = host_shell.read(
        "mpiboot-oom 1\nmpiboot-limit 2\nmpiboot-peak 3\nmpiboot-ended 4\n"
        "mpiboot-left 5\nmpiboot-lacks name train\nmpiboot-lacks name\n"
        "mpiboot-look-failed no memory\n"
    )
    assert (answer.oom_kills, answer.limit, answer.peak) == (1, 2, 3)
    assert (answer.ended, answer.left) == (4, 5)
    assert answer.lacks == (("name", "train"),)
    assert answer.look_failed == "no memory"
    odd = host_shell.read("mpiboot-oom x\nmpiboot-ended -1\nmpiboot-mpirun /a b c\n")
    assert (odd.oom_kills, odd.ended) == (None, 0)
    assert odd.mpirun_by_path == ("/a", "b c")


def test_the_report_of_a_workers_doctor_is_one_line(tmp_path: Path) -> None:
    def queried(**environ: str) -> HostAnswer:
        return host_shell.read(run(command=host_shell.gate(doctor=("doctor",)), **environ))

    assert queried().doctor == ""
    (tmp_path / "facts.json").write_text("{}")
    assert queried(MPIBOOT_WORKER_DIR=str(tmp_path)).doctor == ""
    (tmp_path / "doctor").write_text("printf '{\\n \"a\": 1\\n}\\n'; echo odd >&2; exit 1\n")
    answer = queried(MPIBOOT_WORKER_DIR=str(tmp_path))
    assert (answer.doctor, answer.facts) == ('{ "a": 1}', "{}")
