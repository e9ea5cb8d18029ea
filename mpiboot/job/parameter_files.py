"""Open MPI's MCA parameter files: where they are, how they are parsed, which value wins. Pure.

They are settings of the image or the user, like variables: mpiboot does not override them.
Tested with 4.1.4 and 5.0.7; precedence is that of mca_base_var.c: environment, then each file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from mpiboot.core.facts import MpiParameter
from mpiboot.core.model import MpiFamily

if TYPE_CHECKING:  # a worker's facts need none of what a plan does
    from mpiboot.job.mpirun_line import UserLine
    from mpiboot.job.plan_input import Implementation, Observed

_OMPI: Final = "OMPI_MCA_"
_PRTE: Final = "PRTE_MCA_"
_PMIX: Final = "PMIX_MCA_"
# Files of the installation and of the user's home, highest precedence first, each with the prefix
# that turns its names into variables.
_OPEN_MPI: Final = (
    ("{etc}/openmpi-mca-params-override.conf", _OMPI),
    ("{home}/.openmpi/mca-params.conf", _OMPI),
    ("{etc}/openmpi-mca-params.conf", _OMPI),
)
_FILES: Final = {
    MpiFamily.OPENMPI4: _OPEN_MPI,
    MpiFamily.SPECTRUM: _OPEN_MPI,
    MpiFamily.OPENMPI5: (
        *_OPEN_MPI,
        ("{home}/.prte/mca-params.conf", _PRTE),
        ("{etc}/prte-mca-params.conf", _PRTE),
        ("{home}/.pmix/mca-params.conf", _PMIX),
        ("{etc}/pmix-mca-params.conf", _PMIX),
    ),
}
# Read by mpirun alone, as are mapping and binding; ignored in a worker's files.
_MPIRUN_ONLY: Final = ("*_MCA_plm_*", "*_base_env_list", "*_default_hostfile", "*_default_slots")
# Parameters that list files: to read instead of the usual ones, or before them.
_REPLACE: Final = ("mca_base_param_files", "mca_param_files")
_PREPEND: Final = ("mca_base_envar_file_prefix", "mca_base_param_file_prefix")
# A line of a file: `name = value`, or as on a command line `-mca name value`.
_LINE: Final = re.compile(r"\s*(?:--?\w*mca\s+(\w+)\s+|(\w+)\s*=)\s*(.*?)\s*")


def parameter(variable: str) -> str:
    """Strip a variable's prefix: the name that ``--mca`` takes."""
    prefix = next(filter(variable.startswith, (_OMPI, _PRTE, _PMIX)), "")
    return variable.removeprefix(prefix)


def folders(path: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders that may hold an installation's files, by the path of its mpirun."""
    prefix = environ.get("OPAL_PREFIX") or path.rpartition("/bin/")[0]
    found = [f"{prefix}/etc"]
    if prefix in ("", "/usr"):  # Debian
        found += ["/etc/openmpi"]
    elif prefix.endswith("/openmpi"):  # Red Hat: /usr/lib64/openmpi
        found += [f"/etc/openmpi-{machine}" for machine in ("x86_64", "aarch64")]
    return tuple(found)


def names(family: MpiFamily) -> tuple[str, ...]:
    """Return the names of the files in an installation's folder; empty for an MPI without any."""
    found = (path for path, _ in _FILES.get(family, ()))
    return tuple(path.removeprefix("{etc}/") for path in found if path.startswith("{etc}/"))


def paths(
    family: MpiFamily, line: UserLine | None, environ: Mapping[str, str], *, etc: str, home: str
) -> Iterator[tuple[str, str]]:
    """Yield each file that the MPI reads, with its prefix; highest precedence first.

    Args:
        family: the MPI.
        line: the mpirun line; None on a worker.
        environ: the pod's environment.
        etc: the installation's folder.
        home: the user's home.
    """
    if family not in _FILES:
        return
    named = {name: environ.get(f"{_OMPI}{name}", "") for name in (*_REPLACE, *_PREPEND)}
    named |= {name: value for name, value in (line.mca if line else {}).items() if name in named}
    tune = line.given.get("tune", "") if line else ""
    for text in (tune, *(named[name] for name in _PREPEND)):
        yield from ((path, _OMPI) for path in text.split(",") if path)
    instead = next((named[name] for name in _REPLACE if named[name]), "")
    for path, prefix in _FILES[family]:
        if instead and prefix == _OMPI:
            continue
        yield path.format(etc=etc, home=home), prefix
    yield from ((path, _OMPI) for path in re.split("[,:]", instead) if path)


def read(text: str) -> dict[str, str]:
    """Parse a file's parameters; the last of duplicate names wins."""
    found = (_LINE.fullmatch(row) for row in text.splitlines() if not row.lstrip().startswith("#"))
    return {item[1] or item[2]: item[3] for item in found if item and item[3]}


def effective(observed: Observed, mpi: Implementation) -> dict[str, MpiParameter]:
    """Return the files' parameters that no variable overrides, by variable name.

    Workers' files count too, since daemons and ranks read them. Only the launcher's files apply to
    starting daemons, mapping and binding, as only mpirun does these.
    """
    mpirun_only = (*mpi.pinning_vars, *_MPIRUN_ONLY)
    found = {item.variable: item for item in reversed(observed.parameters)}
    for worker in observed.workers:
        for item in worker.facts.parameters if worker.facts else ():
            if not any(fnmatchcase(item.variable, name) for name in mpirun_only):
                place = f"{item.path} on {worker.host.name}"
                found.setdefault(item.variable, MpiParameter(item.variable, item.value, place))
    return {name: item for name, item in found.items() if not observed.environ.get(name)}
