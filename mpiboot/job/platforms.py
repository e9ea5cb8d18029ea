"""The platforms as rows: how each one is recognised and what it says of this pod's role. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mpiboot.core.errors import error
from mpiboot.core.model import Decision, Role, Source
from mpiboot.core.setting_types import AUTO, BY_INDEX, WorkerExit
from mpiboot.core.settings import Resolved, Settings
from mpiboot.job import lsf, volcano

Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Platform:
    """One row: ``role`` answers only where the platform's own marks say it.

    ``managers`` are the prefixes of a resource manager's variables that belong to this platform
    and may stay in the environment; everywhere else they would mislead mpirun. ``worker_exit``
    is the setting's value for ``auto``: a worker may end only where nothing starts it again.
    ``worker_names`` matches the names of pods that are workers and never the launcher. ``folder``
    is where it mounts lists of hosts, which tells it too. ``sets``
    are the variables that the platform itself sets on a launcher, with the value's pattern: with
    that value they are not the user's word.
    """

    name: str
    recognise: Callable[[Environ], str]
    role: Callable[[Environ], tuple[Role, str] | None]
    managers: tuple[str, ...] = ()
    worker_exit: WorkerExit = WorkerExit.NEVER
    worker_names: str = ""
    folder: str = ""
    sets: Environ = field(default_factory=dict)

    def has_set(self, name: str, value: str) -> bool:
        """Whether a variable with this value is the platform's own, as nobody else has set it."""
        pattern = self.sets.get(name)
        return pattern is not None and re.fullmatch(pattern, value) is not None


def _marked(*names: str) -> Callable[[Environ], str]:
    def recognise(environ: Environ) -> str:
        return next((name for name in names if environ.get(name)), "")

    return recognise


def _operator_role(environ: Environ) -> tuple[Role, str] | None:
    word = environ.get("K_MPI_JOB_ROLE", "").lower()
    if word in ("launcher", "worker"):
        return Role(word), f"K_MPI_JOB_ROLE={word}, set by the MPI Operator"
    return None


_HOSTFILE: Final = "/etc/mpi/hostfile"
_PATIENCE: Final = "-o ConnectionAttempts=10"
# What Kubeflow Trainer's MPI plugin sets on a TrainJob's launcher and on no node (v2.3.0,
# pkg/runtime/framework/plugins/mpi/mpi.go, EnforceMLPolicy). It lets nobody set them otherwise.
_TRAINER_SETS: Final = {
    "OMPI_MCA_orte_default_hostfile": _HOSTFILE,
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_set_default_slots": r"\d+",
    "OMPI_MCA_plm_rsh_args": _PATIENCE,
}
# The same from the MPI Operator's v2beta1 controller, and what it has for other MPIs
# (mpi_job_controller.go, ompiEnvVars, intelEnvVars and mpichEnvVars).
_OPERATOR_SETS: Final = {
    **_TRAINER_SETS,
    "I_MPI_HYDRA_HOST_FILE": _HOSTFILE,
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": _PATIENCE,
    "I_MPI_PERHOST": r"\d+",
    "HYDRA_HOST_FILE": _HOSTFILE,
    "HYDRA_LAUNCH_EXTRA_ARGS": _PATIENCE,
}


# The Job controller sets it in each pod of an indexed Job (KEP-2214; Kubernetes'
# pkg/controller/job/indexed_job_utils.go). So it is in a JobSet's (v0.12.0), whose Jobs are
# indexed, and get no other variable.
_INDEX: Final = "JOB_COMPLETION_INDEX"


def _trainer(environ: Environ) -> str:
    """By all of its variables: the MPI Operator's launcher has them too, but no indexed Job."""
    found = all(re.fullmatch(p, environ.get(name, "")) for name, p in _TRAINER_SETS.items())
    hostfile = next(iter(_TRAINER_SETS))
    return f"{hostfile} in a pod of an indexed Job" if found and environ.get(_INDEX) else ""


def _trainer_role(environ: Environ) -> tuple[Role, str] | None:  # noqa: ARG001 - as below
    hostfile = next(iter(_TRAINER_SETS))
    return Role.LAUNCHER, f"{hostfile}, which Trainer sets on the launcher alone"


def _by_index(environ: Environ, hostname: str) -> tuple[Role, str]:
    """Give the role that a pod's number says: an indexed Job's variable, else its own name's end.

    Raises:
        MpibootError: ``role``; the pod has no number.
    """
    number, where = environ.get(_INDEX, ""), _INDEX
    if not number:
        number, where = hostname.partition(".")[0].rpartition("-")[2], f"the host name {hostname}"
    if not (number.isascii() and number.isdigit()):
        raise error(
            "role",
            f"by-index needs this pod's number: {_INDEX} is not set, and the host name {hostname} "
            "does not end with one",
            hint="it is for a StatefulSet and for a Job with completionMode: Indexed; elsewhere "
            "set MPIBOOT_ROLE to launcher or worker in each pod",
        )
    return Role.WORKER if int(number) else Role.LAUNCHER, f"pod {int(number)}, by {where}"


def _nothing(environ: Environ) -> tuple[Role, str] | None:  # noqa: ARG001 - a row's signature
    return None


PLATFORMS: Final = (
    Platform(
        "mpi-operator",
        _marked("K_MPI_JOB_ROLE"),
        _operator_role,
        worker_exit=WorkerExit.AFTER_JOB,
        worker_names=r"-worker-\d+$",
        sets=_OPERATOR_SETS,
    ),
    Platform(
        "trainer",
        _trainer,
        _trainer_role,
        worker_names=r"-node-\d+-\d+$",
        sets=_TRAINER_SETS,
    ),
    Platform(
        "volcano",
        volcano.recognise,
        volcano.role,
        folder=f"{volcano.FOLDER}/",
        sets={volcano.MASTER: ".+"},
    ),
    Platform("lsf", _marked(lsf.JOB), _nothing, managers=("LSB_", "LSF_")),
    # Also a TrainJob's nodes. An index that has ended well is not started again.
    Platform("indexed-job", _marked(_INDEX), _nothing, worker_exit=WorkerExit.WITH_JOB),
    Platform("plain", lambda _: "no known platform found", _nothing),
)


def recognise(environ: Environ, hostfile: str = "") -> tuple[Platform, Decision]:
    """Tell which platform made this pod, and by what: a variable, or where the hosts' list is."""
    for row in PLATFORMS:
        mark = row.recognise(environ)
        if not mark and row.folder and hostfile.startswith(row.folder):
            mark = hostfile
        if mark:
            return row, Decision("platform", row.name, Source.DETECTED, mark)
    raise AssertionError("the last row recognises everything")


def worker_exit(settings: Settings, environ: Environ) -> WorkerExit:
    """Say when a worker ends by itself.

    The MPI Operator leaves workers running (cleanPodPolicy None, its default) and never makes a
    finished one anew (its restartPolicy is Never). An indexed Job is complete when all its pods
    have ended well. Elsewhere, as in a StatefulSet, what ends is started again, or the platform
    ends all pods of a job itself.
    """
    wanted = settings.worker_exit
    return recognise(environ)[0].worker_exit if wanted is AUTO else wanted


# Words by which a worker's container is started; none of them is a program to run beside sshd.
_SSHD_WORDS: Final = ("sshd", "shell", "worker")


def is_sshd(program: tuple[str, ...]) -> bool:
    """Whether the arguments only ask for an SSH server (``/usr/sbin/sshd -De``)."""
    return bool(program) and program[0].rsplit("/", 1)[-1] in _SSHD_WORDS


def role(
    resolved: Resolved,
    environ: Environ,
    program: tuple[str, ...],
    hostfile: str,
    hostname: str,
) -> tuple[Role, Decision]:
    """Decide what this pod is, for the entrypoint form.

    Args:
        resolved: the settings.
        environ: the pod's environment.
        program: the arguments that the container got.
        hostfile: path of a hostfile that is mounted, empty where none is.
        hostname: this pod's own name.

    Raises:
        MpibootError: ``role``; a hostfile is mounted and nothing says the role. Volcano,
            StatefulSets and LSF mount it in every pod, so it makes no launcher by itself.
            Or this pod has no number, and the setting goes by that.
    """

    def decided(value: Role, source: Source, because: str) -> tuple[Role, Decision]:
        return value, Decision("role", value.value, source, because)

    settings = resolved.settings
    given = resolved.given["role"]
    if settings.role is BY_INDEX:
        value, because = _by_index(environ, hostname)
        return decided(value, given.source, f"{given}: {because}")
    if settings.role is not AUTO:
        return decided(settings.role, given.source, str(given))
    platform, _ = recognise(environ)
    said = platform.role(environ)
    if said:
        return decided(said[0], Source.PLATFORM, said[1])
    if settings.start_sshd:
        return decided(Role.WORKER, Source.ENVIRONMENT, f"{resolved.given['start_sshd']} is true")
    if is_sshd(program) and program[0] != "shell":
        return decided(Role.WORKER, Source.DETECTED, f"the arguments ask for {program[0]}")
    if hostfile:
        raise error(
            "role",
            f"a hostfile is mounted ({hostfile}) and nothing says whether this pod is the "
            "launcher or a worker",
        )
    return decided(Role.NONE, Source.DEFAULT, "no hostfile, and nothing says a role")
