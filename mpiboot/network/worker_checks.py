"""What is wrong with the data network of one worker: rule by rule, each with its evidence. Pure.

Whether a problem warns or stops is decided with all workers in view.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from mpiboot.core.fabric import LinkLayer, PortState
from mpiboot.core.model import NoFacts, PodFacts
from mpiboot.core.wording import first_few, size_of
from mpiboot.network import nccl
from mpiboot.network.link_addresses import has_carrier, usable
from mpiboot.network.rails import named_by_platform
from mpiboot.network.records import Problem, Rail, Transport, WorkerNetwork

# Below this, memory registration fails soon; container runtimes give 64 KiB or 8 MiB.
_MEMLOCK: Final = 256 << 20
_SHM: Final = 64 << 20  # what a container gets where nothing is said
_IPC_LOCK: Final = 1 << 14
_HOST_USERS: Final = (
    "spec: {hostUsers: true} beside securityContext: {capabilities: {add: [IPC_LOCK]}}; "
    "or raise the container runtime's limit (LimitMEMLOCK=infinity)"
)
# RoCE takes the largest InfiniBand MTU that fits into the link's with its headers around it.
_IB_MTU: Final = (4096, 2048, 1024, 512, 256)
_ROCE_HEADERS: Final = (80, 96)  # as soft-RoCE counts them, and as other drivers do


_FACTS_HINTS: Final = {
    NoFacts.UNREADABLE: "use one version of mpiboot in all images",
    NoFacts.BY_KUBECTL: "for a data network run `mpiboot worker` in the pods and reach them by "
    "SSH; MPIBOOT_DATA_NETWORK=off says that none is meant",
}


def of_one(network: WorkerNetwork, *, expected: bool) -> list[Problem]:
    """Apply the rules that look at one worker.

    Args:
        network: its networks.
        expected: whether it should have RDMA: the user requires it, or another worker has it.
    """
    if network.facts is None:
        said = f"it {network.no_facts.value}, so its data network is not known"
        return [Problem("data-facts", said, _FACTS_HINTS.get(network.no_facts))]
    found = [problem for rail in network.rails for problem in _port(rail, network.facts)]
    if expected and not network.rails:
        found.append(Problem("rdma-missing", _why_none(network.facts)))
    found += _limits(network, network.facts)
    found += _subnets(network)
    if network.control is None:
        found.append(Problem("control-link", "no link of its own has the control address"))
    return found


def _port(rail: Rail, facts: PodFacts) -> list[Problem]:
    found = []
    device, port = rail.device, rail.port
    if not device.opens:
        folder = "" if facts.fabric.infiniband_folder else ", /dev/infiniband is not there"
        said = f"device {device.name} does not open ({device.open_error}{folder})"
        found.append(Problem("rdma-node", said))
    elif device.library_error:
        found.append(Problem("rdma-library", f"device {device.name}: {device.library_error}"))
    if port.state is not PortState.ACTIVE and not device.efa:
        said = f"port {rail.name} is {port.state.value or 'in an unknown state'}, not ACTIVE"
        if port.state in (PortState.INIT, PortState.ARMED):
            said += ": the subnet manager has not brought it up"
        found.append(Problem("rdma-port", said))
    if rail.link is not None and not has_carrier(rail.link):
        found.append(Problem("rdma-port", f"link {rail.link.name} of {rail.name} has no carrier"))
    elif rail.link is not None and port.mtu and port.link_layer is LinkLayer.ETHERNET:
        most, least = (
            next((mtu for mtu in _IB_MTU if mtu + around <= rail.link.mtu), 256)
            for around in _ROCE_HEADERS
        )
        if not least <= port.mtu <= most:
            fits, check = (most, "rdma-mtu") if port.mtu > most else (least, "rdma-mtu-low")
            said = (
                f"link {rail.link.name} has MTU {rail.link.mtu}, which allows {fits} for RDMA, "
                f"but port {rail.name} uses {port.mtu}"
            )
            found.append(Problem(check, said))
    return found


def _why_none(facts: PodFacts) -> str:
    seen = facts.fabric.devices
    if not seen:
        return f"no RDMA device: {facts.fabric.why_none}"
    given = [device.name for device in seen if named_by_platform(device, facts.fabric)]
    folder = "" if facts.fabric.infiniband_folder else "; /dev/infiniband is not there"
    what = f"; the platform names {first_few(given)}" if given else ""
    return f"{len(seen)} RDMA devices of the node are visible, none is this pod's{folder}{what}"


def _limits(network: WorkerNetwork, facts: PodFacts) -> list[Problem]:
    found = []
    may_lock = facts.memlock < 0 or facts.memlock >= _MEMLOCK
    who = facts.identity
    # The kernel asks for it in the node's own user namespace (ib_umem_get).
    may_exceed = bool(who.capabilities & _IPC_LOCK) and not who.own_users
    if network.rails and not may_lock and not may_exceed:
        why = " (a user other than root does not get added capabilities)" if who.uid else ""
        hint = None
        if who.own_users:
            why = " of the node (the pod has users of its own: hostUsers is false)"
            hint = _HOST_USERS
        said = f"memory lock limit {size_of(facts.memlock)}, without IPC_LOCK{why}"
        found.append(Problem("memlock", said, hint))
    if 0 < facts.shm <= _SHM and network.slots > 1:
        said = f"/dev/shm has {facts.shm >> 20} MiB for {network.slots} ranks"  # noqa: S108 - a size is told, no file is made
        found.append(Problem("shm", said))
    return found


def _subnets(network: WorkerNetwork) -> list[Problem]:
    """Find links that share a subnet: answers may leave by the other one."""
    found = []
    links = [link for link in (network.control, *network.data) if link is not None]
    own = [(link, [(item, item.ip) for item in usable(link)]) for link in links]
    for place, (link, here) in enumerate(own):
        for other, there in own[place + 1 :]:
            pair = next(
                (
                    (one, two)
                    for one, address in here
                    for two, another in there
                    if link is not other
                    if one.network.prefixlen < one.max_prefixlen
                    and (address in two.network or another in one.network)
                ),
                None,
            )
            if pair:
                said = f"{link.name} ({pair[0]}) and {other.name} ({pair[1]}) are in one subnet"
                mixed = link is network.control
                found.append(Problem("control-subnet" if mixed else "data-subnet", said))
                break
    return found


def user_values(
    network: WorkerNetwork, taken: Collection[str], values: Mapping[str, str]
) -> list[Problem]:
    """Check the user's own values with NCCL's rules; they are never changed.

    Args:
        network: the worker's networks; its pod may set values of its own.
        taken: the names that are set for all ranks, before which a pod's own don't count.
        values: the values of those names, where they are known.
    """
    facts = network.facts
    if facts is None:
        return []
    found = []
    values = {name: own for name, own in facts.fabric.settings if name not in taken} | dict(values)
    names = {
        "NCCL_SOCKET_IFNAME": [link.name for link in facts.links if link.addresses],
        "NCCL_IB_HCA": [device.name for device in facts.fabric.devices],
    }
    for name, there in names.items():
        value = values.get(name, "")
        # Loopback reaches no other worker: it counts where it is named, not where it is left over.
        left = [item for item in there if item != "lo" or not value.startswith("^")]
        if value and not nccl.matching(value, left):
            said = f"{name}={value} fits nothing here (there are {first_few(there) or 'none'})"
            found.append(Problem("nccl-value", said))
    word = values.get("NCCL_IB_DISABLE", "")
    if word.strip().lower() in ("true", "yes", "on"):
        # NCCL reads it with strtoll, so a word is 0.
        found.append(Problem("nccl-value", f"NCCL_IB_DISABLE={word} has no effect: write 1"))
    elif word.strip() == "1" and network.usable and network.transport is not Transport.EFA:
        ports = first_few(rail.name for rail in network.rails)
        said = f"NCCL_IB_DISABLE=1 keeps NCCL from {ports}, which could carry its data"
        found.append(Problem("nccl-value", said))
    return found
