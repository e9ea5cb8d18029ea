"""Reads a user's own mpirun line as far as its options are known, and records where it stops.

Words are never reordered or repeated. Only a long option with one dash that some releases of this
MPI read otherwise gets two, and the record names it. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mpiboot.core.facts import Host
from mpiboot.core.model import MpiFamily
from mpiboot.job.mpirun_options import GRAMMARS, PRINTING, Grammar, Option, OptionKind
from mpiboot.job.names import canonical


@dataclass(frozen=True, slots=True)
class App:
    """One program of a line (``:`` stands between several); ``program`` is its index in argv.

    ``hosts`` are those of ``-H`` with their slots; a bare name is one slot.
    """

    program: int | None = None
    np: int | None = None
    hosts: tuple[Host, ...] = ()


@dataclass(slots=True)
class UserLine:
    """The user's mpirun line; all but ``argv`` is empty where nothing is started by one.

    Only ``read`` fills it.

    ``unknown`` is the first option that isn't known: reading stopped there, so whatever follows
    is not in this record; ``reason`` is why, and ``may_hide_hosts`` whether what follows
    could choose other hosts than the hostfile's. ``moves_ranks`` and ``moves_hosts`` are options
    whose placement of ranks, or choice of hosts, is left to mpirun.

    ``given`` has all options that were read by their first spelling, each with the value that
    counts. ``exports`` are the variables that the line itself passes on, each with the value that
    it gives it, if any. ``pinned_by`` are the options for mapping, ranking, binding or CPUs, other
    than whether there may be more ranks than slots; also those behind ``unknown``.

    ``hostfiles`` are the hostfiles that count, each once; several where programs have one each.
    ``hostfile_words`` are the indexes in ``argv`` of words that have a hostfile's path,
    ``host_words`` of those with hosts, ``places`` of all words of an option (by its first spelling)
    or of an MCA parameter. ``rewritten`` are words that have a second dash in ``argv``, as they
    were. ``prints`` is the option with which mpirun prints something and starts nothing.
    """

    argv: tuple[str, ...] = ()
    apps: list[App] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)
    exports: dict[str, str | None] = field(default_factory=dict)
    mca: dict[str, str] = field(default_factory=dict)
    hostfiles: list[str] = field(default_factory=list)
    hostfile_words: list[int] = field(default_factory=list)
    host_words: list[int] = field(default_factory=list)
    places: dict[str, list[int]] = field(default_factory=dict)
    pinned_by: list[str] = field(default_factory=list)
    moves_ranks: list[str] = field(default_factory=list)
    moves_hosts: list[str] = field(default_factory=list)
    unknown: str = ""
    reason: str = ""
    may_hide_hosts: bool = False
    rewritten: list[str] = field(default_factory=list)
    prints: str = ""

    @property
    def program(self) -> str:
        """What ranks run; empty where there are several programs, or where that isn't known."""
        index = self.apps[0].program if len(self.apps) == 1 else None
        elsewhere = not _ELSEWHERE.isdisjoint(self.given)
        return "" if index is None or elsewhere else self.argv[index]

    @property
    def daemons_mpirun(self) -> str:
        """Path of the mpirun beside which the line has daemons started on hosts; empty: on PATH.

        Open MPI takes ``--prefix``, else the folder of an mpirun that is called by absolute path.
        """
        if "prefix" in self.given:
            return f"{self.given['prefix'].rstrip('/')}/bin/mpirun"
        return next((word for word in self.argv[:1] if word.startswith("/")), "")

    @property
    def reads_files(self) -> bool:
        """Whether options or parameters stand in a file that the line names."""
        return bool(self.moves_hosts) and not _FILES.isdisjoint(self.given)

    @property
    def per_node(self) -> int | None:
        """The ranks that each host gets by an option, if any."""
        number = next((self.given[name] for name in _PER_NODE if name in self.given), "0")
        return 1 if _ONE_PER_NODE & self.given.keys() else int(number) or None

    @property
    def np(self) -> int | None:
        """The sum of the programs' ranks; None where a program has no number of its own."""
        numbers = [app.np for app in self.apps if app.np is not None]
        return sum(numbers) if numbers and len(numbers) == len(self.apps) else None

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All that ``-H`` names, in order; none where it, or another option, leaves them open."""
        return tuple(host for app in self.apps for host in app.hosts if not self.moves_hosts)

    @property
    def policy(self) -> str:
        """The mapping without modifiers; empty where the line names none."""
        return _mapping(self.given.get("map-by", ""))[0]

    @property
    def decides_ranks(self) -> bool:
        """Whether the number of ranks, or of slots, follows from the line's own options."""
        return bool(
            "np" in self.given
            or self.unknown
            or self.per_node
            or self.hosts
            or self.moves_hosts
            or self.moves_ranks
            or self.policy == "ppr"
            or len(self.apps) > 1
        )

    def with_names(self, called: Mapping[str, str]) -> UserLine:
        """Give the line with hosts named as mpirun has them in its copy of the hostfile.

        Args:
            called: its names for some hosts, by the hostfile's.
        """
        names = {canonical(old): new for old, new in called.items()}
        argv = [*self.argv]
        for index in self.host_words:
            option, equals, hosts = argv[index].rpartition("=")
            words = (word.partition(":") for word in hosts.split(","))
            new = ",".join(_name(names, name) + colon + count for name, colon, count in words)
            argv[index] = f"{option}{equals}{new}"
        apps = [
            replace(app, hosts=tuple(replace(x, name=_name(names, x.name)) for x in app.hosts))
            for app in self.apps
        ]
        return replace(self, argv=tuple(argv), apps=apps)


def _mapping(text: str) -> list[str]:
    """Split a mapping: its policy, which may be empty, and its modifiers."""
    return text.lower().replace(",", ":").split(":")


def _name(names: Mapping[str, str], name: str) -> str:
    return names.get(canonical(name), name)


_CHOOSE_HOSTS: Final = (OptionKind.HOSTS, OptionKind.HOSTFILE, OptionKind.MOVES_HOSTS)
# By first spellings: ranks per host, a program that is searched for elsewhere, files with options
# or parameters, and what pins ranks without moving them to other hosts.
_PER_NODE: Final = ("N", "ppn")
_ONE_PER_NODE: Final = frozenset({"rr", "pernode"})
_ELSEWHERE: Final = frozenset({"wdir", "path", "gpath", "preload-binary"})
_FILES: Final = frozenset({"app", "tune", "configfile"})
_IN_PLACE: Final = frozenset(
    {"bind-to", "bind-to-core", "bind-to-socket", "rank-by", "use-hwthread-cpus"}
    | {"map-by", "bynode", "byslot", "membind", "cpu-bind"}
)
# Modifiers of a mapping that only concern how many ranks a host may have.
_HOW_MANY: Final = frozenset({"", "oversubscribe", "nooversubscribe"})


class _StopError(Exception):
    """Reading ends here, and why."""


@dataclass(slots=True, eq=False)
class _Reader:
    """The state of one reading, which fills ``line``; each word is read once."""

    grammar: Grammar
    argv: list[str]
    line: UserLine
    np: int | None = None
    hosts: list[Host] = field(default_factory=list)
    hostfile: str = ""
    at: int = 0  # the word that is read

    def known(self, name: str) -> Option | None:
        return self.grammar.options.get(name.lower() if self.grammar.any_case else name)

    def find(self, word: str) -> tuple[Option, str | None]:
        """Find an option; the value where it is in the same word."""
        dashes = 2 if word.startswith("--") else 1
        name, equals, value = word[dashes:].partition("=")
        if equals and not self.grammar.equals:
            raise _StopError(f"{word} is not known: this mpirun takes the value as a word")
        option = self.known(name)
        if option is None:
            raise _StopError(f"{word} is not an option that mpiboot knows")
        return option, value if equals else None

    def option(self, end: int) -> int:
        """Read an option with its words; returns the place behind them."""
        at = self.at
        word = self.argv[at]
        name = word.lstrip("-").partition("=")[0]
        if name in self.grammar.two_dashes and not word.startswith("--"):
            self.line.rewritten.append(word)
            word = self.argv[at] = f"-{word}"
        option, value = self.find(word)
        if option.kind is OptionKind.PRINTS and not self.line.apps:
            self.line.prints = word
            return end
        words = [] if value is None else [value]
        needed = max(0, option.words - len(words))  # the value of `-trace=libVT.so` is optional
        pair = option.kind is OptionKind.EXPORT and option.words > 1
        if pair and "=" in (value or self.argv[min(at + 1, end - 1)]):
            needed -= 1  # Hydra reads `-genv NAME=VALUE` as one word
        if at + needed >= end:
            raise _StopError(f"{word} lacks its value")
        words += self.argv[at + 1 : at + 1 + needed]
        default = option.kind is OptionKind.MCA and words[0] == self.grammar.hostfile_parameter
        if default or option.kind is OptionKind.HOSTFILE:
            self.line.hostfile_words.append(at + needed)
        if option.kind is OptionKind.HOSTS:
            self.line.host_words.append(at + needed)
        self.apply(" ".join(self.argv[at : at + 1 + needed]), option, words)
        # Of an option that stands twice one value counts.
        if self.grammar.later_wins or option.name not in self.line.given:
            self.line.given[option.name] = words[0] if words else ""
        key = words[0] if option.kind is OptionKind.MCA else option.name
        self.line.places.setdefault(key, []).extend(range(at, at + needed + 1))
        return at + 1 + needed

    def apply(self, written: str, option: Option, words: list[str]) -> None:
        """Record what an option means, and how it is written where messages or rules need that."""
        text = words[0] if words else ""
        match option.kind:
            case OptionKind.NP:
                # With `-n 0` Open MPI and MPICH start as many as without it, and Intel MPI ends.
                if self.grammar.later_wins or self.np is None:
                    self.np = self.number(written, text) or None
            case OptionKind.HOSTS:
                self.host_list(written, text)
            case OptionKind.HOSTFILE:
                # A default hostfile gives way to a hostfile, whichever comes first.
                if option.name != "default-hostfile" or not self.hostfile:
                    self.hostfile = text
            case OptionKind.EXPORT:
                name, equals, value = text.partition("=")
                # Hydra's value may be the next word.
                behind = words[1] if len(words) > 1 else None
                self.line.exports[name] = value if equals else behind
            case OptionKind.EXPORT_ONLY:
                self.line.exports.update(dict.fromkeys(filter(None, text.split(","))))
            case OptionKind.MCA:
                self.parameter(text, words[1])
            case OptionKind.PINS:
                self.placement(written, option, text)
            case OptionKind.MOVES_RANKS:
                self.line.moves_ranks.append(written)
            case OptionKind.MOVES_HOSTS:
                self.line.moves_hosts.append(written)

    def placement(self, written: str, option: Option, text: str) -> None:
        """Record an option for the placement of ranks."""
        per_node = option.name in _ONE_PER_NODE
        if option.name in _PER_NODE:
            per_node = self.number(written, text) > 0
        if not per_node and option.name not in _IN_PLACE:
            self.line.moves_ranks.append(written)
        if option.name != "map-by" or not _HOW_MANY.issuperset(_mapping(text)):
            self.line.pinned_by.append(written)

    def number(self, written: str, text: str) -> int:
        # No MPI has more ranks than an int of C holds.
        if not text.isascii() or not text.isdigit() or len(text) > len(str(1 << 31)):
            raise _StopError(f"{written[:80]}: expected a number")
        return int(text)

    def host_list(self, written: str, text: str) -> None:
        for word in text.split(","):
            name, colon, count = word.partition(":")
            count = count if colon else "1"
            if not name or name.startswith("+") or not (count == "*" or count.isdecimal()):
                # +n2 and +e are Open MPI's relative hosts; IPv6 has no form here.
                self.line.moves_hosts.append(written)
            elif count == "*" or not int(count):  # all slots of the host, or none
                self.line.moves_ranks.append(written)
                self.hosts.append(Host(name))
            else:
                self.hosts.append(Host(name, int(count), slots_given=True))

    def parameter(self, name: str, value: str) -> None:
        self.line.mca[name] = value
        if name == self.grammar.hostfile_parameter:
            self.hostfile = self.hostfile or value
        elif name.startswith("rmaps"):
            self.line.moves_ranks.append(f"{name} {value}")

    def app(self, start: int, end: int) -> None:
        """Read the words of one program, from its options to its name."""
        self.at, place = start, None
        try:
            while self.at < end and self.argv[self.at].startswith("-"):
                if self.argv[self.at] == "--" and self.grammar.double_dash:
                    self.at += 1
                    break
                self.at = self.option(end)
            place = self.at if self.at < end else None
        finally:
            self.line.apps.append(App(place, self.np, tuple(self.hosts)))
            if not self.grammar.hostfile_each and self.hostfile:
                self.line.hostfiles.clear()
            if self.hostfile and self.hostfile not in self.line.hostfiles:
                self.line.hostfiles.append(self.hostfile)
            self.np, self.hosts, self.hostfile = None, [], ""

    def among(self, words: Sequence[str], kinds: Collection[OptionKind]) -> tuple[str, ...]:
        """Give those of some words, which are not read, that are options of these kinds."""
        names = {word: word.lstrip("-").partition("=")[0] for word in words if word[:1] == "-"}
        known = {word: self.known(name) for word, name in names.items()}
        return tuple(word for word, option in known.items() if option and option.kind in kinds)


def read(program: Sequence[str], family: MpiFamily) -> UserLine:
    """Read the line of mpirun that is to be started.

    Args:
        program: the words as they were given.
        family: the MPI that will read them, as ``model.Mpi.family`` has it. Of an MPI whose options
            are not known nothing is read, and ``unknown`` is mpirun itself.

    Options are read up to the program, and after each ``:`` again. At the first option that
    isn't known reading stops for good: how many words belong to it can't be known.
    """
    words = tuple(program)
    grammar = GRAMMARS.get(family)
    if grammar is None:
        reason = "of this MPI no option is known"
        first = words[1] if len(words) > 1 and words[1].lstrip("-") in PRINTING else ""
        return UserLine(words, unknown=words[0], reason=reason, may_hide_hosts=True, prints=first)
    line = UserLine()
    reader = _Reader(grammar, [*words], line)
    ends = [at for at, word in enumerate(words) if word == ":" and at]
    starts = [1, *(end + 1 for end in ends)]
    try:
        for start, end in zip(starts, [*ends, len(words)], strict=True):
            reader.app(start, end)
    except _StopError as stop:
        rest = words[reader.at + 1 :]
        line.pinned_by += reader.among(rest, (OptionKind.PINS,))
        line.unknown, line.reason = reader.argv[reader.at], str(stop)
        line.may_hide_hosts = bool(reader.among(rest, _CHOOSE_HOSTS))
    line.argv = tuple(reader.argv)
    return line
