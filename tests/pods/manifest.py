"""Pods of the rig from a page's manifests: what they say is played or refused, never dropped.

The page's image and its program are the rig's; its numbers are for real machines, the test has its
own. What only a cluster's controllers read (retries, clean-up) is listed here and left to them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.pods.oci import PodSpec
from tests.pods.operator import mpijob
from tests.pods.volumes import EmptyDir, Files, Tmpfs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.pods.cluster import Cluster
    from tests.pods.images import Image
    from tests.pods.operator import Job
    from tests.pods.pod import Pod
    from tests.pods.volumes import Volume

    # The files of Secrets and ConfigMaps, by their names.
    Objects = Mapping[str, Mapping[str, str]]

Fields = dict[str, Any]
_UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}


def only(fields: Fields, *known: str) -> Fields:
    """The same fields; one that is not played here is an error."""
    unknown = set(fields) - set(known)
    if unknown:
        raise LookupError(f"the rig does not play {', '.join(sorted(unknown))}")
    return fields


def merged(fields: Fields, more: Fields) -> Fields:
    """A manifest with the fields of another one that a page tells the reader to add."""
    both = {**fields, **more}
    for name in fields.keys() & more.keys():
        if isinstance(fields[name], dict):
            both[name] = merged(fields[name], more[name])
    return both


def play_mpijob(cluster: Cluster, image: Image, manifest: Fields) -> Job:
    """The pods of an MPIJob, of two workers with a slot each."""
    only(manifest, "apiVersion", "kind", "metadata", "spec")
    spec = only(
        manifest["spec"], "slotsPerWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath"
    )
    launcher, worker = (
        _replicas(spec["mpiReplicaSpecs"][name], None) for name in ("Launcher", "Worker")
    )
    return mpijob(
        cluster,
        image,
        name=manifest["metadata"]["name"],
        workers=2,
        launcher_args=launcher.pop("args"),
        worker_args=worker.pop("args"),
        ssh_mount=spec.get("sshAuthMountPath", "/root/.ssh"),
        launcher=launcher,
        worker=worker,
    )


def play_init_container(job: Job, cluster: Cluster, container: Fields) -> Pod:
    """An init container of an MPIJob's launcher: the operator's volumes, not its variables."""
    only(container, "name", "image", "command", "volumeMounts")
    ssh, config = job.launcher.spec.volumes[:2]
    volumes = {"ssh-auth": ssh, "mpi-job-config": config}
    for mount in container["volumeMounts"]:
        assert volumes[mount["name"]].path == mount["mountPath"]
    spec = PodSpec(
        name=f"{job.name}-launcher-init",
        image=job.launcher.spec.image,
        command=container["command"],
        volumes=[
            Files(volume.path, volume.files, volume.mode, volume.modes)
            for volume in (ssh, config)
            if isinstance(volume, Files)
        ],
    )
    return cluster.pod(spec)


@dataclass
class Without:
    """The pods of a page that needs no operator: a StatefulSet's and a Job's."""

    workers: list[Pod]
    launcher: Pod


def play_statefulset(
    cluster: Cluster, image: Image, manifests: Sequence[Fields], objects: Objects
) -> Without:
    """The pods of a headless Service, a StatefulSet of two and a Job, with their volumes' files."""
    by_kind = {made["kind"]: made for made in manifests}
    service, workers, job = (by_kind.pop(kind) for kind in ("Service", "StatefulSet", "Job"))
    assert not by_kind
    headless = only(service["spec"], "clusterIP", "publishNotReadyAddresses", "selector")
    assert headless["clusterIP"] == "None"
    spec = only(
        workers["spec"], "serviceName", "replicas", "podManagementPolicy", "selector", "template"
    )
    labels = spec["template"]["metadata"]["labels"]
    assert headless["selector"] == spec["selector"]["matchLabels"] == labels
    assert service["metadata"]["name"] == spec["serviceName"]
    made = [
        PodSpec(
            name=f"{workers['metadata']['name']}-{index}",
            image=image,
            subdomain=spec["serviceName"],
            **play_pod(spec["template"]["spec"], objects),
        )
        for index in range(2)
    ]
    only(job["spec"], "backoffLimit", "podFailurePolicy", "template")
    launcher = PodSpec(
        name=f"{job['metadata']['name']}-x7k2p",
        image=image,
        **play_pod(only(job["spec"]["template"], "spec")["spec"], objects),
    )
    return Without([cluster.pod(item) for item in made], cluster.pod(launcher))


def _replicas(fields: Fields, objects: Objects | None) -> Fields:
    only(fields, "replicas", "restartPolicy", "template")
    return play_pod(only(fields["template"], "spec")["spec"], objects)


def play_pod(fields: Fields, objects: Objects | None = None) -> Fields:
    """The fields of a PodSpec."""
    only(fields, "containers", "volumes", "securityContext", "restartPolicy", "dnsConfig")
    (container,) = fields["containers"]
    only(container, "name", "image", "args", "env", "volumeMounts")
    made: Fields = {"args": container["args"]}
    if "securityContext" in fields:
        security = only(fields["securityContext"], "runAsUser", "fsGroup")
        made["user"] = security["runAsUser"]
    if "env" in container:
        made["env"] = {item["name"]: item["value"] for item in container["env"]}
    if "dnsConfig" in fields:
        made["searches"] = only(fields["dnsConfig"], "searches")["searches"]
    volumes = {item["name"]: item for item in fields.get("volumes", ())}
    group = fields.get("securityContext", {}).get("fsGroup")
    made["volumes"] = [
        _volume(volumes[mount["name"]], mount["mountPath"], objects or {}, group)
        for mount in container.get("volumeMounts", ())
    ]
    return made


def _volume(fields: Fields, path: str, objects: Objects, group: int | None) -> Volume:
    only(fields, "name", "emptyDir", "secret", "configMap")
    if "emptyDir" in fields:
        memory = only(fields["emptyDir"], "medium", "sizeLimit")
        if memory.get("medium") != "Memory":
            return EmptyDir(path)
        number, unit = re.fullmatch(r"(\d+)([MG]i)", memory["sizeLimit"]).groups()  # type: ignore[union-attr]
        return Tmpfs(path, size=int(number) * _UNITS[unit])
    if "secret" in fields:
        secret = only(fields["secret"], "secretName", "defaultMode")
        files, mode = objects[secret["secretName"]], secret.get("defaultMode", 0o644)
        return Files(path, files, mode, fs_group=group)
    config = only(fields["configMap"], "name")
    return Files(path, objects[config["name"]])
