"""The pods of an indexed Job and of a JobSet from their manifests, with what controllers add.

As in KEP-2214 (Kubernetes' pkg/controller/job/indexed_job_utils.go): the index as a variable, and
in the host name. As JobSet v0.12.0 does (pkg/controllers/jobset_controller.go, and the defaults of
pkg/webhooks/jobset_webhook.go): Jobs are called JOBSET-REPLICATED_JOB-INDEX, are indexed, and their
pods' subdomain is the JobSet's name. No other variable is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.pods.cluster import Cluster
from tests.pods.fields import NotPlayedError, left_out, needed, only
from tests.pods.images import Image
from tests.pods.manifest import Objects, Without, headless, play_pod
from tests.pods.oci import PodSpec
from tests.pods.pod import Pod


def play_indexed_job(
    cluster: Cluster,
    image: Image,
    manifests: Sequence[dict[str, Any]],
    objects: Objects,
    **more: Any,
) -> list[Pod]:
    """The pods of a headless Service and one Job; `more` is for all of them."""
    by_kind = {made["kind"]: left_out(made)[0] for made in manifests}
    only(by_kind, "Service", "Job")
    service, job = (needed(by_kind, kind) for kind in ("Service", "Job"))
    name = job["metadata"]["name"]
    if job["spec"].get("completionMode") != "Indexed":
        raise NotPlayedError(
            "Job: completionMode: Indexed is missing: its pods would have no names"
        )
    headless(service, needed(job, "spec", "template", "spec", "subdomain"), {"job-name": name})
    return _pods(cluster, image, name, job["spec"], objects, **more)


def play_jobset(
    cluster: Cluster, image: Image, manifest: dict[str, Any], objects: Objects
) -> Without:
    """The pods of a JobSet of two replicated Jobs, worker and launcher."""
    manifest, _ = left_out(manifest)
    name = manifest["metadata"]["name"]
    needed(manifest, "spec", "replicatedJobs")
    spec = only(manifest["spec"], "network", "successPolicy", "replicatedJobs")
    made = {}
    for replicated in spec["replicatedJobs"]:
        only(replicated, "name", "template")
        own = only(replicated["template"], "metadata", "spec")["spec"]
        own["template"]["spec"]["subdomain"] = name
        job = f"{name}-{replicated['name']}-0"
        made[replicated["name"]] = _pods(cluster, image, job, own, objects)
    (launcher,) = needed(made, "launcher")
    return Without(needed(made, "worker"), launcher)


def _pods(
    cluster: Cluster, image: Image, name: str, job: dict[str, Any], objects: Objects, **more: Any
) -> list[Pod]:
    only(job, "completionMode", "completions", "parallelism", "template")
    if needed(job, "completions") != job.get("parallelism"):
        raise NotPlayedError("Job: completions and parallelism differ: not all pods would be there")
    pod = dict(only(job["template"], "metadata", "spec")["spec"])
    subdomain = pod.pop("subdomain")
    fields = play_pod(pod, objects)
    env = fields.pop("env", {})
    return [
        cluster.pod(
            PodSpec(
                name=f"{name}-{index}-x7k2p",
                hostname=f"{name}-{index}",
                subdomain=subdomain,
                image=image,
                env={**env, "JOB_COMPLETION_INDEX": str(index)},
                **{**fields, **more},
            )
        )
        for index in range(job["completions"])
    ]
