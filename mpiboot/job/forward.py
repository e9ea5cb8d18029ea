"""Which of the launcher's variables ranks get, and which stay here.

An allow list, a deny list, and the rules between them. Pure: the environment is given. Values are
read only where a service's address must be distinguished from a port number: variables travel by
name (``-x NAME``), so that any bytes arrive and nothing secret stands on a command line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from mpiboot.core.settings import Settings, of_service


class Forwarded(NamedTuple):
    """The choice: ``names`` are forwarded.

    ``withheld`` are full names of MPIBOOT_FORWARD that stay here nevertheless: not set, excluded by
    MPIBOOT_NO_FORWARD, or never forwarded. ``unknown`` are names that no rule or setting mentions:
    these stay here, too.
    """

    names: tuple[str, ...]
    withheld: tuple[str, ...]
    unknown: tuple[str, ...]


def _patterns(*groups: str) -> tuple[str, ...]:
    return tuple(pattern for group in groups for pattern in group.split())


# Search paths: not forwarded where a worker's image has others (mpi_environment._search_paths).
SEARCH_PATHS: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
# Forwarded by default, as names or patterns; MPIBOOT_FORWARD adds to them.
ALLOWED: Final = _patterns(
    # Libraries that carry data.
    "NCCL_* RCCL_* OFI_NCCL_* NVSHMEM_* UCX_* UCC_* FI_* HCOLL_* SHARP_* CCL_* PSM2_* PSM3_*",
    "IBV_* RDMAV_* MLX5_*",
    # MPI's own parameters.
    "OMPI_MCA_* PMIX_MCA_* PRTE_MCA_* I_MPI_* MPICH_* MPIR_CVAR_*",
    # Threads and GPUs.
    "OMP_* GOMP_* KMP_* MKL_* OPENBLAS_* CUDA_* CUBLAS_* CUDNN_* HSA_* HIP_*",
    # Frameworks, and where their ranks meet.
    "TORCH_* PYTORCH_* GLOO_* TP_SOCKET_IFNAME TF_* XLA_* JAX_* HOROVOD_* DEEPSPEED_*",
    "TOKENIZERS_PARALLELISM MASTER_ADDR MASTER_PORT",
    # Python, and where programs, libraries and modules are found.
    "PYTHONUNBUFFERED PYTHONFAULTHANDLER PYTHONHASHSEED",
    *SEARCH_PATHS,
)

# What belongs to one pod alone, and would break ranks elsewhere.
DENIED: Final = _patterns(
    "MPIBOOT_* K_MPI_JOB_ROLE",
    # Its devices.
    "NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES PCIDEVICE_*",
    # Its login and its shell.
    "SSH_* _",
    # One rank's, and one launcher's.
    "PMI_* PMIX_RANK PMIX_NAMESPACE PMIX_SERVER_* OMPI_COMM_WORLD_* HYDRA_*",
)
# These are forwarded all the same where MPIBOOT_FORWARD gives the name in full.
POD_LOCAL: Final = _patterns(
    # Its GPUs.
    "CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL",
    # Its name, user, folders, shell and terminal.
    "HOSTNAME HOME USER LOGNAME TMPDIR SHELL SHLVL OLDPWD TERM",
    # Which pod it is, and where it runs.
    "POD_* NODE_NAME JOB_COMPLETION_INDEX VC_TASK_INDEX VK_TASK_INDEX",
    # What the cluster sets in every pod.
    "KUBERNETES_* *_SERVICE_HOST *_SERVICE_PORT *_SERVICE_PORT_* *_PORT_*_TCP* *_PORT_*_UDP*",
)

# Variables, or their beginnings, from which mpirun would conclude that a resource manager
# allocated its hosts: Slurm, PBS, LSF, Grid Engine, LoadLeveler, Cobalt, Flux.
_MANAGERS: Final = _patterns(
    "SLURM_ SLURMD_ SBATCH_ SRUN_ SALLOC_ PBS_ LSB_ LSF_ SGE_ PE_HOSTFILE LOADL_ COBALT_",
    "FLUX_JOB_ID FLUX_URI",
)

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def extends(path: str, other: str) -> bool:
    """Whether a search path has all folders of another one, in its order."""
    folders = iter(path.split(":"))
    return all(folder in folders for folder in other.split(":") if folder)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_local(name: str, value: str, more: Collection[str], never: Collection[str]) -> bool:
    """Return whether a variable stays here whatever rule would forward it.

    The value matters for ``X_PORT`` alone: a cluster's service variable holds an address such
    as ``tcp://10.96.0.1:443``, another program's holds a number.
    """
    local = name not in more and (_matches(name, POD_LOCAL) or of_service(name, value))
    return local or _matches(name, (*never, *DENIED)) or not _NAME.fullmatch(name)


def select(
    environ: Mapping[str, str],
    settings: Settings,
    auto_exported: Collection[str] = (),
    given: Collection[str] = (),
) -> Forwarded:
    """Choose the variables that go from the launcher to the ranks.

    Args:
        environ: the launcher's environment; only what is in it is chosen.
        settings: MPIBOOT_FORWARD and MPIBOOT_NO_FORWARD, names or patterns. A full name in the
            former forwards even a variable in POD_LOCAL, but none in DENIED; a pattern forwards
            neither. The latter wins over both.
        auto_exported: patterns of what this MPI exports without ``-x``: never named here, and
            MPIBOOT_NO_FORWARD has no effect on them.
        given: variables that the user's own line exports; never named a second time.
    """
    more, never = settings.forward, settings.no_forward
    names, unknown = list[str](), list[str]()
    local = {name for name, value in environ.items() if _is_local(name, value, more, never)}
    for name in sorted(environ.keys() - local - set(given)):
        if not _matches(name, auto_exported):
            (names if _matches(name, (*ALLOWED, *more)) else unknown).append(name)
    withheld = (
        name for name in more if _NAME.fullmatch(name) and (name in local or name not in environ)
    )
    return Forwarded(tuple(names), tuple(withheld), tuple(unknown))


# What an MPI that hands everything on must find in its environment all the same.
_FOR_MPIRUN: Final = ("HYDRA_*", "MPIBOOT_*", "PATH")


def withheld_from_ranks(
    environ: Mapping[str, str],
    settings: Settings,
    of_workers: Collection[str] = (),
    given: Collection[str] = (),
) -> tuple[str, ...]:
    """Choose what is taken out for an MPI whose ranks get the launcher's environment.

    Args:
        environ: the launcher's environment.
        settings: MPIBOOT_FORWARD and MPIBOOT_NO_FORWARD, as in ``select``.
        of_workers: names that workers' own pods set: their ranks keep those that no rule forwards.
        given: variables that the user's own line exports.
    """
    more, never = settings.forward, settings.no_forward
    return tuple(
        name
        for name in sorted(environ.keys() - set(given))
        if not _matches(name, _FOR_MPIRUN)
        and (
            _is_local(name, environ[name], more, never)
            or (name in of_workers and not _matches(name, (*ALLOWED, *more)))
        )
    )


def of_other_managers(environ: Iterable[str], managers: Collection[str] = ()) -> tuple[str, ...]:
    """Find another resource manager's variables in an environment.

    Args:
        environ: the environment.
        managers: prefixes that belong to the platform that this pod runs on.
    """
    return tuple(
        name
        for name in sorted(environ)
        if name.startswith(_MANAGERS) and not name.startswith(tuple(managers))
    )
