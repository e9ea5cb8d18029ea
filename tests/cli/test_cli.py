from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpiboot import __version__
from mpiboot.cli import commands
from mpiboot.cli import main as cli
from mpiboot.core.model import Role
from mpiboot.core.settings import ROWS
from tests.fakes.cli import GUARD, environment, mpiboot, run
from tests.fakes.cli import message as termination
from tests.fakes.worker import make_key

MPIBOOT = [sys.executable, "-m", "mpiboot"]
COMMANDS = ("launcher", "worker", "rank", "wait", "plan", "doctor", "validate", "facts", "settings")


def test_the_help_names_every_command_and_the_entrypoint_form(tmp_path: Path) -> None:
    done = mpiboot(tmp_path, "--help")
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)
    assert "ENTRYPOINT" in done.stdout
    assert "(program)" not in done.stdout
    assert mpiboot(tmp_path, "-h").stdout == done.stdout
    listed = done.stdout.partition("Commands:")[2].partition("As an")[0]
    assert "..." not in listed  # whole sentences
    assert listed.count(".\n") == len(commands.cli.commands)
    script = Path(sys.executable).with_name("mpiboot")
    for argv in ([str(script), "--version"], [*MPIBOOT, "--version"]):
        version = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert version.stdout == f"mpiboot, version {__version__}\n"


@pytest.fixture
def helped(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Print a command's help, in this process."""

    def run(*words: str) -> str:
        assert cli.run([*words]) == 0
        out, err = capfd.readouterr()
        assert err == ""
        return out

    return run


@pytest.mark.parametrize("command", ["launcher", "worker", "plan"])
def test_a_commands_help_shows_every_setting_of_its_role(
    helped: Callable[..., str], command: str
) -> None:
    """But for those that say the role, which is the command's name."""
    text = " ".join(helped(command, "--help-all").split())
    role = Role.WORKER if command == "worker" else Role.LAUNCHER
    for row in ROWS:
        belongs = role in row.roles and row.name not in {"role", "start_sshd"}
        assert (f" {row.flag} " in text or f" {row.flag}/" in text) == belongs, row.name
    few = helped("doctor" if command == "plan" else command, "--help")
    assert few.count("\n") <= 70
    assert "--help-all" in few
    assert "TIME is a number of seconds, or a value such as 90s, 10m or 2h." in few


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_help_has_examples_that_are_valid(
    helped: Callable[..., str], command: str
) -> None:
    lines = [line.strip() for line in helped(command, "--help").splitlines()]
    lines = [line.partition(" -- ")[2] if line[:7] == "kubectl" else line for line in lines]
    examples = [line.split() for line in lines if line.startswith("mpiboot ")]
    assert len(examples) >= 2
    for _, *words in examples:
        commands.cli.make_context("mpiboot", list(words)).close()


def test_a_word_that_is_not_utf_8_is_printed_escaped(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("w-0 slots=1\n")
    line = ["plan", "--offline", "--mpi", "openmpi4", "--hostfile", "hosts", "--", "mpirun"]
    env = environment(tmp_path, {"PYTHONIOENCODING": "utf-8:strict"})
    for words in (line, [line[0], "--json", *line[1:]]):
        argv: list[str | bytes] = [*MPIBOOT, *words, b"./tr\xe9in"]
        done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert b"./tr\\udce9in" in done.stdout


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["wait", "--tiemout"], "json"),
        (["wait", "--timeout", "soon"], "json"),
        (["wait", "--log-format", "json", "--timeout", "soon"], ""),
    ],
)
def test_a_bad_flag_is_a_json_line_where_logs_are(
    tmp_path: Path, words: list[str], env: str
) -> None:
    done = mpiboot(tmp_path, *words, env={"MPIBOOT_LOG_FORMAT": env})
    record, end = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, record["level"], record["check"]) == (2, "error", "usage")
    told = (end["event"], end["level"], end["exit"], end["reference"])
    assert told == ("ended", "error", 2, "usage")


@pytest.mark.parametrize("role", ["launcher", "worker"])
def test_a_command_that_says_the_role_is_not_overruled_by_the_variable(
    tmp_path: Path, role: str
) -> None:
    """And takes no --role: `worker --role launcher` would say two things."""
    assert mpiboot(tmp_path, role, "--role", "none", "--", "true").returncode == 2
    other = "worker" if role == "launcher" else "launcher"
    env = {"MPIBOOT_ROLE": other, "MPIBOOT_SSH_KEY": str(tmp_path), "MPIBOOT_TIMEOUT": "0"}
    done = mpiboot(tmp_path, role, "--", "mpirun", "a", env=env)
    # No hostfile, or no key: the role's own way was gone.
    assert done.returncode == (66 if role == "launcher" else 77)


@pytest.mark.parametrize("command", ["plan", "doctor"])
def test_a_look_has_a_deadline_of_its_own_and_only_a_flag_changes_it(
    tmp_path: Path, command: str
) -> None:
    """The variable is the deadline of the launcher that waits; a guard of 60 s is around this."""
    env = {"MPIBOOT_TIMEOUT": "900", "MPIBOOT_HOSTFILE": "/nowhere/hostfile"}
    words = ["--", "mpirun", "a"] if command == "plan" else []
    done = mpiboot(tmp_path, command, *words, env=env)
    assert done.returncode != 0
    assert "MPIBOOT_TIMEOUT" not in done.stdout + done.stderr
    done = mpiboot(tmp_path, command, "--timeout", "2", *words, env=env)
    assert "MPIBOOT_TIMEOUT=900 is not used: --timeout=2 comes first" in done.stderr


@pytest.mark.parametrize(
    ("words", "env", "message", "hint"),
    [
        ("launcher --tiemout 3 ./a", {}, "no option --tiemout", "did you mean --timeout?"),
        ("doctor --check no-such", {}, "'no-such' is not one of 'program-missing', ", ""),
        # Options before a program are met with where they go.
        ("--timeout 3 ./a", {}, "no option --timeout", "options go after a command: `mpiboot lau"),
        ("--np 4 ./a", {}, "mpiboot has no option --np", "ranks are started by mpirun"),
        ("launcher", {}, "PROGRAM", "write `mpiboot launcher -- PROGRAM`"),
        ("shims", {}, "Missing command", "write `mpiboot shims install`"),
        ("doctor x", {}, "No such command 'x'", ""),
        # By kubectl exec in a worker's pod.
        ("version", {"MPIBOOT_ROLE": "worker"}, "No such command 'version'", "see `mpiboot --he"),
        ("", {}, "no program was given", "give the launcher its command (`mpiboot mpirun"),
        ("launcher --timeout soon -- ./a", {}, "--timeout is 'soon': expected a num", ""),
        ("settings", {"MPIBOOT_DATA_NETWORK": "eth9"}, "off; MPIBOOT_DATA_IFNAME names links", ""),
        ("launcher --script on -- ./a", {}, "no option --script", "a command other than mpirun"),
        ("plan -- ./train", {"MPIBOOT_NP": "4"}, "MPIBOOT_NP was removed", "ranks are started by"),
        ("settings", {"MPIBOOT_SSHD": "dropbear"}, "expected one of auto, openssh, embedded", ""),
        ("worker", {"MPIBOOT_SSH_PORT": "70000"}, "expected a whole number from 1 to 65535", ""),
        ("./train", {"START_SSHD": "maybe"}, "START_SSHD is 'maybe': expected true or false", ""),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(
    tmp_path: Path, words: str, env: dict[str, str], message: str, hint: str
) -> None:
    done = mpiboot(tmp_path, *words.split(), env=env)
    assert (done.returncode, done.stdout) == (2, "")
    first, *hints = done.stderr.splitlines()
    assert first.startswith("mpiboot: error: [usage] ")
    assert message in first
    assert all(line.startswith("mpiboot:   -> ") for line in hints)
    assert f"-> {hint}" in " ".join(hints) or not hint
    # The end of another command is not the container's: a job may run there, and end well.
    ends_container = not words or words.startswith(("launcher", "worker", "-", "./"))
    assert termination(tmp_path).startswith("usage: ") == ends_container


@pytest.mark.parametrize(
    ("words", "role", "code"),
    [
        ("settings", "", 0),
        ("./none", "none", 127),
        ("launcher ./a", "", 2),
        ("mpirun ./a", "launcher", 2),
    ],
)
def test_a_removed_setting_is_an_error_in_a_launcher_and_a_warning_elsewhere(
    tmp_path: Path, words: str, role: str, code: int
) -> None:
    done = mpiboot(tmp_path, *words.split(), env={"MPIBOOT_OUTPUT_DIR": "/x", "MPIBOOT_ROLE": role})
    assert done.returncode == code
    removed = "[usage] MPIBOOT_OUTPUT_DIR was removed from mpiboot"
    assert done.stderr.count(removed) == 1
    assert (f"error: {removed}" in done.stderr) == (code == 2)
    assert "--output-filename DIR" in done.stderr


def test_the_end_is_a_json_line_too_but_for_what_a_worker_runs_beside_itself(
    tmp_path: Path,
) -> None:
    env = {"MPIBOOT_LOG_FORMAT": "json"}
    for words in (["--help"], ["settings"], ["facts"]):
        done = mpiboot(tmp_path, *words, env=env)
        end = json.loads(done.stderr)
        assert (done.returncode, end["event"], end["exit"]) == (0, "ended", 0)
        assert (end["level"], end["message"]) == ("info", "ended: exit 0")
    program = mpiboot(tmp_path, "no-such-program", "--log-format", "json")
    assert program.stderr.startswith("mpiboot: error: ")


def test_settings_have_value_and_source(tmp_path: Path) -> None:
    done = mpiboot(
        tmp_path, "settings", "--slots", "4", "--json", env={"MPI_DNS_WAIT_SECONDS": "9"}
    )
    told = {item["name"]: item for item in json.loads(done.stdout)}
    assert (told["slots"]["value"], told["slots"]["given_by"]) == (4, "--slots")
    assert (told["dns_wait"]["value"], told["dns_wait"]["source"]) == (9.0, "environment")
    assert told["timeout"]["source"] == "default"
    assert (told["dns_wait"]["default"], told["dns_wait"]["roles"]) == (None, ["launcher"])
    assert told["dns_wait"]["older"] == ["MPI_DNS_WAIT_SECONDS"]
    assert len(told) == len(ROWS)
    loud = json.loads(mpiboot(tmp_path, "settings", "-v", "--json").stdout)
    assert {item["name"]: item["value"] for item in loud}["log_level"] == "debug"
    table = mpiboot(tmp_path, "settings", "--no-rank-env").stdout
    assert ["MPIBOOT_RANK_ENV", "false"] in [line.split()[:2] for line in table.splitlines()]


def test_facts_are_json(tmp_path: Path) -> None:
    told = json.loads(mpiboot(tmp_path, "facts", "--json").stdout)
    assert told["mpiboot"] == __version__ or told["facts"]["mpiboot"] == __version__


def test_a_wait_that_fails_says_why_in_the_log_the_termination_message_and_as_json(
    tmp_path: Path,
) -> None:
    words = ("wait", "--json", "--timeout", "0", "--hostfile", "/nothing/hostfile")
    other = tmp_path / "other"
    other.touch()
    done = mpiboot(tmp_path, *words, "--termination-log", str(other))
    assert done.returncode == 66, done.stderr
    text = other.read_text()
    assert text.startswith("hostfile-missing: ")
    assert "/nothing/hostfile" in text
    assert "-> mount it" in text
    record = json.loads(done.stdout)
    assert (record["ready"], record["hosts"]) == (False, [])
    assert record["findings"][0]["check"] == "hostfile-missing"
    assert termination(tmp_path) == ""


def test_a_bug_is_70_with_versions_and_never_a_bare_traceback(tmp_path: Path) -> None:
    code = (
        "import mpiboot.worker.facts\n"
        "def broken(*_, **__): raise ZeroDivisionError('what a bug')\n"
        "mpiboot.worker.facts.run = broken\n"
        "from mpiboot.cli.main import main\n"
        "import sys; sys.argv[1:] = ['facts']; main()\n"
    )
    done = run(tmp_path, [sys.executable, "-c", code])
    assert done.returncode == 70
    first = done.stderr.splitlines()[0]
    assert first == "mpiboot: error: [bug] ZeroDivisionError: what a bug"
    assert f"mpiboot {__version__}, Python {platform.python_version()}" in done.stderr
    assert all(line.startswith("mpiboot:") for line in done.stderr.splitlines())
    assert ", line 2, in broken" in done.stderr
    assert "please report this" in done.stderr


@pytest.mark.parametrize("command", ["settings", "--help", "settings --json"])
def test_a_reader_that_went_away_is_no_error(tmp_path: Path, command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*MPIBOOT, *command.split()],
        env=environment(tmp_path),
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=GUARD,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_a_signal_while_waiting_ends_at_once_with_its_own_code(tmp_path: Path, name: str) -> None:
    (tmp_path / ".ssh").mkdir(mode=0o700)
    make_key(tmp_path / ".ssh/id_ed25519", "-t", "ed25519")
    number = getattr(signal, name)
    hostfile, log = tmp_path / "hostfile", tmp_path / "termination-log"
    hostfile.touch()
    log.touch()
    argv = [*MPIBOOT, "wait", "--hostfile", str(hostfile), "--termination-log", str(log)]
    env = environment(tmp_path)
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert "waiting for the hostfile" in child.stderr.readline()
        child.send_signal(signal.SIGUSR1)  # ignored
        child.send_signal(number)
        assert child.wait(GUARD) == 128 + number
        assert f"{name} while waiting" in child.stderr.read()
    assert termination(tmp_path).startswith(f"signal: {name} while waiting for hosts")


ENDS = """
import os, signal, sys
from mpiboot.cli import main
main.end_on_signals()
if len(sys.argv) > 1:
    os.getpid = lambda: 1
signal.raise_signal(signal.SIGTERM)
"""


@pytest.mark.parametrize("first", [True, False])
def test_a_signal_before_any_role_has_begun_ends_the_first_process(
    tmp_path: Path, *, first: bool
) -> None:
    done = run(tmp_path, [sys.executable, "-c", ENDS, *["first"] * first])
    assert done.returncode == 128 + signal.SIGTERM
    said = "mpiboot: SIGTERM came before anything was started\n"
    assert done.stderr == (said if first else "")


# Standard streams that are closed, full, or read by nobody


# Few words, many words, and words behind which the command fails.
LOOKS = {"--help": 0, "settings": 0, "doctor --check ssh-key": 1}


def by_shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell, in which ``mpiboot`` is this one."""
    script = f'mpiboot() {{ "{sys.executable}" -m mpiboot "$@"; }}; {line}'
    return run(folder, ["bash", "-c", script], {"MPIBOOT_TIMEOUT": "0"})


@pytest.mark.parametrize("command", LOOKS)
def test_output_that_has_no_room_is_an_error_of_two_lines(tmp_path: Path, command: str) -> None:
    done = by_shell(tmp_path, f"mpiboot {command} > /dev/full")
    assert done.returncode == 73
    assert done.stderr.splitlines()[-2:] == [
        "mpiboot: error: [output] standard output can't be written: No space left on device",
        "mpiboot:   -> free space where standard output goes, or send it elsewhere",
    ]
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert bool(termination(tmp_path)) == (command == "--help")


@pytest.mark.parametrize(("command", "code"), LOOKS.items())
def test_output_that_is_closed_is_written_to_nobody(
    tmp_path: Path, command: str, code: int
) -> None:
    done = by_shell(tmp_path, f"mpiboot {command} >&-")
    assert (done.returncode, done.stderr) == (code, "")


def test_where_errors_go_may_be_closed(tmp_path: Path) -> None:
    done = by_shell(tmp_path, "mpiboot settings --json <&- 2>&-")
    assert (done.returncode, done.stdout[:1]) == (0, "[")
    launcher = "mpiboot launcher -- mpirun true"
    code = by_shell(tmp_path, launcher).returncode
    assert code == 66  # no hostfile is there
    assert by_shell(tmp_path, f"{launcher} <&- >&- 2>&-").returncode == code
