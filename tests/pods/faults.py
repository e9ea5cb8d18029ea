"""Broken pods and jobs with one fault each, and doctor's findings.

From these tables come the tests of `test_doctor.py` and the page `docs/reference/errors.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from tests.pods import images
from tests.pods.network import Link

_HOST_KEY: Final = (
    "mkdir -p /run/sshd; ssh-keygen -qt ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key"
)
SSHD: Final = ("sh", "-c", f"{_HOST_KEY}; exec /usr/sbin/sshd -De -f /dev/null")
_NET1: Final = (Link(), Link("net1", "br-data"))


@dataclass(frozen=True)
class Fault:
    """A pod with one fault.

    `what` is the fault in plain words; `check`, `level` and `message` are doctor's finding, in
    which `...` stands for what differs from pod to pod; so is `hint`, where it is not the check's.
    The pod is broken by fields of its PodSpec (`pod`), by files that its image lacks
    (`without`), by a script before doctor runs (`before`), or by programs run in its network
    (`network`). With `runs` the container runs this, and doctor is called in it as soon as it has
    written `until`.
    """

    what: str
    check: str
    level: str
    _: KW_ONLY
    message: str
    hint: str = ""
    pod: Mapping[str, Any] = field(default_factory=dict)
    without: Sequence[str] = ()
    key_path: str = "/root/.ssh"
    key_mode: int = 0o644
    before: str = ""
    network: Sequence[str] = ()
    runs: Sequence[str] = ()
    until: str = ""
    quick: bool = False


@dataclass(frozen=True)
class JobFault:
    """A job of a launcher and two workers with one fault, as `Fault`; doctor runs in the launcher.

    `host` is the worker that it is about, empty for all or the launcher. `job` gives what differs
    in the job (the words of `mpijob`); `unpublished` workers have no name. `ready` is what the
    second worker has written when it is as it is to be, empty where it is one of mpiboot's.
    """

    what: str
    check: str
    level: str
    _: KW_ONLY
    message: str
    hint: str = ""
    host: str = "pi-worker-1"
    job: Callable[[], Mapping[str, Any]] = dict
    unpublished: tuple[int, ...] = ()
    ready: str = ""


PODS: Final = (
    Fault(
        *("an MPI without its daemon", "mpi-daemon", "fail"),
        message="/usr/bin/mpirun has no orted beside it or on PATH",
        without=("/usr/bin/orted",),
        quick=True,
    ),
    Fault(
        *("a missing library of mpirun", "shared-libraries", "fail"),
        message="/usr/bin/mpirun does not find all of its shared libraries",
        without=("/usr/lib/x86_64-linux-gnu/libhwloc.so.15",),
    ),
    Fault(
        *("a key of another owner that this user can't read", "ssh-key", "fail"),
        message="uid 1000 can't reach the key /home/mpi/.ssh/id_rsa: "
        "/home/mpi/.ssh/id_rsa has mode 0600 of uid 0",
        hint="set securityContext.fsGroup in the pod, and defaultMode: 0440 for the key's Secret",
        pod={"user": 1000},
        key_path="/home/mpi/.ssh",
        key_mode=0o600,
    ),
    Fault(
        *("a full /dev/shm", "shm-full", "warn"),
        message="... of 64 MiB in /dev/shm in use",
        before="head -c 62M /dev/zero >/dev/shm/filled",
        quick=True,
    ),
    Fault(
        *("a rank that was killed as the memory was used up", "memory-limit", "warn"),
        message="out of memory: the kernel killed 1 process here",
        pod={"memory": 256 << 20},
        before=f"""{images.PYTHON} -c 'b"x" * (1 << 30)' || true""",
    ),
    Fault(
        *("a GPU that the kernel has lost", "gpus", "warn"),
        message="1 of 1 GPUs in /dev are no longer on the PCI bus",
        before="mknod /dev/nvidia0 c 195 0",
    ),
    Fault(
        *("a data link in the pod network's subnet", "control-subnet", "warn"),
        message="eth0 (.../24) and net1 (.../24) are in one subnet",
        pod={"links": (Link(), Link("net1", "br-data", ipv4=False))},
        network=("ip address add 10.244.0.222/24 dev net1",),
    ),
    Fault(
        *("a data link that is down", "data-carrier", "warn"),
        message="link net1 has an address, but has no carrier",
        pod={"links": _NET1},
        network=("down net1",),
    ),
    Fault(
        *("NCCL_SOCKET_IFNAME fits no link", "nccl-value", "warn"),
        message="NCCL_SOCKET_IFNAME=ens5 fits nothing here (there are lo, eth0)",
        pod={"env": {"NCCL_SOCKET_IFNAME": "ens5"}},
        quick=True,
    ),
    Fault(
        *("an mpirun that was started without mpiboot", "shims", "warn"),
        message="this container's first process is mpirun, started without mpiboot",
        runs=("mpirun", "--allow-run-as-root", "-n", "1", "sh", "-c", "echo up >&2; sleep 600"),
        until="up",
    ),
)


def _second(**details: object) -> dict[str, Any]:
    return {"each_worker": {1: details}}


JOBS: Final = (
    JobFault(
        *("a worker whose name does not resolve", "names-unresolved", "fail"),
        message="DNS: NXDOMAIN (asked 10.96.0.10)",
        unpublished=(1,),
    ),
    JobFault(
        *("a worker without an SSH server", "workers-unreachable", "fail"),
        message="SSH: connection refused on ... ports 22, 2222, 222",
        hint="does the worker's container run mpiboot? ...",
        job=lambda: _second(command=["sh", "-c", "echo up >&2; sleep 1000"], args=()),
        ready="up",
    ),
    JobFault(
        *("a worker without mpiboot, with an sshd of its own", "host-key-differs", "fail"),
        message="sshd on pi-worker-1.pi.default.svc (...) has a host key of its own, SHA256:..., "
        "not the job's, SHA256:...",
        hint="run mpiboot on the workers (`args: [worker]`), or set MPIBOOT_HOST_KEYS=accept-new",
        job=lambda: _second(command=SSHD, args=()),
        ready="Server listening",
    ),
    JobFault(
        *("links with different MTUs", "workers-differ", "warn"),
        message="workers differ: pi-worker-1.pi.default.svc: 0 GPUs, 0 RDMA ports, MTU 1400; "
        "the others (1): 0 GPUs, 0 RDMA ports, MTU 1500",
        host="",
        job=lambda: _second(links=(Link(mtu=1400),)),
    ),
    JobFault(
        *("a worker without the link that the others have", "hosts-differ", "warn"),
        message="link net1: none; the others (1): MTU ...",
        job=lambda: {"data_link": "net1", **_second(links=(Link(),))},
    ),
    JobFault(
        *("several ranks on a host with 64 MiB of shared memory", "shm", "warn"),
        message="/dev/shm has 64 MiB for 4 ranks",
        host="",
        job=lambda: {"slots": 4},
    ),
)
FAULTS: Final = (*PODS, *JOBS)
