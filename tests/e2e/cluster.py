"""One namespace of a cluster, seen as its user sees it: by kubectl alone."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

Fields = dict[str, Any]
T = TypeVar("T")

# A guard against a hang: what a loaded cluster needs to start some pods, several times over.
_PATIENCE: Final = 240.0
_AGAIN: Final = 1.0
_JOB: Final = "training.kubeflow.org/job-name={},training.kubeflow.org/job-role={}"


def kubectl_words() -> list[str]:
    return shlex.split(os.environ.get("MPIBOOT_E2E_KUBECTL", "kubectl"))


class KubectlError(Exception):
    """What kubectl said when it failed."""


def kubectl(*words: str, text: str | None = None) -> str:
    """Run kubectl and give what it wrote.

    Raises:
        KubectlError: it failed.
    """
    done = subprocess.run(
        [*kubectl_words(), *words], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise KubectlError(f"kubectl {shlex.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Namespace:
    def __init__(self, labels: dict[str, str]) -> None:
        self.name = f"mpiboot-{uuid.uuid4().hex[:8]}"
        metadata = {"name": self.name, "labels": labels}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        # Pods are refused until the controller has made the account that they run as.
        self.wait_for("the default service account", lambda: self.get("serviceaccount", "default"))

    def end(self) -> None:
        kubectl("delete", "namespace", self.name, "--wait=false")

    def apply(self, *documents: Fields) -> None:
        """Create what the documents say, in this namespace.

        Raises:
            KubectlError: the cluster refused one.
        """
        made = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        kubectl("--namespace", self.name, "apply", "-f", "-", text=json.dumps(made))

    def run(self, *words: str) -> str:
        return kubectl("--namespace", self.name, *words)

    def get(self, kind: str, name: str) -> Fields | None:
        found = self.run("get", kind, name, "--ignore-not-found", "-o", "json")
        return json.loads(found) if found else None

    def pods(self, job: str, role: str) -> list[Fields]:
        return self.selected(_JOB.format(job, role))

    def selected(self, selector: str) -> list[Fields]:
        found = json.loads(self.run("get", "pods", "-l", selector, "-o", "json"))["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def log(self, pod: Fields, *words: str) -> str:
        return self.run("logs", pod["metadata"]["name"], *words)

    def wait_for(self, what: str, look: Callable[[], T | None]) -> T:
        """Look again and again until something is there.

        Raises:
            AssertionError: it did not come; with what is in the namespace.
        """
        until = time.monotonic() + _PATIENCE
        while not (found := look()):
            if time.monotonic() > until:
                raise AssertionError(f"{what}: not there in time\n{self.shown()}")
            time.sleep(_AGAIN)
        return found

    def condition(self, job: str, wanted: Sequence[str]) -> str:
        def look() -> str | None:
            made = self.get("mpijob", job) or {}
            stands = {
                item["type"]
                for item in made.get("status", {}).get("conditions", ())
                if item["status"] == "True"
            }
            return next((name for name in wanted if name in stands), None)

        return self.wait_for(f"{job}: {' or '.join(wanted)}", look)

    def ended(self, pod: Fields) -> Fields:
        name = pod["metadata"]["name"]

        def look() -> Fields | None:
            found = self.get("pod", name)
            assert found, f"{name} is gone before its end was seen"
            (status,) = found["status"].get("containerStatuses") or [{}]
            ended: Fields | None = status.get("state", {}).get("terminated")
            return ended

        return self.wait_for(f"{name} has ended", look)

    def shown(self) -> str:
        """What somebody would look at when a job hangs: pods, events, logs."""
        lines = [self.run("get", "mpijobs,pods", "-o", "wide"), self.run("get", "events")]
        for pod in json.loads(self.run("get", "pods", "-o", "json"))["items"]:
            name = pod["metadata"]["name"]
            try:
                lines += [f"--- {name}", self.log(pod, "--tail=60")]
            except KubectlError as wrong:
                lines.append(str(wrong))
        return "\n".join(lines)
