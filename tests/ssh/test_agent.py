from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mpiboot
from mpiboot.launcher.setup import KUBECTL_STDIN, assignments, exports, write_agent_files
from tests.fakes.programs import program
from tests.fakes.worker import SHELLS
from tests.supervisor.answering import gone, state
from tests.waiting import GUARD, until

AGENT = Path(mpiboot.__file__).parent / "libexec" / "agent"
# How many words are ssh's options, the first of the others is the host; and all words.
FORMS = {
    "Open MPI 4.1": (2, '-o|ServerAliveInterval=5|w-1| orted|-mca|ess|"env"|-x|-q'),
    "Open MPI 5": (0, 'w-1|PRTE_PREFIX=/p;export PRTE_PREFIX;/p/bin/prted|--prtemca|ess|"env"'),
    "MPICH": (1, '-x|w-1|"/path/hydra_pmi_proxy"|--control-port|l:34069|--rmk|user'),
    "Intel": (3, "-q|-oConnectTimeout=9|-x|me@w-1|/p//hydra_bstrap_proxy|--pgid|0"),
    "every option with a value": (6, "-p|-l|-l|w-0|-i|a b|w-1|true"),
}


class Launch:
    """A launch folder, whose real agent is a small program of the test."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.folder = folder
        self.shell = shell
        self.environ: dict[str, str] = {}
        for name in ("hosts", "stderr"):
            (folder / name).mkdir(parents=True)
        os.mkfifo(folder / "events")
        self.fifo = os.open(folder / "events", os.O_RDWR | os.O_NONBLOCK)
        self.real = folder.with_name("real")
        self.body("exit 0")

    def body(self, text: str, *, ssh: bool = False) -> None:
        """Say what the user's own agent does, or ssh, behind noting its words."""
        words = shlex.quote(f"{self.folder}/words")
        notes = f'for word; do printf "%s\\0" "$word"; done > {words}'
        program(self.real.parent, "real", f"{notes}\n{text}")
        (self.folder / "agent.conf").write_text(
            assignments(
                {"ssh": f"{self.real} -o A=b", "user_agent": "" if ssh else f"{self.real} -v"}
            )
        )

    def start(self, *words: str, **streams: int) -> subprocess.Popen:  # type: ignore[type-arg]
        pipes: Any = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        env = {"PATH": os.environ["PATH"], "MPIBOOT_LAUNCH_DIR": str(self.folder), **self.environ}
        return subprocess.Popen([*self.shell, str(AGENT), *words], env=env, **(pipes | streams))

    def words(self) -> list[str]:
        return (self.folder / "words").read_text().split("\0")[:-1]

    def events(self) -> list[list[str]]:
        try:
            data = os.read(self.fifo, 65536).decode()
        except BlockingIOError:
            return []
        return [line.split() for line in data.splitlines()]


@pytest.fixture(params=SHELLS, ids=" ".join)
def launch(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launch]:
    made = Launch(tmp_path / "it's a $HOME`id`;\"launch", request.param)
    yield made
    os.close(made.fifo)


def ended(process: subprocess.Popen) -> tuple[int, bytes, bytes]:  # type: ignore[type-arg]
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


@pytest.mark.parametrize("form", FORMS)
def test_without_supervision_it_becomes_ssh_with_each_mpis_words_as_they_are(
    launch: Launch, form: str
) -> None:
    (launch.folder / "events").unlink()
    launch.body('echo "$$"; exit 5', ssh=True)
    options, words = FORMS[form][0], FORMS[form][1].split("|")
    agent = launch.start(*words)
    assert ended(agent) == (5, f"{agent.pid}\n".encode(), b"")
    # Of these ssh takes the last; of a -o it takes the first.
    last = ["-F", f"{launch.folder}/ssh_config", "-S", "none"]
    assert launch.words() == ["-o", "A=b", *words[:options], *last, *words[options:]]


# Words of mpirun's that a daemon does not get as they are, and what it gets.
FOR_DAEMONS = {
    "Open MPI 4.1": (
        ("-mca", "plm_rsh_agent", f'"{AGENT}"'),
        ("-mca", "plm_rsh_agent", "ssh:rsh:sh"),
    ),
    "Open MPI 5": (
        ("--prtemca", "plm_ssh_agent", f'"{AGENT}"'),
        ("--prtemca", "plm_ssh_agent", "ssh:rsh:sh"),
    ),
    "MPICH and Intel": (("--launcher-exec", str(AGENT)), ("--launcher-exec", "ssh")),
    "states of ranks": (
        ("--prtemca", "state_base_verbose", '"1"'),
        ("--prtemca", "state_base_verbose", "0"),
    ),
}


@pytest.mark.parametrize(("words", "instead"), FOR_DAEMONS.values(), ids=FOR_DAEMONS)
def test_a_daemon_gets_neither_mpiboots_agent_nor_its_wish_for_the_states_of_ranks(
    launch: Launch, words: tuple[str, ...], instead: tuple[str, ...]
) -> None:
    launch.environ["MPIBOOT_RANK_STATES"] = "1"
    for ssh in (True, False):
        launch.body("exit 0", ssh=ssh)
        daemon = ("orted", "-mca", "x", "y z", *words, "-mca", "z", "1")
        assert ended(launch.start("w-1", *daemon))[0] == 0
        given = ["w-1", *daemon[:4], *instead, *daemon[-3:]]
        assert launch.words()[-len(given) :] == given
    # A user's program may have such words, and whole ones only are mpirun's.
    assert ended(launch.start("w-1", *words[:-1]))[0] == 0
    assert launch.words()[-len(words) :] == ["w-1", *words[:-1]]
    del launch.environ["MPIBOOT_RANK_STATES"]  # a user's own wish stays
    if "state_base_verbose" in words:
        assert ended(launch.start("w-1", *words))[0] == 0
        assert launch.words()[-3:] == [*words]


def test_words_are_neither_split_nor_globbed_nor_evaluated_and_streams_pass(launch: Launch) -> None:
    odd = ["* ?", "$(id)", "`id`", "a'b\"c", "two\nlines", "", "\\", "é €"]
    launch.body("cat; echo said >&2; exit 7")
    process = launch.start("w-1", *odd, stdin=subprocess.PIPE)
    data = bytes(range(256)) * 4000
    out, err = process.communicate(data, timeout=30)
    assert (process.returncode, out, err) == (7, data, b"said\n")
    assert launch.words()[-len(odd) :] == odd


@pytest.mark.parametrize("status", [0, 1, 127, 137, 255])
def test_a_users_own_agent_gets_the_words_behind_the_hosts_exports_and_its_status_is_told(
    launch: Launch, status: int
) -> None:
    own = "export A='1 $x';\nexport B='two';"
    (launch.folder / "hosts" / "w-10.env").write_text(assignments({"exports": own}))
    launch.body(f"exit {status}")
    for host, exported in (("w-1", ()), ("w-10", (own,))):
        process = launch.start("-q", "-x", f"me@{host}", "orted")
        assert ended(process)[0] == status
        assert launch.words() == ["-v", "-q", "-x", f"me@{host}", *exported, "orted"]
        pid, events = str(process.pid), launch.events()
        assert events[0] == ["started", host, pid]
        assert events[-1] == ["ended", host, str(status), pid]


def lingers(launch: Launch, agent: subprocess.Popen) -> int:  # type: ignore[type-arg]
    """Wait until an agent has reported a good end; give its process, which is still there."""
    told = [[""]]
    while told[-1][0] != "ended":
        told += launch.events()
        time.sleep(0.01)
    assert agent.poll() is None
    return int(told[-1][3])


def test_an_agent_whose_daemon_succeeded_stays_until_mpirun_has_ended(launch: Launch) -> None:
    with (launch.folder / "agent.conf").open("a") as file:
        file.write(f"linger={2 * GUARD:.0f}\n")
    ending = launch.start("w-1", "prted")
    lingers(launch, ending)
    ending.terminate()
    assert ended(ending)[0] == -signal.SIGTERM
    mpirun = f"{shlex.join([*launch.shell, str(AGENT)])} w-1 prted & read -r _"
    with subprocess.Popen(
        ["sh", "-c", mpirun],
        stdin=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "MPIBOOT_LAUNCH_DIR": str(launch.folder)},
    ) as parent:
        pid = lingers(launch, parent)
    until(lambda: gone(pid))


NON_BLOCKING = """
exec %s -S -c 'import os
for stream in (1, 2):
    os.set_blocking(stream, False)
    os.write(stream, b"from ssh")'
"""


def test_an_ssh_that_makes_its_streams_non_blocking_leaves_mpiruns_as_they_are(
    launch: Launch,
) -> None:
    """As OpenSSH does: an mpirun whose stdout is so drops what nobody has read at its end."""
    launch.body(NON_BLOCKING % sys.executable)
    pipes = [os.pipe() for _ in range(2)]
    writers = [writer for _, writer in pipes]
    assert launch.start("w-1", "true", stdout=writers[0], stderr=writers[1]).wait(60) == 0
    assert [os.get_blocking(writer) for writer in writers] == [True, True]
    for reader, writer in pipes:
        os.close(writer)
        assert os.read(reader, 99) == b"from ssh"
        assert os.read(reader, 99) == b""
        os.close(reader)


def told(launch: Launch, process: subprocess.Popen) -> None:  # type: ignore[type-arg]
    """Wait until the real agent says that it runs."""
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        (signal.SIGTERM, "TERM"),
        (signal.SIGHUP, "HUP"),
        (signal.SIGUSR1, "USR1"),
        (signal.SIGUSR2, "USR2"),
        # a shell's background child can't be sent these
        (signal.SIGINT, "TERM"),
        (signal.SIGQUIT, "TERM"),
    ],
)
def test_signals_go_through_it_and_the_status_stays_the_childs(
    launch: Launch, sent: signal.Signals, arrives: str
) -> None:
    traps = "\n".join(
        f"trap 'echo {name}; exit {code}' {name}"
        for code, name in enumerate(("TERM", "HUP", "USR1", "USR2"), 41)
    )
    launch.body(f"{traps}\necho ready\nwhile :; do sleep 0.05; done")
    process = launch.start("w-1", "orted")
    told(launch, process)
    process.send_signal(sent)
    code, out, _ = ended(process)
    assert out.decode().strip() == arrives
    assert code == 41 + ("TERM", "HUP", "USR1", "USR2").index(arrives)
    assert launch.events()[-1][1:3] == ["w-1", str(code)]


def test_a_signal_that_ssh_survives_does_not_end_the_agent(launch: Launch) -> None:
    launch.body(
        "trap 'echo again' USR1; trap 'exit 6' TERM\necho ready\nwhile :; do sleep 0.05; done"
    )
    process = launch.start("w-1", "orted")
    told(launch, process)
    for _ in range(3):
        process.send_signal(signal.SIGUSR1)
        assert process.stdout
        assert process.stdout.readline() == b"again\n"
    process.terminate()
    assert ended(process) == (6, b"", b"")


@pytest.mark.parametrize(
    ("end", "status"), [("exit 0", 0), ("exit 41", 41), ("kill -9 $$", 137), ("kill -USR1 $$", 138)]
)
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR1])
def test_an_ssh_that_ends_at_the_moment_of_a_signal_keeps_its_status(
    launch: Launch, end: str, status: int, sent: signal.Signals
) -> None:
    """The shell meets both at once: its wait is interrupted, and the child is already reaped."""
    launch.body(f"echo ready; read line; {end}")
    process = launch.start("w-1", "orted", stdin=subprocess.PIPE)
    told(launch, process)
    (child,) = map(
        int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    )
    process.send_signal(signal.SIGSTOP)
    until(lambda: state(process.pid) == "T")
    assert process.stdin
    process.stdin.write(b"end\n")
    process.stdin.flush()
    until(lambda: state(child) == "Z")
    process.send_signal(sent)
    process.send_signal(signal.SIGCONT)
    assert ended(process) == (status, b"", b"")
    end_event = ["ended", "w-1", str(status), str(process.pid), sent.name.removeprefix("SIG")]
    assert launch.events()[-1] == end_event


@pytest.mark.parametrize("folder", [None, "", "gone", "."])
@pytest.mark.parametrize(
    "words", ["ssh -x -q w-1 orted", "srun --nodelist w-1 -n 1 hydra_pmi_proxy"]
)
def test_without_a_launch_folder_it_is_ssh_or_srun(
    tmp_path: Path, words: str, folder: str | None
) -> None:
    """Hydra calls what HYDRA_LAUNCHER_EXEC names also where its line says `-launcher slurm`."""
    program(tmp_path, words.split(maxsplit=1)[0], 'echo ${0##*/} "$@"\nexit 5')
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    env |= {} if folder is None else {"MPIBOOT_LAUNCH_DIR": folder and str(tmp_path / folder)}
    done = subprocess.run(
        [AGENT, *words.split()[1:]], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, f"{words}\n", "")


def test_events_that_vanish_do_not_change_its_end(launch: Launch) -> None:
    launch.body("echo ready; read line; exit 9")
    process = launch.start("w-1", "orted", stdin=subprocess.PIPE)
    told(launch, process)
    (launch.folder / "events").unlink()
    _, err = process.communicate(b"go\n", timeout=30)
    assert (process.returncode, err) == (9, b"")
    assert not (launch.folder / "events").exists()


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("below", [True, False])
def test_called_by_another_mpirun_it_is_the_commands_ssh_or_the_images(
    tmp_path: Path, shell: list[str], *, below: bool
) -> None:
    """The command's waits for the host; the daemon is told of no agent that its host may lack."""
    for folder in ("command/bin", "image"):
        program(tmp_path / folder, "ssh", f'echo {folder}\nprintf "%s\\n" "$@"\nexit 6')
    env = {"PATH": f"{tmp_path}/image:{os.environ['PATH']}"}
    env |= {"MPIBOOT_COMMAND_DIR": str(tmp_path / "command")} if below else {}
    given = ("-o", "A=b", "w-1", "orted", "-mca", "plm_rsh_agent", str(AGENT), "-mca", "ess", "x y")
    argv = [*shell, str(AGENT), *given]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=False)
    words = [*given[:6], "ssh:rsh:sh" if below else str(AGENT), *given[7:]]
    assert done.stdout.splitlines() == ["command/bin" if below else "image", *words]
    assert (done.returncode, done.stderr) == (6, "")
    assert (tmp_path / "command/passed_by").exists() is below


# Into pods, by kubectl

MARK = f"{os.getpid():016x}-{'0' * 16}"
# A FAKE, which enters no pod: it runs the command on this machine, and leaves it running when it
# ends itself, as the real one does. The pipe stands for the stream to the pod: its end is the end
# of the standard input there.
KUBECTL = f"""#!{sys.executable} -IS
import os, subprocess, sys, threading

with open(sys.argv[0] + ".words", "w") as file:
    file.write("\\n".join(sys.argv[1:]))
if os.environ.get("FAILS"):
    sys.exit(os.environ["FAILS"])
command = sys.argv[sys.argv.index("--") + 1 :]
pod = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

def feed():
    while data := os.read(0, 4096):
        os.write(pod.stdin.fileno(), data)
    pod.stdin.close()

threading.Thread(target=feed, daemon=True).start()
status = pod.wait()
if status:
    os.write(2, b"command terminated with exit code %d\\n" % status)
os._exit(status)
"""


@pytest.fixture
def pods(launch: Launch) -> Launch:
    launch.real.write_text(KUBECTL)
    os.mkfifo(launch.folder / KUBECTL_STDIN, 0o600)
    words = {"ssh": "ssh", "kubectl": str(launch.real), "namespace": "jobs"}
    write_agent_files(launch.folder, words, {}, {})
    launch.environ["MPIBOOT_LAUNCH_ID"] = MARK
    return launch


def test_a_host_is_a_pod_of_the_namespace_and_options_of_ssh_are_left_out(pods: Launch) -> None:
    options = ("-o", "ConnectionAttempts=10", "-x", "-q")
    assert ended(pods.start(*options, "me@w-0.w.jobs.svc", "true"))[0] == 0
    words = Path(f"{pods.real}.words").read_text().splitlines()
    expected = ["--namespace=jobs", "exec", "-i", "w-0", "--", "env"]
    assert words[: len(expected)] == expected


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("A=1", ";", "export", "A;", "echo", '"$A', ' b"'), 0, "1  b"),  # Open MPI
        (('"echo"', '"a  b"', "'$HOME'"), 0, "a  b $HOME"),  # Hydra quotes each word
        (("echo", "a\\ \\ b;", "echo", "`echo", "c`"), 0, "a  b\nc"),
        *((("exit", str(status)), status, "") for status in (1, 3, 127, 255)),
    ],
)
def test_the_words_are_read_by_a_shell_there_as_by_ssh_whose_status_is_the_agents(
    pods: Launch, words: tuple[str, ...], status: int, message: str
) -> None:
    code, out, err = ended(pods.start("w-0", *words))
    assert (code, out, err.decode().strip()) == (status, b"", message)


def test_kubectls_own_failure_counts_as_ssh_s(pods: Launch) -> None:
    """Kubectl has one status for both: which one it is, its words tell."""
    fails = pods.environ["FAILS"] = 'Error from server (NotFound): pods "w-0" not found'
    assert ended(pods.start("w-0.w.jobs.svc", "true"))[0] == 255
    assert (pods.folder / "stderr" / "w-0.w.jobs.svc").read_text() == f"{fails}\n"


def carrying(mark: str) -> list[Path]:
    return [path for path in Path("/proc").glob("[0-9]*") if mark in environment(path)]


def environment(process: Path) -> str:
    try:
        return (process / "environ").read_text(errors="replace")
    except OSError:  # it has ended
        return ""


SESSION = f"MPIBOOT_SESSION={MARK}-"


@pytest.mark.parametrize("stubborn", [False, True])
def test_what_it_started_ends_when_kubectl_does(pods: Launch, *, stubborn: bool) -> None:
    there = pods.folder.with_name("there")
    child = f"{'trap : TERM;' if stubborn else ''} touch {there}; while :; do sleep 0.2; done"
    process = pods.start("w-0", f"sh -c {shlex.quote(child)} & wait", stdin=subprocess.PIPE)
    until(there.exists)
    assert carrying(SESSION)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 143
    until(lambda: not carrying(SESSION))


# What the launcher writes for it


@pytest.mark.parametrize("value", ["", "it's", "'", "$(touch x) `x`", "a\nb\r", "\\'", "é €\x7f"])
def test_a_shell_reads_assignments_and_exports_back_byte_for_byte(
    tmp_path: Path, value: str
) -> None:
    values = {"A": value, "B": "2"}
    (tmp_path / "conf").write_text(assignments(values), newline="")
    for begin in (f". {tmp_path}/conf;", exports(values)):
        line = f'{begin} printf "%s|%s" "$A" "$B"'
        done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, env={})
        assert done.stdout.decode() == f"{value}|2"
