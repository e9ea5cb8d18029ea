"""A service mesh's sidecar, as far as a pod's network shows it.

The proxy is a stand-in, since Envoy can't be had here: it takes every connection that rules of the
pod's network lead to it and says nothing, as Envoy does where it waits for the client of a server
that speaks first.
"""

from __future__ import annotations

from dataclasses import replace

from tests.pods.cluster import Cluster
from tests.pods.images import PYTHON
from tests.pods.pod import Pod

_RULES = """
table ip istio {
    chain inbound {
        type nat hook prerouting priority dstnat;
        iifname "%s" tcp dport != { 15006%s } redirect to :15006
    }
}
"""
_STAND_IN = """
import socket
server = socket.create_server(("", 15006))
held = []
while True:
    held.append(server.accept()[0])
"""


def accepting(cluster: Cluster, pod: Pod, *excluded: str, link: str = "eth0") -> Pod:
    """Puts a sidecar in front of a pod's link; `excluded` are the ports of its annotations."""
    ports = "".join(f", {port}" for port in excluded)
    pod.network.run("nft", "-f", "-", stdin=_RULES % (link, ports))
    name, command = f"{pod.spec.name}-istio-proxy", [PYTHON, "-c", _STAND_IN]
    plain = replace(pod.spec, name=name, command=command, args=(), env={}, user=1337, group=1337)
    return cluster.pod(replace(plain, volumes=()), beside=pod).start()
