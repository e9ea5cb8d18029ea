"""A user's own mpirun line: each MPI's options as tables, and what a line has, as far as they go.

How many words follow an option must be known for all of them, or what stands behind it could not
be read; what an option means, only where something is decided by it. Words are never reordered or
repeated. Only a long option with one dash that some releases of this MPI read otherwise gets two,
and the record names it. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from mpiboot.core.addresses import canonical
from mpiboot.core.facts import Host
from mpiboot.core.model import MpiFamily


class OptionKind(str, Enum):
    """What an option means, as far as mpiboot has to know."""

    NP = "number of ranks"
    HOSTS = "hosts"
    HOSTFILE = "hostfile"
    EXPORT = "variable to export, or to set"
    EXPORT_ONLY = "the only variables to export"
    MCA = "MCA parameter"
    PINS = "mapping, ranking, binding or CPUs"
    MOVES_RANKS = "a placement of ranks that is left to mpirun"
    MOVES_HOSTS = "a choice of hosts that is left to mpirun"
    PRINTS = "something is printed, and nothing started"
    OTHER = "nothing about hosts and ranks, or a value that is read by the option's name"


class Option(NamedTuple):
    """One option: its first spelling, how many words follow it, what it means."""

    name: str
    words: int
    kind: OptionKind


@dataclass(frozen=True, slots=True)
class Grammar:
    """How one mpirun reads its line.

    ``options`` goes by name without dashes; ``hostfile_parameter`` is the parameter of ``--mca``
    that names a hostfile, too. ``two_dashes`` are long names that not every release
    takes with one dash. ``any_case``: capitals don't matter. ``later_wins``: of an option given
    twice the last counts, else the first.
    """

    options: Mapping[str, Option]
    later_wins: bool = True
    hostfile_parameter: str = ""
    two_dashes: frozenset[str] = frozenset()
    any_case: bool = False


def _table(*by_words: Mapping[OptionKind, str], **older: Option) -> dict[str, Option]:
    """Options by what they mean: first those of no word, then of one, with two.

    Spellings of one option join by ``|``; ``older`` are added as they are.
    """
    found = dict(older)
    for words, table in enumerate(by_words):
        for kind, names in table.items():
            for spellings in names.split():
                first, *others = spellings.split("|")
                found |= dict.fromkeys((first, *others), Option(first, words, kind))
    return found


# What both Open MPI generations share. Words and meanings were tried one by one on Open MPI
# 4.1.4 and 5.0.11 (with the programs' names as words, so that the one that was started showed it).
_OPEN_MPI: Final = _table(
    {
        OptionKind.OTHER: "oversubscribe allow-run-as-root noprefix tag-output timestamp-output "
        "v|verbose merge-stderr-to-stdout report-bindings display-map display-allocation "
        "display-devel-map enable-recovery disable-recovery continuous nooversubscribe "
        "preload-binary|s leave-session-attached debug-daemons debug-daemons-file "
        "report-state-on-timeout get-stack-traces show-progress xml output-proctable",
        OptionKind.PINS: "bind-to-core use-hwthread-cpus bycore bynode byslot pernode",
        OptionKind.MOVES_RANKS: "do-not-launch nolocal",
        # As a later program's options these, and those of help, are errors, or nothing.
        OptionKind.PRINTS: "version|V",
    },
    {
        OptionKind.NP: "np|n|c",
        OptionKind.HOSTS: "host|H",
        OptionKind.HOSTFILE: "hostfile|machinefile default-hostfile",
        OptionKind.EXPORT: "x",
        OptionKind.PINS: "N|npernode map-by ppr bind-to rank-by rankfile|rf cpu-set cpu-list "
        "cpus-per-proc|cpus-per-rank npersocket",
        OptionKind.OTHER: "output-filename timeout personality max-restarts stdin prefix wdir|wd "
        "xterm launch-agent report-pid report-uri preload-files path",
        OptionKind.PRINTS: "help|h",
        OptionKind.MOVES_HOSTS: "app tune|am",
    },
    {OptionKind.MCA: "mca|gmca"},
)

_ORTE: Final = _table(
    {
        OptionKind.OTHER: "q|quiet d|debug-devel debug display-topo do-not-resolve "
        "set-cwd-to-session-dir index-argv-by-rank enable-instant-on-support "
        "display-devel-allocation display-diffable-map report-child-jobs-separately "
        "fwd-mpirun-port tv use-regexp",
        OptionKind.PINS: "bind-to-socket",
        OptionKind.MOVES_HOSTS: "novm dvm",
    },
    {
        OptionKind.OTHER: "report-events ompi-server debugger cf|cartofile xml-file",
        OptionKind.MOVES_HOSTS: "hnp max-vm-size",
    },
    **_OPEN_MPI,
)

_PRRTE: Final = _table(
    {
        OptionKind.OTHER: "debug fwd-environment parsable|parseable|p stop-on-exec stop-in-init "
        "stop-in-app no-app-prefix report-child-jobs-separately hetero-nodes no-aggregate-help "
        "display-comm display-comm-finalize soft",
    },
    {
        OptionKind.OTHER: "output-directory output display runtime-options|rtos display-topo "
        "stream-buffering spawn-timeout gpu-support memory-alloc-kind|memory-alloc-kinds with-ft "
        "pset initial-errhandler forward-signals tmpdir unset-env arch file app-pmix-prefix",
        OptionKind.MOVES_HOSTS: "dvm max-vm-size",
        OptionKind.PINS: "bind-to|bindto rank-by|rankby map-by|mapby",
    },
    {OptionKind.MCA: "prtemca pmixmca omca gomca", OptionKind.OTHER: "prepend-env append-env"},
    **_OPEN_MPI,
)

ORTE: Final = Grammar(_ORTE, hostfile_parameter="orte_default_hostfile")

# IBM Spectrum MPI names its interconnect by a word of its own, without a value. Not run.
SPECTRUM_ORTE: Final = replace(
    ORTE, options=_table({OptionKind.OTHER: "tcp TCP pami PAMI"}, **_ORTE)
)

PRRTE: Final = Grammar(
    options=_PRRTE,
    # 5.0.7 to 5.0.9 take one dash; in 5.0.10 and 5.0.11 `-bind-to none` starts a program `none`,
    # and with `-map-by` mpirun ends with 213.
    two_dashes=frozenset({"map-by", "rank-by", "bind-to"}),
    later_wins=False,
    hostfile_parameter="prte_default_hostfile",
)

# MPICH 5.0.2, tried like the above.
HYDRA: Final = Grammar(
    options=_table(
        {
            OptionKind.PRINTS: "help|h info version",
            OptionKind.EXPORT_ONLY: "genvnone envnone",
            OptionKind.MOVES_RANKS: "skip-launch-node",
            OptionKind.OTHER: "genvall envall l|prepend-rank v|verbose|debug "
            "enable-x disable-x disable-auto-cleanup disable-hostname-propagation profile "
            "print-all-exitcodes pmi-port hybrid-hosts",
        },
        {
            OptionKind.NP: "np|n",
            OptionKind.HOSTS: "hosts|host",
            OptionKind.HOSTFILE: "f|hostfile|machinefile",
            OptionKind.EXPORT_ONLY: "genvlist envlist",
            OptionKind.PINS: "ppn bind-to|binding map-by membind",
            OptionKind.OTHER: "iface rmk prepend-pattern "
            "outfile-pattern errfile-pattern topolib demux nameserver localhost usize "
            "gpus-per-proc memory-alloc-kinds wdir launcher|bootstrap launcher-exec|bootstrap-exec",
            OptionKind.MOVES_HOSTS: "configfile",
            OptionKind.MOVES_RANKS: "rankmap order-nodes machine",
        },
        {OptionKind.EXPORT: "genv env"},
    ),
    any_case=True,
)

# What Intel MPI 2021.18.1 has besides, tried as well. A library behind -trace and -check_mpi stands
# in the same word.
INTEL_HYDRA: Final = Grammar(
    options={
        **HYDRA.options,
        **_table(
            {
                OptionKind.PRINTS: "V",
                OptionKind.OTHER: "ordered-output prot print-rank-map prepend-timestamp "
                "silent-abort check_mpi|check-mpi|check trace trace-pt2pt trace-collectives "
                "trace-imbalance|trace_imbalance cleanup noconf ilp64 aps mps gdb tv idb v6 "
                "pmi-aggregate pmi-noaggregate disable-auto-cleanup|dac enable-auto-cleanup",
                OptionKind.MOVES_RANKS: "nolocal",
            },
            {
                OptionKind.OTHER: "s gtool gtoolfile tune tmpdir branch-count|tree-width gdba "
                "gdb-args tva rsh bootstrap-exec-args pmi-connect genvexcl envexcl "
                "outfile-pattern|outfile errfile-pattern|errfile wdir|gwdir path gpath",
                OptionKind.PINS: "cpu-bind ppn|perhost|grr",
                # How many ranks each of the hosts gets is left to mpirun.
                OptionKind.MOVES_HOSTS: "hosts|host|hostlist|machines|machinelist hosts-group",
                OptionKind.HOSTFILE: "f|hostfile|file machinefile|machine",
            },
            rr=Option("rr", 0, OptionKind.PINS),
        ),
    },
)

GRAMMARS: Final = {
    MpiFamily.OPENMPI4: ORTE,
    MpiFamily.OPENMPI5: PRRTE,
    MpiFamily.MPICH: HYDRA,
    MpiFamily.INTEL: INTEL_HYDRA,
    MpiFamily.SPECTRUM: SPECTRUM_ORTE,
}

# What a line has that might print and end, for who doesn't know yet whose mpirun it calls.
PRINTING: Final = frozenset(
    name
    for grammar in GRAMMARS.values()
    for name, option in grammar.options.items()
    if option.kind is OptionKind.PRINTS
)


@dataclass(slots=True)
class App:
    """One program of a line (``:`` stands between several); ``program`` is its index in argv.

    ``hosts`` are those of ``-H`` with their slots; a bare name is one slot. ``hostfile`` is the
    path of the one that counts for this program.
    """

    program: int | None = None
    np: int | None = None
    hosts: tuple[Host, ...] = ()
    hostfile: str = ""


@dataclass(slots=True)
class UserLine:
    """The user's mpirun line; all but ``argv`` is empty where nothing is started by one.

    Only ``read`` fills it.

    ``unknown`` is the first option that isn't known, and ``reason`` why: reading stopped there, so
    whatever follows is not in this record. ``moves_ranks`` and ``moves_hosts`` are options
    whose placement of ranks, or choice of hosts, is left to mpirun.

    ``given`` has all options that were read by their first spelling, each with the value that
    counts. ``exports`` are the variables that the line itself passes on, each with the value that
    it gives it, if any. ``pinned_by`` are the options for mapping, ranking, binding or CPUs, other
    than whether there may be more ranks than slots.

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
    hostfile_words: list[int] = field(default_factory=list)
    host_words: list[int] = field(default_factory=list)
    places: dict[str, list[int]] = field(default_factory=dict)
    pinned_by: list[str] = field(default_factory=list)
    moves_ranks: list[str] = field(default_factory=list)
    moves_hosts: list[str] = field(default_factory=list)
    unknown: str = ""
    reason: str = ""
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
    def hostfiles(self) -> list[str]:
        """The hostfiles that count, each once; several where programs have one each."""
        return list(dict.fromkeys(app.hostfile for app in self.apps if app.hostfile))

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
FILE_OPTIONS: Final = frozenset({"app", "tune", "configfile"})
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
    app: App = field(default_factory=App)  # the program whose options are read
    at: int = 0  # the word that is read

    def option(self, end: int) -> int:
        """Read an option with its words; returns the place behind them."""
        at, grammar = self.at, self.grammar
        word = self.argv[at]
        name, equals, value = word[1:].removeprefix("-").partition("=")
        if name in grammar.two_dashes and not word.startswith("--"):
            self.line.rewritten.append(word)
            word = self.argv[at] = f"-{word}"
        option = grammar.options.get(name.lower() if grammar.any_case else name)
        if option is None:
            raise _StopError(f"{word} is not an option that mpiboot knows")
        if option.kind is OptionKind.PRINTS and len(self.line.apps) == 1:
            self.line.prints = word
            return end
        given = [value] if equals else []
        words = self.values(option, given, end)
        needed = len(words) - len(given)
        default = option.kind is OptionKind.MCA and words[0] == grammar.hostfile_parameter
        if default or option.kind is OptionKind.HOSTFILE:
            self.line.hostfile_words.append(at + needed)
        if option.kind is OptionKind.HOSTS:
            self.line.host_words.append(at + needed)
        self.apply(" ".join(self.argv[at : at + 1 + needed]), option, words)
        # Of an option that stands twice one value counts.
        if grammar.later_wins or option.name not in self.line.given:
            self.line.given[option.name] = words[0] if words else ""
        key = words[0] if option.kind is OptionKind.MCA else option.name
        self.line.places.setdefault(key, []).extend(range(at, at + needed + 1))
        return at + 1 + needed

    def values(self, option: Option, given: list[str], end: int) -> list[str]:
        """Give an option's values: what follows its equals sign, and the words behind it."""
        at = self.at
        needed = max(0, option.words - len(given))  # the value of `-trace=libVT.so` is optional
        pair = option.kind is OptionKind.EXPORT and option.words > 1
        if pair and "=" in ("".join(given) or self.argv[min(at + 1, end - 1)]):
            needed -= 1  # Hydra reads `-genv NAME=VALUE` as one word
        if at + needed >= end:
            raise _StopError(f"{self.argv[at]} lacks its value")
        return given + self.argv[at + 1 : at + 1 + needed]

    def apply(self, written: str, option: Option, words: list[str]) -> None:
        """Record what an option means, and how it is written where messages or rules need that."""
        text = words[0] if words else ""
        match option.kind:
            case OptionKind.NP:
                # With `-n 0` Open MPI and MPICH start as many as without it, and Intel MPI ends.
                if self.grammar.later_wins or self.app.np is None:
                    self.app.np = self.number(written, text) or None
            case OptionKind.HOSTS:
                self.host_list(written, text)
            case OptionKind.HOSTFILE:
                # A default hostfile gives way to a hostfile, whichever comes first.
                if option.name != "default-hostfile" or not self.app.hostfile:
                    self.app.hostfile = text
            case OptionKind.EXPORT:
                name, equals, value = text.partition("=")
                # Hydra's value may be the next word.
                behind = words[1] if len(words) > 1 else None
                self.line.exports[name] = value if equals else behind
            case OptionKind.EXPORT_ONLY:
                self.line.exports.update(dict.fromkeys(filter(None, text.split(","))))
            case OptionKind.MCA:
                self.parameter(*words)
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
                self.app.hosts += (Host(name),)
            else:
                self.app.hosts += (Host(name, int(count), slots_given=True),)

    def parameter(self, name: str, value: str) -> None:
        self.line.mca[name] = value
        if name == self.grammar.hostfile_parameter:
            self.app.hostfile = self.app.hostfile or value
        elif name.startswith("rmaps") and "oversubscribe" not in name:
            self.line.moves_ranks.append(f"{name} {value}")

    def read_app(self, start: int, end: int) -> None:
        """Read the words of one program, from its options to its name."""
        self.at, self.app = start, App()
        self.line.apps.append(self.app)
        while self.at < end and self.argv[self.at].startswith("-"):
            if self.argv[self.at] == "--":
                self.at += 1
                break
            self.at = self.option(end)
        self.app.program = self.at if self.at < end else None


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
        return UserLine(words, unknown=words[0], reason=reason, prints=first)
    line = UserLine()
    reader = _Reader(grammar, [*words], line)
    ends = [at for at, word in enumerate(words) if word == ":" and at]
    starts = [1, *(end + 1 for end in ends)]
    try:
        for start, end in zip(starts, [*ends, len(words)], strict=True):
            reader.read_app(start, end)
    except _StopError as stop:
        line.unknown, line.reason = reader.argv[reader.at], str(stop)
        # What is not read may choose other hosts than what was.
        rest = words[reader.at + 1 :]
        names = (word.lstrip("-").partition("=")[0] for word in rest if word.startswith("-"))
        kinds = {option.kind for name in names if (option := grammar.options.get(name))}
        if ":" in rest or not kinds.isdisjoint(_CHOOSE_HOSTS):
            line.moves_hosts.append(line.unknown)
    line.argv = tuple(reader.argv)
    return line
