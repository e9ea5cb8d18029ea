"""A cluster of one test: its namespaces, its name server, its pods, and the end of all of them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.pods.nameserver import Nameserver
from tests.pods.network import Link, Netns, Node
from tests.pods.oci import PodSpec
from tests.pods.pod import Pod

# Holds the cluster's mount and network namespace, and ends what lives in them as soon as its
# standard input is closed: by close(), or by the kernel when the test was killed.
_KEEPER = """
mkdir -p /run/netns "$1/scratch"
mount -t tmpfs -o mode=755 tmpfs /run/netns
mount -t tmpfs -o mode=755 tmpfs "$1/scratch"
echo 0 >/proc/sys/net/ipv4/ip_forward
echo 0 >/proc/sys/net/ipv6/conf/all/forwarding 2>/dev/null
echo ready
read -r _
for pod in $(runc --root "$1/runc" list -q 2>/dev/null); do
    runc --root "$1/runc" delete --force "$pod" 2>/dev/null
done
umount --lazy "$1/scratch"
# Who was just being started may still put something there.
until rm -rf --one-file-system "$1" 2>/dev/null; do sleep 0.1; done
"""
# What of an init container is not as the pod's own container.
_OF_INITS: dict[str, Any] = {
    "args": (),
    "command": None,
    "env": {},
    "subdomain": None,
    "before": (),
}


class Cluster:
    """Use it as a context manager: nothing of it is left behind, however the test ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mpiboot-pods-"))
        self.name = self.folder.name.removeprefix("mpiboot-pods-").replace("_", "-")
        self.pods: list[Pod] = []
        self._nodes: dict[str, Netns] = {}
        alone = ("unshare", "--mount", "--net", "--propagation", "private")
        self._keeper = subprocess.Popen(
            [*alone, "sh", "-c", _KEEPER, "keeper", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self.node = self._set_up()
            self.dns = Nameserver(self._keeper.pid)
        except BaseException:
            self._end_keeper()
            raise

    def _set_up(self) -> Node:
        if self._keeper.stdout is None or not self._keeper.stdout.readline():
            raise RuntimeError("this machine doesn't let the rig make namespaces")
        node = Node(self._keeper.pid)
        node.set_up()
        return node

    def pod(self, spec: PodSpec, *, beside: Pod | None = None) -> Pod:
        """Makes a pod's sandbox and volumes; its container starts by `start()`.

        With `beside` it shares that pod's network and empty folders, as a sidecar does.
        """
        shared = beside.network if beside else None
        if spec.host_network is not None:
            shared = self._nodes.get(spec.host_network)
            if shared is None:
                shared = Netns(self.node, spec.host_network, (Link(),))
                self._nodes[spec.host_network] = shared
        pod = Pod(self, spec, shared, beside)
        self.pods.append(pod)
        for number, own in enumerate(spec.before):
            init = replace(spec, **{**_OF_INITS, "name": f"{spec.name}-init-{number}", **own})
            pod.before.append(self.pod(init, beside=pod))
        return pod

    def close(self) -> None:
        for pod in self.pods:
            pod.kill()
        self.dns.close()
        self._end_keeper()  # also ends a pod whose start was interrupted
        for pod in self.pods:
            pod.close()

    def _end_keeper(self) -> None:
        self._keeper.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Cluster:  # noqa: PYI034 # Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
