"""Which rank wrote what: each MPI's own option for that, or rank 0's output alone. Pure.

No MPI passes one rank's output on and leaves the others' on their hosts. Measured: with
``--output-filename DIR:nocopy`` of Open MPI 4.1.4 rank 0's is not passed on either; with
``--output dir=DIR`` of 5.0.7 output of several hosts is lost, and mpirun returns 0; Hydra's
``-outfile-pattern`` writes files on mpirun's own host. So a shell becomes each rank's program, and
for all ranks but the first it opens a file before.
"""

from __future__ import annotations

from typing import Final

from mpiboot.core.model import Source
from mpiboot.core.setting_types import TagOutput
from mpiboot.job.plan_builder import PlanBuilder

DECISION: Final = "rank-output"
# $0 is the folder. No variable of the program's is touched, not even by its name. Where a host
# lacks the program, and where nothing can be written, what is told of it stays in the job's output.
_TO_FILE: Final = (
    'set -- "$0/rank.${%s:-0}" "$@"; case $1 in */rank.0) ;; *) '
    'if ! command -v "$2" >/dev/null; then :; '
    'elif mkdir -p "$0" && ( : >>"$1" ); then exec >>"$1" 2>&1; '
    'else echo "mpiboot: warning: $1 can not be written on $(uname -n): this rank keeps writing '
    'to the job\'s output" >&2; fi ;; esac; shift; exec "$@"'
)
# Options by which mpirun itself finds the program, or brings it along: a shell in its place.
_FINDS: Final = ("path", "s")


def decide(builder: PlanBuilder) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Decide what is added to mpirun's line for it, and the words that each program is started by.

    What the user's own line says of it comes first.
    """
    wanted, given = builder.settings.tag_output, builder.given["tag_output"]
    row = builder.row
    if wanted is TagOutput.ON:
        theirs = _theirs(builder)
        if theirs:
            builder.decide(DECISION, theirs, Source.FLAG, "given on the mpirun line")
            return (), ()
        builder.decide(
            DECISION, " ".join(row.tag_option), given.source, f"{given}: each line names its rank"
        )
        if row.tag_loses:
            builder.warn("output", f"{row.title}: {row.tag_loses}")
        return row.tag_option, ()
    if wanted is not TagOutput.RANK0:
        return (), ()
    why = _why_not(builder)
    if why:
        builder.warn("usage", f"{given}=rank0: {why}, so all ranks' output comes here")
        return (), ()
    folder = builder.settings.output_dir
    builder.decide(
        DECISION,
        f"{folder}/rank.N",
        given.source,
        f"{given}: rank 0's output comes here, that of each other rank N goes there on its host",
    )
    return (), ("/bin/sh", "-c", _TO_FILE % row.rank_var, folder)


def _theirs(builder: PlanBuilder) -> str:
    """Find the user's own option; where a line is not read to its end, any word that may be it."""
    line, options = builder.line, builder.row.grammar.options
    names = {name: f"--{name}" for name in line.given}
    for word in line.argv if line.unknown else ():
        option = options.get(word.lstrip("-").partition("=")[0])
        if option and word[:1] == "-":
            names[option.name] = word
    return next((names[name] for name in builder.row.tagged_by if name in names), "")


def _why_not(builder: PlanBuilder) -> str:
    """Return why programs can't be started by a shell; empty where they can."""
    line = builder.line
    if line.mpirun and any(app.program is None for app in line.apps):
        return "it is not known where on the mpirun line the program begins"
    found = [name for name in _FINDS if name in line.given]
    return f"mpirun itself finds the program ({found[0]} on its line)" if found else ""
