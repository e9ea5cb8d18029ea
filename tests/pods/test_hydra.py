"""Jobs of MPICH and Intel MPI, whose mpirun is Hydra, under the MPI Operator."""

from __future__ import annotations

from typing import Any

import pytest

from mpiboot.job import mpis
from tests.pods import jobs
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import RING
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import Files
from tests.waiting import until

MPICH4 = "mpich-4.0"
INTEL = "intel-mpi"
NAMES = (MPICH4, "mpich-5.0", INTEL)


NEW = pytest.param("mpich-5.0", marks=pytest.mark.full)
quick = pytest.mark.parametrize("image", [MPICH4, NEW, INTEL], indirect=True)
each = pytest.mark.parametrize(
    "image", [pytest.param(name, marks=pytest.mark.full) for name in NAMES], indirect=True
)


def started(cluster: Cluster, image: Image, *words: str, **details: Any) -> Job:
    """A job of two workers with two links, as the operator makes it for that MPI."""
    given = {"data_link": "net1", **details}
    return mpijob(cluster, image, launcher_args=words, **given).start()


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
    until(lambda: job.output.count("own=") == 2)
    # One after the other: Hydra kills the others of a rank that fails, and mixes their codes.
    first, last = job.workers
    for worker in (last, first):
        worker.shell("until [ -s /tmp/pid ]; do sleep 0.1; done")
    first.shell("touch /tmp/end; while [ -e /proc/$(cat /tmp/pid) ]; do sleep 0.1; done")
    last.shell("touch /tmp/end")
    assert job.wait() == 3
    assert sorted(line for line in job.output.splitlines() if "own=" in line) == [
        f"pi-worker-{n} rank={n} own=w{n} both=b{n} nccl=all here=x y role=worker "
        f"name=pi-worker-{n}"
        for n in (0, 1)
    ]
    assert "exited with code 3" in jobs.end_line(job.log)


@each
def test_mpi_itself_spans_hosts_with_different_slots(cluster: Cluster, image: Image) -> None:
    """Its messages go by the control link; the launcher's name is known to no nameserver."""
    listed = [f"pi-worker-{n}.pi.default.svc:{slots}\n" for n, slots in enumerate((1, 3))]
    # Past the work it ends by MPI_Abort: Debian's 4.0 hangs in MPI_Finalize now and then.
    program = ("mpirun", RING, "--bytes", "8", "--sleep", "1", "--abort", "7")
    # The operator's one number for all hosts would be Intel MPI's choice.
    launcher = {"env": {"I_MPI_PERHOST": ""}}
    job = started(cluster, image, *program, hostfile="".join(listed), launcher=launcher)
    assert job.wait() == 7
    assert jobs.ranks(job.output) == [(rank, 4, f"pi-worker-{min(rank, 1)}") for rank in range(4)]
    sent = {
        name: int(job.workers[0].shell(f"cat /sys/class/net/{name}/statistics/tx_bytes"))
        for name in ("eth0", "net1")
    }
    assert sent["eth0"] > 8_000_000
    assert sent["net1"] < 1_000_000


FORK = dict.fromkeys(("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP"), "fork")
DROPPED = "=fork, -launcher=slurm is dropped: another kind would start no launch agent"


@each
@pytest.mark.parametrize(
    ("env", "words", "logged"),
    [
        # By itself it waits for ever for srun.
        (FORK, ("-launcher", "slurm"), DROPPED),
        # MPICH 4.0 takes the end of a child that it did not start for an agent's.
        ({"MPIBOOT_SUPERVISE": "off"}, (), ""),
    ],
    ids=["agents of another kind", "without a parent"],
)
def test_ranks_run_on_the_hosts_all_the_same(
    cluster: Cluster, image: Image, env: dict[str, str], words: tuple[str, ...], logged: str
) -> None:
    job = started(cluster, image, "mpirun", *words, "hostname", launcher={"env": env})
    assert job.wait() == 0
    assert sorted(job.output.split()) == ["pi-worker-0", "pi-worker-1"]
    assert logged in job.log


@pytest.mark.parametrize("image", [INTEL], indirect=True)
def test_a_program_that_one_worker_lacks(cluster: Cluster, image: Image) -> None:
    """Its mpirun dies of SIGPIPE now and then, before it tells what its proxy said."""
    there = {0: {"volumes": [Files("/opt/only", {"it": "#!/bin/sh\nexit 0\n"}, 0o755)]}}
    words = ("mpirun", "-ppn", "1", "-n", "2", "/opt/only/it")
    job = started(cluster, image, *words, each_worker=there)
    assert job.wait() == 127
    assert job.message.startswith("program-missing: pi-worker-1.pi.default.svc: ")
    assert "the program /opt/only/it" in job.message.splitlines()[0]


@each
def test_a_daemon_that_does_not_start(cluster: Cluster, image: Image) -> None:
    """As where the launcher's port can't be reached from there: by one of Hydra's own numbers."""
    proxy = "hydra_bstrap_proxy" if image.name == INTEL else "hydra_pmi_proxy"
    folder = "/usr/bin" if image.name == MPICH4 else "/opt/mpi/bin"
    script = "#!/bin/sh\necho unable to connect to server >&2\nexit 5\n"
    there = image.with_files({f"{folder}/{proxy}": script}, 0o755)
    if image.name == "mpich-5.0":  # as where that worker's MPI lacks it
        there = image.without(f"{folder}/{proxy}")
    job = started(cluster, image, *jobs.FOREVER, each_worker={1: {"image": there}})
    if image.name == "mpich-5.0":
        assert job.wait() == 127
        assert job.message.startswith("program-missing: pi-worker-1.pi.default.svc: ")
        return
    assert job.wait() == 69
    failed = "daemon-failed: pi-worker-1.pi.default.svc: its hydra_pmi_proxy failed"
    assert job.message.startswith(failed)
    assert "unable to connect to server" in job.log


FAILURES = [(INTEL, "kill"), ("mpich-5.0", "exit"), (MPICH4, "abort")]


@pytest.mark.parametrize(
    ("image", "what"),
    [(MPICH4, "segv"), *(pytest.param(*row, marks=pytest.mark.full) for row in FAILURES)],
    indirect=["image"],
)
def test_a_failed_rank_is_named_with_its_host(cluster: Cluster, image: Image, what: str) -> None:
    """By itself it is a number that is also a code, or 255; the lines it is read from are gone."""
    words = {"exit": ("--no-finalize", "--exit", "3"), "abort": ("--abort", "3")}
    job = started(cluster, image, "mpirun", RING, "--sleep", "1", *words.get(what, (f"--{what}",)))
    code, message = {
        "segv": (139, " was ended by SIGSEGV"),
        "kill": (137, " was ended by SIGKILL"),
        "exit": (3, "rank exited with code 3"),
        # After MPI_Abort MPICH's mpiexec tells of no rank.
        "abort": (3, "no rank is known"),
    }[what]
    assert job.wait() == code
    line = jobs.end_line(job.log)
    assert message in line
    assert what == "abort" or "pi-worker-1.pi.default.svc" in line
    stdout = job.output
    assert "rank 1 of 2 on pi-worker-1" in stdout
    assert "Exit codes" not in stdout
    assert (what in ("segv", "kill")) == ("BAD TERMINATION" in stdout)


@quick
def test_what_the_table_relies_on_is_read_by_the_installed_mpi(image: Image) -> None:
    """A release that gives one of them another name breaks this, and no user's job."""
    known = (mpis.IntelMpi(), mpis.Mpich())
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
        *(port.name for port in mpi.ports if port.daemons),
        *(constant.name for constant in mpi.constants),
    }
    # Whole strings: one that is a part of another isn't among them.
    paths = (layer / folder / "mpiexec.hydra" for layer in image.layers)
    program = next(path for path in paths if path.is_file()).resolve().read_bytes()
    read = {part.decode("ascii", "replace") for part in program.split(b"\0")}
    assert names - {""} - read == set()
    # What only the operator believes in, and what the other family alone reads.
    assert set(mpi.agent_args_vars[1:]) & read == set()
    assert other.daemon_link_vars[0] not in read
