"""The pods of a Volcano job from its manifest, with what its plugins add.

As Volcano v1.15.1 does (pkg/controllers/job/plugins: svc/svc.go, ssh/ssh.go and
distributed-framework/mpi/mpi.go, which turns the other two on).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.pods.cluster import Cluster
from tests.pods.fields import NotPlayedError, left_out, needed, only
from tests.pods.images import Image
from tests.pods.manifest import Without, play_pod
from tests.pods.oci import PodSpec
from tests.pods.operator import KeyPair
from tests.pods.volumes import Files, SubPath


def play_volcano(
    cluster: Cluster, image: Image, manifest: dict[str, Any], *, ssh_port: int = 22
) -> Without:
    """The pods of a master task and of the others; ``ssh_port`` is the ssh plugin's argument."""
    manifest, _ = left_out(manifest)
    job = manifest["metadata"]["name"]
    spec = only(manifest["spec"], "minAvailable", "schedulerName", "plugins", "tasks")
    needed(manifest, "spec", "tasks")
    plugins = only(needed(manifest, "spec", "plugins"), "mpi", "svc", "ssh")
    by_mpi = "mpi" in plugins
    if by_mpi and plugins["mpi"] != ["--master=master", "--worker=worker"]:
        raise NotPlayedError(
            "Job: of the mpi plugin only --master=master, --worker=worker is played"
        )
    (message,) = plugins.get("ssh") or ["--ssh-key-file-path=/root/.ssh"]
    option, _, folder = message.partition("=")
    if option != "--ssh-key-file-path":
        raise NotPlayedError("Job: of the ssh plugin only --ssh-key-file-path is played")
    tasks = {task["name"]: task for task in spec["tasks"]}
    pods = {
        name: [f"{job}-{name}-{index}" for index in range(task["replicas"])]
        for name, task in tasks.items()
    }
    hosts = {name: [f"{pod}.{job}" for pod in listed] for name, listed in pods.items()}
    added = {
        name: text
        for task, listed in hosts.items()
        for name, text in (
            (f"VC_{task.upper()}_HOSTS", ",".join(listed)),
            (f"VC_{task.upper()}_NUM", str(len(listed))),
        )
    }
    files = {f"{task}.host": "\n".join(listed) for task, listed in hosts.items()}
    keys = {**KeyPair.make().files(), "config": _config(hosts, ssh_port)}
    made = {}
    for name, task in tasks.items():
        only(task, "name", "replicas", "template")
        fields = play_pod(task["template"]["spec"])
        group = task["template"]["spec"].get("securityContext", {}).get("fsGroup")
        is_master = by_mpi and name == "master"
        master = {"MPI_HOST": ",".join(needed(hosts, "worker"))} if is_master else {}
        fields["env"] = {**fields.get("env", {}), **added, **master}
        fields["volumes"] = [
            *fields["volumes"],
            Files("/etc/volcano", {**files, **added}),
            # The folder is mounted by subPath: its files are plain ones.
            *(SubPath(f"{folder}/{file}", text, 0o600, group) for file, text in keys.items()),
        ]
        made[name] = [
            cluster.pod(PodSpec(name=pod, image=image, subdomain=job, **fields))
            for pod in pods[name]
        ]
    (launcher,) = needed(made, "master")
    del made["master"]
    return Without([pod for listed in made.values() for pod in listed], launcher)


def _config(hosts: Mapping[str, list[str]], port: int) -> str:
    """What generateSSHConfig writes."""
    text = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
    for host in (host for listed in hosts.values() for host in listed):
        text += f"Host {host.partition('.')[0]}\n  HostName {host}\n  Port {port}\n"
    return text
