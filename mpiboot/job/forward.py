"""Which of the launcher's variables ranks get, and which stay here.

A table of names with reasons, and the rules between its rows. Pure: the environment is given.
Values are never looked at but to tell a service's address from a port number: variables travel
by name (``-x NAME``), so that any bytes arrive and nothing secret stands on a command line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from mpiboot.core.masking import is_secret
from mpiboot.core.settings import of_service


class Forwarded(NamedTuple):
    """The choice: ``names`` and why each is forwarded, ``by_itself`` without this MPI being told.

    ``withheld`` are those that a rule or the user would forward, and why they stay here;
    ``unknown`` are names that no rule and no setting has: they stay here.
    """

    names: Mapping[str, str]
    withheld: Mapping[str, str]
    by_itself: Mapping[str, str]
    unknown: tuple[str, ...]


# Why ranks need a variable, and the names or patterns of those. What isn't here goes by
# MPIBOOT_FORWARD.
_NEEDED: Final = {
    "NCCL reads it in every rank": "NCCL_*",
    "RCCL reads it in every rank": "RCCL_*",
    "ROCm's runtime reads it in every rank": "HSA_* HIP_*",
    "UCX reads it in every rank": "UCX_*",
    "UCC reads it in every rank": "UCC_*",
    "libfabric reads it in every rank": "FI_*",
    "NCCL's libfabric plugin reads it in every rank": "OFI_NCCL_*",
    "NVSHMEM reads it in every rank": "NVSHMEM_*",
    "HCOLL reads it in every rank": "HCOLL_*",
    "NVIDIA's SHARP reads it in every rank": "SHARP_*",
    "oneCCL reads it in every rank": "CCL_*",
    "the Omni-Path library reads it in every rank": "PSM2_*",
    "libfabric's PSM3 reads it in every rank": "PSM3_*",
    "the RDMA library reads it in every rank": "IBV_* RDMAV_*",
    "the RDMA library's driver reads it in every rank": "MLX5_*",
    "MPI's own parameters": "OMPI_MCA_* PMIX_MCA_* PRTE_MCA_* I_MPI_* MPICH_* MPIR_CVAR_*",
    "OpenMP reads it in every rank": "OMP_* GOMP_* KMP_*",
    "MKL reads it in every rank": "MKL_*",
    "OpenBLAS reads it in every rank": "OPENBLAS_*",
    "CUDA reads it in every rank": "CUDA_*",
    "CUDA's libraries read it in every rank": "CUBLAS_* CUDNN_*",
    "PyTorch reads it in every rank": "TORCH_* PYTORCH_*",
    "PyTorch's Gloo reads it in every rank": "GLOO_*",
    "PyTorch's TensorPipe reads it in every rank": "TP_SOCKET_IFNAME",
    "PyTorch's ranks meet there": "MASTER_ADDR MASTER_PORT",
    "TensorFlow reads it in every rank": "TF_*",
    "XLA reads it in every rank": "XLA_*",
    "JAX reads it in every rank": "JAX_*",
    "Horovod reads it in every rank": "HOROVOD_*",
    "DeepSpeed reads it in every rank": "DEEPSPEED_*",
    "the tokenizers library reads it in every rank": "TOKENIZERS_PARALLELISM",
    "programs are found as here, but on workers with another one of their own": "PATH",
    "libraries are found as here, but on workers with another one of their own": "LD_LIBRARY_PATH",
    "Python modules are found as here, but on workers with another one of their own": "PYTHONPATH",
    "Python's output is seen as it is here": "PYTHONUNBUFFERED",
    "Python's crashes are told as they are here": "PYTHONFAULTHANDLER",
    "every rank hashes alike": "PYTHONHASHSEED",
}
# Of those, what images of their own have otherwise.
SEARCH_PATHS: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
ALLOWED: Final = tuple((name, why) for why, names in _NEEDED.items() for name in names.split())

# What belongs to one pod only: why, and the patterns. These would break ranks elsewhere.
_BREAKS: Final = {
    "mpiboot's own settings are for this pod": "MPIBOOT_*",
    "it says what this pod is": "K_MPI_JOB_ROLE",
    "it says which GPUs this pod got": "NVIDIA_VISIBLE_DEVICES",
    "it says what this pod's GPUs may do": "NVIDIA_DRIVER_CAPABILITIES",
    "it names this pod's devices": "PCIDEVICE_*",
    "it belongs to a login at this pod": "SSH_*",
    "it is one rank's own": "PMI_* PMIX_RANK PMIX_NAMESPACE PMIX_SERVER_* OMPI_COMM_WORLD_*",
    "it is one launcher's own": "HYDRA_*",
    "it belongs to this pod's shell": "_",
}
# These are forwarded all the same where MPIBOOT_FORWARD gives the name in full.
_LOCAL: Final = {
    "it numbers this pod's GPUs": "CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES "
    "GPU_DEVICE_ORDINAL",
    "it is this pod's name": "HOSTNAME",
    "a worker's user has a home of its own": "HOME",
    "a worker's user has a name of its own": "USER LOGNAME",
    "it belongs to this pod's shell": "SHELL SHLVL OLDPWD",
    "it belongs to this pod's terminal": "TERM",
    "a worker may lack this folder": "TMPDIR",
    "it says which pod this is": "POD_*",
    "it says where this pod runs": "NODE_NAME",
    "it numbers this pod": "JOB_COMPLETION_INDEX VC_TASK_INDEX VK_TASK_INDEX",
    "the cluster sets it in every pod": "KUBERNETES_* *_SERVICE_HOST *_SERVICE_PORT "
    "*_SERVICE_PORT_* *_PORT_*_TCP* *_PORT_*_UDP*",
}
POD_LOCAL: Final = tuple(
    (name, why, table is _BREAKS)
    for table in (_BREAKS, _LOCAL)
    for why, names in table.items()
    for name in names.split()
)

# Variables from which mpirun would conclude that a resource manager allocated its hosts.
_MANAGERS: Final = {
    "Slurm": "SLURM_ SLURMD_ SBATCH_ SRUN_ SALLOC_",
    "PBS": "PBS_",
    "LSF": "LSB_ LSF_ LS_",
    "Grid Engine": "SGE_ PE_HOSTFILE",
    "LoadLeveler": "LOADL_",
    "Cobalt": "COBALT_",
    "Flux": "FLUX_",
}
MANAGERS: Final = tuple((start, who) for who, names in _MANAGERS.items() for start in names.split())
# These begin so too, and are of no allocation.
_NO_MANAGER: Final = ("LS_COLORS", "LS_OPTIONS")

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def matches(name: str, pattern: str) -> bool:
    """Whether a name fits a shell's pattern.

    As ``fnmatchcase``, whose regular expressions would be compiled, a tenth of a millisecond each,
    when all hosts are ready and everybody waits: most patterns are a name or its beginning.
    """
    head, star, rest = pattern.partition("*")
    if rest or "?" in head or "[" in head:
        return fnmatchcase(name, pattern)
    return name.startswith(head) if star else name == head


def extends(path: str, other: str) -> bool:
    """Whether a search path has all folders of another one, in its order."""
    folders = iter(path.split(":"))
    return all(folder in folders for folder in other.split(":") if folder)


def _local_row(name: str, value: str) -> tuple[str, bool] | None:
    """Return why a variable belongs to one pod only, and whether it would break ranks elsewhere.

    The value matters for ``X_PORT`` alone: a cluster's service variable holds an address such
    as ``tcp://10.96.0.1:443``, another program's holds a number.
    """
    for pattern, reason, breaks in POD_LOCAL:
        if matches(name, pattern):
            return reason, breaks
    if of_service(name, value):
        return "the cluster sets it in every pod", False
    return None


def _first(name: str, patterns: Iterable[str]) -> str:
    return next((pattern for pattern in patterns if matches(name, pattern)), "")


def _reason(name: str, more: Collection[str]) -> str:
    for pattern, reason in ALLOWED:
        if matches(name, pattern):
            return reason
    asked = _first(name, more)
    return f"MPIBOOT_FORWARD has {asked}" if asked else ""


def _kept_back(name: str, value: str, more: Collection[str], never: Collection[str]) -> str:
    """Return why a variable that a rule would forward is not forwarded."""
    refused = _first(name, never)
    if refused:
        return f"MPIBOOT_NO_FORWARD has {refused}"
    if not _NAME.fullmatch(name):
        return "no shell or mpirun can name such a variable"
    local = _local_row(name, value)
    if local and (local[1] or name not in more):
        return local[0]
    return ""


def select(
    environ: Mapping[str, str],
    more: Collection[str] = (),
    never: Collection[str] = (),
    *,
    by_itself: Collection[str] = (),
    given: Collection[str] = (),
) -> Forwarded:
    """Choose the variables that go from the launcher to the ranks.

    Args:
        environ: the launcher's environment; only what is in it is chosen.
        more: MPIBOOT_FORWARD, names or patterns. A full name wins over what belongs to one pod
            only, unless it would break ranks elsewhere; a pattern doesn't.
        never: MPIBOOT_NO_FORWARD, names or patterns; wins over everything else.
        by_itself: patterns of what this MPI hands on without ``-x``. That can't be held back by
            ``never``, so such a name is reported as withheld from our own list only.
        given: variables that the user's own line exports; never named a second time.
    """
    names: dict[str, str] = {}
    withheld: dict[str, str] = {}
    unnamed: dict[str, str] = {}
    unknown: list[str] = []
    for name in sorted(environ):
        reason = _reason(name, more)
        if name in given:
            continue
        if not reason:
            why = _first(name, never) or _first(name, by_itself)
            if not why and _NAME.fullmatch(name) and not _local_row(name, environ[name]):
                unknown.append(name)
            continue
        why_not = _kept_back(name, environ[name], more, never)
        if why_not:
            withheld[name] = why_not
        elif _first(name, by_itself):
            unnamed[name] = reason
        else:
            secret = "; a secret: by name, its value is never shown" if is_secret(name) else ""
            names[name] = reason + secret
    missing = (name for name in more if _NAME.fullmatch(name) and name not in environ)
    withheld |= dict.fromkeys(missing, "it is not set in this pod")
    return Forwarded(names, withheld, unnamed, tuple(unknown))


# What an MPI that hands everything on must find in its environment all the same.
_FOR_MPIRUN: Final = ("HYDRA_*", "MPIBOOT_*", "PATH")


def kept_from_ranks(
    environ: Mapping[str, str],
    more: Collection[str] = (),
    never: Collection[str] = (),
    *,
    theirs: Collection[str] = (),
    given: Collection[str] = (),
) -> dict[str, str]:
    """Choose what is taken out for an MPI whose ranks get the launcher's environment, with reasons.

    Args:
        environ: the launcher's environment.
        more: MPIBOOT_FORWARD, as in ``select``.
        never: MPIBOOT_NO_FORWARD.
        theirs: names that workers' own pods set: their ranks keep those, where no rule forwards.
        given: variables that the user's own line exports.
    """
    found = {}
    for name in sorted(environ):
        if name in given or _first(name, _FOR_MPIRUN):
            continue
        why = _kept_back(name, environ[name], more, never)
        if not why and name in theirs and not _reason(name, more):
            why = "workers' own pods set it"
        if why:
            found[name] = why
    return found


def scrub(
    environ: Mapping[str, str], managers: Collection[str] = ()
) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Take another resource manager's variables out of an environment.

    Args:
        environ: the environment.
        managers: prefixes that belong to the platform that this pod runs on, and stay.

    Returns:
        What is kept, and name and reason of each variable that isn't.
    """
    kept: dict[str, str] = {}
    removed: list[tuple[str, str]] = []
    for name, value in environ.items():
        manager = next((who for prefix, who in MANAGERS if name.startswith(prefix)), "")
        if manager and name not in _NO_MANAGER and not name.startswith(tuple(managers)):
            reason = f"{manager} does not run this pod, and mpirun would look for its allocation"
            removed.append((name, reason))
        else:
            kept[name] = value
    return kept, tuple(sorted(removed))
