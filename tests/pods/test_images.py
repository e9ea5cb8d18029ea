"""The images of container/, their cheap variants, and mpiboot laid on top of them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from mpiboot import __version__
from tests.manifests import check
from tests.manifests.examples import FOLDER
from tests.pages import ROOT, named
from tests.pods import images
from tests.pods.cache import CACHE, once
from tests.pods.chained import AMAZONS_OWN, PROGRAM, STAND_INS, Chained
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import MOMENT, NEW, OLD, RING, ended, ranks, running, spanned, spans
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
    for folder in ("usr/bin", "usr/local/bin", "opt/mpiboot/bin"):
        there = {path.name for path in (root / folder).iterdir()}
        assert not there & {"gcc", "cc", "ld", "make", "pip", "pip3"}
    for left in ("var/lib/apt/lists/*Packages*", "var/cache/apt/archives/*.deb"):
        assert list(root.glob(left)) == []
    sources = [
        *(root / "usr/lib").glob("python3.*/*.py"),
        *(root / "opt/mpiboot/lib").glob("python3.*/site-packages/asyncssh/*.py"),
    ]
    assert len(sources) > 200
    for path in sources:
        assert list(path.parent.glob(f"__pycache__/{path.stem}.*.pyc")), path


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
    assert (labels["title"], labels["version"]) == (name, __version__)
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


def test_the_unchanged_image_example(cluster: Cluster) -> None:
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
    job = prepared.played(cluster, unchanged("openmpi-4.1"))
    spec = job.launcher.spec
    job.launcher.spec = replace(spec, env={**spec.env, "MPIBOOT_RANK_ENV": "on"})
    job.start()
    assert job.launcher.wait() == 0, job.log
    spans(job, slots=2)
    assert "warning" not in job.log.lower()
    assert "/mpiboot/bin/mpiboot rank -- ./train" in job.log
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


def without_glibc() -> Image:
    """As Alpine: musl, and BusyBox for all programs; no glibc, no Python, no MPI, no SSH."""

    def make(folder: Path) -> None:
        root = str(folder / "root")
        options = ("--quiet", "--variant=extract", "--include=busybox-static,musl")
        subprocess.run(["mmdebstrap", *options, "bookworm", root], check=True)
        install = ("/bin/busybox", "--install", "-s", "/bin")
        subprocess.run(["chroot", root, *install], check=True)

    layer = once(CACHE / "images" / "without-glibc-1", make) / "root"
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    files = {"/usr/local/bin/.keep": "", "/etc/passwd": "root:x:0:0::/root:/bin/sh\n"}
    return Image("without-glibc", (layer,), (), {"PATH": path}).with_files(files)


@FULL
def test_an_image_with_another_c_library(cluster: Cluster) -> None:
    """There is no MPI for musl to start: workers serve, and a launcher gets their facts."""
    image = with_folder(without_glibc(), doctor="mpiboot --version")
    job = ended(cluster, image, launcher_command=["mpiboot", "wait"])
    assert "2 hosts ready" in job.log
    assert "sshd (embedded) listens on" in job.workers[0].stderr()
    done = job.workers[0].exec("mpiboot", "doctor")
    assert "no mpirun or mpiexec" in done.stdout


def recipe(name: str, stands_for: Image, *passed_over: str) -> Image:
    text = (RECIPES / f"{name}.Containerfile").read_text()
    return built(text, stands_for.without(*MPIBOOT), *passed_over)


@FULL
@pytest.mark.parametrize(("name", "user"), [("openmpi-5.0", 1000), ("mpich-5.0", 0)])
def test_the_mpi_operators_own_image(cluster: Cluster, name: str, user: int) -> None:
    """There is no Python in it."""
    image = recipe("mpi-operator", base(name).without(*BROKEN))
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


def behind(name: str) -> tuple[Chained, Image]:
    """What stands in for an image, and that with mpiboot: by its recipe, where there is one."""
    kind = STAND_INS[name]
    file = {"NVIDIA NGC": "ngc", "Intel oneAPI": "oneapi"}.get(name)
    return kind, recipe(file, kind.image(), "apt-get") if file else kind.image()


def test_the_page_has_the_entrypoint_of_each() -> None:
    page = (ROOT / "docs/how-to/chaining.md").read_text()
    rows = re.findall(r"^\| (.*?) \| .* \| `(\[.*\])` \|$", page, re.MULTILINE)
    shown = {name: json.loads(row) for name, row in rows}
    kinds = {name: list(kind.entrypoint) for name, kind in STAND_INS.items()}
    assert {name: shown.get(name, list(AMAZONS_OWN.entrypoint)) for name in kinds} == kinds
    assert named("chained") == f"ENTRYPOINT {json.dumps(STAND_INS['NVIDIA NGC'].entrypoint)}\n"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[FULL] * (name != "NVIDIA NGC")) for name in STAND_INS]
)
def test_behind_an_entrypoint(cluster: Cluster, name: str) -> None:
    """Each rank has what the ENTRYPOINT of its host has set; the second node's driver is old."""
    kind, image = behind(name)
    job = ended(cluster, image, "mpirun", PROGRAM, each_worker={1: {"env": {"NODE_DRIVER": "old"}}})
    lines = [line for line in job.output.splitlines() if line.startswith("has ")]
    wanted = [f"has pi-worker-0 {kind.recent}", f"has pi-worker-1 {kind.old or kind.recent}"]
    assert sorted(lines) == wanted, job.log[-3000:]
    spans(job)
    for worker in job.workers:
        assert worker.wait() == 0  # the job's end is theirs
    for pod in job.pods:
        assert ("[entrypoint]" in pod.stderr()) is (kind is AMAZONS_OWN)


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


@pytest.mark.parametrize(("name", "run"), [(NEW, IN_PLACE), (OLD, ON_PATH)])
def test_the_example_pi(cluster: Cluster, name: str, run: tuple[str, ...]) -> None:
    job = spanned(
        *(cluster, base(name).after(*run), "-n", "2", "/home/mpiuser/pi"),
        launcher_command=["/usr/bin/mpirun" if run == IN_PLACE else "/usr/local/bin/mpirun"],
        worker_command=SSHD[:1],
        worker_args=SSHD[1:],
        user=1000,
    )
    assert "job ended" in job.log
    # sshd by absolute path is the image's own, unless its place was taken.
    assert ("mpiboot: sshd (openssh)" in job.workers[0].stderr()) == (run == IN_PLACE)


# MPICH's mpirun calls its proxies in the folder that it was found in itself.
def test_args_behind_the_entrypoint_of_an_image_with_shims(cluster: Cluster) -> None:
    image = images.image("mpich-4.0").after(*ON_PATH)
    job = spanned(cluster, image, "mpirun", "-n", "2", RING)
    # Once: mpirun is the real one, and no shim on the way to it.
    assert job.log.count("role launcher") == 1
    assert "sshd (openssh) listens" in job.workers[0].stderr()
