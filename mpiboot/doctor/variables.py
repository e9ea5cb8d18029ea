"""Variables of the pod that get in each other's way, or in the job's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mpiboot.core.model import Finding, PodFacts, Role
from mpiboot.core.wording import first_few
from mpiboot.doctor.checks import check, warned
from mpiboot.doctor.image import ImagePart
from mpiboot.job import mpi_environment
from mpiboot.job.control_links import NAME_LINKS, links_gone
from mpiboot.network import nccl


@dataclass(frozen=True, slots=True)
class _Loud:
    """A variable that makes a library talk, and the values that are quiet."""

    variable: str
    quiet: frozenset[str]


# NCCL: user guide, NCCL_DEBUG. UCX: `ucx_info -f`, UCX_LOG_LEVEL. libfabric: fi_getinfo(3),
# FI_LOG_LEVEL. Intel MPI: developer reference, I_MPI_DEBUG. Open MPI: *_base_verbose.
_LOUD: Final = (
    _Loud("NCCL_DEBUG", frozenset({"", "version", "warn"})),
    _Loud("RCCL_DEBUG", frozenset({"", "version", "warn"})),
    _Loud("UCX_LOG_LEVEL", frozenset({"", "fatal", "error", "warn"})),
    _Loud("FI_LOG_LEVEL", frozenset({"", "warn"})),
    _Loud("I_MPI_DEBUG", frozenset({"", "0"})),
    _Loud("I_MPI_HYDRA_DEBUG", frozenset({"", "0", "off", "no", "disable"})),
    _Loud("TORCH_DISTRIBUTED_DEBUG", frozenset({"", "off"})),
)
_MCA: Final = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")
_VERBOSE: Final = "_verbose"
_FILE: Final = {"NCCL_DEBUG": "NCCL_DEBUG_FILE", "UCX_LOG_LEVEL": "UCX_LOG_FILE"}

# Two that exclude each other: mca_base_var_check_exclusive() of Open MPI's components, and PRRTE's
# own test of its if_include.
# NCCL: a GID index that is set comes first (ncclIbGetGidIndex), and without InfiniBand no device is
# looked for.
_PAIRS: Final = (
    ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude", "ranks then have no TCP"),
    ("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_oob_tcp_if_exclude", "daemons then have no TCP"),
    ("PRTE_MCA_prte_if_include", "PRTE_MCA_prte_if_exclude", "daemons then do not start"),
    ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE", "the range then has no effect"),
    ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "the family then has no effect"),
)


@check(
    "debug-output",
    "NCCL_DEBUG, UCX_LOG_LEVEL, FI_LOG_LEVEL, I_MPI_DEBUG, *_MCA_*_verbose and the like",
    title="no variable makes libraries write debug output",
    hint="unset it once it is no longer needed: it slows ranks down and floods the log",
    warn="one is on, and nothing sends its output to a file",
)
def debug(environ: Mapping[str, str]) -> Iterable[Finding]:
    """Name what makes libraries talk; where they write to a file it floods nothing."""
    loud = [
        f"{row.variable}={environ[row.variable]}"
        for row in _LOUD
        if row.variable in environ
        and environ[row.variable].strip().lower() not in row.quiet
        and not environ.get(_FILE.get(row.variable, ""))
    ]
    loud += [
        f"{name}={value}"
        for name, value in sorted(environ.items())
        if name.startswith(_MCA) and name.endswith(_VERBOSE) and value.strip("0 -")
    ]
    if loud:
        yield warned("debug-output", f"{', '.join(loud)}")


@check(
    "two-settings",
    "variables of MPI that exclude each other",
    title="no two variables set the same thing",
    hint="unset one of them",
    warn="both are set",
)
def two_settings(environ: Mapping[str, str]) -> Iterable[Finding]:
    """Name pairs of which only one can hold."""
    for one, other, then in _PAIRS:
        if environ.get(one) and environ.get(other):
            message = f"{one} and {other} exclude each other: {then}"
            yield warned("two-settings", message)


@check(
    "unread-parameters",
    "OMPI_MCA_* and PRTE_MCA_* against what this version of Open MPI knows",
    title="the MPI of this pod knows the parameters that are set",
    hint="write what stands in brackets, or unset it: an unknown parameter is ignored without a "
    "word",
    role=Role.WORKER,
    warn="one was written for another version, and has no effect",
)
def unread(environ: Mapping[str, str], image: ImagePart) -> Iterable[Finding]:
    """Name the parameters that the installed MPI ignores, with what to write instead."""
    if image.mpi is None:
        return
    listed = mpi_environment.unread_parameters(environ, image.mpi.family)
    found = [f"{name} ({instead})" for name, instead in listed]
    if found:
        yield warned("unread-parameters", f"{image.mpi.banner} ignores {', '.join(found)}")


@check(
    "nccl-prefix",
    "NCCL_SOCKET_IFNAME and NCCL_IB_HCA against the links and devices of this pod",
    title="names in NCCL's lists mean no more than themselves",
    hint="write `=` in front of the list: then a name is that name alone",
    role=Role.WORKER,
    warn="a name in the list takes others that begin with it: mlx5_1 and mlx5_10",
)
def prefixes(facts: PodFacts) -> Iterable[Finding]:
    """Find a name in NCCL's lists that takes others which begin as it does: mlx5_1 and mlx5_10."""
    there = {
        "NCCL_SOCKET_IFNAME": [link.name for link in facts.links if link.addresses],
        "NCCL_IB_HCA": [device.name for device in facts.fabric.devices],
    }
    for name, value in facts.fabric.settings:
        names = there.get(name, [])
        rest = value.removeprefix("^")
        if len(value) <= 1 or rest.startswith("="):
            continue
        whole = [word.partition(":")[0] for word in rest.split(",") if word]
        for word in whole:
            more = [item for item in nccl.matching(word, names) if item not in whole]
            if word in names and more:
                message = (
                    f"{name}={value}: {word} is a prefix for NCCL, and means {first_few(more)} too"
                )
                hint = f"write {name}={value[: len(value) - len(rest)]}={rest}"
                yield warned("nccl-prefix", message, hint=hint)


@check(
    "named-links",
    "GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME, UCX_NET_DEVICES, FI_TCP_IFACE, FI_SOCKETS_IFACE, "
    "HYDRA_IFACE, I_MPI_HYDRA_IFACE and Open MPI's *_if_include against the links of this pod",
    title="variables that name links name links of this pod",
    hint="name a link that the workers have (`mpiboot facts` lists them), or unset it: mpiboot "
    "sets what it can",
    role=Role.WORKER,
    warn="one names a link that is not there",
)
def named_links(environ: Mapping[str, str], facts: PodFacts) -> Iterable[Finding]:
    """Name variables that name a link which this pod does not have."""
    there = [link.name for link in facts.links]
    for name in NAME_LINKS:
        gone = links_gone(facts, environ.get(name, ""))
        if gone:
            message = f"{name}={environ[name]}: no link {first_few(gone)} here"
            yield warned("named-links", f"{message} (there are {first_few(there) or 'none'})")
