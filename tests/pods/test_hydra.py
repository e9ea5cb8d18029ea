"""Jobs of MPICH and Intel MPI, whose mpirun is Hydra, under the MPI Operator."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mpiboot.job import mpis
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import (
    FOREVER,
    PATIENCE,
    RING,
    agents,
    alive,
    end_line,
    kill,
    rank_processes,
    ranks,
)
from tests.pods.network import Link
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import Files, HostPath
from tests.waiting import until

MPICH4 = "mpich-4.0"
INTEL = "intel-mpi"
NAMES = (MPICH4, "mpich-5.0", INTEL)


NEW = pytest.param("mpich-5.0", marks=pytest.mark.full)
quick = pytest.mark.parametrize("image", [MPICH4, NEW, INTEL], indirect=True)
each = pytest.mark.parametrize(
    "image", [pytest.param(name, marks=pytest.mark.full) for name in NAMES], indirect=True
)


def rows(**images_of: Sequence[str]) -> pytest.MarkDecorator:
    """Rows of `image` and `what`; the first is run by the quick gate."""
    pairs = [(name, what) for what, names in images_of.items() for name in names]
    more = [pytest.param(*pair, marks=pytest.mark.full) for pair in pairs[1:]]
    return pytest.mark.parametrize(("image", "what"), [pairs[0], *more], indirect=["image"])


def started(cluster: Cluster, image: Image, *words: str, **details: Any) -> Job:
    """A job of two workers with two links, as the operator makes it for that MPI."""
    given = {"data_link": "net1", **details}
    return mpijob(cluster, image, launcher_args=words, **given).start()


def running(cluster: Cluster, image: Image, *more: str, **details: Any) -> Job:
    """A job whose ranks run on both workers, all of whose daemons were seen."""
    job = started(cluster, image, *FOREVER, *more, **details)
    until(
        lambda: "daemons started" in job.launcher.stderr() and all(map(rank_processes, job.workers))
    )
    return job


# Each rank says where it is, and what it has in its environment.
TELL = (
    'echo "$(hostname) rank=$PMI_RANK own=$OWN both=$BOTH nccl=$NCCL_X here=$HERE '
    'role=$K_MPI_JOB_ROLE name=$HOSTNAME"; '
)
ENDS = "echo $$ > /tmp/pid; until [ -e /tmp/end ]; do sleep 0.1; done; exit $((3 * PMI_RANK))"


@quick
def test_ranks_on_every_host_each_with_its_own_environment(cluster: Cluster, image: Image) -> None:
    """A worker's values survive, the user's for all ranks win; the exit code is the program's."""
    job = started(
        cluster,
        image,
        # Debian's 4.0 hangs in the ranks' MPI_Finalize now and then, with two ranks seldom.
        *(
            "mpirun",
            "sh",
            "-c",
            TELL + ("" if image.name == MPICH4 else f"{RING} && ") + f"{{ {ENDS}; }}",
        ),
        launcher={"env": {"NCCL_X": "all", "BOTH": "launcher", "HERE": "x y"}},
        each_worker={n: {"env": {"OWN": f"w{n}", "BOTH": f"b{n}", "NCCL_X": "w"}} for n in (0, 1)},
    )
    until(lambda: job.launcher.stdout().count("own=") == 2)
    # One after the other: Hydra kills the others of a rank that fails, and mixes their codes.
    first, last = job.workers
    for worker in (last, first):
        worker.shell("until [ -s /tmp/pid ]; do sleep 0.1; done")
    first.shell("touch /tmp/end; while [ -e /proc/$(cat /tmp/pid) ]; do sleep 0.1; done")
    last.shell("touch /tmp/end")
    assert job.wait(PATIENCE) == 3
    assert sorted(line for line in job.launcher.stdout().splitlines() if "own=" in line) == [
        f"pi-worker-{n} rank={n} own=w{n} both=b{n} nccl=all here=x y role=worker "
        f"name=pi-worker-{n}"
        for n in (0, 1)
    ]
    assert "exited with code 3" in end_line(job.launcher.stderr())


@each
def test_mpi_itself_spans_hosts_with_different_slots(cluster: Cluster, image: Image) -> None:
    """Its messages go by the control link; the launcher's name is known to no nameserver."""
    listed = [f"pi-worker-{n}.pi.default.svc:{slots}\n" for n, slots in enumerate((1, 3))]
    # Past the work it ends by MPI_Abort: Debian's 4.0 hangs in MPI_Finalize now and then.
    program = ("mpirun", RING, "--bytes", "8", "--sleep", "1", "--abort", "7")
    # The operator's one number for all hosts would be Intel MPI's choice.
    launcher = {"env": {"I_MPI_PERHOST": ""}}
    job = started(cluster, image, *program, hostfile="".join(listed), launcher=launcher)
    assert job.wait(PATIENCE) == 7
    assert ranks(job.launcher.stdout()) == [
        (rank, 4, f"pi-worker-{min(rank, 1)}") for rank in range(4)
    ]
    sent = {
        name: int(job.workers[0].shell(f"cat /sys/class/net/{name}/statistics/tx_bytes"))
        for name in ("eth0", "net1")
    }
    assert sent["eth0"] > 8_000_000
    assert sent["net1"] < 1_000_000


@each
def test_no_launch_agent_of_another_kind_starts_ranks_here(cluster: Cluster, image: Image) -> None:
    env = dict.fromkeys(("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP"), "fork")
    line = ("mpirun", "-launcher", "slurm", "hostname")  # by itself it waits for ever for srun
    job = started(cluster, image, *line, launcher={"env": env})
    assert job.wait(PATIENCE) == 0
    assert sorted(job.launcher.stdout().split()) == ["pi-worker-0", "pi-worker-1"]
    message = "=fork, -launcher slurm is dropped: another kind would start no launch agent"
    assert message in job.launcher.stderr()


@pytest.mark.parametrize(
    ("image", "before"),
    [
        pytest.param(MPICH4, ("-n", "1", RING, ":", "-n", "1"), id="several"),
        pytest.param(INTEL, ("-n", "2"), id="one"),
    ],
    indirect=["image"],
)
def test_a_program_that_one_worker_lacks(
    cluster: Cluster, image: Image, before: tuple[str, ...]
) -> None:
    """On its own MPICH waits forever where the other rank does, in MPI_Init.

    Intel MPI's mpirun dies of SIGPIPE now and then, before it tells what its proxy said: of one
    program the hosts are asked, of several nobody knows.
    """
    there = {0: {"volumes": [Files("/opt/only", {"it": "#!/bin/sh\nexit 0\n"}, 0o755)]}}
    words = ("mpirun", "-ppn", "1", *before, "/opt/only/it")
    job = started(cluster, image, *words, each_worker=there)
    waits = "/opt/only/it, and mpirun goes on without it"
    until(lambda: not job.launcher.running or waits in job.launcher.stderr(), PATIENCE)
    if job.launcher.running:
        job.launcher.signal(signal.SIGTERM)
        assert job.wait(PATIENCE) == 143
        return
    assert job.wait(PATIENCE) == 127
    message = job.launcher.termination_log()
    assert message.startswith("program-missing: pi-worker-1.pi.default.svc: ")
    assert "the program /opt/only/it" in message.splitlines()[0]


@each
@pytest.mark.parametrize("lacks", [True, False], ids=["is missing", "fails"])
def test_a_daemon_that_does_not_start(cluster: Cluster, image: Image, *, lacks: bool) -> None:
    """As where the launcher's port can't be reached from there: by one of Hydra's own numbers.

    On its own MPICH 4.0 waits forever for one that is missing.
    """
    proxy = "hydra_bstrap_proxy" if image.name == INTEL else "hydra_pmi_proxy"
    folder = "/usr/bin" if image.name == MPICH4 else "/opt/mpi/bin"
    script = "#!/bin/sh\necho unable to connect to server >&2\nexit 5\n"
    path = f"{folder}/{proxy}"
    there = image.without(path) if lacks else image.with_files({path: script}, 0o755)
    job = started(cluster, image, *FOREVER, each_worker={1: {"image": there}})
    assert job.wait(PATIENCE) == (127 if lacks else 69)
    message = job.launcher.termination_log()
    if lacks:
        assert message.startswith("program-missing: pi-worker-1.pi.default.svc")
        return
    assert message.startswith(
        "daemon-failed: pi-worker-1.pi.default.svc: its hydra_pmi_proxy failed"
    )
    assert "unable to connect to server" in job.launcher.stderr()


@each
def test_a_job_that_mpiboot_does_not_watch(cluster: Cluster, image: Image) -> None:
    """MPICH 4.0 takes the end of a child that it did not start for an agent's."""
    env = {"MPIBOOT_SUPERVISE": "off"}
    job = started(cluster, image, "mpirun", "hostname", env=env)
    assert job.wait(PATIENCE) == 0
    assert sorted(job.launcher.stdout().split()) == ["pi-worker-0", "pi-worker-1"]


@pytest.mark.full
@rows(pod=("mpich-5.0",), daemon=(INTEL,), agent=(MPICH4, "mpich-5.0"), link=(MPICH4, INTEL))
def test_a_lost_worker(cluster: Cluster, image: Image, what: str) -> None:
    """By itself no Hydra notices a cut link, or an agent that is gone."""
    job = running(cluster, image, env={"MPIBOOT_SSH_KEEPALIVE": "3"})
    if what == "pod":
        job.workers[1].kill()
    elif what == "daemon":
        kill(alive(job.workers[1], "hydra_pmi_proxy"))
    elif what == "agent":
        kill(agents(job.launcher, "pi-worker-1"))
    else:
        job.workers[1].link_down(silent=True)
    assert job.wait(PATIENCE) == 69
    assert job.launcher.termination_log().startswith("host-lost: pi-worker-1.pi.default.svc")
    until(lambda: not rank_processes(job.workers[0]))


@pytest.mark.full
@rows(launcher=(MPICH4, INTEL), worker=("mpich-5.0", INTEL))
def test_ranks_that_are_told_to_end_have_the_time_to_save(
    cluster: Cluster, image: Image, tmp_path: Path, what: str
) -> None:
    tmp_path.chmod(0o777)
    job = running(
        cluster,
        image,
        *("--save", "5"),
        env={"MPIBOOT_GRACE": "60"},
        worker={"volumes": [HostPath("/ckpt", tmp_path, writable=True)]},
    )
    until(lambda: len(ranks(job.launcher.stdout())) == 2)
    pod = job.launcher if what == "launcher" else job.workers[0]
    pod.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == (143 if what == "launcher" else 69)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved-0", "saved-1"]
    assert all("once" in path.read_text() for path in tmp_path.iterdir())


@each
def test_pods_without_ipv4_are_refused_before_the_start(cluster: Cluster, image: Image) -> None:
    """By itself it finds no such interface."""
    alone = {"links": (Link(ipv4=False, ipv6=True),)}
    job = started(cluster, image, "mpirun", RING, launcher=alone, worker=alone)
    assert job.wait(PATIENCE) == 78
    assert "speak IPv4 alone" in job.launcher.termination_log()


@rows(segv=(MPICH4,), kill=("mpich-5.0", INTEL), exit=("mpich-5.0",), abort=(MPICH4, INTEL))
def test_a_failed_rank_is_named_with_its_host(cluster: Cluster, image: Image, what: str) -> None:
    """By itself it is a number that is also a code, or 255; the lines it is read from are gone."""
    words = {"exit": ("--no-finalize", "--exit", "3"), "abort": ("--abort", "3")}
    job = started(cluster, image, "mpirun", RING, "--sleep", "1", *words.get(what, (f"--{what}",)))
    code, message = {
        "segv": (139, "rank 1 was ended by SIGSEGV"),
        "kill": (137, "rank 1 was ended by SIGKILL"),
        "exit": (3, "rank 1 exited with code 3"),
        # After MPI_Abort MPICH's mpiexec tells of no rank.
        "abort": (3, "exited with code 3" if image.name == INTEL else "no rank is known"),
    }[what]
    assert job.wait(PATIENCE) == code
    line = end_line(job.launcher.stderr())
    assert message in line
    assert what == "abort" or "pi-worker-1.pi.default.svc" in line
    stdout = job.launcher.stdout()
    assert "rank 1 of 2 on pi-worker-1" in stdout
    assert "Exit codes" not in stdout
    assert (what in ("segv", "kill")) == ("BAD TERMINATION" in stdout)


def strings_of(image: Image, path: str) -> set[str]:
    """The strings of a program; one that is a part of another isn't among them."""
    found: list[Path] = [layer / path for layer in image.layers if (layer / path).is_file()]
    parts = found[0].resolve().read_bytes().split(b"\0")
    return {part.decode("ascii", "replace") for part in parts}


@quick
def test_what_the_table_relies_on_is_read_by_the_installed_mpi(image: Image) -> None:
    """A release that gives one of them another name breaks this, and no user's job."""
    known = (mpis.INTEL, mpis.MPICH)
    mpi, other = known if image.name == INTEL else reversed(known)
    folder = "usr/bin" if image.name == MPICH4 else "opt/mpi/bin"
    names = {
        mpi.hostfile_var,
        mpi.agent_kind_vars[0],
        mpi.agent_vars[0],
        mpi.agent_args_vars[0],
        mpi.daemon_link_vars[0],
        mpi.default_slots_var,
        mpi.bind_var,
        mpis.EXIT_CODES.lstrip("-"),
        "machinefile",
        *(name for port in mpi.ports if port.daemons for name in port.names),
        *(constant.name for constant in mpi.constants),
    }
    read = strings_of(image, f"{folder}/mpiexec.hydra")
    assert names - {""} - read == set()
    # What only the operator believes in, and what the other family alone reads.
    assert set(mpi.agent_args_vars[1:]) & read == set()
    assert other.daemon_link_vars[0] not in read


@pytest.mark.full
@pytest.mark.parametrize("image", ["mpich-5.0"], indirect=True)
def test_memory_of_other_processes_that_may_not_be_read(cluster: Cluster, image: Image) -> None:
    """With containerd 1.6's profile on a new kernel MPI_Init itself ends so."""
    refused = {"refused_calls": ("process_vm_readv", "process_vm_writev")}
    job = started(cluster, image, "mpirun", RING, "--bytes", "4", slots=2, worker=refused)
    assert job.wait(PATIENCE) == 0
    assert job.launcher.stdout().count(" of 4 on ") == 4
    assert "process_vm_readv is refused (Operation not permitted)" in job.launcher.stderr()
