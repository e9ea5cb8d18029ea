"""Jobs of a launcher and two workers with one fault each, and doctor's findings in the launcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.pods import images
from tests.pods.faults_pod import SSHD
from tests.pods.network import Link
from tests.pods.operator import Job, KeyPair
from tests.pods.volumes import Files

# What the other worker sends is dropped: as by a NetworkPolicy.
_BETWEEN: Final = """
table inet between {
    chain input {
        type filter hook input priority 0;
        ct state established,related accept
        ip saddr %s drop
    }
}
"""


@dataclass(frozen=True, kw_only=True)
class JobFault:
    """A job with one fault, as `Fault`; doctor runs in the launcher.

    `host` is the worker that it is about, empty for all or the launcher. `job` gives what differs
    in the job (the words of `mpijob`), `network` breaks its running pods; `unpublished` workers
    have no name. `ready` is what the second worker has written when it is as it is to be, empty
    where it is one of mpiboot's.
    """

    what: str
    check: str
    level: str
    message: str
    hint: str = ""
    host: str = "pi-worker-1"
    job: Callable[[], Mapping[str, Any]] = dict
    network: Callable[[Job], object] | None = None
    unpublished: tuple[int, ...] = ()
    ready: str = ""

    @property
    def name(self) -> str:
        """The name of its test."""
        return "-".join(self.what.replace(",", "").replace("'", "").split())


def _second(**details: object) -> dict[str, Any]:
    return {"each_worker": {1: details}}


def _policy(job: Job) -> None:
    first, second = job.workers
    for one, other in ((first, second), (second, first)):
        one.network.run("nft", "-f", "-", stdin=_BETWEEN % other.address)


FAULTS: Final = (
    JobFault(
        what="a worker whose name does not resolve",
        check="names-unresolved",
        level="fail",
        message="DNS: NXDOMAIN (asked 10.96.0.10)",
        unpublished=(1,),
    ),
    JobFault(
        what="a worker without an SSH server",
        check="workers-unreachable",
        level="fail",
        message="SSH: connection refused on ... ports 22, 2222, 222",
        hint="does the worker's container run mpiboot? ...",
        job=lambda: _second(command=["sh", "-c", "echo up >&2; sleep 1000"], args=()),
        ready="up",
    ),
    JobFault(
        what="a worker with another key",
        check="host-key-differs",
        level="fail",
        message="mpiboot on pi-worker-1.pi.default.svc (...) has another key, SHA256:..., "
        "not the job's, SHA256:...",
        hint="launcher and workers must mount the same key Secret",
        job=lambda: _second(volumes=(Files("/root/.ssh", KeyPair.make().files(), 0o600),)),
    ),
    JobFault(
        what="another MPI on one worker",
        check="mpi-versions",
        level="warn",
        message="/usr/bin/mpirun: mpirun (Open MPI) 5...; the launcher: mpirun (Open MPI) 4...",
        job=lambda: _second(image=images.image("openmpi-5.0")),
    ),
    JobFault(
        what="a worker without mpiboot, with an sshd of its own",
        check="host-key-differs",
        level="fail",
        message="sshd on pi-worker-1.pi.default.svc (...) has a host key of its own, SHA256:..., "
        "not the job's, SHA256:...",
        hint="run mpiboot on the workers (`args: [worker]`), or set MPIBOOT_HOST_KEYS=accept-new",
        job=lambda: _second(command=SSHD, args=()),
        ready="Server listening",
    ),
    JobFault(
        what="a NetworkPolicy between workers",
        check="worker-pairs",
        level="fail",
        message="pi-worker-... can't reach pi-worker-... (... port ...): no answer in 2 s, twice; "
        "its SSH port 22 does not answer either; 1 more of 2 that were tried",
        host="",
        network=_policy,
    ),
    JobFault(
        what="links with different MTUs",
        check="workers-differ",
        level="warn",
        message="workers differ: pi-worker-1.pi.default.svc: 0 GPUs, 0 RDMA ports, MTU 1400; "
        "the others (1): 0 GPUs, 0 RDMA ports, MTU 1500",
        host="",
        job=lambda: _second(links=(Link(mtu=1400),)),
    ),
    JobFault(
        what="a worker with a low memlock",
        check="hosts-differ",
        level="warn",
        message="memlock of a session is 64 KiB, of the others (1): ...",
        hint="securityContext: {capabilities: {add: [IPC_LOCK]}} ...",
        job=lambda: _second(rlimits={"RLIMIT_MEMLOCK": (1 << 16, 1 << 16)}),
    ),
    JobFault(
        what="a worker without the link that the others have",
        check="hosts-differ",
        level="warn",
        message="it has no link net1, which the others (1) have",
        hint="give each worker the same networks (`k8s.v1.cni.cncf.io/networks`)",
        job=lambda: {"data_link": "net1", **_second(links=(Link(),))},
    ),
    JobFault(
        what="several ranks on a host with 64 MiB of shared memory",
        check="shm",
        level="warn",
        message="/dev/shm has 64 MiB for 4 ranks",
        host="",
        job=lambda: {"slots": 4},
    ),
    JobFault(
        what="a hostfile that is not there",
        check="hostfile-missing",
        level="fail",
        message="/etc/mpi/none (named by MPIBOOT_HOSTFILE) does not exist",
        host="",
        job=lambda: {"launcher": {"env": {"MPIBOOT_HOSTFILE": "/etc/mpi/none"}}},
    ),
    JobFault(
        what="a hostfile that can't be read as one",
        check="hostfile-invalid",
        level="fail",
        message="/etc/mpi/hostfile:1: slots is 'many', expected a whole number",
        host="",
        job=lambda: {
            "hostfile": "pi-worker-0.pi.default.svc slots=many\npi-worker-1.pi.default.svc\n"
        },
    ),
)
