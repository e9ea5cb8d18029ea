"""The records of a job's pods and hosts: observed facts, without behaviour beyond derived names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from mpiboot.core.model import Identity, Mpi, Source, read_record, values, write_records


class _Word(str, Enum):
    """Words of the kernel or a platform; one that is not known here reads as the empty one."""

    @classmethod
    def _missing_(cls, _: object) -> _Word:
        return cls("")


class PortState(_Word):
    """The state of an RDMA port, by its name in the kernel."""

    UNKNOWN = ""
    DOWN = "DOWN"
    INIT = "INIT"
    ARMED = "ARMED"
    ACTIVE = "ACTIVE"
    ACTIVE_DEFER = "ACTIVE_DEFER"


class LinkLayer(_Word):
    """The link layer of an RDMA port, as sysfs and libibverbs write it."""

    UNKNOWN = ""
    INFINIBAND = "InfiniBand"
    ETHERNET = "Ethernet"
    UNSPECIFIED = "Unspecified"


class GidType(_Word):
    """The type of an entry of a GID table, as sysfs writes it."""

    UNKNOWN = ""
    ROCE_V1 = "IB/RoCE v1"
    ROCE_V2 = "RoCE v2"


@dataclass(frozen=True, slots=True)
class Gid:
    """A non-empty entry of a port's GID table.

    ``value`` is the GID as IPv6 text; ``netdev`` the name in sysfs, perhaps of another network
    namespace.
    """

    index: int
    value: str
    kind: GidType
    netdev: str


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device.

    ``netdev`` is the port's link in this network namespace, if any; ``rate`` is in Gb/s.
    """

    number: int
    state: PortState = PortState.UNKNOWN
    link_layer: LinkLayer = LinkLayer.UNKNOWN
    netdev: str = ""
    rate: float = 0.0
    gids: tuple[Gid, ...] = ()
    pkeys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device that this pod can see, its own or not.

    ``driver`` is that of its PCI function, ``pci``. ``open_error`` is why its device node can't be
    opened, ``library_error`` why the image's RDMA library can't use the device; both are empty
    where it was not tried.
    """

    name: str = ""
    driver: str = ""
    pci: str = ""
    open_error: str = ""
    ports: tuple[RdmaPort, ...] = ()
    library_error: str = ""

    @property
    def opens(self) -> bool:
        """Whether its device node opens in this pod."""
        return not self.open_error

    @property
    def usable(self) -> bool:
        """Whether it opens, and the RDMA library has a driver for it, as far as is known."""
        return not self.open_error and not self.library_error

    @property
    def efa(self) -> bool:
        """Whether it is AWS's EFA: it has no link, and NCCL's own IB transport skips it."""
        return self.driver == "efa"


@dataclass(frozen=True, slots=True)
class MpiParameter:
    """A parameter in a file that the MPI or NCCL reads, as the variable that means the same."""

    variable: str
    value: str
    path: str


@dataclass(frozen=True, slots=True)
class Fabric:
    """What one pod sees of the data network.

    ``functions`` are the PCI functions that the SR-IOV device plugin gave to the container;
    ``unreadable`` is what could not be read; ``missing`` are libraries without which nothing uses
    these devices; ``settings`` the pod's own values of variables that are checked, none of them
    secret; ``refused`` why not all RDMA devices are known; ``nccl_files`` what NCCL's own files set
    beside the environment; ``plugin`` the network plugin that NCCL would load.
    """

    devices: tuple[RdmaDevice, ...] = ()
    functions: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    refused: str = ""
    nccl_files: tuple[MpiParameter, ...] = ()
    plugin: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that a table of an MPI or a rule of the data network wants set.

    ``host`` is the only host whose ranks get it; empty for all.
    """

    name: str
    value: str
    reason: str
    source: Source = Source.DEFAULT
    host: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a hostfile; repeated lines of one name are one host with their slots added.

    ``name`` is as in the file, without user and brackets. ``slots`` is 1 where
    ``slots_given`` is false: the file has no number then, and each MPI has its own for it.
    ``binding`` is how MPICH is to bind its ranks, as MPICH's hostfiles have it. ``line`` is the
    first line (from 1) that names the host.
    """

    name: str
    slots: int = 1
    slots_given: bool = False
    max_slots: int | None = None
    user: str = ""
    binding: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Hostfile:
    """A parsed hostfile: where it was read from, which setting named it, and its hosts in order.

    ``source`` is what named it, where that is neither a variable that mpirun reads nor nothing.
    ``parts`` are the files of which this one is made, where the programs of a line have a hostfile
    each.
    """

    path: str
    named_by: str
    hosts: tuple[Host, ...]
    source: Source | None = None
    parts: tuple[Hostfile, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """A network link of a pod; ``addresses`` are in CIDR form, such as ``10.244.0.5/24``.

    ``kind`` is the kernel's word (``veth``, ``macvlan``, ``ipoib``, ...), ``ether`` for hardware;
    ``hardware`` its hardware address; ``pkey`` the partition key of an IPoIB link. ``tentative``
    addresses are still checked for a duplicate, ``duplicate`` ones have one.
    """

    index: int
    name: str
    kind: str
    up: bool
    mtu: int
    addresses: tuple[str, ...]
    hardware: str = ""
    pkey: int | None = None
    carrier: bool = True
    tentative: tuple[str, ...] = ()
    duplicate: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a pod; ``lost`` counts those in /dev that the kernel has lost.

    ``imex`` is whether there is an IMEX channel: NVLink to other hosts.
    """

    count: int = 0
    lost: int = 0
    imex: bool = False


@dataclass(frozen=True, slots=True)
class Cpus:
    """The CPUs of a pod.

    ``usable`` is the size of its cpuset, on ``cores`` physical cores; ``online`` that of the node;
    ``quota`` the CPU bandwidth limit of its control group, 0 for none.
    """

    usable: int
    cores: int
    online: int
    quota: float = 0.0

    @property
    def exclusive(self) -> bool:
        """Whether they are the pod's alone, as by a kubelet's static CPU manager.

        The pool that other pods share there is smaller than the node, too; who may use but a part
        of its CPUs is in that pool.
        """
        return self.usable < self.online and not 0 < self.quota < self.usable


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What one pod reports about itself; a worker's go to the launcher as JSON (``version``).

    ``sshd`` is ``openssh``, ``embedded`` or empty, ``sshd_reason`` why the embedded one;
    ``environment`` are names (never values) that the pod's own specification sets; ``memlock`` is
    the session's limit in bytes (-1: unlimited), ``shm`` the size of /dev/shm in bytes (0: none);
    ``memory_refused`` is the error of process_vm_readv (empty: it works); ``parameters`` are those
    in the files of the pod's MPI, the strongest first; ``search_paths`` are PATH and the like as
    its sessions have them; ``program`` is mpiboot's own path where that PATH does not lead to it;
    ``node`` is the kernel's boot ID, the same in pods of one node.
    """

    hostname: str
    mpiboot: str
    identity: Identity
    control_address: str
    links: tuple[Link, ...]
    mpi: Mpi | None
    sshd: str
    memlock: int
    shm: int
    environment: tuple[str, ...]
    fabric: Fabric = Fabric()
    sshd_reason: str = ""
    memory_refused: str = ""
    gpus: Gpus = Gpus()
    cpus: Cpus | None = None
    parameters: tuple[MpiParameter, ...] = ()
    search_paths: tuple[tuple[str, str], ...] = ()
    program: str = ""
    node: str = ""


class NoFacts(str, Enum):
    """Why a worker's facts are not known; the value is how a sentence about it goes on."""

    NO_MPIBOOT = "does not run mpiboot"
    BY_KUBECTL = "was entered by kubectl, which finds no facts of mpiboot's"
    PENDING = "has not gathered its facts yet"
    UNREADABLE = "has facts that can't be read, as of another version of mpiboot"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAnswer:
    """What a host answers; empty or None is what no query was for, or unknown.

    Its own mpiboot answers with a record as JSON, its shell with lines.

    ``version`` is the record's own (None: the host has given none that can be read).
    ``lacks`` what keeps a program from running (``file``, ``right``, ``name``, ``folder``): the
    program, or the folder in which ranks were to start.
    ``ranks`` counts those of one launch (None: none of its processes is seen), ``libraries`` are
    the MPI libraries that they have loaded, with ``connected`` where one is connected to its daemon
    by PMIx.
    ``facts_error`` is why it could not gather its facts anew.
    ``oom_kills`` counts its memory kills, ``counters`` are those of links and RDMA ports.
    ``launches`` are the IDs of those with processes there; ``held`` the ones whose launcher is
    still connected, with its address (empty: it came by kubectl).

    ``attempts`` are earlier launchers, each with how it ended (empty: unknown).
    ``facts`` is its facts' JSON; ``late``: it runs mpiboot and has none yet. ``mpirun`` is, without
    mpiboot, path and version output, and ``mpirun_by_path`` the same of the one that was named.
    ``ended`` and ``left`` are the processes that an order has ended, and could not end.
    ``doctor`` is the JSON report of the worker's doctor (empty: it has none).
    """

    version: int | None = None
    lacks: tuple[tuple[str, str], ...] = ()
    ranks: int | None = None
    libraries: tuple[str, ...] = ()
    facts_error: str = ""
    oom_kills: int | None = None
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    launches: tuple[str, ...] = ()
    held: tuple[tuple[str, str], ...] = ()
    attempts: tuple[tuple[str, str], ...] = ()
    facts: str | None = None
    late: bool = False
    mpirun: tuple[str, str] | None = None
    mpirun_by_path: tuple[str, str] | None = None
    ended: int = 0
    left: int = 0
    doctor: str = ""


@dataclass(frozen=True, slots=True)
class Worker:
    """A remote host that passed the gate.

    ``address`` and ``port`` are those that answered with the right host key; ``dns_name`` is the
    name that led there, empty where none did; ``local_address`` is the launcher's own end of that
    connection. Where ``facts`` is None, ``no_facts`` is the reason, and ``facts_error`` what its
    last try to gather them ended with. ``mpi`` is that of its PATH where it has no facts, and
    ``called_mpi`` that of the path that was queried: the line's, or else, for an Open MPI 4.1
    outside the usual folders, the launcher's. ``answer`` is its answer to the gate, without the
    text of its facts: its ``lacks`` has mpirun's working directory where ranks can't start in it.
    ``host_key`` is its key as a line of known_hosts without the host, only where the setting
    ``host_keys`` isn't ``job``.
    """

    host: Host
    address: str
    port: int
    user: str
    local_address: str
    facts: PodFacts | None
    mpi: Mpi | None = None
    called_mpi: Mpi | None = None
    answer: HostAnswer = field(default=HostAnswer(), compare=False)
    no_facts: NoFacts = NoFacts.NO_MPIBOOT
    facts_error: str = ""
    dns_name: str = ""
    host_key: str = ""

    @property
    def runs_mpiboot(self) -> bool:
        """Whether mpiboot runs there, whatever is known of its facts."""
        unknown = (NoFacts.NO_MPIBOOT, NoFacts.BY_KUBECTL)
        return self.facts is not None or self.no_facts not in unknown

    @property
    def path_mpi(self) -> Mpi | None:
        """The MPI of its PATH, by its facts where it has any; None: there is no mpirun."""
        return self.facts.mpi if self.facts else self.mpi

    @property
    def pending(self) -> bool:
        """Whether its facts are still to come."""
        return self.facts is None and self.no_facts is NoFacts.PENDING


# Raised when a field changes its meaning; a new field with a default needs no new version.
FACTS_VERSION: Final = 2


def facts_to_json(facts: PodFacts) -> str:
    """Write facts as one line of JSON."""
    return write_records({"version": FACTS_VERSION, **values(facts)}) + "\n"


def facts_from_json(text: str) -> PodFacts | None:
    """Read facts; None where the text is broken or of a version that isn't understood."""
    try:
        value = json.loads(text)
        return read_record(PodFacts, value) if value["version"] == FACTS_VERSION else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
