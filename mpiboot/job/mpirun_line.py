"""Reads a user's own mpirun line as far as its options are known, and says where it stops.

The words themselves are never changed, reordered or repeated; nothing is run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mpiboot.job.mpirun_options import GRAMMARS, Grammar, Means, Option
from mpiboot.job.user_line import App, HostSpec, UserLine

__all__ = ["App", "HostSpec", "UserLine", "is_mpirun", "only_asks", "read", "slip"]

PROGRAMS: Final = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
# Debian's alternatives have the MPI's name behind a dot.
_SUFFIXES: Final = (".openmpi", ".mpich")
# Parameters that name the default hostfile, by the family that reads them.
_HOSTFILE_PARAMETERS: Final = {
    "openmpi4": "orte_default_hostfile",
    "spectrum": "orte_default_hostfile",
    "openmpi5": "prte_default_hostfile",
}
_SLIP: Final = 3
# First words with which every mpirun prints something and starts nothing.
_QUESTIONS: Final = frozenset({"--help", "-help", "-h", "--version", "-version", "-V"})


class _StopError(Exception):
    """Reading ends here: the word, and why."""

    def __init__(self, word: str, because: str) -> None:
        super().__init__(because)
        self.word = word
        self.because = because


@dataclass
class _Reader:
    """The state of one reading; a word is looked at once."""

    family: str
    grammar: Grammar
    argv: tuple[str, ...]
    values: dict[str, str] = field(default_factory=dict)
    exports: dict[str, None] = field(default_factory=dict)
    mca: dict[str, str] = field(default_factory=dict)
    places: dict[str, None] = field(default_factory=dict)
    launches: dict[str, None] = field(default_factory=dict)
    given: dict[str, None] = field(default_factory=dict)
    hostfile_words: list[int] = field(default_factory=list)
    apps: list[App] = field(default_factory=list)
    np: int | None = None
    hosts: list[HostSpec] = field(default_factory=list)
    hostfile: str = ""

    def find(self, word: str) -> tuple[Option, str | None]:
        """Look an option up; the value where it is in the same word."""
        dashes = 2 if word.startswith("--") else 1
        name, equals, value = word[dashes:].partition("=")
        if equals and not self.grammar.equals:
            raise _StopError(word, f"{word} is not known: this mpirun takes the value as a word")
        option = self.grammar.options.get(name.lower() if self.grammar.any_case else name)
        if option is None:
            raise _StopError(word, f"{word} is not an option that mpiboot knows")
        if dashes == 1 and name in self.grammar.one_dash:
            raise _StopError(word, f"{word} needs two dashes in this version: write --{name}")
        return option, value if equals else None

    def option(self, at: int, end: int) -> int:
        """Read the option at a place, with its words; returns the place behind them."""
        word = self.argv[at]
        option, value = self.find(word)
        words = [] if value is None else [value]
        needed = option.words - len(words)
        if option.means is Means.SET and "=" in (value or self.argv[min(at + 1, end - 1)]):
            needed -= 1  # Hydra reads `-genv NAME=VALUE` as one word
        if needed < 0 or at + needed >= end:
            raise _StopError(word, f"{word} lacks its value")
        words += self.argv[at + 1 : at + 1 + needed]
        if needed and self.names_hostfile(option, words):
            self.hostfile_words.append(at + needed)
        self.given[option.name] = None
        self.apply(word, option, words)
        return at + 1 + needed

    def names_hostfile(self, option: Option, words: list[str]) -> bool:
        return option.means is Means.HOSTFILE or (
            option.means is Means.MCA and words[0] == _HOSTFILE_PARAMETERS.get(self.family)
        )

    def apply(self, word: str, option: Option, words: list[str]) -> None:
        """Note what an option says."""
        text = words[0] if words else ""
        match option.means:
            case Means.NP:
                # `-n 0` is the same as no -n in Open MPI.
                if self.grammar.last_wins or self.np is None:
                    self.np = self.number(word, text) or None
            case Means.HOSTS:
                self.host_list(text)
            case Means.HOSTFILE:
                # A default hostfile gives way to a hostfile, whichever comes first.
                if option.name != "default-hostfile" or not self.hostfile:
                    self.hostfile = text
            case Means.EXPORT | Means.SET:
                self.exports[text.partition("=")[0]] = None
            case Means.EXPORT_LIST:
                self.exports |= dict.fromkeys(name for name in text.split(",") if name)
            case Means.MCA:
                self.parameter(text, words[1])
            case Means.PLACES:
                self.places[word] = None
            case Means.LAUNCHES:
                self.launches[word] = None
            case Means.PLAIN:
                pass
            case _:
                self.mapping(word, option.means, text)

    def mapping(self, word: str, means: Means, text: str) -> None:
        written = {
            Means.PPR: f"ppr:{text}",
            Means.MAP_BY: text,
            Means.ONE_PER_NODE: "ppr:1:node",
            Means.BY_NODE: "node",
            Means.BY_SLOT: "slot",
        }.get(means)
        if means is Means.PER_NODE and self.number(word, text) == 0:
            self.places[f"{word} {text}"] = None
            return
        if means is Means.PER_NODE:
            self.keep("per_node", text)
        elif written is None:
            self.keep(means.name.lower(), text)
            return
        else:
            self.keep("map_by", written)
        self.keep("mapped_by", f"{word} {text}".rstrip())

    def keep(self, name: str, value: str) -> None:
        """Keep the value that counts when an option stands twice."""
        if self.grammar.last_wins or name not in self.values:
            self.values[name] = value

    def number(self, word: str, text: str) -> int:
        if not text.isascii() or not text.isdigit():
            raise _StopError(word, f"{word} is {text!r}, expected a number")
        return int(text)

    def host_list(self, text: str) -> None:
        for word in text.split(","):
            name, colon, count = word.partition(":")
            if not name or name.startswith("+") or (colon and not count.isdigit()):
                # +n2 and +e are Open MPI's relative hosts, :* is all slots; IPv6 has no form here.
                self.launches[f"-H {text}"] = None
                return
            self.hosts.append(HostSpec(name, int(count) if colon else None))

    def parameter(self, name: str, value: str) -> None:
        self.mca[name] = value
        if name == _HOSTFILE_PARAMETERS.get(self.family):
            self.hostfile = self.hostfile or value
        elif name.startswith("rmaps"):
            self.places[f"{name} {value}"] = None

    def app(self, at: int, end: int) -> None:
        """Read the words of one program, from its options to its name."""
        try:
            while at < end:
                word = self.argv[at]
                if word == "--" and self.grammar.double_dash:
                    at += 1
                    break
                if not word.startswith("-"):
                    break
                at = self.option(at, end)
        except _StopError:
            at = end
            raise
        finally:
            program = at if at < end else None
            self.apps.append(App(program, self.np, tuple(self.hosts), self.hostfile))
            self.np, self.hosts, self.hostfile = None, [], ""

    def record(self, unknown: str, because: str) -> UserLine:
        map_by = self.values.get("map_by", "")
        modifiers = map_by.lower().replace(",", ":").split(":")[1:]
        return UserLine(
            family=self.family,
            argv=self.argv,
            apps=tuple(self.apps),
            exports=tuple(self.exports),
            mca=self.mca,
            map_by=map_by,
            mapped_by=self.values.get("mapped_by", ""),
            rank_by=self.values.get("rank_by", ""),
            bind_to=self.values.get("bind_to", ""),
            oversubscribe="oversubscribe" in self.values or "oversubscribe" in modifiers,
            no_local="no_local" in self.values or "nolocal" in modifiers,
            per_node=int(self.values["per_node"]) if "per_node" in self.values else None,
            hostfile_words=tuple(self.hostfile_words),
            places=tuple(self.places),
            launches=tuple(self.launches),
            given=tuple(self.given),
            unknown=unknown,
            because=because,
        )


def is_mpirun(word: str) -> bool:
    """Tell whether a program is an mpirun by its name, with or without a path."""
    name = word.rsplit("/", 1)[-1]
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name in PROGRAMS


def only_asks(argv: Sequence[str]) -> bool:
    """Tell whether a line starts nothing: ``mpirun --help``, ``mpiexec -V``, ``mpirun`` alone."""
    return is_mpirun(argv[0]) and (len(argv) == 1 or argv[1] in _QUESTIONS)


def read(argv: Sequence[str], family: str) -> UserLine:
    """Read a line that begins with an mpirun.

    Args:
        argv: the whole line; its first word is the mpirun itself.
        family: the MPI that will read it, as ``model.Mpi.family`` has it. Of an MPI without a
            table nothing is read, and ``unknown`` says so.

    Options are read up to the program, and after each ``:`` again. At the first option that
    isn't known reading stops for good: how many words belong to it can't be known.
    """
    words = tuple(argv)
    grammar = GRAMMARS.get(family)
    if grammar is None:
        return UserLine(family, words, unknown=family, because="of this MPI no option is known")
    reader = _Reader(family, grammar, words)
    ends = [at for at, word in enumerate(words) if word == ":" and at]
    starts = [1, *(end + 1 for end in ends)]
    try:
        for start, end in zip(starts, [*ends, len(words)], strict=True):
            reader.app(start, end)
    except _StopError as stop:
        return reader.record(stop.word, stop.because)
    return reader.record("", "")


def slip(argv: Sequence[str]) -> str:
    """Say what a usual slip in manifests did to a line: several words in one argument.

    ``args: ["mpirun -n 4 ./prog"]`` is one word, the name of a program that isn't there.

    Returns:
        A sentence; empty where nothing is odd.
    """
    for word in argv[:2]:
        parts = word.split()
        if len(parts) >= _SLIP and (is_mpirun(parts[0]) or parts[0].startswith("-")):
            wanted = ", ".join(f'"{part}"' for part in parts)
            return f"{word!r} is one argument, probably meant as several: [{wanted}]"
    return ""
