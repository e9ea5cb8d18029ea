"""Open MPI's own files of parameters: where they are, how they are read, which value counts. Pure.

They are settings of the image or the user, as variables are: mpiboot does not override them.
Tried on 4.1.4 and 5.0.7; the order is that of mca_base_var.c: environment, then each file in turn.
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
# Files of the installation's own folder, and those of the user's home, each with the prefix that
# its names have as variables; the strongest first.
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
# What only mpirun reads, beside mapping and binding: nothing in a worker's pod does.
_MPIRUNS: Final = ("*_MCA_plm_*", "*_base_env_list", "*_default_hostfile", "*_default_slots")
# What names other files instead of the usual ones, and files that come before all of these.
_INSTEAD: Final = ("mca_base_param_files", "mca_param_files")
_BEFORE: Final = ("mca_base_envar_file_prefix", "mca_base_param_file_prefix")
# In each of them, `name = value`, and as on a line `-mca name value`.
_LINE: Final = re.compile(r"\s*(?:--?\w*mca\s+(\w+)\s+|(\w+)\s*=)\s*(.*?)\s*")


def parameter(variable: str) -> str:
    """Cut a variable to the name that ``--mca`` takes."""
    prefix = next(filter(variable.startswith, (_OMPI, _PRTE, _PMIX)), "")
    return variable.removeprefix(prefix)


def folders(path: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Give the folders in which an installation may have its files, by the path of its mpirun."""
    prefix = environ.get("OPAL_PREFIX") or path.rpartition("/bin/")[0]
    found = [f"{prefix}/etc"]
    if prefix in ("", "/usr"):  # Debian's
        found += ["/etc/openmpi"]
    elif prefix.endswith("/openmpi"):  # /usr/lib64/openmpi of Red Hat's
        found += [f"/etc/openmpi-{machine}" for machine in ("x86_64", "aarch64")]
    return tuple(found)


def names(family: MpiFamily) -> tuple[str, ...]:
    """Give the names of the files in an installation's folder; none where this MPI has none."""
    found = (path for path, _ in _FILES.get(family, ()))
    return tuple(path.removeprefix("{etc}/") for path in found if path.startswith("{etc}/"))


def paths(
    family: MpiFamily, line: UserLine | None, environ: Mapping[str, str], *, etc: str, home: str
) -> Iterator[tuple[str, str]]:
    """Give each file that is read, with the prefix of its names; the strongest first.

    Args:
        family: the MPI.
        line: the user's line; None on a worker.
        environ: the pod's environment.
        etc: the installation's folder.
        home: the user's.
    """
    if family not in _FILES:
        return
    named = {name: environ.get(f"{_OMPI}{name}", "") for name in (*_INSTEAD, *_BEFORE)}
    named |= {name: value for name, value in (line.mca if line else {}).items() if name in named}
    tune = line.given.get("tune", "") if line else ""
    for text in (tune, *(named[name] for name in _BEFORE)):
        yield from ((path, _OMPI) for path in text.split(",") if path)
    instead = next((named[name] for name in _INSTEAD if named[name]), "")
    for path, prefix in _FILES[family]:
        if instead and prefix == _OMPI:
            continue
        yield path.format(etc=etc, home=home), prefix
    yield from ((path, _OMPI) for path in re.split("[,:]", instead) if path)


def read(text: str) -> dict[str, str]:
    """Read a file's parameters; of a name that stands twice the last counts."""
    found = (_LINE.fullmatch(row) for row in text.splitlines() if not row.lstrip().startswith("#"))
    return {item[1] or item[2]: item[3] for item in found if item and item[3]}


def effective(observed: Observed, mpi: Implementation) -> dict[str, MpiParameter]:
    """Give the parameters of files, by the variables of the same name.

    Those of the workers count, too: their daemons and ranks read their own. mpirun alone starts
    daemons, maps and binds, by the launcher's.
    """
    mpiruns = (*mpi.pinning_vars, *_MPIRUNS)
    found = {item.variable: item for item in reversed(observed.parameters)}
    for worker in observed.workers:
        for item in worker.facts.parameters if worker.facts else ():
            if not any(fnmatchcase(item.variable, name) for name in mpiruns):
                there = f"{item.path} of {worker.host.name}"
                found.setdefault(item.variable, MpiParameter(item.variable, item.value, there))
    return {name: item for name, item in found.items() if not observed.environ.get(name)}
