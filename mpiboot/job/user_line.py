"""The record of a user's own mpirun line: what its options say of hosts, ranks and variables.

Filled by ``mpirun_line``; nothing is read or decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mpiboot.job.mpirun_options import GRAMMARS, Means


@dataclass(frozen=True, slots=True)
class HostSpec:
    """One host of ``-H``: its count as given (None: bare, which is one slot)."""

    name: str
    slots: int | None


@dataclass(frozen=True, slots=True)
class App:
    """One program of a line (``:`` stands between several); ``program`` is its index in argv."""

    program: int | None = None
    np: int | None = None
    hosts: tuple[HostSpec, ...] = ()
    hostfile: str = ""


@dataclass(frozen=True, slots=True)
class UserLine:
    """What a user's mpirun line says; an empty record where mpiboot writes the line itself.

    ``unknown`` is the first option that isn't known: reading stopped there, so whatever follows
    is not in this record, and ``because`` says it in words. ``places`` and ``launches`` are
    options that move ranks, or hosts, in a way that mpiboot doesn't compute. ``map_by`` is as
    written, with its modifiers; ``mapped_by`` are the words that said so. ``exports`` are the
    variables that the line itself passes on; values given beside them aren't kept.
    ``hostfile_words`` are the indexes in ``argv`` of words that are a hostfile's path.
    """

    family: str = ""
    argv: tuple[str, ...] = ()
    apps: tuple[App, ...] = ()
    exports: tuple[str, ...] = ()
    mca: Mapping[str, str] = field(default_factory=dict)
    map_by: str = ""
    mapped_by: str = ""
    rank_by: str = ""
    bind_to: str = ""
    oversubscribe: bool = False
    no_local: bool = False
    per_node: int | None = None
    hostfile_words: tuple[int, ...] = ()
    places: tuple[str, ...] = ()
    launches: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    unknown: str = ""
    because: str = ""

    @property
    def program_index(self) -> int | None:
        """Where the first program stands in ``argv``; None where it wasn't found."""
        return self.apps[0].program if self.apps else None

    @property
    def np(self) -> int | None:
        """Sum of the ranks asked for; None where a program has no number of its own."""
        numbers = [app.np for app in self.apps if app.np is not None]
        return sum(numbers) if numbers and len(numbers) == len(self.apps) else None

    @property
    def hosts(self) -> tuple[HostSpec, ...]:
        """All that ``-H`` names, in order."""
        return tuple(host for app in self.apps for host in app.hosts)

    @property
    def hostfile(self) -> str:
        """The hostfile that the line names; empty: none."""
        return next((app.hostfile for app in self.apps if app.hostfile), "")

    @property
    def policy(self) -> str:
        """The mapping policy without modifiers; empty where the line names none.

        Open MPI 5 then takes the environment's policy with the environment's modifiers only.
        """
        return self.map_by.lower().replace(",", ":").split(":", 1)[0]

    @property
    def settles_ranks(self) -> bool:
        """Whether the number of ranks, or of slots, follows from the line's own options."""
        return bool(
            self.np
            or self.unknown
            or self.per_node
            or self.hosts
            or self.launches
            or self.policy == "ppr"
            or len(self.apps) > 1
        )

    @property
    def may_hide_hosts(self) -> bool:
        """Whether words that were not read could choose other hosts than the hostfile's."""
        if not self.unknown:
            return False
        grammar = GRAMMARS.get(self.family)
        if grammar is None or self.unknown not in self.argv:
            return True
        rest = self.argv[self.argv.index(self.unknown) + 1 :]
        choosing = (Means.HOSTS, Means.HOSTFILE, Means.LAUNCHES)
        for word in rest:
            option = grammar.options.get(word.lstrip("-").partition("=")[0])
            if word.startswith("-") and option is not None and option.means in choosing:
                return True
        return False
