"""NCCL's plugins: one that brings settings of its own, and the one without which EFA is no use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mpiboot.data_network.records import WorkerNetwork
from mpiboot.fabric import Evidence
from mpiboot.wording import first_few

# A pod that has one of these brings its own transport for NCCL, with settings of its own.
_PLUGIN_NAMES: Final = ("NCCL_NET", "NCCL_NET_PLUGIN")
_PLUGIN_PREFIXES: Final = ("NCCL_GPUDIRECTTCPX_", "NCCL_FASTRAK_")
_NOT_A_PLUGIN: Final = {("NCCL_NET", "ib"), ("NCCL_NET_PLUGIN", "none")}


def found(
    known: Sequence[WorkerNetwork], taken: Mapping[str, str], values: Mapping[str, str]
) -> str:
    """Tell what says that a plugin carries NCCL's data; NCCL_* is then left as it is."""
    own = {name for network in known if network.facts for name in network.facts.environment}
    for name in sorted({*taken, *own}):
        told = (name, values.get(name, "").lower())
        if name.startswith(_PLUGIN_PREFIXES) or (
            name in _PLUGIN_NAMES and not (name in taken and told in _NOT_A_PLUGIN)
        ):
            return f"{name} is set"
    for network in known:
        for item in network.facts.fabric.attachments if network.facts else ():
            if item.by is Evidence.GIB:
                return f"{item.resource} is there"
    return ""


def efa_lacks(known: Sequence[WorkerNetwork], plugin: str) -> list[str]:
    """Say on which workers the image lacks what carries data over EFA; the user's plugin may."""
    hosts: dict[tuple[str, ...], list[str]] = {}
    for network in known:
        missing = network.facts.fabric.missing if network.facts else ()
        lacks = tuple(name for name in missing if not (plugin and name.startswith("libnccl")))
        if lacks:
            hosts.setdefault(lacks, []).append(network.host)
    return [
        f"{first_few(names)}: EFA devices, but in the image no {' and no '.join(lacks)}"
        for lacks, names in hosts.items()
    ]
