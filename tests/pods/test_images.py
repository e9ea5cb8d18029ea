"""The images of container/, their cheap variants, and mpiboot laid on top of them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from mpiboot import __version__
from tests.manifests import check
from tests.manifests.examples import FOLDER
from tests.pages import ROOT, named
from tests.pods import images
from tests.pods.cache import CACHE, once
from tests.pods.chained import AMAZONS_OWN, NVIDIA, ONEAPI, PROGRAM, STAND_INS, Chained
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import MOMENT, NEW, OLD, RING, ended, ranks, running, spanned, spans
from tests.pods.operator import Job
from tests.pods.play import prepare
from tests.pods.recipes import MPIBOOT, RECIPES, built, instructions
from tests.pods.test_validate import PERF, STAND_IN
from tests.waiting import until

FULL = pytest.mark.full


def test_images_hold_nothing_of_what_made_them(plain: Image) -> None:
    """No keys, compiler, pip or lists of packages; and no module that each start would compile."""
    root = plain.layers[-1]
    assert not list((root / "etc/ssh").glob("ssh_host_*"))
    assert not (root / "etc/pip.conf").exists()
    assert "mpiuser:*:" in (root / "etc/shadow").read_text()
    made_with = ("gcc", "cc", "c++", "ld", "make", "pip", "pip3")
    folders = [root / folder for folder in ("usr/bin", "usr/local/bin", "opt/mpiboot/bin")]
    assert [name for folder in folders for name in made_with if (folder / name).exists()] == []
    assert list((root / "var/lib/apt/lists").glob("*Packages*")) == []
    assert list((root / "var/cache/apt/archives").glob("*.deb")) == []
    sources = [
        *(root / "usr/lib").glob("python3.*/*.py"),
        *(root / "opt/mpiboot/lib").glob("python3.*/site-packages/asyncssh/*.py"),
    ]
    assert len(sources) > 200
    not_compiled = [
        path for path in sources if not list(path.parent.glob(f"__pycache__/{path.stem}.*.pyc"))
    ]
    assert not_compiled == []


@FULL
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", images.NAMES)
def test_code_layer_is_what_pip_installs(rig: None, name: str) -> None:
    whole = images.built(name, "--whole") / "root/opt/mpiboot"
    layer = images.image(name, programs=False).layers[0] / "opt/mpiboot"
    site = next(layer.glob("lib/python3.*/site-packages")).relative_to(layer)

    def state(venv: Path) -> dict[str, tuple[int, bytes]]:
        files = [*(venv / site / "mpiboot").rglob("*"), venv / "bin/mpiboot"]
        return {
            str(file.relative_to(venv)): (
                file.stat().st_mode,
                b"" if file.suffix == ".pyc" else file.read_bytes(),
            )
            for file in files
            if file.is_file()
        }

    assert state(layer) == state(whole)
    about = json.loads((whole.parents[2] / "image.json").read_text())["OCIv1"]["config"]
    labels = {name.rpartition(".")[2]: text for name, text in about["Labels"].items()}
    assert (labels["title"], labels["licenses"]) == (name, "Apache-2.0")
    assert labels["version"] == __version__
    assert re.fullmatch("[0-9a-f]{40}", labels["revision"])
    assert "mpiboot" in labels["description"]
    assert about["Entrypoint"] == ["mpiboot"]
    (ours,) = (layer / site).glob("mpiboot-*.dist-info")
    assert (whole / site / ours.name).is_dir()
    entries = "entry_points.txt"
    assert (ours / entries).read_text() == (whole / site / ours.name / entries).read_text()


# A Python that fails, and variables that would break any other one that hears them.
BROKEN = {
    f"/usr/bin/{name}": "#!/bin/sh\nexit 7\n" for name in ("python3", "python3.11", "python3.13")
}
FOR_ITS_PYTHON = {
    "PYTHONHOME": "/nowhere",
    "PYTHONPATH": "/opt/job/python",
    "PYTHONUNBUFFERED": "1",
    "LD_LIBRARY_PATH": "/opt/job/lib",
    # Names that a launcher's own script might use.
    "here": "the pod's",
    "root": "the pod's",
}
# Each rank says what its program is given.
TELLS = f"{MOMENT}echo host=$(hostname); env | sed 's/^/env /'"


def unchanged(name: str) -> Image:
    """An image with an MPI and OpenSSH, without mpiboot and with a Python that doesn't work."""
    plain = images.image(name).without("/opt/mpiboot", "/usr/local/bin/mpiboot")
    return plain.with_files(BROKEN, 0o755)


def with_folder(image: Image, doctor: str = "mpiboot doctor --image") -> Image:
    """An image after the page's lines; what they RUN is run, and ends with doctor."""
    lines = named("folder")
    assert " && mpiboot doctor --image\n" in lines
    return built(lines.replace("mpiboot doctor --image", doctor), image)


def debian(name: str, suite: str, variant: str, packages: str, *after: str) -> Image:
    """A root that mmdebstrap makes, with a command run in it."""

    def make(folder: Path) -> None:
        root = str(folder / "root")
        options = ("--quiet", f"--variant={variant}", f"--include={packages}")
        subprocess.run(["mmdebstrap", *options, suite, root], check=True)
        if after:
            subprocess.run(["chroot", root, *after], check=True)

    layer = once(CACHE / "images" / f"{name}-1", make) / "root"
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return Image(name, (layer,), (), {"PATH": path})


def without_glibc() -> Image:
    """As Alpine: musl, and BusyBox for all programs; no glibc, no Python, no MPI, no SSH."""
    busybox = ("/bin/busybox", "--install", "-s", "/bin")
    base = debian("without-glibc", "bookworm", "extract", "busybox-static,musl", *busybox)
    root = "root:x:0:0::/root:/bin/sh\n"
    return base.with_files({"/usr/local/bin/.keep": "", "/etc/passwd": root})


def old_debian() -> Image:
    """Debian 11: glibc 2.31, Python 3.9 where it is installed at all, Open MPI 4.1.0."""
    return debian("old-debian", "bullseye", "minbase", "openmpi-bin,openssh-server")


@pytest.mark.parametrize("rank_env", [False, pytest.param(True, marks=FULL)])
def test_the_unchanged_image_example(cluster: Cluster, *, rank_env: bool) -> None:
    """By an init container in each pod, as user 1000 on a read-only root filesystem.

    Its ranks find mpiboot by its path, too, as PATH has none.
    """
    shown = yaml.safe_load(named("unchanged-image"))
    example = check.read(FOLDER / "mpi-operator/unchanged-image.yaml")[0]["spec"]["mpiReplicaSpecs"]
    whole = example["Worker"]["template"]["spec"]
    assert shown["initContainers"][0].items() <= whole["initContainers"][0].items()
    assert shown["containers"][0]["command"] == whole["containers"][0]["command"]
    assert shown["volumes"][0] in whole["volumes"]
    prepared = prepare(FOLDER / "mpi-operator/unchanged-image.yaml")
    assert prepared.told.keys() >= {"readiness is not probed"}
    job = prepared.played(cluster, unchanged("openmpi-4.1"))
    spec = job.launcher.spec
    job.launcher.spec = replace(spec, env={**spec.env, "MPIBOOT_RANK_ENV": str(rank_env)})
    job.start()
    assert job.launcher.wait() == 0, job.log
    hosts = ["train-worker-0", "train-worker-1"]
    assert ranks(job.output) == [(n, 4, hosts[n // 2]) for n in range(4)]
    assert "warning" not in job.log.lower()
    assert ("/mpiboot/bin/mpiboot rank -- ./train" in job.log) == rank_env
    assert "sshd (openssh) listens on" in job.workers[0].stderr()
    for init in job.launcher.before:
        assert init.stdout() == "/mpiboot/bin/mpiboot can be started\n"


def test_the_jobs_programs_know_nothing_of_mpiboots_python(cluster: Cluster) -> None:
    """Neither by variables that mpiboot adds, nor by those that it would not hear itself."""
    image = with_folder(unchanged("openmpi-5.0"))
    line = ["mpirun", "-n", "2", "sh", "-c", TELLS]
    job = ended(cluster, image, *line, env=FOR_ITS_PYTHON)
    message = job.output.splitlines()
    assert sorted(item for item in message if item.startswith("host=")) == [
        f"host={worker.hostname}" for worker in job.workers
    ]
    given = [item.removeprefix("env ") for item in message if item.startswith("env ")]
    for name, value in FOR_ITS_PYTHON.items():
        assert given.count(f"{name}={value}") == 2, name
    # Its private files and its agents have names of their own.
    leaks = [item for item in given if "/opt/mpiboot" in item and not item.startswith("MPIBOOT_")]
    assert leaks == []


@FULL
def test_an_image_with_an_old_c_library_and_no_python(cluster: Cluster) -> None:
    base = old_debian()
    libc = (base.layers[0] / "lib/x86_64-linux-gnu/libc.so.6").read_bytes()
    assert b"stable release version 2.31" in libc
    assert not (base.layers[0] / "usr/bin/python3").exists()
    image = with_folder(base)
    line = ["mpirun", "-n", "2", "sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK of 2 on $(hostname)"]
    job = ended(cluster, image, *line)
    hosts = [worker.hostname for worker in job.workers]
    assert ranks(job.output) == [(n, 2, hosts[n]) for n in range(2)]


@FULL
def test_an_image_with_another_c_library(cluster: Cluster) -> None:
    """There is no MPI for musl to start: workers serve, and a launcher gets their facts."""
    base = without_glibc()
    assert list((base.layers[-1] / "lib").glob("ld-musl-*"))
    assert not list(base.layers[-1].rglob("libc.so.6"))
    image = with_folder(base, doctor="mpiboot --version")
    waiting = ["mpiboot", "wait"]
    job = ended(cluster, image, launcher_command=waiting)
    assert "2 hosts ready" in job.log
    assert "sshd (embedded) listens on" in job.workers[0].stderr()
    done = job.workers[0].exec("mpiboot", "doctor")
    assert "no mpirun or mpiexec" in done.stdout


# No Python is in the operator's images.
PYTHONS = tuple(f"/usr/bin/{name}" for name in ("python3", "python3.11", "python3.13"))


def recipe(name: str, stands_for: Image, *passed_over: str) -> Image:
    text = (RECIPES / f"{name}.Containerfile").read_text()
    return built(text, stands_for.without(*MPIBOOT), *passed_over)


@FULL
@pytest.mark.parametrize(("name", "kind"), [("ngc", NVIDIA), ("oneapi", ONEAPI)])
def test_behind_the_images_own_script(cluster: Cluster, name: str, kind: Chained) -> None:
    image = recipe(name, kind.image(), "apt-get")
    old = {1: {"env": {"NODE_DRIVER": "old"}}}
    job = ended(cluster, image, "mpirun", PROGRAM, each_worker=old)
    shows(kind, job)


@FULL
@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("name", ["openmpi-5.0", "mpich-5.0"])
def test_the_mpi_operators_own_image(cluster: Cluster, name: str, user: int) -> None:
    image = recipe("mpi-operator", base(name).without(*PYTHONS))
    words = ("mpirun", "/home/mpiuser/pi")
    job = ended(cluster, image, *words, user=user)
    spans(job)
    assert f":{2222 if user else 22} as" in job.workers[0].stderr()


@FULL
def test_nccl_tests(cluster: Cluster) -> None:
    """It is built with CUDA, which is not there: a script prints what it prints."""
    program = images.image("openmpi-4.1").with_files({PERF: STAND_IN}, 0o755)
    image = recipe("nccl-tests", program, "apt-get", "git", "make")
    words = ("validate", "job", "--tool", "nccl-tests")  # there is no GPU
    job = ended(cluster, image, *words, data_link="net1")
    assert "\nall_reduce_perf on 2 hosts, 2 ranks\n" in job.output


OLD_NODE = {1: {"env": {"NODE_DRIVER": "old"}}}


def shows(kind: Chained, job: Job) -> None:
    """Each rank has what the ENTRYPOINT of its own host has set, and the program has run."""
    lines = [line for line in job.output.splitlines() if line.startswith("has ")]
    wanted = [f"has pi-worker-0 {kind.recent}", f"has pi-worker-1 {kind.old or kind.recent}"]
    assert sorted(lines) == wanted, job.log[-3000:]
    spans(job)


def chained(cluster: Cluster, kind: Chained, *words: str, **details: Any) -> Job:
    """A job in which the second worker's node has the older driver."""
    return ended(cluster, kind.image(), *words, **{"each_worker": OLD_NODE, **details})


def test_the_page_has_the_entrypoint_of_each() -> None:
    page = (ROOT / "docs/how-to/chaining.md").read_text()
    rows = re.findall(r"^\| (.*?) \| .* \| `(\[.*\])` \|$", page, re.MULTILINE)
    shown = {name.partition(" (")[0].partition(", ")[0]: json.loads(row) for name, row in rows}
    kinds = {name: list(kind.entrypoint) for name, kind in STAND_INS.items()}
    assert shown == kinds
    assert named("chained") == f"ENTRYPOINT {json.dumps(NVIDIA.entrypoint)}\n"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind is NVIDIA else FULL, id=name)
        for name, kind in {**STAND_INS, "AWS as it is": AMAZONS_OWN}.items()
    ],
)
def test_behind_an_entrypoint(cluster: Cluster, kind: Chained) -> None:
    job = chained(cluster, kind, "mpirun", PROGRAM)
    shows(kind, job)
    for worker in job.workers:
        assert worker.wait() == 0  # the job's end is theirs
    for pod in job.pods:
        assert ("[entrypoint]" in pod.stderr()) is (kind is AMAZONS_OWN)


@FULL
def test_in_front_of_an_entrypoint_every_rank_goes_through_it(cluster: Cluster) -> None:
    """As `command: [mpiboot]` does it, which replaces the image's ENTRYPOINT."""
    line = ("mpirun", NVIDIA.entrypoint[0], PROGRAM)
    command = {"command": ["mpiboot"]}
    job = chained(cluster, NVIDIA, *line, launcher=command, worker=command)
    shows(NVIDIA, job)
    assert job.output.count("== PyTorch ==") == 2
    assert [worker.stdout() for worker in job.workers] == ["", ""]


@FULL
def test_an_entrypoint_that_stays_and_keeps_sigterm(cluster: Cluster) -> None:
    job = running(cluster, AMAZONS_OWN.image())
    job.launcher.signal(signal.SIGTERM)
    script = "bash -m /usr/local/bin/start_with_right_hostname.sh"
    message = f"PID 1 here is {script}: it has no handler for SIGTERM"
    assert message in " ".join(job.log.split())
    assert "got SIGTERM" not in job.log
    job.launcher.shell("kill $(cat /proc/1/task/1/children)")
    assert job.wait() == 143


@FULL
def test_an_mpirun_behind_a_script_gets_the_signals(cluster: Cluster) -> None:
    """The script dies of one; the real mpirun has it, too, and ends with all that it started."""
    job = running(cluster, AMAZONS_OWN.image(), launcher={"command": ["mpiboot"]})
    until(lambda: len(ranks(job.output)) == 2)
    job.launcher.signal(signal.SIGTERM)
    assert job.wait() == 143
    until(lambda: not any(item.args[0] == RING for pod in job.workers for item in pod.processes()))


# What an image's Containerfile RUNs.
ON_PATH = ("mpiboot", "shims", "install")
# The real ones move, and links take their place.
IN_PLACE = ("sh", "-ec", dict(instructions(named("shims-in-place")))["RUN"])
# mpioperator/base: its port, and the mounted key as host key.
SSHD_CONFIG = (
    "PidFile /home/mpiuser/sshd.pid\nHostKey /home/mpiuser/.ssh/id_rsa\nStrictModes no\nPort 2222\n"
)
SSHD = ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"]


# Of the example tensorflow-benchmarks: `test_docs` plays it.
BENCHMARK = "scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py"
TENSORFLOW = (
    *("mpirun", "--allow-run-as-root", "-np", "2", "-bind-to", "none", "-map-by", "slot"),
    *("-x", "NCCL_DEBUG=INFO", "-x", "LD_LIBRARY_PATH", "-x", "PATH"),
    *("-mca", "pml", "ob1", "-mca", "btl", "^openib"),
    *("python", BENCHMARK, "--model=resnet101", "--batch_size=64", "--variable_update=horovod"),
)


def base(name: str) -> Image:
    """mpioperator/mpi-pi: a configuration of sshd and the program in the home of user 1000."""
    plain = images.image(name)
    assert plain.programs is not None
    program = (plain.programs / "ring").read_bytes()
    config = {"/home/mpiuser/.sshd_config": SSHD_CONFIG}
    return plain.with_files(config).with_files({"/home/mpiuser/pi": program}, 0o755)


@pytest.mark.parametrize("run", [pytest.param(ON_PATH, marks=FULL), IN_PLACE], ids=["on PATH", ""])
@pytest.mark.parametrize("name", [pytest.param(OLD, marks=FULL), NEW])
def test_the_example_pi(cluster: Cluster, name: str, run: tuple[str, ...]) -> None:
    job = spanned(
        *(cluster, base(name).after(*run), "-n", "2", "/home/mpiuser/pi"),
        launcher_command=["/usr/bin/mpirun" if run == IN_PLACE else "mpirun"],
        worker_command=SSHD[:1],
        worker_args=SSHD[1:],
        user=1000,
    )
    assert "job ended" in job.log
    # sshd by absolute path is the image's own, unless its place was taken.
    assert ("mpiboot: sshd (openssh)" in job.workers[0].stderr()) == (run == IN_PLACE)


def test_what_stands_beside_the_shims_is_still_found(cluster: Cluster) -> None:
    """In /usr/local/bin an image may have its python."""
    own = {"/usr/local/bin/train": f"#!/bin/sh\nexec {RING}\n"}
    image = images.image("openmpi-5.0").with_files(own, 0o755).after(*ON_PATH)
    spanned(cluster, image, launcher_command=["mpirun", "train"])


# MPICH's mpirun calls its proxies in the folder that it was found in itself.
@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("mpich-4.0", ON_PATH),
        pytest.param("mpich-4.0", IN_PLACE, marks=FULL),
        pytest.param(OLD, ON_PATH, marks=FULL),
        pytest.param(NEW, IN_PLACE, marks=FULL),
    ],
)
def test_args_behind_the_entrypoint_of_an_image_with_shims(
    cluster: Cluster, name: str, run: tuple[str, ...]
) -> None:
    image = images.image(name).after(*run)
    line = ["mpirun", "-n", "2", RING]
    job = spanned(cluster, image, *line)
    # Once: mpirun is the real one, and no shim on the way to it.
    assert job.log.count("role launcher") == 1
    assert "sshd (openssh) listens" in job.workers[0].stderr()
