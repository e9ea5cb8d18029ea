"""What the MPI Operator's controller (v2beta1, v0.8) makes of an MPIJob.

Hostfile, key pair, environment, names, mounts and modes are its own; so is what it does not do:
workers get no hostfile, and the variables it sets are those that it believes an MPI reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.network import Link
from tests.pods.oci import PodSpec
from tests.pods.pod import GUARD, Pod
from tests.pods.volumes import Files

_PROGRAM = ("mpirun", "/opt/programs/ring")
_HOSTFILE = "/etc/mpi/hostfile"
_PATIENCE = "-o ConnectionAttempts=10"


@dataclass(frozen=True)
class KeyPair:
    """A job's key pair, in the forms that its Secret holds."""

    private: str
    public: str

    @classmethod
    def make(cls) -> KeyPair:
        """A fresh ECDSA P-521 pair; the private half in the older PEM form."""
        key = ec.generate_private_key(ec.SECP521R1())
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        return cls(private.decode(), public.decode() + "\n")

    def files(self) -> dict[str, str]:
        """The Secret's files; they are called id_rsa, and hold an ECDSA key."""
        return {"id_rsa": self.private, "id_rsa.pub": self.public, "authorized_keys": self.public}


@dataclass
class Launched:
    """The pods of a job; `log` and `message` are its launcher's, `output` is its ranks'."""

    launcher: Pod
    workers: list[Pod]

    @property
    def log(self) -> str:
        return self.launcher.stderr()

    @property
    def output(self) -> str:
        return self.launcher.stdout()

    @property
    def message(self) -> str:
        return self.launcher.termination_log()

    def wait(self, timeout: float = GUARD) -> int:
        return self.launcher.wait(timeout)


@dataclass
class Job(Launched):
    """The pods of one MPIJob, not yet started and with no name published."""

    name: str
    hostfile: str
    config: Files

    @property
    def pods(self) -> list[Pod]:
        return [self.launcher, *self.workers]

    def start(self, *, publish: bool = True) -> Job:
        for pod in self.pods:
            pod.start()
        if publish:
            self.publish()
        return self

    def publish(self) -> None:
        for pod in self.pods:
            if pod.fqdn.partition(".")[0] + "." in self.hostfile:
                pod.publish()


def hostfile_of(mpi: str, hosts: Sequence[str], slots: int) -> str:
    """The hostfile in the syntax that the operator takes for this MPI's."""
    form = "{} slots={}\n" if mpi == "OpenMPI" else "{}:{}\n"
    return "".join(form.format(host, slots) for host in hosts)


def launcher_env(mpi: str, slots: int, *, as_worker: bool) -> dict[str, str]:
    env = {"K_MPI_JOB_ROLE": "launcher"}
    if mpi == "OpenMPI":
        env |= {
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": _HOSTFILE,
            "OMPI_MCA_plm_rsh_args": _PATIENCE,
            "OMPI_MCA_orte_set_default_slots": str(slots),
        }
    elif mpi == "Intel":
        env |= {
            "I_MPI_HYDRA_HOST_FILE": _HOSTFILE,
            "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": _PATIENCE,
            "I_MPI_PERHOST": str(slots),
        }
    elif mpi == "MPICH":
        env |= {"HYDRA_HOST_FILE": _HOSTFILE, "HYDRA_LAUNCH_EXTRA_ARGS": _PATIENCE}
    else:
        raise ValueError(mpi)
    if not as_worker:
        env |= {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
    return env


def mpijob(
    cluster: Cluster,
    image: Image,
    *,
    launcher_args: Sequence[str] | None = None,
    launcher_command: Sequence[str] | None = None,
    worker_args: Sequence[str] = ("worker",),
    worker_command: Sequence[str] | None = None,
    workers: int = 2,
    slots: int = 1,
    mpi: str | None = None,
    name: str = "pi",
    namespace: str = "default",
    as_worker: bool = False,
    data_link: str | None = None,
    ssh_mount: str | None = None,
    user: int = 0,
    env: Mapping[str, str] | None = None,
    hostfile: str | None = None,
    launcher: Mapping[str, Any] | None = None,
    worker: Mapping[str, Any] | None = None,
    each_worker: Mapping[int, Mapping[str, Any]] | None = None,
) -> Job:
    """Makes the pods of an MPIJob; `as_worker` is its runLauncherAsWorker.

    `mpi` is mpiImplementation, by default the image's; `ssh_mount` is sshAuthMountPath, by default
    in the home of the image's user. With neither `launcher_args` nor
    `launcher_command` the launcher runs the tests' program on every slot.
    `env` is for all pods. `launcher`, `worker` and `each_worker` (by index) replace fields of the
    PodSpecs; `volumes` and `env` given there are added to the operator's own.
    """
    mpi = mpi or {"mpich": "MPICH", "intel": "Intel"}.get(image.name.partition("-")[0], "OpenMPI")
    mount = ssh_mount or ("/home/mpiuser/.ssh" if user else "/root/.ssh")
    suffix = f"{name}.{namespace}.svc"
    names = [f"{name}-worker-{index}" for index in range(workers)]
    listed = [f"{host}.{suffix}" for host in ([f"{name}-launcher"] if as_worker else []) + names]
    text = hostfile_of(mpi, listed, slots) if hostfile is None else hostfile
    keys = KeyPair.make()

    def secret() -> Files:
        return Files(mount, keys.files(), 0o600 if mount == "/root/.ssh" else 0o644)

    config = Files(
        "/etc/mpi",
        {
            "hostfile": text,
            "discover_hosts.sh": "#!/bin/sh\n" + "".join(f"echo {host}\n" for host in listed),
        },
        modes={"hostfile": 0o444, "discover_hosts.sh": 0o555},
    )
    if launcher_args is None:
        launcher_args = () if launcher_command else _PROGRAM
    links = (Link(), *([Link(data_link, "br-data")] if data_link else []))
    common = PodSpec(
        name=name, image=image, namespace=namespace, subdomain=name, user=user, links=links
    )
    launcher_spec = replace(
        common,
        name=f"{name}-launcher",
        args=launcher_args,
        command=launcher_command,
        # The whole plan is in the log of every test's job; an operator sets no such thing.
        env={
            "MPIBOOT_LOG_LEVEL": "debug",
            **(env or {}),
            **launcher_env(mpi, slots, as_worker=as_worker),
        },
        volumes=(secret(), config),
    )
    if not worker_command and not worker_args:
        worker_command = ("/usr/sbin/sshd", "-De")
    specs = [
        replace(
            common,
            name=host,
            args=worker_args,
            command=worker_command,
            env={**(env or {}), "K_MPI_JOB_ROLE": "worker"},
            volumes=(secret(),),
            # Whatever the cluster's domain is, the controller appends this one.
            searches=(f"{name}.{namespace}.svc.cluster.local",),
        )
        for host in names
    ]
    special = each_worker or {}
    return Job(
        cluster.pod(_with(launcher_spec, launcher)),
        [
            cluster.pod(_with(_with(spec, worker), special.get(index)))
            for index, spec in enumerate(specs)
        ],
        name,
        text,
        config,
    )


def _with(spec: PodSpec, details: Mapping[str, Any] | None) -> PodSpec:
    """Replaces fields of a pod; a volume at a path that the operator uses takes its place."""
    if details is None:
        return spec
    changes = dict(details)
    changes["env"] = {**spec.env, **changes.get("env", {})}
    added = list(changes.get("volumes", ()))
    paths = {volume.path for volume in added}
    changes["volumes"] = [v for v in spec.volumes if v.path not in paths] + added
    return replace(spec, **changes)
