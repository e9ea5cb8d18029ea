"""The options of each MPI's mpirun: how many words follow each, and what it means. Tables only.

``mpirun_line`` reads a line by the table of its MPI. How many words follow an
option must be known for all of them, or what stands behind it could not be read; what an option
means, only where something is decided by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

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
    takes with one dash. ``equals``: ``--name=value`` is understood. ``any_case``: capitals don't
    matter. ``double_dash``: a bare ``--`` ends the options. ``later_wins``: of an option given
    twice the last counts, else the first.
    ``hostfile_each``: each program may have a hostfile of its own, else the line's last one is that
    of all.
    """

    options: Mapping[str, Option]
    equals: bool
    double_dash: bool
    later_wins: bool
    hostfile_parameter: str = ""
    two_dashes: frozenset[str] = frozenset()
    any_case: bool = False
    hostfile_each: bool = True


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

ORTE: Final = Grammar(
    options=_ORTE,
    equals=False,
    double_dash=True,
    later_wins=True,
    hostfile_parameter="orte_default_hostfile",
)

# IBM Spectrum MPI names its interconnect by a word of its own, without a value. Not run.
SPECTRUM_ORTE: Final = replace(
    ORTE, options=_table({OptionKind.OTHER: "tcp TCP pami PAMI"}, **_ORTE)
)

PRRTE: Final = Grammar(
    options=_PRRTE,
    # 5.0.7 to 5.0.9 take one dash; in 5.0.10 and 5.0.11 `-bind-to none` starts a program `none`,
    # and with `-map-by` mpirun ends with 213.
    two_dashes=frozenset({"map-by", "rank-by", "bind-to"}),
    equals=True,
    double_dash=True,
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
    equals=True,
    any_case=True,
    double_dash=False,
    later_wins=True,
    hostfile_each=False,
)

# What Intel MPI 2021.18.1 has besides, tried as well; its capitals matter. A library behind -trace
# and -check_mpi stands in the same word.
INTEL_HYDRA: Final = replace(
    HYDRA,
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
    any_case=False,
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
