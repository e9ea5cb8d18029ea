"""The examples in a real cluster, and what a user would look at when one goes wrong.

The MPIJobs first, with the image and the program of the tests; then those without an operator.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import KubectlError, Namespace
from tests.manifests import examples
from tests.pods.jobs import RING, ranks
from tests.pods.manifest import merged

Fields = dict[str, Any]
OPENMPI = "mpi-operator/openmpi.yaml"
BOTH = {"train-worker-0": 2, "train-worker-1": 2}
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
OVER = ("Succeeded", "Failed")
_SMALL = {"requests": {"cpu": "10m", "memory": "32Mi"}}


def image(mpi: str) -> str:
    return os.environ["MPIBOOT_E2E_IMAGE"].replace("NAME", mpi)


def container(job: Fields, role: str) -> Fields:
    pod = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
    for init in pod.get("initContainers", ()):
        init["image"] = image("mpiboot")
    (found,) = pod["containers"]
    assert isinstance(found, dict)
    return found


def example(file: str, mpi: str, *args: str) -> Fields:
    """An example's MPIJob, which runs the ring with these arguments, on a small node."""
    (made,) = (item for item in examples.read(file) if item["kind"] == "MPIJob")
    made["metadata"]["name"] = "train"
    for role in ("Launcher", "Worker"):
        container(made, role).update(image=image(mpi), resources=_SMALL)
    container(made, "Launcher")["args"] = ["mpirun", RING, *args]
    return made


def counted(log: str) -> dict[str, int]:
    return Counter(host for _, _, host in ranks(log))


def launcher_of(namespace: Namespace, number: int = 1) -> Fields:
    """The job's launcher pod; of several tries the one with that number, from 1."""
    found = namespace.wait_for(
        f"launcher {number}", lambda: namespace.pods("train", "launcher")[number - 1 : number]
    )
    return found[0]


def succeeds(namespace: Namespace) -> str:
    assert namespace.condition("train", OVER) == "Succeeded", namespace.shown()
    return namespace.log(launcher_of(namespace))


@pytest.mark.parametrize("namespace", [RESTRICTED], indirect=True, ids=["restricted"])
@pytest.mark.parametrize(
    ("file", "mpi"),
    [
        (OPENMPI, "openmpi-4.1"),
        (OPENMPI, "openmpi-5.0"),
        ("mpi-operator/mpich.yaml", "mpich-5.0"),
        ("mpi-operator/intel.yaml", "intel-mpi"),
    ],
)
def test_an_example_runs_under_pod_security_restricted(
    namespace: Namespace, file: str, mpi: str
) -> None:
    namespace.apply(example(file, mpi))
    assert counted(succeeds(namespace)) == BOTH
    ended = namespace.ended(launcher_of(namespace))
    assert (ended["exitCode"], ended["reason"], ended.get("message", "")) == (0, "Completed", "")


ROOT, AS_WORKER = "mpi-operator/root.yaml", {"runLauncherAsWorker": True}


@pytest.mark.parametrize(
    ("file", "mpi", "spec"),
    [
        ("mpi-operator/unchanged-image.yaml", "openmpi-5.0", {}),
        (ROOT, "openmpi-5.0", {"runPolicy": {"cleanPodPolicy": "None"}}),
        (OPENMPI, "openmpi-5.0", {"launcherCreationPolicy": "WaitForWorkersReady"}),
        (OPENMPI, "openmpi-4.1", AS_WORKER),
        (OPENMPI, "openmpi-5.0", AS_WORKER),
    ],
)
def test_an_example_that_is_changed(
    namespace: Namespace, file: str, mpi: str, spec: Fields
) -> None:
    namespace.apply(merged(example(file, mpi), {"spec": spec}))
    found = counted(succeeds(namespace))
    assert found.items() >= BOTH.items()
    assert len(found) == (3 if spec is AS_WORKER else 2)
    if file == ROOT:
        workers = namespace.pods("train", "worker")
        assert [namespace.ended(pod)["exitCode"] for pod in workers] == [0, 0]
        assert "openssh" in namespace.log(workers[0]).lower()


def until_ranks_run(namespace: Namespace) -> Fields:
    launcher = launcher_of(namespace)

    def look() -> bool:
        try:
            return counted(namespace.log(launcher)) == BOTH
        except KubectlError:  # its container is still being made
            return False

    namespace.wait_for("all ranks", look)
    return launcher


def test_doctor_and_a_worker_that_is_deleted_while_the_job_runs(namespace: Namespace) -> None:
    namespace.apply(example(OPENMPI, "openmpi-5.0", "--sleep", "600"))
    launcher = until_ranks_run(namespace)
    found = namespace.run("exec", launcher["metadata"]["name"], "--", "mpiboot", "doctor")
    assert "train-worker-1" in found
    assert "FAIL" not in found
    namespace.run("delete", "pod", "train-worker-1", "--grace-period=0", "--force")
    ended = namespace.ended(launcher)
    assert ended["exitCode"] == 69
    assert "train-worker-1" in ended["message"]
    assert namespace.condition("train", OVER) == "Failed"


def test_a_worker_whose_image_cannot_be_pulled_is_named(namespace: Namespace) -> None:
    job = example(OPENMPI, "openmpi-5.0")
    container(job, "Worker")["image"] = "localhost/mpiboot/no-such-image:1"
    env = container(job, "Launcher").setdefault("env", [])
    env.append({"name": "MPIBOOT_TIMEOUT", "value": "20s"})
    namespace.apply(job)
    ended = namespace.ended(launcher_of(namespace))
    assert ended["exitCode"] == 68
    assert ended["message"].startswith("names-unresolved: ")
    assert "train-worker-0" in ended["message"]
    assert "train-worker-1" in ended["message"]


def test_a_running_job_is_suspended_and_resumed(namespace: Namespace) -> None:
    namespace.apply(example(OPENMPI, "openmpi-5.0", "--sleep", "20"))
    until_ranks_run(namespace)
    patch = '{{"spec": {{"runPolicy": {{"suspend": {}}}}}}}'
    namespace.run("patch", "mpijob", "train", "--type", "merge", "--patch", patch.format("true"))
    namespace.wait_for("no pod is left", lambda: not namespace.pods("train", "worker"))
    namespace.run("patch", "mpijob", "train", "--type", "merge", "--patch", patch.format("false"))
    assert counted(succeeds(namespace)) == BOTH


def test_a_new_launcher_says_how_the_last_one_ended(namespace: Namespace) -> None:
    job = example(OPENMPI, "openmpi-5.0", "--exit", "3")
    job["spec"]["runPolicy"]["backoffLimit"] = 1
    namespace.apply(job)
    second = launcher_of(namespace, number=2)
    assert namespace.ended(second)["exitCode"] == 3
    assert "attempt 2" in namespace.log(second)
    assert namespace.ended(launcher_of(namespace))["exitCode"] == 3
    assert namespace.condition("train", OVER) == "Failed"


def documents_of(file: str, namespace: Namespace) -> list[Fields]:
    """An example's documents, with the image of the tests and in the namespace of the test."""
    text = json.dumps(examples.read(file)).replace(".default.svc", f".{namespace.name}.svc")
    for name in ("my-image", "my-worker-image"):
        text = text.replace(f'"{name}"', json.dumps(image("openmpi-5.0")))
    train = json.dumps(["./train", "--epochs", "3"])
    made = json.loads(text.replace(train, json.dumps([RING])))
    assert isinstance(made, list)
    return made


def make_key(namespace: Namespace, folder: Path) -> None:
    key = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    files = {"id_ed25519": key, "id_ed25519.pub": key.with_suffix(".pub")}
    data = {name: base64.b64encode(file.read_bytes()).decode() for name, file in files.items()}
    metadata = {"name": "train-ssh"}
    namespace.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})


def counted_when_complete(namespace: Namespace, job: str, log_of: str) -> dict[str, int]:
    """Wait for a Job's good end; how many ranks of its log ran on which host."""

    def look() -> Fields | None:
        made = namespace.get("job", job) or {}
        stands = made.get("status", {}).get("conditions", ())
        return next((item for item in stands if item["type"] in {"Complete", "Failed"}), None)

    ended = namespace.wait_for(f"{job} has ended", look)
    assert ended["type"] == "Complete", namespace.shown()
    return counted(namespace.run("logs", log_of))


def test_a_statefulset_and_a_job(namespace: Namespace, tmp_path: Path) -> None:
    make_key(namespace, tmp_path)
    namespace.apply(*documents_of("statefulset/configmap.yaml", namespace))
    found = counted_when_complete(namespace, "train-launcher", "job/train-launcher")
    assert found == {"train-worker-0": 2, "train-worker-1": 2}


def test_one_indexed_job(namespace: Namespace, tmp_path: Path) -> None:
    make_key(namespace, tmp_path)
    namespace.apply(*documents_of("jobs/indexed-job.yaml", namespace))
    (first,) = namespace.wait_for(
        "pod 0", lambda: namespace.selected("batch.kubernetes.io/job-completion-index=0")
    )
    found = counted_when_complete(namespace, "train", first["metadata"]["name"])
    assert found == {"train-0": 2, "train-1": 2}


def test_kubectl_enters_pods_without_sshd(namespace: Namespace) -> None:
    folder = os.environ.get("MPIBOOT_E2E_NODE_KUBECTL")
    if not folder:
        pytest.skip("MPIBOOT_E2E_NODE_KUBECTL names no folder of the nodes with kubectl in it")
    made = documents_of("kubectl/statefulset.yaml", namespace)
    (job,) = (item for item in made if item["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    pod["volumes"].append({"name": "kubectl", "hostPath": {"path": folder, "type": "Directory"}})
    launcher = pod["containers"][0]
    mount = {"name": "kubectl", "mountPath": "/opt/kubectl", "readOnly": True}
    launcher["volumeMounts"].append(mount)
    launcher["env"].append({"name": "PATH", "value": "/opt/kubectl:/usr/local/bin:/usr/bin:/bin"})
    namespace.apply(*made)
    found = counted_when_complete(namespace, "train-launcher", "job/train-launcher")
    assert found == {"train-worker-0": 1, "train-worker-1": 1}
