"""Links, routes, the data network, GPUs and the variables that set them, of one pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mpiboot.core.checks import DATA_CHECKS
from mpiboot.core.facts import Host, PodFacts, Worker
from mpiboot.core.model import Finding
from mpiboot.core.settings import Settings
from mpiboot.core.wording import assigned, counted, first_few, lasting
from mpiboot.doctor.checks import DoctorCheck, check, failed, ok, warned, worker_check
from mpiboot.job import pods
from mpiboot.job.control_links import NAME_LINKS, links_gone
from mpiboot.network import cluster_view, nccl, worker_network
from mpiboot.network.counters import FAULTS
from mpiboot.network.records import PCI_FUNCTION, RDMA, usable


@dataclass(frozen=True, slots=True)
class CountersPart:
    """Counters of this pod's RDMA ports, by port and name: their sums since the driver's start.

    ``grown`` is by how much they grew within ``seconds``.
    """

    sums: Mapping[str, Mapping[str, int]]
    grown: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PciPart:
    """Sysfs paths of this pod's GPUs and RDMA devices, and the NUMA node of each (-1: none).

    A path is that of the PCI tree, such as ``pci0000:00/0000:00:01.0/0000:01:00.0``.
    """

    gpus: Mapping[str, str]
    devices: Mapping[str, str]
    numa: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NvidiaPart:
    """NVIDIA's driver in the kernel, and what this pod has of it.

    ``driver`` is its version, empty without one; ``library`` the file behind libcuda.so.1 and
    ``found`` the folder in which the loader finds that, empty where it isn't found; ``cluster`` the
    UUID of an NVLink fabric that spans nodes, empty without one; ``channels`` counts IMEX channels.
    """

    driver: str
    library: str = ""
    found: str = ""
    cluster: str = ""
    channels: int = 0


_STRICT: Final = 1  # net.ipv4.conf.*.rp_filter, Documentation/networking/ip-sysctl
_SSH: Final = 22


@worker_check(
    "rp-filter",
    title="replies may arrive on another link than requests left by",
    hint="securityContext: {sysctls: [{name: net.ipv4.conf.all.rp_filter, value: '2'}]} of the pod "
    "(the kubelet must allow it), or the tuning plugin in the network's definition",
)
def rp_filter(rp_filters: Mapping[str, int], facts: PodFacts) -> Iterable[Finding]:
    """Judge rp_filter where it counts: where a pod has several links with addresses."""
    links = [link.name for link in facts.links if usable(link) and link.name != "lo"]
    strict = [name for name in links if rp_filters.get(name) == _STRICT]
    if len(links) < 2:  # noqa: PLR2004 - with one link there is no other path
        return
    if strict:
        message = f"rp_filter is 1 (strict) on {first_few(strict)}"
        about = "packets whose answer would leave by another link are dropped without a word"
        yield warned("rp-filter", f"{message}: {about}")
    else:
        yield ok("rp-filter", f"not strict on {first_few(links)}")


@check(
    "default-routes",
    title="one link has the default route",
    hint="give one network alone a gateway (its IPAM's routes: `kubectl get "
    "network-attachment-definitions -o yaml`, or "
    "`default-route` in the networks annotation)",
)
def default_routes(facts: PodFacts) -> Iterable[Finding]:
    """Judge whether one link alone has the default route of an IP version."""
    # Links in their order, each once.
    links: dict[str, dict[str, None]] = {}
    for route in facts.fabric.routes:
        if route.destination in ("0.0.0.0/0", "::/0"):
            links.setdefault(route.destination, {})[route.link] = None
    several = {name: of for name, of in links.items() if len(of) > 1}
    for name, of in several.items():
        message = f"{name} has routes through {' and '.join(of)}"
        yield warned("default-routes", f"{message}: the kernel decides by metric")
    if links and not several:
        only = dict.fromkeys(link for of in links.values() for link in of)
        yield ok("default-routes", f"the default route uses {' and '.join(only)}")


_FAULTS: Final = frozenset(" ".join(kind.names for kind in FAULTS.values()).split())


@worker_check(
    "rdma-counters",
    title="RDMA ports count no errors while doctor looks",
    hint="out_of_sequence, retries and discards: packets are lost on the way (PFC or ECN "
    "of switches and node, MTU); symbol_error, link_downed: the cable; "
    "out_of_buffer: a slow rank",
)
def counters(counters: CountersPart) -> Iterable[Finding]:
    """Warn of errors that are counted now; those of the past are its evidence.

    Looks at errors and retries that this pod's RDMA ports count, twice within a second (`counters`
    and `hw_counters` in sysfs); a device that pods share counts for all of them.
    """
    if not counters.sums:
        return
    now = _listed({port: _errors(values) for port, values in counters.grown.items()})
    before = _listed(counters.sums)
    since = ("since the driver's start: " + "; ".join(before),) if before else ()
    if now:
        yield warned(
            "rdma-counters", f"within {lasting(counters.seconds)} grew {'; '.join(now)}", *since
        )
    else:
        message = f"no error is counted now on {counted(len(counters.sums), 'RDMA port')}"
        yield ok("rdma-counters", "; ".join((message, *since)))


def _errors(values: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in values.items() if name in _FAULTS}


def _listed(ports: Mapping[str, Mapping[str, int]]) -> list[str]:
    return [
        f"{port} " + ", ".join(f"{name} {value}" for name, value in values.items() if value > 0)
        for port, values in ports.items()
        if any(value > 0 for value in values.values())
    ]


# NCCL's names, the nearest first (graph/topo.cc): one PCI switch, several, one CPU, two CPUs.
NEAR: Final = ("PIX", "PXB", "PHB", "SYS")
_DIRECT: Final = NEAR[:2]  # the default of NCCL_NET_GDR_LEVEL
_OVERRIDES: Final = ("NCCL_TOPO_FILE", "NCCL_NET_GDR_LEVEL")


def _alone(facts: PodFacts) -> Worker:
    """Take this pod as a job's only worker, with as many ranks as it has GPUs."""
    host = Host(facts.hostname, slots=max(facts.gpus.count, 1))
    return Worker(host, facts.control_address, _SSH, "", "", facts)


def data_network(facts: PodFacts, settings: Settings) -> Iterable[Finding]:
    """Apply the rules for one worker; those that compare workers say nothing of one."""
    network = worker_network.choose(_alone(facts), settings)
    found = cluster_view.findings((network,), settings, (), {})
    yield from (replace(item, host="") for item in found)
    if network.transport in RDMA:
        rails = first_few(rail.name for rail in network.rails)
        message = f"{counted(len(network.rails), network.transport.value + ' port')}: {rails}"
        yield ok("rdma-missing", message)
    else:
        links = first_few(link.name for link in network.data)
        message = f"no RDMA device of this pod; data goes over TCP{f' on {links}' if links else ''}"
        yield ok("rdma-missing", message)


DATA_NETWORK: Final = tuple(
    DoctorCheck(row.reference, data_network, by_plan=True) for row in DATA_CHECKS
)


@check("gpus", by_plan=True)
def gpus(facts: PodFacts) -> Iterable[Finding]:
    """Judge this pod's GPUs.

    Looks at /dev, sysfs and, where there is an NVLink fabric, `nvidia-smi -q`.
    """
    found = tuple(pods.gpus((_alone(facts),)))
    yield from (replace(item, host="") for item in found)
    if pods.wants_gpu_memory(facts) and not facts.gpus.peer_memory:
        message = "RDMA devices reach no GPU memory: neither nvidia_peermem nor DMA-BUF"
        yield warned("gpus", message, hint=pods.PEER_MEMORY)
    elif not found and facts.gpus.count:
        yield ok("gpus", f"{counted(facts.gpus.count, 'GPU')}: {facts.gpus.kind}")


def _switches(path: str) -> list[str]:
    """List the PCI switches above a device, the nearest first: every second bridge, as NCCL does.

    A switch is two steps of the path, its upstream and its downstream port (graph/xml.cc).
    """
    parts = [part for part in path.split("/") if part]
    found = []
    while len(parts) > 2 and PCI_FUNCTION.fullmatch(parts[-3]):  # noqa: PLR2004 - device, port, port
        found.append(parts[-3])
        parts = parts[:-2]
    return found


def distance(one: str, other: str, numa: tuple[int, int] = (-1, -1)) -> str:
    """Name the distance between two PCI devices as NCCL does.

    Args:
        one: a device's path in sysfs, below ``/sys/devices``.
        other: the other one's.
        numa: the NUMA node of each, -1 where the kernel knows none.
    """
    ours, theirs = _switches(one), _switches(other)
    shared = next((name for name in ours if name in theirs), "")
    if not shared:
        return "PHB" if numa[0] == numa[1] else "SYS"
    return "PIX" if ours[0] == theirs[0] == shared else "PXB"


@worker_check(
    "gpu-distance",
    title="each GPU has an RDMA device nearby",
    hint="ask for GPU and device of one PCI switch (Topology Manager of the kubelet, or DRA); "
    "in a virtual machine NCCL_TOPO_FILE tells NCCL what the hypervisor hides",
)
def gpu_distance(pci: PciPart, environ: Mapping[str, str]) -> Iterable[Finding]:
    """Judge how far each GPU is from the nearest RDMA device.

    Farther than PXB, NCCL copies through the host's memory unless a variable says otherwise.

    Looks at the PCI tree in sysfs, with NCCL's names: PIX, PXB, PHB, SYS.
    """
    if not pci.gpus or not pci.devices:
        return
    far, nearest = [], []
    for gpu, path in pci.gpus.items():
        numa = pci.numa.get(gpu, -1)
        how_far = {
            name: distance(path, other, (numa, pci.numa.get(name, -1)))
            for name, other in pci.devices.items()
        }
        device = min(how_far, key=lambda name: NEAR.index(how_far[name]))
        nearest.append(f"{gpu}: {device} {how_far[device]}")
        if how_far[device] not in _DIRECT:
            far.append(gpu)
    if far and not any(environ.get(name) for name in _OVERRIDES):
        message = (
            f"NCCL takes no RDMA device as near to {counted(len(far), 'GPU')} ({first_few(far)})"
        )
        yield warned("gpu-distance", f"{message}: GPUDirect RDMA is off there", *nearest)
    else:
        yield ok("gpu-distance", "; ".join(nearest))


_PREFIX: Final = "libcuda.so."
_COMPAT: Final = "compat"  # /usr/local/cuda/compat, of the package cuda-compat


@worker_check(
    "cuda-library",
    title="the CUDA library fits the node's driver",
    hint="leave libcuda out of the image: the node's container toolkit brings it "
    "(NVIDIA_DRIVER_CAPABILITIES with `compute`); after an update of the driver restart "
    "the pod",
)
def cuda_library(nvidia: NvidiaPart, facts: PodFacts) -> Iterable[Finding]:
    """Compare the library with the driver; a newer one of cuda-compat is meant to be used.

    Looks at the file behind libcuda.so.1, and /proc/driver/nvidia/version.
    """
    if not nvidia.driver or not facts.gpus.count:
        return
    name = nvidia.library.rpartition("/")[2]
    version = name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""
    compat = _COMPAT in nvidia.found.split("/") or _COMPAT in nvidia.library.split("/")
    if not nvidia.library:
        yield failed("cuda-library", f"no {_PREFIX}1, and the node's driver is {nvidia.driver}")
    elif not version or version == "1":
        yield ok("cuda-library", f"{nvidia.library}; the driver is {nvidia.driver}")
    elif version == nvidia.driver or (compat and _number(version) > _number(nvidia.driver)):
        yield ok("cuda-library", f"{nvidia.library} fits the driver {nvidia.driver}")
    else:
        message = f"{nvidia.library} is of driver {version}, the node's driver is {nvidia.driver}"
        hint = None
        if compat:
            hint = "take its folder out of LD_LIBRARY_PATH: cuda-compat is for older drivers"
        yield failed("cuda-library", f"{message}: CUDA does not start (error 803)", hint=hint)


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


@worker_check(
    "imex-channels",
    title="GPUs whose NVLink reaches other nodes have an IMEX channel",
    hint="claim one: a ComputeDomain of NVIDIA's DRA driver, named in resourceClaims of launcher "
    "and workers (`kubectl get computedomains`)",
)
def imex(nvidia: NvidiaPart) -> Iterable[Finding]:
    """Judge whether ranks may use NVLink between nodes; without such a fabric there is nothing.

    Looks at ClusterUUID in `nvidia-smi -q`, and /dev/nvidia-caps-imex-channels.
    """
    if not nvidia.cluster:
        return
    message = f"the GPUs' NVLink reaches other nodes (cluster {nvidia.cluster})"
    if nvidia.channels:
        yield ok("imex-channels", f"{message}, and this pod has an IMEX channel")
    else:
        more = "but no IMEX channel is in this pod: between nodes NCCL uses the network"
        yield warned("imex-channels", f"{message}, {more}")


# Variables that make a library write debug output, and the values that don't.
# NCCL: user guide, NCCL_DEBUG. UCX: `ucx_info -f`, UCX_LOG_LEVEL. libfabric: fi_getinfo(3),
# FI_LOG_LEVEL. Intel MPI: developer reference, I_MPI_DEBUG. Open MPI: *_base_verbose.
_QUIET: Final = {
    "NCCL_DEBUG": ("", "version", "warn"),
    "RCCL_DEBUG": ("", "version", "warn"),
    "UCX_LOG_LEVEL": ("", "fatal", "error", "warn"),
    "FI_LOG_LEVEL": ("", "warn"),
    "I_MPI_DEBUG": ("", "0"),
    "I_MPI_HYDRA_DEBUG": ("", "0", "off", "no", "disable"),
    "TORCH_DISTRIBUTED_DEBUG": ("", "off"),
}
_FILE: Final = {"NCCL_DEBUG": "NCCL_DEBUG_FILE", "UCX_LOG_LEVEL": "UCX_LOG_FILE"}
_MCA: Final = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")

# Two that exclude each other: mca_base_var_check_exclusive() of Open MPI's components, and PRRTE's
# own test of its if_include.
# NCCL: a GID index that is set comes first (ncclIbGetGidIndex), and without InfiniBand no device is
# looked for.
_PAIRS: Final = (
    ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude", "ranks then have no TCP"),
    ("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_oob_tcp_if_exclude", "daemons then have no TCP"),
    ("PRTE_MCA_prte_if_include", "PRTE_MCA_prte_if_exclude", "daemons then do not start"),
    ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE", "the range then has no effect"),
    ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "the family then has no effect"),
)


@check(
    "debug-output",
    title="no variable makes libraries write debug output",
    hint="unset it once it is no longer needed: it slows ranks down and floods the log",
)
def debug(environ: Mapping[str, str]) -> Iterable[Finding]:
    """Name what makes libraries write debug output, unless it goes to a file."""
    loud = [
        f"{name}={environ[name]}"
        for name, quiet in _QUIET.items()
        if environ.get(name, "").strip().lower() not in quiet
        and not environ.get(_FILE.get(name, ""))
    ]
    loud += [
        f"{name}={value}"
        for name, value in sorted(environ.items())
        if name.startswith(_MCA) and name.endswith("_verbose") and value.strip("0 -")
    ]
    if loud:
        yield warned("debug-output", ", ".join(loud))


@check("two-settings", title="no two variables set the same thing", hint="unset one of them")
def two_settings(environ: Mapping[str, str]) -> Iterable[Finding]:
    """Name pairs of which only one can hold."""
    for one, other, then in _PAIRS:
        if environ.get(one) and environ.get(other):
            message = f"{one} and {other} exclude each other: {then}"
            yield warned("two-settings", message)


@worker_check(
    "nccl-prefix",
    title="names in NCCL's lists match no others",
    hint="write `=` in front of the list for exact names",
)
def prefixes(facts: PodFacts) -> Iterable[Finding]:
    """Find a name in NCCL's lists that takes others which begin as it does: mlx5_1 and mlx5_10."""
    there = nccl.names_there(facts)
    for name, value in facts.fabric.settings:
        names = there.get(name, [])
        rest = value.removeprefix("^")
        if len(value) <= 1 or rest.startswith("="):
            continue
        whole = [word.partition(":")[0] for word in rest.split(",") if word]
        for word in whole:
            more = [item for item in nccl.matching(word, names) if item not in whole]
            if word in names and more:
                message = (
                    f"{name}={value}: {word} is a prefix for NCCL, and means {first_few(more)} too"
                )
                exact = f"{value[: len(value) - len(rest)]}={rest}"
                hint = f"write {assigned(name, exact)}"
                yield warned("nccl-prefix", message, hint=hint)


@worker_check(
    "named-links",
    title="links that variables name exist in this pod",
    hint="name a link that the workers have (`mpiboot facts` lists them), or unset it: mpiboot "
    "sets what it can",
)
def named_links(environ: Mapping[str, str], facts: PodFacts) -> Iterable[Finding]:
    """Name variables that name a link which this pod does not have."""
    there = [link.name for link in facts.links]
    for name in NAME_LINKS:
        gone = links_gone(facts, environ.get(name, ""))
        if gone:
            message = f"{name}={environ[name]}: no link {first_few(gone)} here"
            yield warned("named-links", f"{message} (there are {first_few(there) or 'none'})")
