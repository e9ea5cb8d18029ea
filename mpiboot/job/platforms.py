"""The platforms as rows: how each is recognised, and how it marks roles and hosts. Pure.

Volcano's names and forms are those of v1.15.1 (pkg/controllers/job/plugins: svc/svc.go
GenerateHosts, distributed-framework/mpi/mpi.go, env/const.go). LSF's: ``LSB_DJOB_HOSTFILE`` names a
file with a line for each slot; ``LSB_MCPU_HOSTS`` has each host once, followed by its slots ("Using
Platform LSF HPC" 7.3, "Automatic generation of the job host file").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from mpiboot.core.addresses import short
from mpiboot.core.checks import error
from mpiboot.core.model import AUTO, BY_INDEX, Decision, Role, Source, WorkerExit
from mpiboot.core.settings import Resolved, Settings
from mpiboot.core.wording import counted, first_few

# The svc plugin's ConfigMap, in every pod of the job: <task>.host, a host a line.
VOLCANO_FOLDER: Final = "/etc/volcano"
VOLCANO_ENDING: Final = ".host"
_TASK_VARIABLE: Final = re.compile(r"VC_(.+)_HOSTS")
# Set by the mpi plugin, on the pods of its master task alone.
VOLCANO_MASTER: Final = "MPI_HOST"
_ENV_PLUGIN: Final = ("VC_TASK_INDEX", "VK_TASK_INDEX")


class VolcanoTask(NamedTuple):
    """The hosts of a task's pods, and the file or variable that has them.

    ``key`` is ``task_key`` of the task's name. ``slots`` are those of each host, where a setting
    has them.
    """

    key: str
    where: str
    hosts: tuple[str, ...]
    slots: str = ""

    @property
    def text(self) -> str:
        """The hosts as a hostfile has them."""
        slots = f" slots={self.slots}" if self.slots else ""
        return "".join(f"{host}{slots}\n" for host in self.hosts)


def task_key(task: str) -> str:
    """Normalise a task's name, as given or from its file or variable: mpi-worker, MPI_WORKER."""
    return task.replace("-", "_").lower()


def _volcano(environ: Mapping[str, str]) -> str:
    """Give the variable by which a pod is one of a Volcano job, which three plugins set."""
    names = (*_ENV_PLUGIN, *(task.where for task in volcano_tasks(environ)))
    return next((name for name in names if environ.get(name)), "")


def volcano_tasks(environ: Mapping[str, str]) -> Iterator[VolcanoTask]:
    """Read the tasks that the svc plugin's variables name; one without pods has an empty value."""
    for name, value in environ.items():
        found = _TASK_VARIABLE.fullmatch(name)
        if found and value and environ.get(f"VC_{found[1]}_NUM"):
            yield VolcanoTask(task_key(found[1]), name, tuple(value.split(",")))


def named_task(wanted: str, by: str, known: Mapping[str, VolcanoTask]) -> VolcanoTask:
    """Find a task that a setting names, and its slots there.

    Raises:
        MpibootError: ``hostfile-missing``; the job has no such task. ``usage``; not a number.
    """
    name, colon, slots = wanted.partition(":")
    if colon and not (slots.isdecimal() and int(slots)):
        raise error("usage", f"{by} is {wanted}: expected TASK or TASK:SLOTS, such as gpu:8")
    task = known.get(task_key(name))
    if task is None:
        have = first_few(sorted(known)) or "none"
        raise error(
            "hostfile-missing",
            f"{by}={name}: no such task; {VOLCANO_FOLDER}/*{VOLCANO_ENDING} and VC_*_HOSTS: {have}",
            hint=f"name a task of the job with {by}; Volcano's svc plugin (`svc: []`) writes both",
        )
    return task._replace(slots=slots)


def choose_tasks(
    environ: Mapping[str, str], hostname: str, known: Mapping[str, VolcanoTask]
) -> tuple[list[VolcanoTask], str]:
    """Choose the tasks whose pods are the job's hosts, with the reason; none where none is known.

    Which of several come first is not in the pods: they are in the order of their names.

    Raises:
        MpibootError: ``hostfile-missing``; several tasks may be meant, or be the launcher's.
    """
    listed = tuple(filter(None, environ.get(VOLCANO_MASTER, "").split(",")))
    if listed:
        reason = f"{VOLCANO_MASTER} of Volcano's mpi plugin"
        # The variable stays as the pod was made; the task's file follows when workers are added.
        same = next((task for task in known.values() if listed[0] in task.hosts), None)
        return [same or VolcanoTask("", VOLCANO_MASTER, listed)], reason
    own = short(hostname)
    found = sorted(known.values(), key=lambda task: task.key)
    others = [task for task in found if own not in map(short, task.hosts)]
    filled = [task for task in others if task.hosts] or others
    if len(found) < 2:  # noqa: PLR2004 - the task of this very pod, or no job of Volcano's
        return found, "Volcano (the job's only task)"
    if len(filled) == 1 or (filled and len(others) < len(found)):
        return filled, f"Volcano (the job's {counted(len(filled), 'other task')})"
    found = filled or found
    which = first_few(task.key for task in found)
    raise error(
        "hostfile-missing",
        f"this pod is in none of the Volcano job's {len(found)} tasks ({which}): which have the "
        "workers is unknown",
        hint=f"set MPIBOOT_WORKER_TASK={found[0].key} on the launcher, or use the mpi plugin",
    )


LSF_JOB: Final = "LSB_JOBID"
LSF_FILE: Final = "LSB_DJOB_HOSTFILE"
LSF_PAIRS: Final = "LSB_MCPU_HOSTS"


def of_lsf_file(text: str) -> str:
    """Count the lines of each host; the order is LSF's."""
    slots = Counter(line.strip() for line in text.splitlines() if line.strip())
    return "".join(f"{host} slots={count}\n" for host, count in slots.items())


def of_lsf_pairs(text: str) -> str:
    """Write hosts and slots, which stand in turn, as a hostfile has them."""
    words = [*text.split(), ""]
    return "".join(
        f"{host} slots={count}\n" for host, count in zip(words[::2], words[1::2], strict=False)
    )


Environ = Mapping[str, str]


class Platform(NamedTuple):
    """One row.

    ``role_var`` holds the pod's role; ``launcher_var`` is set on launchers alone. ``managers`` are
    the prefixes of a resource manager's variables that belong to this platform and may stay in the
    environment; everywhere else they would mislead mpirun. ``worker_exit`` is the setting's value
    for ``auto``: a worker may end only where nothing starts it again. ``worker_names`` matches the
    names of pods that are workers and never the launcher. ``folder`` is where it mounts lists of
    hosts, which identifies it too. ``sets`` are the variables that the platform itself sets on a
    launcher, with the value's pattern: with that value they are not the user's word.
    """

    name: str
    recognise: Callable[[Environ], str]
    role_var: str = ""
    launcher_var: str = ""
    managers: tuple[str, ...] = ()
    worker_exit: WorkerExit = WorkerExit.NEVER
    worker_names: str = ""
    folder: str = ""
    sets: Environ = MappingProxyType({})

    def role(self, environ: Environ) -> tuple[Role, str] | None:
        """Give the pod's role by the platform's own variables, and by which."""
        word = environ.get(self.role_var, "").lower()
        if word in (Role.LAUNCHER, Role.WORKER):
            return Role(word), f"{self.role_var}={word}, set by the MPI Operator"
        if environ.get(self.launcher_var):
            return Role.LAUNCHER, f"{self.launcher_var}, which {self.name} sets on launchers alone"
        return None

    def has_set(self, name: str, value: str) -> bool:
        """Whether a variable with this value is the platform's own, and not the user's."""
        pattern = self.sets.get(name)
        return pattern is not None and re.fullmatch(pattern, value) is not None


def _marked(name: str) -> Callable[[Environ], str]:
    return lambda environ: name if environ.get(name) else ""


# Where the MPI Operator and Trainer mount it, and the variables that name it to each MPI's mpirun.
HOSTFILE: Final = "/etc/mpi/hostfile"
HOSTFILE_VARS: Final = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
_PATIENCE: Final = "-o ConnectionAttempts=10"
# What Kubeflow Trainer's MPI plugin sets on a TrainJob's launcher and on no node (v2.3.0,
# pkg/runtime/framework/plugins/mpi/mpi.go, EnforceMLPolicy). It lets nobody set them otherwise.
_TRAINER_SETS: Final = {
    "OMPI_MCA_orte_default_hostfile": HOSTFILE,
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_set_default_slots": r"\d+",
    "OMPI_MCA_plm_rsh_args": _PATIENCE,
}
# The same from the MPI Operator's v2beta1 controller, and what it has for other MPIs
# (mpi_job_controller.go, ompiEnvVars, intelEnvVars and mpichEnvVars).
_OPERATOR_SETS: Final = {
    **_TRAINER_SETS,
    "I_MPI_HYDRA_HOST_FILE": HOSTFILE,
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": _PATIENCE,
    "I_MPI_PERHOST": r"\d+",
    "HYDRA_HOST_FILE": HOSTFILE,
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


def _by_index(environ: Environ, hostname: str) -> tuple[Role, str]:
    """Return the role by the pod's number: an indexed Job's variable, else its name's end.

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


PLAIN: Final = Platform("plain", lambda _: "no known platform found")
PLATFORMS: Final = (
    Platform(
        "mpi-operator",
        _marked("K_MPI_JOB_ROLE"),
        role_var="K_MPI_JOB_ROLE",
        worker_exit=WorkerExit.AFTER_JOB,
        worker_names=r"-worker-\d+$",
        sets=_OPERATOR_SETS,
    ),
    Platform(
        "trainer",
        _trainer,
        launcher_var=next(iter(_TRAINER_SETS)),
        worker_names=r"-node-\d+-\d+$",
        sets=_TRAINER_SETS,
    ),
    Platform(
        "volcano",
        _volcano,
        launcher_var=VOLCANO_MASTER,
        folder=f"{VOLCANO_FOLDER}/",
        sets={VOLCANO_MASTER: ".+"},
    ),
    Platform("lsf", _marked(LSF_JOB), managers=("LSB_", "LSF_")),
    # Also a TrainJob's nodes. An index that has ended well is not started again.
    Platform("indexed-job", _marked(_INDEX), worker_exit=WorkerExit.WITH_JOB),
    PLAIN,
)


def recognise(environ: Environ, hostfile: str = "") -> tuple[Platform, Decision]:
    """Recognise the platform that made this pod, by a variable or the path of its hosts' list."""
    for row in PLATFORMS:
        mark = row.recognise(environ)
        if not mark and row.folder and hostfile.startswith(row.folder):
            mark = hostfile
        if mark:
            return row, Decision("platform", row.name, Source.DETECTED, mark)
    raise AssertionError("the last row recognises everything")


def worker_exit(settings: Settings, environ: Environ) -> WorkerExit:
    """Return when a worker ends on its own.

    The MPI Operator leaves workers running (cleanPodPolicy None, its default) and never makes a
    finished one anew (its restartPolicy is Never). An indexed Job is complete when all its pods
    have ended well. Elsewhere, as in a StatefulSet, what ends is started again, or the platform
    ends all pods of a job itself.
    """
    wanted = settings.worker_exit
    return recognise(environ)[0].worker_exit if wanted is AUTO else wanted


# Arguments that only ask for an SSH server; a program of such a name has a path (./worker).
_SSHD_WORDS: Final = ("sshd", "shell", "worker")


def is_sshd(program: tuple[str, ...]) -> bool:
    """Whether the arguments only want an SSH server (``/usr/sbin/sshd -De``)."""
    return any(word in _SSHD_WORDS or word.endswith("/sshd") for word in program[:1])


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
        MpibootError: ``role``; a hostfile is mounted and the role is unknown. Volcano,
            StatefulSets and LSF mount it in every pod, so that alone makes no launcher.
            Or this pod has no number, and the setting goes by that.
    """

    def decided(value: Role, source: Source, reason: str) -> tuple[Role, Decision]:
        return value, Decision("role", value.value, source, reason)

    settings, given = resolved.settings, resolved.given["role"]
    if settings.role is BY_INDEX:
        value, reason = _by_index(environ, hostname)
        return decided(value, given.source, f"{given}: {reason}")
    if settings.role is not AUTO:
        return decided(settings.role, given.source, str(given))
    if marked := recognise(environ)[0].role(environ):
        return decided(marked[0], Source.PLATFORM, marked[1])
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
