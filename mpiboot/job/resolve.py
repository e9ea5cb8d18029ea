"""Where a user's value wins: on the line, in any pod, in the MPI's own files. Pure.

Names that are one choice are one group: who has chosen UCX's devices, or another pml, has chosen
what carries MPI's messages, and a part of mpiboot's own choice beside it would end the job, or take
it off the fabric. Of what a worker's pod sets only the names are known: that leaves the whole group
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from mpiboot.core.model import Source


@dataclass(frozen=True, slots=True)
class Owned:
    """A value of the user's, None where only its name is known; and by what it is set."""

    value: str | None
    source: Source
    by: str


Lookup: TypeAlias = Callable[[str], Owned | None]

# Transports of UCX that open no RDMA device (`ucx_info -d`).
_UCX_WITHOUT_RDMA: Final = frozenset(
    {"tcp", "self", "sm", "shm", "mm", "posix", "sysv", "cma", "knem", "xpmem"}
    | {"cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "rocm", "rocm_copy", "rocm_ipc"}
)


def _words(value: str) -> set[str]:
    """Split a list; what only excludes (`^openib`) chooses nothing."""
    return set() if value.startswith("^") else {word.strip() for word in value.split(",")} - {""}


def ucx_without_rdma(owned: Owned | None) -> bool:
    """Whether UCX_TLS names transports, and none of them opens an RDMA device."""
    words = _words(owned.value) if owned and owned.value else set()
    return bool(words) and words <= _UCX_WITHOUT_RDMA


def _anything(_value: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ChoiceGroup:
    """``members`` are left alone where the user has made one of ``choices``.

    Each tells whether a value of that name is such a choice.
    """

    members: tuple[str, ...]
    choices: Mapping[str, Callable[[str], bool]]


CHOICE_GROUPS: Final = (
    ChoiceGroup(
        (
            "OMPI_MCA_pml",
            "OMPI_MCA_btl",
            "OMPI_MCA_coll_hcoll_enable",
            "OMPI_MCA_coll_ucc_enable",
        ),
        {
            "OMPI_MCA_pml": lambda value: bool(_words(value) - {"ob1"}),
            "OMPI_MCA_mtl": lambda value: bool(_words(value)),
            "OMPI_MCA_btl": lambda value: bool(_words(value) & {"openib", "uct", "usnic"}),
            "UCX_TLS": lambda value: bool(_words(value) - _UCX_WITHOUT_RDMA),
            # RDMA devices have their port behind them; of links there is no more than the name.
            "UCX_NET_DEVICES": lambda value: ":" in value,
            "FI_PROVIDER": _anything,
        },
    ),
    ChoiceGroup(("OMPI_MCA_pml",), {"UCX_TLS": lambda value: bool(_words(value))}),
    # Intel MPI 2021.18 aborts in MPI_Init where the two don't fit.
    ChoiceGroup(("I_MPI_OFI_PROVIDER",), {"FI_PROVIDER": _anything, "I_MPI_FABRICS": _anything}),
)
# What ranks read, so that a value in a worker's own pod counts.
READ_BY_RANKS: Final = frozenset(
    name for group in CHOICE_GROUPS for name in (*group.members, *group.choices)
)


def kept_by(name: str, owned: Lookup) -> tuple[str, Owned] | None:
    """Find what of the user's keeps mpiboot from setting a variable: its own value, or a choice.

    Returns:
        The name that has it, and the value; None where mpiboot's own counts.
    """
    own = owned(name)
    if own:
        return name, own
    for group in CHOICE_GROUPS:
        for other, is_choice in group.choices.items() if name in group.members else ():
            item = owned(other)
            if item and (item.value is None or is_choice(item.value)):
                return other, item
    return None
