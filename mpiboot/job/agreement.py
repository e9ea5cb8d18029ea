"""Whether the MPIs of all pods, and the line that is to be started, fit each other. Pure."""

from __future__ import annotations

from dataclasses import replace

from mpiboot.checks import failed
from mpiboot.job.dialects import parameter
from mpiboot.job.plan_builder import Making, Observed
from mpiboot.model import Finding, Level


def several_programs(making: Making) -> None:
    """Judge a line with several programs: one hostfile is read, and some MPIs fail at it."""
    files = sorted({app.hostfile for app in making.line.apps if app.hostfile})
    if len(files) > 1:
        said = f"the line's programs name {len(files)} hostfiles: {', '.join(files)}"
        hint = "name all hosts in one hostfile, and each program's own with -H"
        making.findings.append(failed("settings-conflict", said, hint=hint))
    if len(making.line.apps) > 1 and making.row.several_programs:
        found = failed("several-programs", making.row.several_programs)
        making.findings.append(replace(found, level=Level.WARN))


def agent_of_the_line(making: Making) -> None:
    """Refuse an agent on the line: mpirun would start it instead of the one that is the witness."""
    key = parameter(making.row.agent_var)
    if key in making.line.mca:
        said = (
            f"--mca {key} {making.line.mca[key]} on the mpirun line takes the place of mpiboot's "
            "launch agent, without which nobody sees that every host is started"
        )
        hint = f"give it as {making.row.agent_var} instead: mpiboot's agent then runs it"
        making.findings.append(failed("settings-conflict", said, hint=hint))


def versions(making: Making, observed: Observed) -> None:
    """Compare the MPIs of launcher and workers."""
    ours = observed.mpi
    for worker in observed.workers:
        theirs = worker.facts.mpi if worker.facts else worker.mpi
        where = worker.host.name
        if theirs is None:
            if worker.facts:
                making.findings.append(failed("mpi-versions", "no mpirun on its PATH", host=where))
            continue
        if (theirs.family, theirs.version) == (ours.family, ours.version):
            continue
        said = f"has {theirs.said or theirs.path}, the launcher {ours.said}"
        same = theirs.family == ours.family and _series(theirs.version) == _series(ours.version)
        finding = failed("mpi-versions", said, host=where)
        making.findings.append(
            Finding(
                finding.check, Level.WARN if same else Level.FAIL, said, where, (), finding.hint
            )
        )


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])
