"""A file of manifests, played: which of its documents make pods here, and how.

What the file lacks without a cluster is put in its place and told: an image of container/, a
program that says where each rank is, a key. So is what is left out.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.manifests import check
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.manifest import (
    Fields,
    NotPlayedError,
    Objects,
    Without,
    left_out,
    needed,
    play_mpijob,
    play_statefulset,
)
from tests.pods.oci import PodSpec
from tests.pods.operator import KeyPair
from tests.pods.platforms import play_indexed_job, play_jobset, play_trainjob, play_volcano

Play = Callable[[Cluster, Image, list[Fields], Objects], Without]

# The sample takes whatever options the manifest's own program has.
_SAMPLE: Final = "#!/bin/sh\nexec /opt/programs/ring\n"
_COMMANDS: Final = ("launcher", "worker", "wait", "exec", "copy-to")
_IMAGES: Final = {"MPICH": "mpich-5.0", "Intel": "intel-mpi"}
# Kinds that make no pod.
_NO_POD: Final = {
    *("ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "Namespace"),
    *("SecurityContextConstraints", "SriovNetworkNodePolicy", "SriovNetwork", "MacvlanNetwork"),
    *("IPoIBNetwork", "DeviceClass", "ResourceClaimTemplate"),
}


class NoCluster:
    """Stands for a cluster while a file is checked, so that errors come before any start."""

    def pod(self, spec: PodSpec) -> PodSpec:
        return spec


def _mpijob(cluster: Cluster, image: Image, documents: list[Fields], _: Objects) -> Without:
    (document,) = documents
    job = play_mpijob(cluster, image, document)
    return Without(job.launcher, job.workers)


def _job(cluster: Cluster, image: Image, documents: list[Fields], objects: Objects) -> Without:
    """With a StatefulSet the Job is the launcher, else its pods are the whole job."""
    if any(document["kind"] == "StatefulSet" for document in documents):
        return play_statefulset(cluster, image, documents, objects)
    first, *others = play_indexed_job(cluster, image, documents, objects)
    return Without(first, others)


# By apiVersion and kind, the one document that is the job; and the kinds that stand beside it.
_JOBS: Final[dict[tuple[str, str], tuple[Play, tuple[str, ...]]]] = {
    ("kubeflow.org/v2beta1", "MPIJob"): (_mpijob, ()),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): (play_trainjob, ("ClusterTrainingRuntime",)),
    ("batch.volcano.sh/v1alpha1", "Job"): (play_volcano, ()),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): (play_jobset, ()),
    ("batch/v1", "Job"): (_job, ("StatefulSet", "Service", "ConfigMap")),
}


@dataclass(frozen=True)
class Prepared:
    """A job that can be played: its name, its documents, its objects' files.

    `told` is what is left out. `program` is empty where it has no path.
    """

    name: str
    documents: list[Fields]
    objects: Objects
    told: list[str]
    image: str
    program: str
    make: Play

    def played(self, cluster: Cluster, image: Image) -> Without:
        return self.make(cluster, self.with_program(image), self.documents, self.objects)

    def with_program(self, image: Image) -> Image:
        """The image, with the sample at the path of the program that it lacks."""
        if not self.program or self.lacks_nothing(image):
            return image
        return image.with_files({self.program: _SAMPLE}, 0o755)

    def lacks_nothing(self, image: Image) -> bool:
        """Whether the manifest's program is in the image, or has no path."""
        there = (layer / self.program.lstrip("/") for layer in image.layers)
        return not self.program or any(path.exists() for path in there)


def prepare(path: Path) -> Prepared:
    """Find the job of a file, and what of it is played.

    Raises:
        ManifestError: the file can't be read, or isn't YAML.
        NotPlayedError: fields are unknown, missing, or can't be had without a cluster, or there is
            not one job; in a line each.
    """
    documents = check.read(path)
    try:
        return _prepared(documents)
    except NotPlayedError as error:
        lines = "\n".join(f"{path}: {line}" for line in str(error).splitlines())
        raise NotPlayedError(lines) from None


def _prepared(documents: list[Fields]) -> Prepared:
    jobs = [item for item in documents if (item["apiVersion"], item["kind"]) in _JOBS]
    if len(jobs) != 1:
        found = ", ".join(f"{item['kind']} ({item['apiVersion']})" for item in jobs or documents)
        known = ", ".join(f"{kind} ({version})" for version, kind in _JOBS)
        raise NotPlayedError(f"it has {found}: one job is played, of {known}")
    if wrong := [line for document in documents for line in check.wrong(document)]:
        raise NotPlayedError("\n".join(wrong))
    (job,) = jobs
    make, beside = _JOBS[job["apiVersion"], job["kind"]]
    objects = {
        item["metadata"]["name"]: _files(item) for item in documents if item["kind"] == "Secret"
    }
    kept: list[Fields] = []
    told: set[str] = set()
    for item in documents:
        name = f"{item['kind']} {needed(item, 'metadata', 'name')}"
        if item is job or item["kind"] in beside:
            kept.append(item)
            told.update(left_out(item)[1])
        elif item["kind"] in _NO_POD:
            told.add(name)
        elif item["kind"] != "Secret":
            raise NotPlayedError(f"{item['kind']} can't be played beside {job['kind']}")
    agent = {"name": "MPIBOOT_LAUNCH_AGENT", "value": "kubectl"}
    if agent in check.below(kept):
        raise NotPlayedError("MPIBOOT_LAUNCH_AGENT=kubectl needs an API server")
    for name in sorted(_secrets(kept) - set(objects)):
        objects[name] = KeyPair.make().files()
        told.add(f"Secret {name}, for which a key is made")
    make(NoCluster(), None, kept, objects)  # type: ignore[arg-type]
    return Prepared(
        name=f"{job['kind']} {job['metadata']['name']}",
        documents=kept,
        objects=objects,
        told=sorted(told),
        image=_IMAGES.get(job["spec"].get("mpiImplementation", ""), "openmpi-5.0"),
        program=_program(kept),
        make=make,
    )


def _files(secret: Fields) -> dict[str, str]:
    plain = dict(secret.get("stringData", {}))
    coded = secret.get("data", {})
    return {name: base64.b64decode(text).decode() for name, text in coded.items()} | plain


def _secrets(documents: Sequence[Fields]) -> set[str]:
    return {
        item["secret"]["secretName"]
        for item in check.below(documents)
        if "secretName" in item.get("secret", ())
    }


def _program(documents: Sequence[Fields]) -> str:
    """The program of the ranks, where the manifest has it by a path; pods start in /."""
    for item in check.below(documents):
        args = item.get("args", ())
        for word in args if args and args[0] not in _COMMANDS[1:] else ():
            if word.startswith(("./", "/")):
                return "/" + str(word).removeprefix("./").lstrip("/")
    return ""
