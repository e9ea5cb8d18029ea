"""What README and docs show is what happens: their samples of logs, and their manifests, played."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests import pages
from tests.fakes.programs import program
from tests.manifests import check, examples
from tests.manifests.examples import FOLDER, read
from tests.pages import ROOT, named
from tests.pods import images, jobs
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import NEW, OLD, RING, let_go, ranks, spans, with_facts
from tests.pods.manifest import merged, play_init_container, play_mpijob, play_statefulset
from tests.pods.network import Link
from tests.pods.operator import Job, KeyPair, mpijob
from tests.pods.platforms import play_indexed_job
from tests.pods.play import prepare
from tests.pods.pod import Pod
from tests.pods.recipes import built, online
from tests.pods.test_images import TENSORFLOW, unchanged
from tests.waiting import until

# As in a cluster: the rig's launchers log more.
QUIET = {"env": {"MPIBOOT_LOG_LEVEL": "info"}}
# What images for the MPI Operator have: each login is let in without a question.
PLAIN = {
    "/etc/ssh/ssh_config.d/job.conf": "StrictHostKeyChecking no\nLogLevel ERROR\n",
    "/etc/ssh/sshd_config": jobs.SSHD_CONFIG,
    "/run/sshd/.keep": "",
}


def one_of_two(cluster: Cluster, image: Image, **details: Any) -> Job:
    """A launcher that is started when one of its workers is ready; the other one never comes."""
    job = mpijob(cluster, image, **details)
    job.workers[0].start().publish()
    job.workers[0].logs("listen")
    job.launcher.start()
    return job


def plain(name: str, code: int, text: str) -> Callable[[Cluster], dict[str, str]]:
    """Without mpiboot: mpirun beside plain sshds; 5.0 has no variable that names the hostfile."""

    def run(cluster: Cluster) -> dict[str, str]:
        line = ["mpirun", "--allow-run-as-root", "-n", "2", RING]
        image = images.image(name).with_files(PLAIN)
        job = one_of_two(cluster, image, launcher_command=line, worker_args=())
        assert job.wait() == code
        return {text: job.log if code else "\n".join(sorted(job.output.splitlines()))}

    return run


def late_names(cluster: Cluster) -> dict[str, str]:
    # A job that is over between two looks at mpirun has no line of its daemons.
    wait = ["mpirun", "sh", "-c", f"until [ -e /tmp/go ]; do sleep 0.1; done; exec {RING}"]
    job = mpijob(cluster, images.image(NEW), launcher_args=wait, launcher=QUIET)
    job.start(publish=False)
    for worker in job.workers:
        worker.logs("listens")
    job.launcher.logs("DNS for pi-worker-0, pi-worker-1 (NXDOMAIN)")
    job.publish()
    job.launcher.logs("daemons started")
    let_go(job)
    assert job.wait() == 0
    output = "\n".join(sorted(job.output.splitlines()))
    return {"late-names": job.log, "late-names-ranks": output}


def termination_message(cluster: Cluster) -> dict[str, str]:
    env = {"MPIBOOT_DNS_WAIT": "20"}
    job = one_of_two(cluster, images.image(NEW), env=env, launcher=QUIET)
    assert job.wait() == 68
    return {"termination-message": job.message}


def doctor_told(cluster: Cluster) -> dict[str, str]:
    """In a launcher, whose second worker's `command:` replaces mpiboot."""
    replaced = {1: {"command": ["sh", "-c", "exec sleep 1000"]}}
    stays = ["sleep", "1000"]
    job = mpijob(cluster, images.image(NEW), launcher_command=stays, each_worker=replaced)
    with_facts(job.start(), job.workers[0])
    done = job.launcher.exec("mpiboot", "doctor")
    assert done.returncode == 1, done.stderr
    return {"doctor-told": done.stdout}


# The runs whose output the pages show, each text by its name there.
_FULL = (
    *(plain(OLD, 255, "plain-openmpi4"), plain(NEW, 0, "plain-openmpi5")),
    *(termination_message, doctor_told),
)


@pytest.mark.parametrize(
    "run", [late_names, *(pytest.param(run, marks=pytest.mark.full) for run in _FULL)]
)
def test_a_log_that_a_page_shows_is_what_is_printed(
    cluster: Cluster, run: Callable[[Cluster], dict[str, str]]
) -> None:
    for name, printed in run(cluster).items():
        assert pages.not_printed(pages.named(name), printed) == [], printed


# The pages' program: it stays until the test lets it end.
TRAIN = f"#!/bin/sh\nuntil [ -e /tmp/enough ]; do sleep 0.1; done\nexec {RING}\n"


def my_image(name: str) -> Image:
    """The pages' `my-image`, with the pages' `./train`."""
    return images.image(name).with_files({"/train": TRAIN}, 0o755)


def running(workers: Sequence[Pod]) -> None:
    def has_a_rank(worker: Pod) -> bool:
        return any("--epochs" in process.args for process in worker.processes())

    until(lambda: all(map(has_a_rank, workers)))


def enough(workers: Sequence[Pod]) -> None:
    running(workers)
    for worker in workers:
        worker.shell("touch /tmp/enough")


def test_the_mpijob_of_the_operators_page(cluster: Cluster) -> None:
    """Its commands are tried while the job runs, the README's as well; so is the init container."""
    (manifest,) = examples.read("mpi-operator/openmpi.yaml")
    job = play_mpijob(cluster, my_image(NEW), manifest)
    (waiting,) = pages.manifests("init-container")
    pod = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    init = play_init_container(job, cluster, {**pod, **waiting}).start()
    job.start()
    assert init.wait() == 0, init.stderr()
    running(job.workers)
    commands = re.findall(r"^kubectl exec \S+ -- (.*)", pages.named("look"), re.MULTILINE)
    assert len(commands) == 2
    job.launcher.shell(";".join(commands))
    job.launcher.shell(pages.named("in-pod"))
    enough(job.workers)
    spans(job, slots=2)


# The page names Debian's package.
VENV = "apt-get -qq update && apt-get -qq install --yes --no-install-recommends python3-venv"


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_an_image_with_the_wheel_as_the_page_says(cluster: Cluster, tmp_path: Path) -> None:
    """Its wheel in a Debian image with an MPI of its own, by the page's own lines."""
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*argv, tmp_path, pages.copied(tmp_path / "clone")], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    lines = pages.named("install").replace("\\\n", "").splitlines()
    assert [line.split()[0] for line in lines] == ["COPY", "RUN", "ENTRYPOINT"]
    assert lines[0].split()[1:] == ["dist/mpiboot-*.whl", "/tmp/"]
    image = (
        online(NEW)
        .with_files({"/train": TRAIN}, 0o755)
        .after("sh", "-c", VENV)
        .with_files({f"/tmp/{wheel.name}": wheel.read_bytes()})
        .after("sh", "-c", lines[1].removeprefix("RUN "))
    )
    image = replace(image, entrypoint=tuple(json.loads(lines[2].removeprefix("ENTRYPOINT "))))
    (whole,) = examples.read("mpi-operator/openmpi.yaml")
    job = play_mpijob(cluster, image, whole).start()
    enough(job.workers)
    spans(job, slots=2)


def launcher_of(manifest: dict[str, Any]) -> dict[str, Any]:
    launcher = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]
    containers: list[dict[str, Any]] = launcher["template"]["spec"]["containers"]
    return containers[0]


def readme_manifests() -> list[dict[str, Any]]:
    """The job of the README's diff before and after it, with a command that ends where it does."""
    lines = pages.named("readme-migration").splitlines()
    head = "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {name: pi}\nspec:\n"
    head += "  slotsPerWorker: 1\n  runPolicy: {backoffLimit: 0}\n  mpiReplicaSpecs:\n"
    both = []
    for sign in "-+":
        kept = [f"  {line[1:]}\n" for line in lines if line[:1] in ("", " ", sign)]
        both.append(yaml.safe_load(head + "".join(kept)))
    return both


@pytest.mark.parametrize(
    "manifest", [0, pytest.param(1, marks=pytest.mark.full)], ids=["as it is", "two lines changed"]
)
def test_the_operators_manifest_as_the_readme_has_it(cluster: Cluster, manifest: int) -> None:
    """As it is with shims in the image, or changed for mpiboot as ENTRYPOINT; its line goes on."""
    job = readme_manifests()[manifest]
    before, after = map(launcher_of, readme_manifests())
    assert tuple(before["command"]) == TENSORFLOW[: len(before["command"])]
    assert after["args"] == before["command"]
    launcher_of(job)["args" if manifest else "command"].append(RING)
    lines = pages.named("folder" if manifest else "readme-image")
    image = replace(unchanged(NEW), entrypoint=())
    played = play_mpijob(cluster, built(lines, image), job).start()
    spans(played)
    assert "mpiboot: job ended" in played.log
    assert "mpiboot: sshd (openssh)" in played.workers[0].stderr()


@pytest.mark.full
def test_the_first_job(cluster: Cluster, tmp_path: Path) -> None:
    folder = pages.copied(tmp_path)
    subprocess.run(["bash", "-ec", pages.named("first-job")], cwd=folder, check=True)
    (manifest,) = check.read(folder / "first.yaml")
    job = play_mpijob(cluster, images.image("openmpi-5.0", programs=False), manifest).start()
    assert job.wait() == 0
    named = sorted(2 * [worker.hostname for worker in job.workers])
    assert sorted(job.output.split()) == named


@pytest.mark.full
def test_an_mpijob_of_a_user_that_no_passwd_knows(cluster: Cluster) -> None:
    (whole,) = examples.read("mpi-operator/openmpi.yaml")
    (more,) = pages.manifests("user-without-passwd")
    job = play_mpijob(cluster, my_image(NEW), merged(whole, more)).start()
    assert {pod.spec.user for pod in job.pods} == {1000650000}
    enough(job.workers)
    spans(job, slots=2)
    assert "sshd (embedded) listens" in job.workers[0].stderr()


# It keeps the files of Secrets and ConfigMaps in a folder for each.
KUBECTL = """set -e
[ "$1" = create ]; shift; [ "$1" = configmap ] || { [ "$1 $2" = "secret generic" ]; shift; }
shift; name=$1; shift; mkdir -p "objects/$name"
for file; do cp "${file#--from-file=}" "objects/$name/"; done
"""


def test_a_stateful_set_without_a_hostfile(cluster: Cluster, tmp_path: Path) -> None:
    """With the key that the page's commands make; with a hostfile it is one of the examples."""
    program(tmp_path / "bin", "kubectl", KUBECTL)
    script = f'PATH="{tmp_path}/bin:$PATH"\n' + pages.named("objects")
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True)
    objects = {
        folder.name: {file.name: file.read_text() for file in folder.iterdir()}
        for folder in (tmp_path / "objects").iterdir()
    }
    manifests = examples.read("statefulset/configmap.yaml")
    (launcher,) = pages.manifests("without-configmap")
    manifests[-1]["spec"]["template"]["spec"] = launcher
    job = play_statefulset(cluster, my_image(NEW), manifests, objects)
    job.start()
    enough(job.workers)
    spans(job, slots=2)
    assert "4 ranks on 2 hosts of train-worker-[0-1].train" in job.log


# Each with the hosts of its ranks, two on each.
WORKERS = ["train-worker-0", "train-worker-1"]
HOSTS = {
    "mpi-operator/openmpi.yaml": WORKERS,
    "mpi-operator/root.yaml": WORKERS,
    "mpi-operator/mpich.yaml": WORKERS,
    "mpi-operator/intel.yaml": WORKERS,
    "statefulset/configmap.yaml": WORKERS,
    "volcano/job.yaml": WORKERS,
    "volcano/two-groups.yaml": ["train-gpu-0", "train-cpu-0"],
    "jobs/jobset.yaml": ["train-worker-0-0", "train-worker-0-1"],
    "jobs/indexed-job.yaml": ["train-0", "train-1"],
    "trainer/trainjob.yaml": ["train-launcher-0-0", "train-node-0-0", "train-node-0-1"],
}
# Debian's MPICH 4.0 hangs in the ranks' MPI_Finalize now and then.
IMAGES = {
    **dict.fromkeys(("mpi-operator/mpich.yaml", "jobs/indexed-job.yaml"), "mpich-5.0"),
    **dict.fromkeys(("mpi-operator/intel.yaml", "volcano/job.yaml"), "intel-mpi"),
}
ROWS = [(name, IMAGES.get(name, images.NAMES[at % 2])) for at, name in enumerate(HOSTS)]
QUICK = ("mpi-operator/root.yaml", "trainer/trainjob.yaml", "jobs/indexed-job.yaml")
# What their launchers log: hosts without a hostfile in the manifest, a role without a setting.
LOGGED = {
    "jobs/indexed-job.yaml": "role launcher (MPIBOOT_ROLE: pod 0, by JOB_COMPLETION_INDEX)",
    "jobs/jobset.yaml": "4 ranks on 2 hosts of train-worker-0-[0-1].train",
    "trainer/trainjob.yaml": "role launcher (OMPI_MCA_orte_default_hostfile, which trainer sets",
}


@pytest.mark.parametrize(
    ("name", "image"),
    [pytest.param(*row, marks=[] if row[0] in QUICK else pytest.mark.full) for row in ROWS],
)
def test_an_example_runs_on_all_its_hosts(cluster: Cluster, name: str, image: str) -> None:
    prepared, port = prepare(FOLDER / name), "2222"
    if name == "volcano/two-groups.yaml":
        port = "2206"
        prepared.documents[0]["spec"]["plugins"]["ssh"].append(f"--ssh-port={port}")
        for item in check.below(prepared.documents):
            if item.get("name") == "MPIBOOT_SSH_PORT":
                item["name"] = "UNUSED"
    job = prepared.played(cluster, images.image(image))
    job.start()
    assert job.launcher.wait() == 0, job.log
    hosts = HOSTS[name]
    total = 2 * len(hosts)
    assert ranks(job.output) == [(n, total, hosts[n // 2]) for n in range(total)]
    assert LOGGED.get(name, "") in " ".join(job.log.split())
    message = job.workers[0].stderr()
    assert "sshd (openssh) listens on" in message
    assert f":{port} as {'root' if 'root' in name else 'mpiuser'}" in message or "indexed" in name
    assert "warning" not in job.log.lower()


PLAYED = (
    "MPIJob train: a launcher and 2 workers, each a container\n",
    "its image is replaced by openmpi-5.0 of container/\n",
    "/train is not in that image: a program that prints its rank stands in\n",
    "left out, for want of a cluster: automountServiceAccountToken, backoffLimit, clean",
    "the launcher's container ended with exit code 0\n",
)


@pytest.mark.full
def test_the_command_of_the_page_plays_an_example(rig: None, tmp_path: Path) -> None:
    """As a user runs it, and then a manifest whose program fails: the exit code is the job's."""
    argv = ["sh", "-ec", named("play")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("launcher | rank ") == 4
    for line in PLAYED:
        assert f"# {line}" in done.stdout
    (job,) = read("mpi-operator/openmpi.yaml")
    launcher_of(job)["args"] = ["sh", "-c", "exit 3"]
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    argv = [str(ROOT / "scripts/play"), "--image", "openmpi-4.1", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stdout[-3000:] + done.stderr[-3000:]
    assert "# its program:" not in done.stdout
    assert done.stdout.endswith("# the launcher's container ended with exit code 3\n")


@pytest.mark.full
def test_workers_of_an_indexed_job_stay_for_the_next_launcher(cluster: Cluster) -> None:
    """A launcher whose program failed is started again, and the worker is still there."""
    fails = f"#!/bin/sh\n[ $(hostname) = train-0 ] || [ -e /tmp/enough ] || exit 7\nexec {RING}\n"
    image = images.image(OLD).with_files({"/train": fails}, 0o755)
    keys = {"train-ssh": KeyPair.make().files()}
    launcher, worker = play_indexed_job(
        cluster, image, examples.read("jobs/indexed-job.yaml"), keys
    )
    for pod in (launcher, worker):
        pod.start().publish()
    assert launcher.wait() == 7
    worker.shell("touch /tmp/enough")
    launcher.start()
    assert [pod.wait() for pod in (launcher, worker)] == [0, 0]
    assert "attempt 2; the last one" in " ".join(launcher.stderr().split())


# What torchrun does with its endpoint: pod 0 listens there, the others connect.
TORCHRUN = """#!/opt/mpiboot/bin/python3
import os, socket, sys, time
at = sys.argv[sys.argv.index("--rdzv-endpoint") + 1].partition(":")
place, index = (at[0], int(at[2])), int(os.environ["JOB_COMPLETION_INDEX"])
if index:
    while True:
        try:
            meeting = socket.create_connection(place, timeout=60)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    meeting.sendall(f"{index} {os.environ['NCCL_SOCKET_IFNAME']}".encode())
else:
    server = socket.create_server(("", place[1]))
    server.settimeout(60)
    print(server.accept()[0].makefile().read(), os.environ["GLOO_SOCKET_IFNAME"])
sys.exit(7 * index)
"""


def test_torchrun_waits_for_the_name_of_pod_0(cluster: Cluster) -> None:
    """It then has this pod's own links; the pod's own variable stays, and so does the status."""
    image = images.image(OLD).with_files({"/usr/local/bin/torchrun": TORCHRUN}, 0o755)
    first, second = play_indexed_job(
        cluster,
        image,
        examples.read("jobs/torchrun.yaml"),
        {},
        links=(Link(), Link("net1", "br-data")),
    )
    second.start()
    second.logs("waiting for DNS for train-0 (NXDOMAIN)")
    first.start()
    first.publish()
    assert [pod.wait() for pod in (first, second)] == [0, 7]
    assert first.stdout() == "1 =net1 net1\n"
    assert "waiting for train-0.train (--rdzv-endpoint)" in second.stderr()
