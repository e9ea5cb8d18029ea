"""Pods of the rig from manifests: what they say is played, refused, or named as left out.

The image and its program are the rig's. What only a cluster reads (retries, nodes, devices) is
listed here with the reason, and left to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.pods.oci import CONTAINERD, PodSpec
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
_CONTROLLER = "there is no controller that would start a pod again, or clean up"
_NODE = "there is one machine, and nothing is scheduled"
_API = "there is no API server"
# Fields that say nothing to a pod here, wherever they stand, and why.
LEFT_OUT = {
    **dict.fromkeys(("backoffLimit", "cleanPodPolicy", "failurePolicy", "maxRetry"), _CONTROLLER),
    **dict.fromkeys(("podFailurePolicy", "policies", "restartPolicy"), _CONTROLLER),
    **dict.fromkeys(("activeDeadlineSeconds", "ttlSecondsAfterFinished"), _CONTROLLER),
    **dict.fromkeys(("affinity", "nodeSelector", "tolerations", "priorityClassName"), _NODE),
    **dict.fromkeys(("automountServiceAccountToken", "serviceAccountName"), _API),
    "resources": "every pod has all of this machine, and no device",
    "resourceClaims": "no device is claimed",
    "k8s.v1.cni.cncf.io/networks": "pods have the one network of all pods",
    "readinessProbe": "nobody asks whether a pod is ready",
    "imagePullPolicy": "the image is built here",
    "runAsNonRoot": "the user is taken as it is given",
}
_UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}


def only(fields: Fields, *known: str) -> Fields:
    """The same fields; one that is not played here is an error."""
    unknown = set(fields) - set(known)
    if unknown:
        raise LookupError(f"the rig does not play {', '.join(sorted(unknown))}")
    return fields


def left_out(made: Any, where: str = "") -> tuple[Any, list[str]]:  # noqa: ANN401 - of a document
    """A document without the fields that are not played, and a line for each of these."""
    told: list[str] = []
    if isinstance(made, list):
        items = [left_out(item, f"{where}[{number}]") for number, item in enumerate(made)]
        return [item for item, _ in items], [line for _, lines in items for line in lines]
    if not isinstance(made, dict):
        return made, told
    kept = {}
    for name, value in made.items():
        place = f"{where}.{name}".lstrip(".")
        if name in LEFT_OUT:
            told.append(f"{place}: {LEFT_OUT[name]}")
        else:
            kept[name], more = left_out(value, place)
            told += more
    return kept, told


def merged(fields: Fields, more: Fields) -> Fields:
    """A manifest with the fields of another one that a page tells the reader to add."""
    both = {**fields, **more}
    for name in fields.keys() & more.keys():
        if isinstance(fields[name], dict):
            both[name] = merged(fields[name], more[name])
    return both


def play_mpijob(cluster: Cluster, image: Image, manifest: Fields) -> Job:
    """The pods of an MPIJob."""
    manifest, _ = left_out(manifest)
    only(manifest, "apiVersion", "kind", "metadata", "spec")
    spec = only(
        manifest["spec"],
        *("slotsPerWorker", "mpiImplementation", "sshAuthMountPath", "runLauncherAsWorker"),
        *("launcherCreationPolicy", "runPolicy", "mpiReplicaSpecs"),
    )
    only(spec.get("runPolicy", {}))
    replicas = spec["mpiReplicaSpecs"]
    launcher, worker = (_replicas(replicas[name]) for name in ("Launcher", "Worker"))
    return mpijob(
        cluster,
        image,
        name=manifest["metadata"]["name"],
        workers=replicas["Worker"].get("replicas", 1),
        slots=spec.get("slotsPerWorker", 1),
        mpi=spec.get("mpiImplementation", "OpenMPI"),
        as_worker=spec.get("runLauncherAsWorker", False),
        launcher_args=launcher.pop("args"),
        launcher_command=launcher.pop("command"),
        worker_args=worker.pop("args"),
        worker_command=worker.pop("command"),
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
        user=job.launcher.spec.user,
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
    """The pods of a job that no operator for MPI makes, and what its launcher's pod runs before."""

    workers: list[Pod]
    launcher: Pod
    before: list[Pod] = field(default_factory=list)

    def start(self, patience: float = 60) -> None:
        """Start the workers with their names, the launcher's init containers, the launcher."""
        for worker in self.workers:
            if worker is not self.launcher:
                worker.start().publish()
        for init in self.before:
            if code := init.start().wait(patience):
                raise InitError(f"{init.spec.name} ended with {code}:\n{init.stderr()}")
        self.launcher.start()
        if self.launcher.spec.subdomain:
            self.launcher.publish()


class InitError(Exception):
    """An init container failed, so that the launcher's pod is not started."""


def play_statefulset(
    cluster: Cluster, image: Image, manifests: Sequence[Fields], objects: Objects
) -> Without:
    """The pods of a headless Service, a StatefulSet and a Job, with their volumes' files."""
    by_kind = {made["kind"]: left_out(made)[0] for made in manifests}
    service, workers, job = (by_kind.pop(kind) for kind in ("Service", "StatefulSet", "Job"))
    config = by_kind.pop("ConfigMap", None)
    if config:
        objects = {config["metadata"]["name"]: config["data"], **objects}
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
        for index in range(spec["replicas"])
    ]
    only(job["spec"], "template")
    pod = dict(only(job["spec"]["template"], "spec")["spec"])
    waiting = pod.pop("initContainers", [])
    name = f"{job['metadata']['name']}-x7k2p"
    before = [
        PodSpec(
            name=f"{name}-{container['name']}",
            image=image,
            **play_pod({**pod, "containers": [container]}, objects),
        )
        for container in waiting
    ]
    launcher = PodSpec(name=name, image=image, **play_pod(pod, objects))
    return Without(
        [cluster.pod(item) for item in made],
        cluster.pod(launcher),
        [cluster.pod(item) for item in before],
    )


def _replicas(fields: Fields) -> Fields:
    only(fields, "replicas", "template")
    return play_pod(only(fields["template"], "metadata", "spec")["spec"])


def play_pod(fields: Fields, objects: Objects | None = None) -> Fields:
    """The fields of a PodSpec."""
    fields, _ = left_out(fields)
    only(fields, "containers", "volumes", "securityContext", "dnsConfig")
    (container,) = fields["containers"]
    only(
        container,
        *("name", "image", "command", "args", "env", "volumeMounts", "securityContext"),
    )
    made: Fields = {"command": container.get("command"), "args": container.get("args", ())}
    pod = only(fields.get("securityContext", {}), "runAsUser", "fsGroup", "seccompProfile")
    made |= _rights({**pod, **container.get("securityContext", {})})
    if "env" in container:
        made["env"] = {item["name"]: item["value"] for item in container["env"]}
    if "dnsConfig" in fields:
        made["searches"] = only(fields["dnsConfig"], "searches")["searches"]
    volumes = {item["name"]: item for item in fields.get("volumes", ())}
    made["volumes"] = [
        _volume(volumes[mount["name"]], mount["mountPath"], objects or {}, pod.get("fsGroup"))
        for mount in container.get("volumeMounts", ())
    ]
    return made


def _rights(security: Fields) -> Fields:
    """User, capabilities and the like, of the pod's and the container's security contexts."""
    only(
        security,
        *("runAsUser", "fsGroup", "seccompProfile", "capabilities", "readOnlyRootFilesystem"),
        "allowPrivilegeEscalation",
    )
    made: Fields = {
        "user": security.get("runAsUser", 0),
        "read_only_root": security.get("readOnlyRootFilesystem", False),
        "no_new_privileges": not security.get("allowPrivilegeEscalation", True),
        "seccomp": security.get("seccompProfile") == {"type": "RuntimeDefault"},
    }
    if "fsGroup" in security:
        made["groups"] = [security["fsGroup"]]
    if "capabilities" in security:
        change = only(security["capabilities"], "drop", "add")
        drops = set(change.get("drop", ()))
        kept = () if "ALL" in drops else [c for c in CONTAINERD if c[4:] not in drops]
        # A capability that is added is effective for root alone.
        added = [f"CAP_{name}" for name in change.get("add", ())]
        made["capabilities"] = tuple(dict.fromkeys([*kept, *added]))
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
