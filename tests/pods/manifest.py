"""Pods of the rig from manifests: each field is played or refused, never dropped.

The image and its program are the rig's. What only a cluster reads is `LEFT_OUT`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.oci import CONTAINERD, PodSpec
from tests.pods.operator import Job, Launched, mpijob
from tests.pods.pod import GUARD, Pod
from tests.pods.volumes import EmptyDir, Files, Tmpfs, Volume

Fields = dict[str, Any]
# Fields that say nothing to a pod here, wherever they stand: a controller, a scheduler, a kubelet
# or an API server reads them; pods have all of this machine, no devices and one network, where
# every port is open, and an image that is built here.
LEFT_OUT = {
    *("backoffLimit", "cleanPodPolicy", "maxRetry", "failurePolicy", "podFailurePolicy"),
    *("policies", "restartPolicy", "activeDeadlineSeconds", "ttlSecondsAfterFinished"),
    *("affinity", "nodeSelector", "tolerations", "priorityClassName", "resources", "ports"),
    *("automountServiceAccountToken", "serviceAccountName", "resourceClaims", "readinessProbe"),
    *("k8s.v1.cni.cncf.io/networks", "imagePullPolicy", "imagePullSecrets", "lifecycle"),
    *("livenessProbe", "startupProbe", "terminationGracePeriodSeconds", "envFrom", "runAsNonRoot"),
}


class NotPlayedError(Exception):
    """A manifest that can't be played, or makes no job; the text is one line for its user."""


def only(fields: Fields, *known: str) -> Fields:
    """The same fields; one that is not played here is an error."""
    unknown = set(fields) - set(known)
    if unknown:
        raise NotPlayedError(f"{', '.join(sorted(unknown))} can't be played without a cluster")
    return fields


def needed(fields: Fields, *path: str) -> Any:
    """What stands at a path; an error names the first field that is missing."""
    found: Any = fields
    for depth, name in enumerate(path, 1):
        if not isinstance(found, dict) or found.get(name) in (None, {}, []):
            raise NotPlayedError(f"{fields.get('kind', '')}: {'.'.join(path[:depth])} is missing")
        found = found[name]
    return found


def merged(fields: Fields, more: Fields) -> Fields:
    """A manifest with the fields that a page has the reader add."""
    both = {**fields, **more}
    for name in fields.keys() & more.keys():
        if isinstance(fields[name], dict):
            both[name] = merged(fields[name], more[name])
    return both


def left_out(made: Any) -> tuple[Any, list[str]]:
    told: list[str] = []
    return _kept(made, told), told


def _kept(made: Any, told: list[str]) -> Any:
    if isinstance(made, list):
        return [_kept(item, told) for item in made]
    if not isinstance(made, dict):
        return made
    if "containers" in made:
        made = {**made, "volumes": [_known(item, told) for item in made.get("volumes", ())]}
    kept = {}
    for name, value in made.items():
        if name in LEFT_OUT:
            told.append(name)
        elif name == "env" and isinstance(value, list):
            kept[name] = [item for item in value if "value" in item]
            told += [item["name"] for item in value if "value" not in item]
        else:
            kept[name] = _kept(value, told)
    return kept


def _known(volume: Fields, told: list[str]) -> Fields:
    """A volume that can be made here, or an empty folder in its place."""
    kind = next((name for name in volume if name != "name"), "")
    if kind in {"emptyDir", "secret", "configMap"}:
        return volume
    told.append(f"{kind} of the volume {volume['name']}, which is an empty folder")
    return {"name": volume["name"], "emptyDir": {}}


# The files of Secrets and ConfigMaps, by their names.
Objects = Mapping[str, Mapping[str, str | bytes]]

_UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}


def play_mpijob(cluster: Cluster, image: Image, manifest: Fields) -> Job:
    manifest, _ = left_out(manifest)
    only(manifest, "apiVersion", "kind", "metadata", "spec")
    spec = only(
        manifest["spec"],
        *("slotsPerWorker", "mpiImplementation", "sshAuthMountPath", "runLauncherAsWorker"),
        *("launcherCreationPolicy", "runPolicy", "mpiReplicaSpecs"),
    )
    only(spec.get("runPolicy", {}))
    replicas = {
        name: needed(manifest, "spec", "mpiReplicaSpecs", name) for name in ("Launcher", "Worker")
    }
    launcher, worker = (_replicas(made, image) for made in replicas.values())
    if not (workers := replicas["Worker"].get("replicas", 1)):
        raise NotPlayedError("MPIJob: spec.mpiReplicaSpecs.Worker.replicas is 0")
    return mpijob(
        cluster,
        image,
        name=needed(manifest, "metadata", "name"),
        namespace=manifest["metadata"].get("namespace", "default"),
        workers=workers,
        slots=spec.get("slotsPerWorker", 1),
        mpi=spec.get("mpiImplementation", "OpenMPI"),
        as_worker=spec.get("runLauncherAsWorker", False),
        launcher_args=launcher.pop("args"),
        launcher_command=launcher.pop("command"),
        worker_args=worker.pop("args"),
        worker_command=worker.pop("command"),
        ssh_mount=spec.get("sshAuthMountPath", "/root/.ssh"),
        env={"MPIBOOT_LOG_LEVEL": "info"},  # as where nobody sets it: the rig's own is debug
        launcher=launcher,
        worker=worker,
    )


def play_init_container(job: Job, cluster: Cluster, pod: Fields) -> Pod:
    """The init container of an MPIJob's launcher: the operator's volumes, not its variables."""
    ssh = job.launcher.spec.volumes[0]
    assert isinstance(ssh, Files)
    added = [
        {"name": "ssh-auth", "secret": {"secretName": "ssh", "defaultMode": ssh.mode}},
        {"name": "mpi-job-config", "configMap": {"name": "config"}},
    ]
    volumes = [*pod.get("volumes", ()), *added]
    fields = {**pod, "containers": pod["initContainers"], "volumes": volumes}
    del fields["initContainers"]
    made = play_pod(fields, {"ssh": ssh.files, "config": job.config.files})
    return cluster.pod(PodSpec(name=f"{job.name}-init", image=job.launcher.spec.image, **made))


class Without(Launched):
    """The pods of a job that no operator for MPI makes."""

    def start(self, patience: float = GUARD) -> None:
        """Start the workers with their names, then the launcher."""
        for worker in self.workers:
            if worker is not self.launcher:
                worker.start().publish()
        self.launcher.start(patience)
        if self.launcher.spec.subdomain:
            self.launcher.publish()


def play_statefulset(
    cluster: Cluster, image: Image, manifests: Sequence[Fields], objects: Objects
) -> Without:
    """The pods of a headless Service, a StatefulSet and a Job, with their volumes' files."""
    by_kind = {made["kind"]: left_out(made)[0] for made in manifests}
    only(by_kind, "Service", "StatefulSet", "Job", "ConfigMap")
    service, workers, job = (needed(by_kind, kind) for kind in ("Service", "StatefulSet", "Job"))
    if config := by_kind.get("ConfigMap"):
        objects = {config["metadata"]["name"]: config["data"], **objects}
    spec = only(
        workers["spec"], "serviceName", "replicas", "podManagementPolicy", "selector", "template"
    )
    labels = needed(spec, "template", "metadata", "labels")
    if spec["selector"] != {"matchLabels": labels}:
        raise NotPlayedError("StatefulSet: its selector's matchLabels are not its pods' labels")
    headless(service, spec["serviceName"], labels)
    made = [
        PodSpec(
            name=f"{workers['metadata']['name']}-{index}",
            image=image,
            subdomain=spec["serviceName"],
            **play_pod(spec["template"]["spec"], objects),
        )
        for index in range(spec.get("replicas", 1))
    ]
    only(job["spec"], "template")
    pod = _with_inits(only(job["spec"]["template"], "spec")["spec"], image, objects)
    launcher = PodSpec(name=f"{job['metadata']['name']}-x7k2p", image=image, **pod)
    return Without(cluster.pod(launcher), [cluster.pod(item) for item in made])


def headless(service: Fields, name: str, labels: Fields) -> None:
    """Refuse a Service that would not give these pods their names."""
    spec = only(service["spec"], "clusterIP", "publishNotReadyAddresses", "selector")
    if service["metadata"]["name"] != name:
        raise NotPlayedError(f"Service: the pods' one is called {name}")
    if spec.get("clusterIP") != "None":
        raise NotPlayedError("Service: clusterIP: None is missing: pods would have no names")
    if spec.get("selector") != labels:
        raise NotPlayedError(f"Service: its selector is not {labels}, the pods' labels")


def _replicas(fields: Fields, image: Image | None) -> Fields:
    only(fields, "replicas", "template")
    return _with_inits(only(needed(fields, "template"), "metadata", "spec")["spec"], image)


def _with_inits(pod: Fields, image: Image | None, objects: Objects | None = None) -> Fields:
    """The fields of a PodSpec, init containers included."""
    rest = {name: value for name, value in pod.items() if name != "initContainers"}
    made = play_pod(rest, objects)
    made["before"] = []
    for container in pod.get("initContainers", ()):
        init = play_pod({**rest, "containers": [container]}, objects)
        # There is no image while a manifest is only read.
        carries = image is not None and init["args"][:1] == ["copy-to"]
        init["image"] = images.image("mpiboot", programs=False) if carries else image
        made["before"].append(init)
    return made


def play_pod(fields: Fields, objects: Objects | None = None) -> Fields:
    fields, _ = left_out(fields)
    only(fields, "containers", "volumes", "securityContext", "dnsConfig")
    if len(fields["containers"]) > 1:
        raise NotPlayedError("a pod of several containers can't be played")
    (container,) = fields["containers"]
    only(
        container,
        *("name", "image", "command", "args", "workingDir", "env", "volumeMounts"),
        "securityContext",
    )
    made: Fields = {"command": container.get("command"), "args": container.get("args", ())}
    made["working_dir"] = container.get("workingDir", "/")
    pod = only(fields.get("securityContext", {}), "runAsUser", "fsGroup", "seccompProfile")
    made |= _rights({**pod, **container.get("securityContext", {})})
    if "env" in container:
        made["env"] = {item["name"]: item["value"] for item in container["env"]}
    if "dnsConfig" in fields:
        made["searches"] = only(fields["dnsConfig"], "searches")["searches"]
    volumes = {item["name"]: item for item in fields.get("volumes", ())}
    mounted: list[Volume] = []
    for mount in container.get("volumeMounts", ()):
        only(mount, "name", "mountPath", "readOnly")
        if mount["name"] not in volumes:
            raise NotPlayedError(f"volumeMounts: there is no volume {mount['name']}")
        mounted.append(_volume(volumes[mount["name"]], mount, objects or {}, pod.get("fsGroup")))
    made["volumes"] = mounted
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


def _volume(fields: Fields, mount: Fields, objects: Objects, group: int | None) -> Volume:
    only(fields, "name", "emptyDir", "secret", "configMap")
    path = mount["mountPath"]
    access = ("ro",) if mount.get("readOnly") else ()
    if "emptyDir" in fields:
        memory = only(fields["emptyDir"], "medium", "sizeLimit")
        if memory.get("medium") != "Memory":
            return EmptyDir(path, options=access, name=fields["name"])
        size = re.fullmatch(r"(\d+)([MG]i)", memory.get("sizeLimit", "64Mi"))
        if not size:
            raise NotPlayedError(f"volume {fields['name']}: sizeLimit is no number of Mi or Gi")
        options = ("nosuid", "nodev", *access)
        return Tmpfs(path, size=int(size[1]) * _UNITS[size[2]], options=options)
    if "secret" in fields:
        secret = only(fields["secret"], "secretName", "defaultMode")
        mode = secret.get("defaultMode", 0o644)
        files = needed({**objects, "kind": "Secret"}, secret["secretName"])
        return Files(path, files, mode, fs_group=group)
    config = only(fields["configMap"], "name")
    return Files(path, needed({**objects, "kind": "ConfigMap"}, config["name"]))
