"""What scripts/play makes of a file before any pod is made, and what it says of a wrong one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.manifests.examples import FILES, FOLDER, name_of, read
from tests.pages import ROOT
from tests.pods.manifest import NotPlayedError
from tests.pods.play import NoCluster, prepare

MPIJOB = "mpi-operator/openmpi.yaml"
# The second mounts what the operator adds to its pods.
_NOT_PLAYED = {"kubectl/statefulset.yaml", "validate/before-training.yaml"}


@pytest.mark.parametrize("path", [p for p in FILES if name_of(p) not in _NOT_PLAYED], ids=name_of)
def test_every_example_but_kubectls_is_one_that_play_takes(path: Path) -> None:
    made = prepare(path)
    assert made.documents
    without = path.name in {"torchrun.yaml", "sriov-two-rails.yaml"} or path.parent.name in {
        "gpu",
        "validate",
    }
    assert made.program == ("" if without else "/train")


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    (job,) = read(MPIJOB)
    pod = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    secret = {"secretKeyRef": {"name": "token", "key": "token"}}
    pod["containers"][0]["env"].append({"name": "TOKEN", "valueFrom": secret})
    pod["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": "data"}})
    told = prepare(written(tmp_path, job)).told
    claim = "persistentVolumeClaim of the volume data, which is an empty folder"
    assert {"TOKEN", claim, "cleanPodPolicy", "resources"} <= {*told}
    told = prepare(FOLDER / "rdma/sriov-openshift.yaml").told
    assert {"SriovNetwork mpi-rdma", "k8s.v1.cni.cncf.io/networks"} <= {*told}
    told = prepare(FOLDER / "statefulset/configmap.yaml").told
    assert "Secret train-ssh, for which a key is made" in told
    names = ("openmpi", "mpich", "intel")
    made_images = [prepare(FOLDER / f"mpi-operator/{name}.yaml").image for name in names]
    assert made_images == ["openmpi-5.0", "mpich-5.0", "intel-mpi"]


@pytest.mark.parametrize(
    "name", ["mpi-operator/openmpi.yaml", "statefulset/configmap.yaml", "trainer/trainjob.yaml"]
)
def test_pods_have_the_rights_that_their_manifest_says(name: str) -> None:
    made = prepare(FOLDER / name)
    pods: Any = made.make(NoCluster(), None, made.documents, made.objects)  # type: ignore[arg-type]
    for pod in (pods.launcher, *pods.workers):
        assert (pod.user, tuple(pod.capabilities)) == (1000, ())
        assert (pod.read_only_root, pod.no_new_privileges, pod.seccomp) == (True, True, True)
        assert list(pod.groups) == ([] if "mpi-operator" in name else [1000])


def written(tmp_path: Path, *documents: dict[str, Any]) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def test_a_secret_of_the_file_is_taken(tmp_path: Path) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "train-ssh"},
        "stringData": {"id_ed25519.pub": "public"},
        "data": {"id_ed25519": "cHJpdmF0ZQ=="},
    }
    made = prepare(written(tmp_path, *read("statefulset/configmap.yaml"), secret))
    assert made.objects == {"train-ssh": {"id_ed25519": "private", "id_ed25519.pub": "public"}}
    assert not [item for item in made.told if "Secret" in item]


def test_a_file_that_play_does_not_know(tmp_path: Path) -> None:
    deployment = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {}}
    with pytest.raises(
        NotPlayedError, match=r"job\.yaml: it has Service \(v1\): one job is played, of MPIJob"
    ):
        prepare(written(tmp_path, deployment))
    (job,) = read(MPIJOB)
    with pytest.raises(NotPlayedError, match=r"has MPIJob \(.*\), MPIJob \(.*\): one job is pl"):
        prepare(written(tmp_path, job, job))
    with pytest.raises(NotPlayedError, match="Service can't be played beside MPIJob"):
        prepare(written(tmp_path, job, deployment))
    with pytest.raises(NotPlayedError, match="MPIBOOT_LAUNCH_AGENT=kubectl needs an API"):
        prepare(FOLDER / "kubectl/statefulset.yaml")


# The file, where in which object, what stands there instead (None: nothing), the message.
_WORKER = "spec.mpiReplicaSpecs.Worker"
_POD = f"{_WORKER}.template.spec"
_TWO = [{"name": name, "image": "mpi", "args": ["worker"]} for name in ("a", "b")]
_SETS, _INDEXED = "statefulset/configmap.yaml", "jobs/indexed-job.yaml"
_TRAIN, _RUNTIME = "trainer/trainjob.yaml", "ClusterTrainingRuntime"
REFUSED: list[tuple[str, str, str, object, str]] = [
    (MPIJOB, "MPIJob", _WORKER, None, "MPIJob: spec.mpiReplicaSpecs.Worker is missing"),
    (MPIJOB, "MPIJob", f"{_WORKER}.replicas", 0, "MPIJob: spec.mpiReplicaSpecs.Worker.replicas is"),
    (MPIJOB, "MPIJob", f"{_POD}.containers", _TWO, "a pod of several containers can't be"),
    (MPIJOB, "MPIJob", f"{_POD}.hostNetwork", True, "hostNetwork can't be played without a cl"),
    (MPIJOB, "MPIJob", f"{_POD}.volumes", [], "volumeMounts: there is no volume "),
    (MPIJOB, "MPIJob", "metadata.name", None, "MPIJob: metadata is missing"),
    (_SETS, "Service", "spec.clusterIP", None, "Service: clusterIP: None is missing: pods would"),
    (_SETS, "Service", "spec.selector", None, "Service: its selector is not {'app': 'train-worker"),
    (_INDEXED, "Job", "spec.completionMode", None, "Job: completionMode: Indexed is missing: its"),
    (_TRAIN, "TrainJob", "spec.trainer", None, "TrainJob: spec.trainer is missing"),
    (_TRAIN, _RUNTIME, "metadata.name", "other", "TrainJob: its runtime is not the one in"),
    ("jobs/jobset.yaml", "JobSet", "spec.replicatedJobs", None, "JobSet: spec.replicatedJobs is"),
]


@pytest.mark.parametrize(("name", "kind", "where", "value", "message"), REFUSED)
def test_a_job_that_can_not_be_played_is_refused_in_a_line(
    tmp_path: Path, name: str, kind: str, where: str, value: object, message: str
) -> None:
    documents = read(name)
    (item,) = (made for made in documents if made["kind"] == kind)
    *parents, field = where.split(".")
    for parent in parents:
        item = item[parent]
    item.pop(field, None)
    if value is not None:
        item[field] = value
    path = written(tmp_path, *documents)
    with pytest.raises(NotPlayedError) as raised:
        prepare(path)
    assert str(raised.value).startswith(f"{path}: {message}")
    assert "\n" not in str(raised.value)


def play(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
    argv = [sys.executable, ROOT / "scripts/play_pods.py", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, **more)


def test_play_of_a_file_that_is_none_or_wrong(tmp_path: Path) -> None:
    done = play()
    assert done.returncode == 2
    assert "scripts/play" in done.stderr
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1")
    done = play(broken)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"play: {broken} is not YAML: while parsing a flow sequence")
    (job,) = read(MPIJOB)
    job["spec"]["slotPerWorker"] = 1
    path = written(tmp_path, job)
    done = play(path)
    field = "spec.slotPerWorker: there is no such field"
    assert (done.returncode, done.stderr) == (2, f"play: {path}: MPIJob: {field}\n")
