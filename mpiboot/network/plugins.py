"""What says that a plugin carries NCCL's data, with settings of its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mpiboot.network.network import Network

# A pod that has one of these brings its own transport for NCCL, with settings of its own.
_PLUGIN_NAMES: Final = ("NCCL_NET", "NCCL_NET_PLUGIN")
_PLUGIN_PREFIXES: Final = ("NCCL_GPUDIRECTTCPX_", "NCCL_FASTRAK_")
_NOT_A_PLUGIN: Final = {("NCCL_NET", "ib"), ("NCCL_NET_PLUGIN", "none")}


def found(known: Sequence[Network], taken: Mapping[str, str], values: Mapping[str, str]) -> str:
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
            if item.by == "gib":
                return f"{item.resource} is there"
    return ""
