"""What is to be started, read once: a program, or a user's own mpirun line and what it says.

Filled by ``mpirun_line``; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mpiboot.job.mpirun_options import OptionKind


@dataclass(frozen=True, slots=True)
class HostSpec:
    """One host of ``-H`` with its slots; a bare name is one slot."""

    name: str
    slots: int


@dataclass(frozen=True, slots=True)
class App:
    """One program of a line (``:`` stands between several); ``program`` is its index in argv."""

    program: int | None = None
    np: int | None = None
    hosts: tuple[HostSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class UserLine:
    """What the user asks to be started; all but ``argv`` is empty where that is no mpirun line.

    ``unknown`` is the first option that isn't known: reading stopped there, so whatever follows
    is not in this record; ``because`` says it in words, and ``may_hide_hosts`` whether what follows
    could choose other hosts than the hostfile's. ``moves_ranks`` and ``moves_hosts`` are options
    whose placement of ranks, or choice of hosts, is left to mpirun. ``launcher`` is Hydra's kind of
    launch agent (``ssh``, ``fork``), ``launch_agent`` its program. ``map_by``
    is the mapping as written, with its modifiers; ``mapped_by`` are the words that said so, also
    of ``per_node``.
    ``exports`` are the variables that the line itself passes on, ``export_values`` the values that
    it gives some of them, and ``exports_only`` the option that lets no others through. ``given``
    are all options that were read, ``kinds`` what they are about. ``hostfiles`` are the hostfiles
    that count, each once; several where programs have one each. ``hostfile_words`` are the
    indexes in ``argv`` of words that have a hostfile's path, ``host_words`` of those with hosts,
    ``places`` of all words of an option (by its first spelling) or of an MCA parameter.

    ``pinned_by`` are the options that say anything of mapping, ranking, binding or CPUs, other than
    whether there may be more ranks than slots; also those that stand behind ``unknown``.
    ``parameter_files`` are lists of files of MCA parameters.

    ``rewritten`` are words that were written for another version of this MPI, each with those that
    stand in ``argv`` for them. ``refused`` tells that mpirun itself ends over ``unknown``.
    ``prints`` is the option with which mpirun prints something and starts nothing.
    """

    argv: tuple[str, ...] = ()
    mpirun: bool = False
    apps: tuple[App, ...] = ()
    exports: tuple[str, ...] = ()
    export_values: Mapping[str, str] = field(default_factory=dict)
    exports_only: str = ""
    mca: Mapping[str, str] = field(default_factory=dict)
    map_by: str = ""
    mapped_by: str = ""
    bind_to: str = ""
    prefix: str = ""
    launcher: str = ""
    launch_agent: str = ""
    oversubscribe: bool = False
    per_node: int | None = None
    hostfiles: tuple[str, ...] = ()
    hostfile_words: tuple[int, ...] = ()
    host_words: tuple[int, ...] = ()
    places: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    moves_ranks: tuple[str, ...] = ()
    pinned_by: tuple[str, ...] = ()
    parameter_files: tuple[str, ...] = ()
    moves_hosts: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    kinds: frozenset[OptionKind] = frozenset()
    unknown: str = ""
    because: str = ""
    refused: bool = False
    rewritten: tuple[tuple[str, str], ...] = ()
    may_hide_hosts: bool = False
    prints: str = ""

    @property
    def program_index(self) -> int | None:
        """Where the line's first program stands in ``argv``; None where it wasn't found."""
        return self.apps[0].program if self.apps else None

    @property
    def program(self) -> str:
        """What ranks run; empty where there are several programs, or where that isn't known."""
        if not self.mpirun:
            return self.argv[0] if self.argv else ""
        if len(self.apps) != 1 or self.program_index is None or OptionKind.ELSEWHERE in self.kinds:
            return ""
        return self.argv[self.program_index]

    @property
    def daemons_mpirun(self) -> str:
        """Path of the mpirun beside which the line has daemons started on hosts; empty: on PATH.

        Open MPI takes ``--prefix``, else the folder of an mpirun that is called by absolute path.
        """
        if self.prefix:
            return f"{self.prefix.rstrip('/')}/bin/mpirun"
        return self.argv[0] if self.mpirun and self.argv[0].startswith("/") else ""

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
    def policy(self) -> str:
        """The mapping without modifiers; empty where the line names none."""
        return self.map_by.lower().replace(",", ":").split(":", 1)[0]

    @property
    def settles_ranks(self) -> bool:
        """Whether the number of ranks, or of slots, follows from the line's own options."""
        return bool(
            self.np
            or self.unknown
            or self.per_node
            or self.hosts
            or self.moves_hosts
            or self.policy in ("ppr", "rankfile")
            or OptionKind.PINS_RANKS in self.kinds
            or len(self.apps) > 1
        )

    def with_names(self, called: Mapping[str, str]) -> UserLine:
        """Give the line with hosts named as mpirun has them in its copy of the hostfile.

        Args:
            called: its names for some hosts, by the hostfile's.
        """
        names = {old.removesuffix(".").lower(): new for old, new in called.items()}
        argv = [*self.argv]
        for index in self.host_words:
            option, equals, hosts = argv[index].rpartition("=")
            words = (word.partition(":") for word in hosts.split(","))
            new = ",".join(_name(names, name) + colon + count for name, colon, count in words)
            argv[index] = f"{option}{equals}{new}"
        apps = (
            replace(app, hosts=tuple(HostSpec(_name(names, x.name), x.slots) for x in app.hosts))
            for app in self.apps
        )
        return replace(self, argv=tuple(argv), apps=tuple(apps))


def _name(names: Mapping[str, str], name: str) -> str:
    return names.get(name.removesuffix(".").lower(), name)
