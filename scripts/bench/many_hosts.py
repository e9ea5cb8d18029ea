"""One job of many hosts on loopback: what its launcher costs, by the way in which it connects."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh
from control_masters import ControlMasters
from in_image import LINK
from launcher_run import GUARD, Control, Launcher, Program
from mpirun_stand_in import CONTROL, KIND, KINDS, Kind, install
from processes import below, cpu, descriptors, pss

from mpiboot.core.model import Mpi, MpiFamily
from mpiboot.system.programs import detect_mpi, recognise
from tests.fakes.many_workers import ManyWorkers, facts_of_a_worker, running

PORT = 2022
REAL = "real"
PLAIN = "plain mpirun"
# Daemons start daemons, as each MPI has it by itself; a stand-in starts all of them.
TREE = "mpirun's tree"
# What a launcher is told for each way of connecting: one row makes one more way.
WAYS: dict[str, dict[str, str]] = {
    "mpiboot": {},
    # Masters that are there already, as if the gate had made them; only their CPU is counted in.
    "ssh over ControlMaster": {},
}
MASTERS = "ssh over ControlMaster"
FIGURES = {
    "gate": "launcher's start until every host is ready, s",
    "gate_cpu": "launcher's CPU until mpirun starts, s",
    "connected": "ready until the last daemon is started, s",
    "joined": "ready until the last daemon has joined mpirun, s",
    "ran": "ready until the last rank runs, s",
    "cpu": "launcher's CPU until the job runs, s",
    "pss": "launcher's memory while the job runs, MiB",
    "processes": "processes while the job runs",
    "descriptors": "descriptors of the process that has most",
    "mpirun_pss": "mpirun's own memory, MiB",
    "largest": "the largest process ever, as the gate's, MiB resident",
    "told": "mpirun's end until the last worker is told, s",
    "told_hosts": "workers told",
    "mpirun_cpu": "mpirun's own CPU until the job runs, s",
    "servers_cpu": "the hosts' CPU until the job runs, s",
}
# What a plain mpirun is told to start every daemon itself, and to run at all here.
FLAT = {
    "OMPI_MCA_routed": "direct",
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    "I_MPI_HYDRA_BRANCH_COUNT": "0",
}
ALLOWED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "HYDRA_LAUNCHER": "ssh",
    "I_MPI_HYDRA_BOOTSTRAP": "ssh",
    "I_MPI_HYDRA_IFACE": "lo",
    "I_MPI_PERHOST": "1",
}
# The real ones; Intel's takes ssh's arguments for the launcher's own ssh alone, not for its tree's.
KINDS_OF = {
    MpiFamily.OPENMPI4: KINDS["orte"],
    MpiFamily.OPENMPI5: KINDS["prrte"],
    MpiFamily.MPICH: KINDS["hydra"],
    MpiFamily.INTEL: Kind(
        *("", "I_MPI_HYDRA_HOST_FILE", "I_MPI_HYDRA_BOOTSTRAP_EXEC", "", "", ()), piped=True
    ),
}


@dataclass
class Bench:
    """The hosts, and what a launcher needs to reach them."""

    folder: Path
    workers: ManyWorkers
    mpirun: str
    seen: Mpi | None = None  # the real one
    mpiboot: Sequence[str] = (sys.executable, "-m", "mpiboot")
    started: float = 0.0  # when the last stand-in was (monotonic seconds)
    number: Iterator[int] = field(default_factory=itertools.count)

    def _ssh_config(self, folder: Path) -> Path:
        """Write what an ssh needs that mpiboot has not started."""
        config = folder / "ssh_config"
        known = folder / "known_hosts"
        public = self.workers.key.with_suffix(".pub").read_text()
        config.write_text(
            f"Port {PORT}\nIdentityFile {self.workers.key}\nIdentitiesOnly yes\nBatchMode yes\n"
            f"UserKnownHostsFile {known}\nHostKeyAlias job\n"
        )
        known.write_text(f"job {public}\n")
        return config

    @property
    def _kind(self) -> Kind:
        """How this mpirun names what it reads."""
        return KINDS[self.mpirun] if self.seen is None else KINDS_OF[self.seen.family]

    def _plain(self, way: str, folder: Path, hostfile: Path) -> dict[str, str]:
        """Give what a careful user tells an mpirun without mpiboot."""
        kind, agent = self._kind, "ssh"
        words = f"-F {self._ssh_config(folder)}"
        if not kind.args:
            program = folder / "ssh-of-the-job"
            program.write_text(f'#!/bin/sh\nexec ssh {words} "$@"\n')
            program.chmod(0o755)
            agent = str(program)
        given = {kind.hostfile: str(hostfile), kind.agent: agent, **ALLOWED}
        if kind.args:
            given[kind.args] = words
        if way == PLAIN:
            given |= FLAT
        return given | ({kind.concurrent: str(self.workers.count)} if kind.concurrent else {})

    def run(self, way: str, settings: Mapping[str, str] | None) -> dict[str, float]:
        """Run one job; ``settings`` are the way's, None for mpirun without mpiboot."""
        folder = self.folder / f"run-{next(self.number)}"
        folder.mkdir()
        hostfile = folder / "hostfile"
        slots = ":1" if self._kind.piped else " slots=1"
        hostfile.write_text("".join(f"{item}{slots}\n" for item in self.workers.addresses))
        path = os.environ["PATH"]
        environ = {"HOME": str(folder), "TMPDIR": str(folder), "USER": "root"}
        real = self.mpirun == REAL
        control, program = Control(folder / "control"), Program(folder)
        if not real:
            install(folder)
            path = f"{folder}:{path}"
            environ |= {KIND: self.mpirun, CONTROL: str(control.path)}
        environ["PATH"] = path
        ranks = ("-n", str(self.workers.count), *program.argv)
        argv = ["mpirun", *(ranks if real else ("true",))]
        if settings is None:
            environ |= self._plain(way, folder, hostfile)
        else:
            argv = [*self.mpiboot, "launcher", "--", *argv]
            environ |= {
                "MPIBOOT_HOSTFILE": str(hostfile),
                "MPIBOOT_SSH_KEY": str(self.workers.key),
                "MPIBOOT_SSH_PORT": str(PORT),
                "MPIBOOT_RUNTIME_DIR": str(folder / "run"),
                "MPIBOOT_TERMINATION_LOG": str(folder / "termination-log"),
                "MPIBOOT_LAUNCH_TIMEOUT": f"{2 * GUARD:g}",
                "MPIBOOT_WORKER_EXIT": "with-job",
                # PRRTE 5.0.7 ends by a segmentation fault where it has loopback alone.
                "MPIBOOT_CONTROL_IFNAME": LINK if Path("/sys/class/net", LINK).exists() else "lo",
                **settings,
            }
        masters: ControlMasters | None = None
        if way == MASTERS:
            config = self._ssh_config(folder)
            masters = ControlMasters(folder / "m", config, self.workers.addresses)
            environ[self._kind.agent] = str(masters.agent)
        beside = masters.pids if masters else []
        self.workers.forget()
        servers = self._hosts_cpu()
        resolved = shutil.which(argv[0], path=path) or argv[0]
        launcher = Launcher([resolved, *argv[1:]], environ)
        try:
            return self._measure(
                launcher, control, program, servers, beside, ours=settings is not None
            )
        except (TimeoutError, AssertionError):
            print("".join(line for _, line in launcher.lines[-30:]), file=sys.stderr)
            raise
        finally:
            with suppress(ProcessLookupError):
                for pid in reversed(below(launcher.process.pid)):
                    os.kill(pid, 9)
            launcher.process.wait()
            if masters:
                masters.stop()

    def _hosts_cpu(self) -> float:
        """CPU seconds of everything on the hosts' side: servers, daemons, what these started."""
        return sum(cpu(pid) for server in self.workers.pids for pid in below(server))

    def _measure(
        self,
        launcher: Launcher,
        control: Control,
        program: Program,
        servers: float,
        beside: Sequence[int],
        *,
        ours: bool,
    ) -> dict[str, float]:
        count, real = self.workers.count, self.mpirun == REAL
        found: dict[str, float] = {}
        ready = launcher.begun
        if ours:
            ready = launcher.wait_for(f" {count} hosts ready in ")
            found["gate"] = ready - launcher.begun
        if real:
            launcher.wait_until(lambda: bool(self.workers.all_of("daemon")))
        else:
            self.started = control.wait_for("exec", launcher)
            ready = ready if ours else self.started
        mine, mpirun = launcher.pids()
        agents = {pid for one in mpirun for pid in below(one)}
        if ours:
            found["gate_cpu"] = sum(cpu(pid) for pid in mine if pid not in agents)
        daemons = self.workers.wait_for("daemon", count, GUARD)
        found["connected"] = max(item.at for item in daemons) - ready
        if real:
            found["ran"] = program.wait_for(count) - ready
        else:
            found["joined"] = control.wait_for("joined", launcher) - ready
            if ours:
                launcher.wait_for("daemons started")
        mine, mpirun = launcher.pids()
        mine += beside
        found["cpu"] = sum(map(cpu, mine))
        found["mpirun_cpu"] = sum(map(cpu, mpirun))
        found["servers_cpu"] = self._hosts_cpu() - servers
        found["pss"] = pss(mine) / 1024
        found["mpirun_pss"] = pss(mpirun) / 1024
        found["processes"] = len(mine) + len(mpirun)
        found["descriptors"] = max(map(descriptors, [*mine, *mpirun]))
        if real:
            ended = time.monotonic()
            program.end()
        else:
            control.end()
            ended = control.wait_for("end", launcher)
        found["largest"] = launcher.wait(any_status=not ours) / 1024
        if ours:
            told = self.workers.all_of("job_is_over")
            found["told_hosts"] = len(told)
            if told:
                found["told"] = max(item.at for item in told) - ended
        return {name: round(found[name], 3) for name in FIGURES if name in found}


@contextmanager
def job(folder: Path, count: int, mpirun: str) -> Iterator[Bench]:
    """Have the hosts of a job listen."""
    place = folder / str(count)
    place.mkdir()
    key = place / "key"
    made = asyncssh.generate_private_key("ecdsa-sha2-nistp521")
    made.write_private_key(key)
    key.chmod(0o600)
    made.write_public_key(key.with_suffix(".pub"))
    seen = detect_mpi(os.environ) if mpirun == REAL else None
    facts = facts_of_a_worker(seen or recognise("/usr/bin/mpirun", KINDS[mpirun].version))
    workers = ManyWorkers(place, key, count, PORT, facts, real=mpirun == REAL)
    with running(workers):
        workers.listen(workers.addresses)
        yield Bench(place, workers, mpirun, seen)
