"""Puts mpiboot's launch agent in front of ssh or of the user's own agent, by variables. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from mpiboot.core.model import Source
from mpiboot.core.wording import first_few
from mpiboot.job.dialects import ALSO_AGENT, ALSO_AGENT_ARGS, DIALECTS, Dialect, parameter
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.plan_builder import PlanBuilder
from mpiboot.ssh import config as sshconfig

# More concurrent launches than this is MPI's own default; fewer than hosts hangs it.
DEFAULT_CONCURRENCY: Final = 128
# Hydra's option for its agent, and the kind of agent that is none.
_EXEC: Final = "launcher-exec"
_FORK: Final = "fork"


def place(builder: PlanBuilder, hosts: int) -> tuple[str, sshconfig.UserArgs]:
    """Put mpiboot's launch agent in front of ssh or of the user's own agent.

    Returns:
        The user's own agent (empty: ssh), and the ssh arguments for the private ssh_config.
    """
    row, own = builder.row, builder.paths.agent
    read = ", read for each host as ssh reads it, behind what mpiboot itself sets"
    if builder.observed.by_kubectl:
        read = ", which kubectl exec does not read"
    agent_by, agent = _take_agent(builder)
    args_by, given = _take_arguments(builder)
    _settle_kind(builder, own)
    builder.force(row.agent_var, own, "tells which hosts mpirun really starts", Source.DEFAULT)
    if row.concurrency_var:
        _let_all_live(builder, hosts)
    if any(_given_by_user(builder, row.leaving_var)):
        builder.add(*row.attached)
    more = "" if agent == own else _ssh_words(agent)
    if more is None:
        agent = _first_of_list(agent)
        reason = (
            f"{agent_by}, kept behind mpiboot's: mpiboot does not see whether it is connected, and "
            "can't end what it leaves on a host"
        )
        builder.decide("launch-agent", agent, _source(builder, agent_by), reason)
        if given:
            builder.set_env[row.agent_args_var] = given
        return agent, sshconfig.UserArgs()
    for name, text in ((agent_by, more), (args_by, given)):
        if not text:
            continue
        builder.decide("ssh-arguments", text, _source(builder, name), f"{name}{read}")
        args = sshconfig.read_args(text)
        lost = args.without_effect
        if builder.observed.by_kubectl:
            lost = (*lost, *args.lines, *args.words)
        if lost:
            builder.warn(
                "settings-conflict",
                f"{name} has {', '.join(lost)}, which has no effect: mpiboot sets it itself, or "
                "does not pass it on",
            )
    both = sshconfig.read_args(f"{more} {given}".strip())
    if both.words or row.agent_args_var in builder.of_files:
        # Else the file's would count.
        builder.set_env[row.agent_args_var] = " ".join(both.words) or "-x"
    else:
        builder.unset_env.add(row.agent_args_var)
    return "", both


def given_by_user(
    environ: Mapping[str, str], line: UserLine | None = None, row: Dialect | None = None
) -> sshconfig.UserArgs:
    """Read the user's own ssh arguments, of the line first.

    Args:
        environ: mpirun's environment, with what the MPI's own files set.
        line: the user's.
        row: the MPI's, if known.
    """
    flagged = line.mca if line else {}

    def first(names: Iterable[str]) -> str:
        found = (flagged.get(parameter(name), "") or environ.get(name, "") for name in names)
        return next(filter(None, map(str.strip, found)), "")

    agents = (row.agent_var, *row.agent_aliases) if row else ()
    arguments = (row.agent_args_var, *row.agent_args_aliases) if row else ()
    words = _ssh_words((line and line.given.get(_EXEC)) or first((*agents, *ALSO_AGENT)))
    if words is None:  # they are another program's
        return sshconfig.UserArgs()
    return sshconfig.read_args(f"{words} {first((*arguments, *ALSO_AGENT_ARGS))}")


def all_arguments(environ: Mapping[str, str]) -> str:
    """Join the user's own ssh arguments for each MPI, where it isn't known which one will run."""
    rows = ((row.agent_args_var, *row.agent_args_aliases) for row in DIALECTS.values())
    names = dict.fromkeys((*ALSO_AGENT_ARGS, *(name for row in rows for name in row)))
    return " ".join(environ.get(name, "") for name in names)


def _settle_kind(builder: PlanBuilder, agent: str) -> None:
    """Set the kind of launch agent that calls one, whatever the user's environment names."""
    row, kind = builder.row, builder.row.agent_kind
    if kind is None:
        return
    for name in (kind.name, *row.agent_kind_aliases):
        theirs = builder.environ.get(name, "")
        if theirs and theirs != kind.value:
            message = f"{name}={theirs} is taken out: {kind.reason}"
            if theirs == _FORK:
                message += ", and fork starts every rank in this pod, whatever the hostfile says"
            builder.warn("settings-conflict", message)
    if " " in agent:
        message = (
            f"mpiboot's launch agent can only be called as `{agent}`: its execute bit is lost, or "
            f"its folder is mounted noexec, and {row.title} takes the path of a program alone"
        )
        hint = "install mpiboot where programs may be executed, or use Open MPI"
        builder.fail("runtime-folder", message, hint)
    builder.unset_env.update((*row.agent_kind_aliases, *row.agent_aliases))
    builder.force(kind.name, kind.value, kind.reason, Source.DEFAULT)


def settle_kind_on_the_line(builder: PlanBuilder, daemons: Collection[str]) -> None:
    """Take another kind of launch agent off the line, which would call none; refuse ``fork``.

    ``daemons`` are the remote hosts that must get one.
    """
    kind, asked = builder.row.agent_kind, builder.line.given.get("launcher", "")
    if kind is None or asked in ("", kind.value):
        return
    if asked != _FORK:
        builder.take_off("launcher")
        message = (
            f"-launcher {asked} is taken off the mpirun line, daemons are started by {kind.value}"
        )
        builder.warn("settings-conflict", f"{message}: {kind.reason}")
    elif daemons:
        message = (
            f"-launcher {asked} on the mpirun line starts every rank in this pod, and none on "
        )
        builder.fail("settings-conflict", f"{message}{first_few(daemons)}", "remove it")


def _take_agent(builder: PlanBuilder) -> tuple[str, str]:
    """Find the user's agent, and by what it is named; mpirun must find none on its line."""
    row = builder.row
    found = _on_the_line(row, builder.line)
    for name in (_EXEC, *_parameters(row)):
        builder.take_off(name)
    variables = (row.agent_var, *row.agent_aliases, *ALSO_AGENT)
    return found if found[1] else _first(builder, variables)


def _take_arguments(builder: PlanBuilder) -> tuple[str, str]:
    """Find the user's ssh arguments, and by what they are named; mpirun must find none."""
    variables = (builder.row.agent_args_var, *builder.row.agent_args_aliases, *ALSO_AGENT_ARGS)
    names = dict.fromkeys(map(parameter, variables))
    flagged = [(f"--mca {name}", builder.line.mca.get(name, "").strip()) for name in names]
    for name in names:
        builder.take_off(name)
    return next((item for item in flagged if item[1]), _first(builder, variables))


def _on_the_line(row: Dialect, line: UserLine) -> tuple[str, str]:
    """Find the launch agent that the line names, and the words by which it does."""
    given = {_EXEC: line.given.get(_EXEC, ""), **line.mca}
    for name in (_EXEC, *_parameters(row)):
        agent = given.get(name, "").strip()
        if agent:
            return f"-{name}" if name == _EXEC else f"--mca {name}", agent
    return "", ""


def _parameters(row: Dialect) -> Iterable[str]:
    return dict.fromkeys(map(parameter, (row.agent_var, *ALSO_AGENT)))


def _source(builder: PlanBuilder, name: str) -> Source:
    return Source.FLAG if name.startswith("-") else builder.set_by(name)[0]


def _given_by_user(builder: PlanBuilder, name: str) -> tuple[str, str]:
    """Find what the user gave a parameter: on the line, else in the environment; else nothing."""
    flagged = builder.line.mca.get(parameter(name), "") if name else ""
    return flagged, builder.environ.get(name, "")


def _let_all_live(builder: PlanBuilder, hosts: int) -> None:
    """Let as many agents live at once as there are hosts: with fewer mpirun waits for ever.

    Without mpiboot it does so too, but where daemons leave their agents (``leaving_var``).
    """
    name, why = builder.row.concurrency_var, "each host's agent runs as long as the job"
    flagged, carried = _given_by_user(builder, name)
    theirs = (flagged or carried).strip()
    if theirs.isascii() and theirs.isdigit() and 0 < int(theirs) < hosts:
        by = f"--mca {parameter(name)} {theirs}" if flagged else f"{name}={theirs}"
        message = f"{by} is raised to {hosts}, the number of hosts: {why}, and mpirun would wait"
        builder.warn("settings-conflict", message)
        builder.take_off(parameter(name))
        builder.force(name, str(hosts), f"in place of {by}: {why}", Source.DETECTED)
    elif hosts > DEFAULT_CONCURRENCY:
        reason = f"{why}; fewer at once would wait for ever"
        builder.variable(name, str(hosts), reason, Source.DETECTED)


def _first(builder: PlanBuilder, names: Iterable[str]) -> tuple[str, str]:
    """Find the first variable that the user set, and its value."""
    found = ((name, builder.environ.get(name, "").strip()) for name in names)
    return next((item for item in found if item[1]), ("", ""))


def _first_of_list(agent: str) -> str:
    """Cut a list of agents, as Open MPI takes it, to the first."""
    return agent.partition(":")[0].strip()


def _ssh_words(agent: str) -> str | None:
    """Return the arguments of an agent that is ssh itself; None where it is another program."""
    program, *words = _first_of_list(agent).split() or ["ssh"]
    return " ".join(words) if program.rsplit("/", 1)[-1] in ("ssh", "rsh") else None
