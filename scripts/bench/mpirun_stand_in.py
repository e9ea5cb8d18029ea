"""Stands in for mpirun where more hosts are wanted than real daemons fit one machine.

It calls the launch agent of each host as ORTE (4.1.4), PRRTE (5.0.7) or Hydra (MPICH 5.0.2) was
seen to: the same words, as many at once, the same streams; daemons connect to it; it ends when its
control socket says so. Stdlib only. ``install`` makes a folder in which it is ``mpirun``.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

KIND, CONTROL = "BENCH_MPIRUN", "BENCH_CONTROL"  # environment variables of the stand-in


@dataclass(frozen=True)
class Kind:
    """How one process manager names what it reads, and the words behind a host's name.

    In ``words`` HOST, NUMBER (from 0), COUNT and PORT are put in. ``piped``: it reads its agents'
    output itself.
    """

    version: str
    hostfile: str
    agent: str
    args: str
    concurrent: str
    words: tuple[str, ...]
    piped: bool = False


_URI = '"1906900992.0;tcp://127.0.0.1:PORT"'
KINDS = {
    "orte": Kind(
        "mpirun (Open MPI) 4.1.4\n",
        "OMPI_MCA_orte_default_hostfile",
        "OMPI_MCA_plm_rsh_agent",
        "OMPI_MCA_plm_rsh_args",
        "OMPI_MCA_plm_rsh_num_concurrent",
        (
            *(" orted", "-mca", "ess", '"env"', "-mca", "ess_base_jobid", '"1906900992"'),
            *("-mca", "ess_base_vpid", "NUMBER", "-mca", "ess_base_num_procs", '"COUNT"'),
            *("-mca", "orte_node_regex", '"launcher,[3:127].1.0.1@0(COUNT)"'),
            *("-mca", "orte_hnp_uri", _URI, "-mca", "plm", '"rsh"', "--tree-spawn"),
            *("-mca", "routed", '"direct"', "-mca", "orte_parent_uri", _URI),
            *("-mca", "pmix", '"^s1,s2,cray,isolated"'),
        ),
    ),
    "prrte": Kind(
        "mpirun (Open MPI) 5.0.7\n",
        "PRTE_MCA_prte_default_hostfile",
        "PRTE_MCA_plm_ssh_agent",
        "PRTE_MCA_plm_ssh_args",
        "PRTE_MCA_plm_ssh_num_concurrent",
        (
            "PRTE_PREFIX=/usr;export PRTE_PREFIX;/usr/bin/prted",
            *("--prtemca", "ess", '"env"', "--prtemca", "ess_base_nspace", '"prterun-l-7@0"'),
            *("--prtemca", "ess_base_vpid", "NUMBER", "--prtemca", "ess_base_num_procs", '"COUNT"'),
            *("--prtemca", "prte_hnp_uri", '"prterun-l-7@0.0;tcp://127.0.0.1:PORT:8"'),
        ),
    ),
    "hydra": Kind(
        "HYDRA build details:\n    Version:                                 5.0.2\n",
        "HYDRA_HOST_FILE",
        "HYDRA_LAUNCHER_EXEC",
        "HYDRA_LAUNCHER_EXTRA_ARGS",
        "",
        (
            *('"/usr/bin/hydra_pmi_proxy"', "--control-port", "127.0.0.1:PORT", "--rmk", "user"),
            *("--launcher", "ssh", "--demux", "poll", "--pgid", "0", "--retries", "10"),
            *("--usize", "-1", "--pmi-port", "0", "--gpus-per-proc", "-2"),
            *("--gpu-subdevs-per-proc", "-2", "--proxy-id", "NUMBER"),
        ),
        piped=True,
    ),
}
_MANY = 1 << 20  # at once, where nothing bounds it


def install(folder: Path) -> None:
    """Make ``mpirun`` in a folder: a script whose interpreter has a name that mpirun may have.

    What a process is, is told by the file that it runs (supervisor/processes.py), which for a
    script is Python's own.
    """
    program = folder / "mpirun-python"
    real = Path(sys.executable).resolve()
    shutil.copy(real, program)
    (folder / "pyvenv.cfg").write_text(f"home = {real.parent}\n")
    script = folder / "mpirun"
    script.write_text(f"#!{program} -IS\n{Path(__file__).read_text()}")
    script.chmod(0o755)


def agents(kind: Kind, hosts: list[str], port: int) -> list[list[str]]:
    """Give the command line of each host's agent."""
    words = [*os.environ[kind.agent].split(), *os.environ.get(kind.args, "").split()]
    made = []
    for number, host in enumerate(hosts):
        put_in = {"HOST": host, "NUMBER": str(number), "COUNT": str(len(hosts)), "PORT": str(port)}
        rest = list(kind.words)
        for name, value in put_in.items():
            rest = [word.replace(name, value) for word in rest]
        made.append([*words, host, *rest])
    return made


class StandIn:
    """One mpirun."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._control = socket.socket(socket.AF_UNIX)
        self._control.connect(os.environ[CONTROL])
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        lines = Path(os.environ[kind.hostfile]).read_text("utf-8").splitlines()
        hosts = [line.split()[0].partition(":")[0] for line in lines if line.strip()]
        self._hosts = len(hosts)
        self._at_once = int(os.environ.get(kind.concurrent) or (128 if kind.concurrent else _MANY))
        self._waiting = agents(kind, hosts, self._listener.getsockname()[1])[::-1]
        self._running: dict[int, tuple[int, ...]] = {}
        self._daemons: list[socket.socket] = []
        self._null = os.open("/dev/null", os.O_RDONLY)

    def tell(self, what: str, ago: float = 0.0) -> None:
        """Tell whoever measures; ``ago`` is for how many seconds that has been so."""
        self._control.sendall(f"{what} {time.monotonic() - ago:.6f}\n".encode())

    def start_agents(self) -> None:
        """Start as many as may run at once."""
        while self._waiting and len(self._running) < self._at_once:
            words = self._waiting.pop()
            actions = [(os.POSIX_SPAWN_DUP2, self._null, 0)]
            pipes = [os.pipe(), os.pipe()] if self._kind.piped else []
            for number, (_, theirs) in enumerate(pipes, 1):
                actions.append((os.POSIX_SPAWN_DUP2, theirs, number))
            pid = os.posix_spawnp(words[0], words, os.environ, file_actions=actions, setpgroup=0)
            for _, theirs in pipes:
                os.close(theirs)
            self._running[pid] = tuple(ours for ours, _ in pipes)

    def collect(self, options: int) -> None:
        """Take note of agents that have ended."""
        while self._running:
            pid, status = os.waitpid(-1, options)
            if not pid:
                return
            for ours in self._running.pop(pid, ()):
                os.close(ours)
            if status:
                self.tell("agent-failed")
            self.start_agents()

    def serve(self) -> None:
        """Take daemons in until whoever measures lets this end."""
        ended, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.tell("exec", time.process_time())  # Python's own start is nothing of mpiboot's
        self.start_agents()
        poll = select.poll()
        for file in (self._listener.fileno(), self._control.fileno(), ended):
            poll.register(file, select.POLLIN)
        while True:
            for file, _ in poll.poll():
                if file == self._listener.fileno():
                    self._daemons.append(self._listener.accept()[0])
                    if len(self._daemons) == self._hosts:
                        self.tell("joined")
                elif file == ended:
                    os.read(ended, 1 << 16)
                    self.collect(os.WNOHANG)
                else:
                    self.end()
                    return

    def end(self) -> None:
        """Let the daemons go, and wait for their agents."""
        for daemon in self._daemons:
            daemon.close()
        self.collect(0)
        self.tell("end")


def main() -> None:
    """Be mpirun."""
    kind = KINDS[os.environ[KIND]]
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(kind.version)
    else:
        StandIn(kind).serve()


if __name__ == "__main__":
    main()
