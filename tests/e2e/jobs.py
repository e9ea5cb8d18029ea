"""The repository's example MPIJobs, with the image and the program of the tests."""

from __future__ import annotations

import os
from typing import Any, Final

from tests.manifests import examples

Fields = dict[str, Any]
RING: Final = "/opt/programs/ring"
_SMALL: Final = {"requests": {"cpu": "10m", "memory": "32Mi"}}


def image(mpi: str) -> str:
    """The image of one MPI, as MPIBOOT_E2E_IMAGE names it."""
    return os.environ["MPIBOOT_E2E_IMAGE"].replace("NAME", mpi)


def templates(job: Fields) -> dict[str, Fields]:
    replicas = job["spec"]["mpiReplicaSpecs"]
    return {role: replicas[role]["template"]["spec"] for role in ("Launcher", "Worker")}


def container(job: Fields, role: str) -> Fields:
    (found,) = templates(job)[role]["containers"]
    assert isinstance(found, dict)
    return found


def example(file: str, mpi: str, *args: str, name: str = "train") -> Fields:
    """An example's MPIJob, which runs the ring with these arguments, on a small node."""
    (made,) = (item for item in examples.read(file) if item["kind"] == "MPIJob")
    made["metadata"]["name"] = name
    for role in ("Launcher", "Worker"):
        container(made, role).update(image=image(mpi), resources=_SMALL)
    container(made, "Launcher")["args"] = ["mpirun", RING, *args]
    return made


def ranks(log: str) -> dict[str, list[int]]:
    """Which ranks said on which host that they run: host -> ranks in order."""
    found: dict[str, list[int]] = {}
    for line in log.splitlines():
        words = line.split()
        if len(words) == 6 and words[0] == "rank" and words[2] == "of":
            found.setdefault(words[5], []).append(int(words[1]))
    return {host: sorted(numbers) for host, numbers in found.items()}


def set_env(job: Fields, role: str, **values: str) -> None:
    env = container(job, role).setdefault("env", [])
    env += [{"name": name, "value": value} for name, value in values.items()]
