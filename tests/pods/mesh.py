"""A service mesh's sidecar, as far as a pod's network shows it.

The rules are those that istio-init makes (as nft has them); the proxy behind them is a stand-in,
since Envoy can't be had here: it listens where istio's does, takes every connection and says
nothing, as Envoy does where it waits for the client of a server that speaks first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.pods.cluster import Cluster
from tests.pods.images import PYTHON
from tests.pods.pod import Pod

_USER = 1337
_RULES = """
table ip istio {
    chain inbound {
        type nat hook prerouting priority dstnat;
        tcp dport { 15008, 15020, 15021, 15090%(excluded)s } return
        meta l4proto tcp redirect to :15006
    }
    chain outbound {
        type nat hook output priority -100;
        meta skuid %(user)s return
        oifname "lo" return
        tcp dport { 15008%(excluded)s } return
        meta l4proto tcp redirect to :15001
    }
}
"""
_STAND_IN = """
import selectors, socket
found = selectors.DefaultSelector()
for port in (15001, 15006, 15021, 15090):
    server = socket.create_server(("", port))
    found.register(server, selectors.EVENT_READ)
held = []
while True:
    for key, _ in found.select():
        held.append(key.fileobj.accept()[0])
"""


def istio(cluster: Cluster, pod: Pod, excluded: Sequence[str] = ()) -> Pod:
    """Puts a sidecar in front of a pod; `excluded` are the ports of its annotations."""
    more = "".join(f", {ports}" for ports in excluded)
    pod.network.run("nft", "-f", "-", stdin=_RULES % {"excluded": more, "user": _USER})
    return accepting(cluster, pod)


def accepting(cluster: Cluster, pod: Pod) -> Pod:
    """The stand-in alone, which takes what rules of a pod lead to its ports."""
    spec = replace(
        pod.spec,
        name=f"{pod.spec.name}-istio-proxy",
        command=[PYTHON, "-c", _STAND_IN],
        args=(),
        env={},
        user=_USER,
        group=_USER,
        volumes=(),
    )
    return cluster.pod(spec, beside=pod).start()
