"""The examples that need no operator, in a real cluster."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Namespace
from tests.e2e.jobs import RING, image, ranks
from tests.manifests import examples

Fields = dict[str, Any]
MPI = "openmpi-5.0"


def read(file: str, namespace: Namespace) -> list[Fields]:
    """An example's documents, with the image of the tests and in the namespace of the test."""
    text = json.dumps(examples.read(file)).replace(".default.svc", f".{namespace.name}.svc")
    for name in ("my-image", "my-worker-image"):
        text = text.replace(f'"{name}"', json.dumps(image(MPI)))
    train = json.dumps(["./train", "--epochs", "3"])
    made = json.loads(text.replace(train, json.dumps([RING])))
    assert isinstance(made, list)
    return made


def make_key(namespace: Namespace, folder: Path) -> None:
    """Make the job's key and its Secret, as the pages say."""
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
    return {host: len(found) for host, found in ranks(namespace.run("logs", log_of)).items()}


def test_a_statefulset_and_a_job(namespace: Namespace, tmp_path: Path) -> None:
    make_key(namespace, tmp_path)
    namespace.apply(*read("statefulset/configmap.yaml", namespace))
    found = counted_when_complete(namespace, "train-launcher", "job/train-launcher")
    assert found == {"train-worker-0": 2, "train-worker-1": 2}


def test_one_indexed_job(namespace: Namespace, tmp_path: Path) -> None:
    make_key(namespace, tmp_path)
    namespace.apply(*read("jobs/indexed-job.yaml", namespace))
    (first,) = namespace.wait_for(
        "pod 0", lambda: namespace.selected("batch.kubernetes.io/job-completion-index=0")
    )
    found = counted_when_complete(namespace, "train", first["metadata"]["name"])
    assert found == {"train-0": 2, "train-1": 2}


def test_kubectl_enters_pods_without_sshd(namespace: Namespace) -> None:
    folder = os.environ.get("MPIBOOT_E2E_NODE_KUBECTL")
    if not folder:
        pytest.skip("MPIBOOT_E2E_NODE_KUBECTL names no folder of the nodes with kubectl in it")
    made = read("kubectl/statefulset.yaml", namespace)
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
