"""What doctor has seen of one pod: frozen parts, a look each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mpiboot.core.model import Finding, Identity, Mesh, Mpi, PodFacts
from mpiboot.core.settings import Settings


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the image; ``path`` is empty where there is none.

    ``lacks`` are the lines in which the loader tells of libraries that it does not find.
    """

    name: str
    path: str
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImagePart:
    """The image: its MPI, the programs that a job needs, and this Python.

    ``daemon`` is the program that mpirun starts on every host, None where that isn't known;
    ``modules`` are those that mpiboot needs and that can't be found.
    """

    mpi: Mpi | None
    programs: tuple[Program, ...]
    daemon: Program | None
    python: str
    modules: tuple[str, ...]
    search: str = ""


@dataclass(frozen=True, slots=True)
class KeyPart:
    """The job's key: its file, type and fingerprint, who may read it, and what is odd beside it.

    ``wrong`` is why there is none that can be used; the rest is empty then.
    """

    path: str = ""
    kind: str = ""
    fingerprint: str = ""
    mode: int = 0
    owner: int = 0
    read_only: bool = False
    odd: Finding | None = None
    wrong: Finding | None = None


@dataclass(frozen=True, slots=True)
class FolderPart:
    """The private folder and TMPDIR: the path, or what is wrong with each."""

    path: str
    wrong: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class ShimsPart:
    """Which calls by the usual names start mpiboot, and what has passed it by."""

    good: str
    bad: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SshdPart:
    """OpenSSH's sshd: its file (empty: none), and why it can't serve this pod (empty: it can)."""

    path: str
    against: str


@dataclass(frozen=True, slots=True)
class SshListener:
    """What listens on a port: the line with which it greets, and its process where that is known.

    ``program`` is that process's name; ``pid`` is 0 where it is another user's or container's.
    ``ours`` tells whether mpiboot started it, by its greeting.
    """

    port: int
    greeting: str
    pid: int = 0
    program: str = ""
    ours: bool = False


@dataclass(frozen=True, slots=True)
class ServersPart:
    """SSH servers on the ports where a launcher looks; ``own`` is the worker's (0: none runs)."""

    own: int
    servers: tuple[SshListener, ...]


@dataclass(frozen=True, slots=True)
class SshdSettings:
    """What an OpenSSH server that runs goes by: ``sshd -T`` of its own options, for this user.

    ``values`` are by their names in small letters, an item a line of it; ``wrong`` is why it could
    not be asked. ``keys`` are the file of this user's authorized keys and the folders above it, up
    to the home: path, mode, owner.
    """

    port: int
    program: str
    values: Mapping[str, tuple[str, ...]]
    keys: tuple[tuple[str, int, int], ...] = ()
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class SshdSettingsPart:
    """The settings of each OpenSSH server that this user may ask."""

    servers: tuple[SshdSettings, ...]


@dataclass(frozen=True, slots=True)
class MeshPart:
    """The service mesh in front of this pod, if there is one."""

    mesh: Mesh | None


@dataclass(frozen=True, slots=True)
class LimitsPart:
    """Soft limits of a process (-1: none), by their names in /proc/PID/limits.

    ``sessions`` are those that an SSH session gets, ``first`` those of the pod's first process;
    ``processes`` and ``most_processes`` are the control group's (0: no limit).
    """

    sessions: Mapping[str, int]
    first: Mapping[str, int]
    processes: int = 0
    most_processes: int = 0


@dataclass(frozen=True, slots=True)
class ShmPart:
    """Shared memory, /dev/shm: its size and what of it is in use, in bytes.

    ``stale`` are files of NCCL that no process holds any more, by name and size; ``all_seen``
    tells whether every process of the pod could be asked what it holds.
    """

    size: int
    used: int
    stale: tuple[tuple[str, int], ...] = ()
    all_seen: bool = True


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """The container's memory, in bytes: its limit (0: none), what it holds, and its kills.

    ``used`` is without the page cache that the kernel gives up first.
    """

    limit: int
    used: int
    kills: int


@dataclass(frozen=True, slots=True)
class RoutingPart:
    """rp_filter by link, as it is in force: the larger one of a link's own and that of all."""

    rp_filter: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PciPart:
    """Sysfs paths of this pod's GPUs and RDMA devices, and the NUMA node of each (-1: none).

    A path is that of the PCI tree, such as ``pci0000:00/0000:00:01.0/0000:01:00.0``.
    """

    gpus: Mapping[str, str]
    devices: Mapping[str, str]
    numa: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CountersPart:
    """Counters of this pod's RDMA ports, by port and name: their sums since the driver's start.

    ``grown`` is by how much they grew within ``seconds``.
    """

    sums: Mapping[str, Mapping[str, int]]
    grown: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    seconds: float = 0.0


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


@dataclass(frozen=True, slots=True)
class PodReport:
    """One pod, as doctor saw it; a part is None where nothing is known, and ``unseen`` says why."""

    settings: Settings
    environ: Mapping[str, str]
    identity: Identity | None = None
    facts: PodFacts | None = None
    image: ImagePart | None = None
    sshd: SshdPart | None = None
    folder: FolderPart | None = None
    key: KeyPart | None = None
    shims: ShimsPart | None = None
    mesh: MeshPart | None = None
    servers: ServersPart | None = None
    limits: LimitsPart | None = None
    shm: ShmPart | None = None
    memory: MemoryPart | None = None
    routing: RoutingPart | None = None
    pci: PciPart | None = None
    sshd_settings: SshdSettingsPart | None = None
    counters: CountersPart | None = None
    nvidia: NvidiaPart | None = None
    unseen: Mapping[str, str] = field(default_factory=dict)
