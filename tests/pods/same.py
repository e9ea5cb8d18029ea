"""Lines run twice in the same pods: by plain mpirun, and with mpiboot in front of it.

Plain is what a user without mpiboot has: mpirun, the hostfile and the variables of the MPI
Operator, an image whose ssh takes new hosts for granted. The workers are the same in both runs.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mpiboot.job import forward
from tests.pods.changes import CHANGED
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.operator import Job, mpijob
from tests.waiting import until

PROBE: Final = "/opt/programs/where"
# A line may take its time on a busy machine; one that hangs is ended.
_GUARD: Final = 180
_HOSTS: Final = tuple(f"pi-worker-{index}.pi.default.svc" for index in (0, 1))
# What lines name: files of the image, in every pod.
_FILES: Final = {
    "/etc/ssh/ssh_config.d/operator.conf": "StrictHostKeyChecking no\n"
    "UserKnownHostsFile /dev/null\nLogLevel ERROR\n",
    "/opt/lines/first": f"{_HOSTS[0]} slots=2\n",
    "/opt/lines/second": f"{_HOSTS[1]} slots=2\n",
    "/opt/lines/bare": f"{_HOSTS[0]} fast slots=2\n{_HOSTS[1]} slots=2 gpu rack-7\n",
    "/opt/lines/names": "".join(f"{host}\n" for host in _HOSTS),
    "/opt/lines/none": f"{_HOSTS[0]} slots=0\n{_HOSTS[1]} slots=2\n",
    "/opt/lines/hydra-none": f"{_HOSTS[0]}:0\n{_HOSTS[1]}:2\n",
    "/opt/lines/keys": f"{_HOSTS[0]} count=2 slots_max=4 username=root port=22\n",
    "/opt/lines/rankfile": "".join(
        f"rank {rank}={host} slot={slot}\n"
        for rank, (host, slot) in enumerate((host, slot) for slot in (1, 0) for host in _HOSTS)
    ),
    "/opt/lines/app": f"-np 1 {PROBE} first\n-np 2 {PROBE} second\n",
    "/opt/lines/configfile": f"-n 1 {PROBE} first\n-n 2 {PROBE} second\n",
    "/opt/lines/hydra-zero": "".join(f"{host}:0\n" for host in _HOSTS),
    "/opt/lines/hydra-first": f"{_HOSTS[0]}:2\n",
    "/opt/lines/hydra-second": f"{_HOSTS[1]}:2\n",
    "/opt/lines/binding": f"{_HOSTS[0]}:2 binding=user:1,0\n{_HOSTS[1]}:2 binding=rr\n",
    "/opt/lines/params": "btl_tcp_if_exclude = lo,docker0\nhwloc_base_binding_policy = core\n",
    "/opt/lines/tune": "-mca btl_tcp_eager_limit 32768\n",
    # As what mpirun calls: options of ssh, the host, the command.
    "/opt/lines/agent": "#!/bin/sh\nwhile :; do\n    case $1 in\n"
    '        -o) options="$options -o $2"; shift 2 ;;\n'
    '        -*) options="$options $1"; shift ;;\n        *) break ;;\n    esac\ndone\n'
    'host=$1; shift\nexec ssh $options "$host" "export BY=agent;" "$@"\n',
    "/opt/lines/rank.sh": f'#!/bin/sh\nexport FROM_SCRIPT=yes\nexec {PROBE} "$@"\n',
    "/opt/lines/starts.py": "import subprocess, sys\n"
    f"done = subprocess.Popen('mpirun -np 2 {PROBE} | sort', shell=True).wait()\n"
    f"sys.exit(done + subprocess.call(['mpirun', '-np', '2', '{PROBE}', 'exit=3']))\n",
}
# What of a line, or of its environment, says how ranks are mapped, ranked or bound.
_PINS: Final = (
    r"-(map-by|bind-to|rank-by|N|npernode|rankfile|rf|cpu-set|cpu-list|cpus-per-proc) "
    r"|-by(node|core)|rmaps_base_mapping|rmaps_default|hwloc_|paffinity|I_MPI_PIN"
)
# Names whose values are never twice the same: ports, numbers of processes and jobs, folders.
_BY_NATURE: Final = (
    *("PMIX_*", "OMPI_MCA_orte_*", "OMPI_MCA_ess_*", "OMPI_FILE_LOCATION", "PRTE_MCA_*"),
    *("PMI_FD", "PMI_PORT", "PMI_ID", "HYDI_CONTROL_FD", "HYDRA_*", "I_MPI_HYDRA_UUID"),
    *("SSH_CONNECTION", "SSH_CLIENT", "SHLVL", "_", "OLDPWD", "PMI_CONTROL_PORT"),
)


@dataclass(frozen=True)
class Line:
    """A line of a user's.

    `WHERE` in it is the program, `HOST0` and `HOST1` are the workers; `FRONT` is where mpiboot
    stands, before all else where it is not there. `env` is added to the launcher's pod; what
    `differs` is named with the row of `changes` that says why. The quick gate runs `quick` lines.
    """

    text: str
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    differs: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False

    @property
    def meant(self) -> dict[str, str]:
        """What is meant to differ: without mapping or binding options ranks are not bound."""
        pinned = any(re.search(_PINS, word) for word in (self.text, *self.env))
        return {**({} if pinned else {"binding": "binding"}), **self.differs}

    def words(self, front: str) -> list[str]:
        """What is run; `front` is mpiboot, or nothing."""
        text = self.text if "FRONT" in self.text else f"FRONT {self.text}"
        for name, value in (("WHERE", PROBE), ("HOST0", _HOSTS[0]), ("HOST1", _HOSTS[1])):
            text = text.replace(name, value)
        return shlex.split(text.replace("FRONT", front))


@dataclass(frozen=True)
class Rank:
    size: str
    host: str
    binding: str
    folder: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Run:
    status: int
    ranks: Mapping[str, Rank]
    output: Counter[str]
    errors: Counter[str]
    message: str


@dataclass(frozen=True)
class Stage:
    """The pods of one MPI, with the environment that each has of its own, by its host's name."""

    job: Job
    environ: Mapping[str, Mapping[str, str]]


def pods(cluster: Cluster, image: Image, *, as_worker: bool = False) -> Stage:
    """Two workers of two slots, and a launcher in whose pod the lines are run.

    `as_worker` is the operator's runLauncherAsWorker.
    """
    env = {"MPIBOOT_WORKER_EXIT": "never"}
    own = {
        # What images set that run as root, and a user of 5.0 has to: it does not read the
        # operator's name.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile",
        "MPIBOOT_LOG_LEVEL": "warning",
        "NCCL_DEBUG": "WARN",
        "OMP_NUM_THREADS": "2",
        "MY_DATA": "/data",
    }
    job = mpijob(
        cluster,
        image.with_files(_FILES, 0o755),
        slots=2,
        as_worker=as_worker,
        launcher_command=["sleep", "infinity"],
        launcher={"env": own},
        worker={"env": env},
        each_worker={number: {"env": {"OWN": f"w{number}"}} for number in (0, 1)},
    ).start()
    job.launcher.publish()  # plain Hydra's proxies connect to the launcher by its name
    logins = " && ".join(f"ssh {host} true" for host in _HOSTS)
    until(lambda: not job.launcher.exec("sh", "-c", logins).returncode)  # plain waits for nobody
    environ = {
        pod.hostname: _variables((pod.root / "proc/1/environ").read_bytes()) for pod in job.pods
    }
    return Stage(job, environ)


def _variables(environ: bytes) -> dict[str, str]:
    entries = (entry.decode().partition("=") for entry in environ.split(b"\0") if entry)
    return {name: value for name, _, value in entries}


def _record(text: bytes) -> Rank:
    size, host, binding, folder, rest = text.split(b"\n", 4)
    sections = []
    while rest:
        head, rest = rest.split(b"\n", 1)
        length = int(head.split()[1])
        sections.append(rest[:length])
        rest = rest[length:]
    arguments, environ = sections
    return Rank(
        size.decode(),
        host.decode(),
        binding.decode(),
        folder.decode(),
        tuple(arguments.decode().split("\0")[:-1]),
        _variables(environ),
    )


def run(stage: Stage, line: Line, front: str = "") -> Run:
    """Runs a line in the launcher's pod; `front` stands before it."""
    done = stage.job.launcher.exec(
        *line.words(front), env=line.env, stdin=line.stdin, timeout=_GUARD
    )
    ranks = {}
    for pod in stage.job.pods:
        folder = pod.root / "tmp/where"
        for path in folder.glob("*") if folder.exists() else ():
            ranks[path.name] = _record(path.read_bytes())
        shutil.rmtree(folder, ignore_errors=True)
    ours = re.compile(r"\b(err|out) \d+ of \d+\s*$")
    return Run(
        done.returncode,
        ranks,
        Counter(map(_masked, done.stdout.splitlines())),
        Counter(_masked(text) for text in done.stderr.splitlines() if ours.search(text)),
        done.stdout + done.stderr,
    )


def _masked(text: str) -> str:
    """A line of output without what differs from run to run: times, ports, numbers."""
    text = re.sub(r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}", "TIME", text)
    text = re.sub(r"\d\d:\d\d:\d\d(\.\d+)?", "TIME", text)
    return re.sub(r"\d{4,}", "N", text)


def differences(stage: Stage, line: Line, plain: Run, ours: Run) -> dict[str, str]:
    """What differs between two runs of a line, but for what mpiboot is known to change."""
    found = {}

    def compare(what: str, before: object, after: object) -> None:
        if before != after:
            found[what] = f"{before} -> {after}"

    def each(name: str, run: Run) -> dict[str, object]:
        return {rank: getattr(item, name) for rank, item in sorted(run.ranks.items())}

    compare("status", plain.status, ours.status)
    compare("ranks", sorted(plain.ranks), sorted(ours.ranks))
    for name in ("size", "host", "binding", "folder", "arguments"):
        compare(name, each(name, plain), each(name, ours))
    launcher = {**stage.environ[stage.job.launcher.hostname], **line.env}
    # Where a rank is on another host that is told; much of the environment follows from it.
    for rank in () if "host" in found else plain.ranks.keys() & ours.ranks.keys():
        before, after = plain.ranks[rank], ours.ranks[rank]
        own = stage.environ[after.host]
        for name in before.variables.keys() | after.variables.keys():
            value = after.variables.get(name)
            if not _meant(name, value, launcher, own):
                compare(name, before.variables.get(name), value)
    compare("output", sorted(plain.output.items()), sorted(ours.output.items()))
    compare("errors", sorted(plain.errors.items()), sorted(ours.errors.items()))
    return found


def _meant(
    name: str, value: str | None, launcher: Mapping[str, str], own: Mapping[str, str]
) -> bool:
    """Whether a rank's variable may have another value than it has without mpiboot."""
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in (*_BY_NATURE, *CHANGED)):
        return True
    allowed = any(fnmatch.fnmatchcase(name, pattern) for pattern in forward.ALLOWED)
    return value == own.get(name) or (allowed and value == launcher.get(name))
