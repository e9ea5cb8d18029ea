"""The command line by which mpirun is started. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mpiboot.core.launch_spec import NOT_FOR_RANKS, PLACEMENT
from mpiboot.core.model import Host, Mpi, Source
from mpiboot.job import placement, supervision
from mpiboot.job.plan_builder import LaunchPaths, PlanBuilder


def slots_to_write(hosts: tuple[Host, ...], builder: PlanBuilder) -> tuple[Host, ...]:
    """Give the hosts as the hostfile is to have them.

    The option by which Intel MPI heeds the number behind a host lets it win over ``-ppn``.
    """
    each = builder.line.per_node
    if not each or not builder.row.hostfile_option:
        return hosts
    return tuple(replace(host, slots=each) for host in hosts)


def asks_exit_codes(builder: PlanBuilder) -> bool:
    """Tell whether mpirun is asked for every rank's exit code, and not by the user already."""
    option = builder.row.exit_codes_option
    return bool(option) and option.lstrip("-") not in builder.line.given


def write(
    builder: PlanBuilder,
    mpi: Mpi,
    *,
    np: int | None,
    exports: tuple[str, ...],
    paths: LaunchPaths,
    copies: Mapping[str, str],
    supervised: bool,
    local: bool,
    before: tuple[str, ...],
) -> tuple[str, ...]:
    """Write the command line; what is added stands before the user's own words.

    ``before`` are the words that each program is started by, beside mpirun; ``copies`` are those of
    hostfiles that single programs have, by their paths.
    """
    line, row = builder.line, builder.row
    added: list[str] = []
    if row.hostfile_option and not line.moves_hosts:
        added += [row.hostfile_option, paths.hostfile]
    if np is not None and line.np is None:
        added += ["-n", str(np)]
    for name in exports:
        added += ["-x", name]
    table = f"{paths.launch_dir}/{PLACEMENT}"
    if supervised and placement.can_tell(line, row, builder.environ, table):
        builder.decide(
            "rank-table", table, Source.DEFAULT, "mpirun writes there which rank is where"
        )
        option, value = row.rank_table
        added += [option, f"{value}{table}"]
    if supervised and local and supervision.may_tell_ranks(builder):
        name, _, value = NOT_FOR_RANKS.partition("=")
        builder.decide(name, value, Source.DEFAULT, "mpirun alone writes its own messages apart")
        added += ["-x", NOT_FOR_RANKS]
    if supervised and asks_exit_codes(builder):
        because = "mpirun tells why each rank ended; mpiboot takes these lines out of its output"
        builder.decide("exit-codes", row.exit_codes_option, Source.DEFAULT, because)
        added.append(row.exit_codes_option)
    program = line.argv[0] if line.mpirun else "mpirun"
    if row.program:
        asked, program = program, row.program
        if mpi.path.rpartition("/")[2] == row.program:
            program = mpi.path
        builder.decide("mpirun", program, Source.DETECTED, f"what {asked} would start")
    return (program, *added, *_words(builder, paths.hostfile, copies, before))


def _words(
    builder: PlanBuilder, hostfile: str, copies: Mapping[str, str], before: tuple[str, ...]
) -> tuple[str, ...]:
    """Give the user's own words; where they name a hostfile, mpirun gets the copy of it."""
    line, row = builder.line, builder.row
    if not line.mpirun:
        return (*before, *line.argv)
    words: list[str | None] = [*line.argv]
    for index in line.hostfile_words:
        word = line.argv[index]
        option = word.partition("=")[0] if word.startswith("-") else ""  # --hostfile=PATH
        copy = copies.get(word.partition("=")[2] if option else word, hostfile)
        words[index] = f"{option}={copy}" if option else copy
        if row.hostfile_option:  # it stands among what was added
            words[index] = None
            if not option:
                words[index - 1] = None
    programs = {app.program for app in line.apps}
    found: list[str] = []
    for index, kept in enumerate(words):
        found += before if index in programs else ()
        if index and kept is not None and index not in builder.taken_off:
            found.append(kept)
    return tuple(found)
