"""How the launch agent enters pods.

The ``kubectl`` here is a FAKE that enters no pod: it runs the command on this machine, and leaves
it running when it ends itself, as the real one does.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mpiboot
from mpiboot.launcher import launch_folder as files
from mpiboot.ssh.kubectl import PodAccess
from tests.waiting import until

AGENT = Path(mpiboot.__file__).parent / "libexec" / "agent"
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
MARK = f"{os.getpid():016x}-{'0' * 16}"
# The pipe stands for the stream to the pod: its end is the end of the standard input there.
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


class Launch:
    """A launch folder with the fake kubectl."""

    def __init__(self, folder: Path, shell: str) -> None:
        self.folder = folder
        self.shell = [shell, *(["sh"] if shell == "busybox" else [])]
        self.kubectl = folder / "kubectl"
        for name in ("hosts", "stderr"):
            (folder / name).mkdir(parents=True)
        self.kubectl.write_text(KUBECTL)
        self.kubectl.chmod(0o755)
        access = PodAccess(str(self.kubectl), "jobs")
        words = files.by_kubectl(folder, access)
        files.write_agent_files(folder, {"ssh": "ssh", **words}, {}, {})
        os.mkfifo(folder / "events")
        self.fifo = os.open(folder / "events", os.O_RDWR | os.O_NONBLOCK)

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        env = {"PATH": os.environ["PATH"], "MPIBOOT_LAUNCH_DIR": str(self.folder), **environ}
        argv = [*self.shell, str(AGENT), *words]
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env, text=True)

    def daemon(self, command: str, **environ: str) -> subprocess.Popen[str]:
        return self.start("w-0.w.jobs.svc", command, MPIBOOT_LAUNCH_ID=MARK, **environ)

    def words(self) -> list[str]:
        return Path(f"{self.kubectl}.words").read_text().splitlines()


@pytest.fixture(params=SHELLS)
def launch(tmp_path: Path, request: pytest.FixtureRequest) -> Launch:
    return Launch(tmp_path / "launch", request.param)


def ended(process: subprocess.Popen[str], stdin: str = "") -> tuple[int, str, str]:
    out, err = process.communicate(stdin, timeout=60)
    return process.returncode, out, err


def test_a_host_is_a_pod_of_the_namespace_and_options_of_ssh_are_left_out(launch: Launch) -> None:
    options = ("-o", "ConnectionAttempts=10", "-x", "-q")
    done = launch.start(*options, "me@w-0.w.jobs.svc", "true", MPIBOOT_LAUNCH_ID=MARK)
    assert ended(done)[0] == 0
    expected = ["--namespace=jobs", "exec", "-i", "w-0", "--", "env"]
    assert launch.words()[: len(expected)] == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("A=1", ";", "export", "A;", "echo", '"$A', ' b"'), "1  b"),  # Open MPI
        (('"echo"', '"a  b"', "'$HOME'"), "a  b $HOME"),  # Hydra quotes each word
        (("echo", "a\\ \\ b;", "echo", "`echo", "c`"), "a  b\nc"),
    ],
)
def test_the_words_are_read_by_a_shell_there_as_by_ssh(
    launch: Launch, words: tuple[str, ...], message: str
) -> None:
    status, out, err = ended(launch.start("w-0", *words, MPIBOOT_LAUNCH_ID=MARK))
    assert (status, out, err.strip()) == (0, "", message)


def test_a_daemon_has_its_marks_and_nothing_on_its_standard_input(launch: Launch) -> None:
    command = 'cat; echo "$MPIBOOT_LAUNCH_ID $MPIBOOT_POD_SESSION. $MPIBOOT_SESSION" >&2'
    status, out, err = ended(launch.daemon(command), "not for it")
    assert (status, out) == (0, "")
    own, session = err.split(" . ")
    assert own == MARK
    assert session.startswith(f"{MARK}-")


@pytest.mark.parametrize("status", [0, 1, 3, 127, 255])
def test_a_commands_own_status_is_the_agents(launch: Launch, status: int) -> None:
    assert ended(launch.daemon(f"exit {status}"))[0] == status


def test_kubectls_own_failure_counts_as_ssh_s(launch: Launch) -> None:
    """Kubectl has one status for both: which one it is, its words tell."""
    fails = 'Error from server (NotFound): pods "w-0" not found'
    assert ended(launch.daemon("true", FAILS=fails))[0] == 255
    assert (launch.folder / "stderr" / "w-0.w.jobs.svc").read_text() == f"{fails}\n"


def carrying(mark: str) -> list[Path]:
    """Processes with a mark in their environment."""
    return [path for path in Path("/proc").glob("[0-9]*") if mark in environment(path)]


def environment(process: Path) -> str:
    try:
        return (process / "environ").read_text(errors="replace")
    except OSError:  # it has ended
        return ""


SESSION = f"MPIBOOT_SESSION={MARK}-"


@pytest.mark.parametrize("stubborn", [False, True])
def test_what_it_started_ends_when_kubectl_does(launch: Launch, *, stubborn: bool) -> None:
    there = launch.folder / "there"
    child = f"{'trap : TERM;' if stubborn else ''} touch {there}; while :; do sleep 0.2; done"
    process = launch.daemon(f"sh -c {shlex.quote(child)} & wait")
    until(there.exists)
    assert carrying(SESSION)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 143
    until(lambda: not carrying(SESSION))


def test_what_a_daemon_leaves_is_ended(launch: Launch) -> None:
    there = launch.folder / "there"
    command = f"setsid sh -c 'touch {there}; sleep 1000' & until [ -e {there} ]; do :; done; exit 5"
    assert ended(launch.daemon(command))[0] == 5
    until(lambda: not carrying(SESSION))
