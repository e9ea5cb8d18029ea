"""Puts mpiboot's launch agent in front of ssh or of the user's own agent, by variables. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mpiboot.core.checks import failed
from mpiboot.core.facts import Variable
from mpiboot.core.model import Decision, Source
from mpiboot.core.wording import first_few
from mpiboot.job.dialects import ALSO_AGENT, ALSO_AGENT_ARGS, DIALECTS, Dialect, parameter
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.plan_input import PlanInput
from mpiboot.job.resolve import Drop, Forced, Item, Removal, warning
from mpiboot.ssh import config as sshconfig

# More concurrent launches than this is MPI's own default; fewer than hosts hangs it.
DEFAULT_CONCURRENCY: Final = 128
# Hydra's option for its agent, and the kind of agent that is none.
_EXEC: Final = "launcher-exec"
_FORK: Final = "fork"


@dataclass(frozen=True, slots=True)
class Agent:
    """The user's own launch agent, empty for ssh; and ssh arguments for the private ssh_config."""

    items: tuple[Item, ...]
    user_agent: str = ""
    user_args: sshconfig.UserArgs = field(default_factory=sshconfig.UserArgs)


def place(inp: PlanInput, hosts: Sequence[str], remote: Collection[str]) -> Agent:
    """Put mpiboot's launch agent in front of ssh or of the user's own agent.

    Args:
        inp: what the plan is made of.
        hosts: the job's.
        remote: those that are not this pod.
    """
    row, own = inp.row, inp.paths.agent
    (agent_by, agent), (args_by, given) = _agent(inp), _arguments(inp)
    options = (_EXEC, *_parameters(row), *_argument_parameters(row))
    items: list[Item] = [
        *map(Drop, options),
        *_kind(inp, own, remote),
        Forced(row.agent_vars[0], own, "tells which hosts mpirun really starts", Source.DEFAULT),
        *_let_all_live(inp, len(hosts)),
    ]
    if any(_given_by_user(inp, row.leaving_var)):
        items += row.attached
    more = "" if agent == own else _ssh_words(agent)
    if more is None:
        agent = _first_of_list(agent)
        reason = (
            f"{agent_by}, kept behind mpiboot's: mpiboot does not see whether it is connected, and "
            "can't end what it leaves on a host"
        )
        items.append(Decision("launch-agent", agent, _source(inp, agent_by), reason))
        items += [Forced(row.agent_args_vars[0], given)] if given else []
        return Agent(tuple(items), agent)
    for name, text in ((agent_by, more), (args_by, given)):
        items += _shown_arguments(inp, name, text) if text else ()
    both = sshconfig.read_args(f"{more} {given}".strip())
    if both.words or row.agent_args_vars[0] in inp.of_files:
        # Else the file's would count.
        items.append(Forced(row.agent_args_vars[0], " ".join(both.words) or "-x"))
    else:
        items.append(Removal(row.agent_args_vars[0]))
    return Agent(tuple(items), "", both)


def _shown_arguments(inp: PlanInput, name: str, text: str) -> Iterator[Item]:
    """Show the user's ssh arguments, and warn of those without effect."""
    by_kubectl = inp.observed.by_kubectl
    read = ", read for each host as ssh reads it, behind what mpiboot itself sets"
    read = ", which kubectl exec does not read" if by_kubectl else read
    yield Decision("ssh-arguments", text, _source(inp, name), f"{name}{read}")
    args = sshconfig.read_args(text)
    if lost := (*args.without_effect, *((*args.lines, *args.words) if by_kubectl else ())):
        yield warning(
            "settings-conflict",
            f"{name} has {', '.join(lost)}, which has no effect: mpiboot sets it itself, or "
            "does not pass it on",
        )


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

    agents, arguments = (row.agent_vars, row.agent_args_vars) if row else ((), ())
    words = _ssh_words((line and line.given.get(_EXEC)) or first((*agents, *ALSO_AGENT)))
    if words is None:  # they are another program's
        return sshconfig.UserArgs()
    return sshconfig.read_args(f"{words} {first((*arguments, *ALSO_AGENT_ARGS))}")


def all_arguments(environ: Mapping[str, str]) -> str:
    """Join the user's own ssh arguments for each MPI, where it isn't known which one will run."""
    rows = (row.agent_args_vars for row in DIALECTS.values())
    names = dict.fromkeys((*ALSO_AGENT_ARGS, *(name for row in rows for name in row)))
    return " ".join(environ.get(name, "") for name in names)


def _kind(inp: PlanInput, agent: str, remote: Collection[str]) -> Iterator[Item]:
    """Set the kind of launch agent that calls one, whatever the user's line or pod names.

    On the line ``fork`` is refused: it starts every rank in this pod, and none on ``remote``.
    """
    row, kind = inp.row, inp.row.agent_kind
    if kind is None:
        return
    for name in (kind.name, *row.agent_kind_aliases):
        theirs = inp.environ.get(name, "")
        if theirs and theirs != kind.value:
            message = f"{name}={theirs} is taken out: {kind.reason}"
            if theirs == _FORK:
                message += ", and fork starts every rank in this pod, whatever the hostfile says"
            yield warning("settings-conflict", message)
    if " " in agent:
        message = (
            f"mpiboot's launch agent can only be called as `{agent}`: its execute bit is lost, or "
            f"its folder is mounted noexec, and {row.title} takes the path of a program alone"
        )
        hint = "install mpiboot where programs may be executed, or use Open MPI"
        yield failed("runtime-folder", message, hint=hint)
    yield from map(Removal, (*row.agent_kind_aliases, *row.agent_vars[1:]))
    yield Forced(kind.name, kind.value, kind.reason, Source.DEFAULT)
    asked = inp.line.given.get("launcher", "")
    if asked == _FORK and remote:
        message = (
            f"-launcher {asked} on the mpirun line starts every rank in this pod, and none on "
        )
        yield failed("settings-conflict", f"{message}{first_few(remote)}", hint="remove it")
    elif asked not in ("", kind.value, _FORK):
        yield Drop("launcher")
        message = (
            f"-launcher {asked} is taken off the mpirun line, daemons are started by {kind.value}"
        )
        yield warning("settings-conflict", f"{message}: {kind.reason}")


def _agent(inp: PlanInput) -> tuple[str, str]:
    """Find the user's agent, and by what it is named."""
    row, line = inp.row, inp.line
    given = {_EXEC: line.given.get(_EXEC, ""), **line.mca}
    for name in (_EXEC, *_parameters(row)):
        if agent := given.get(name, "").strip():
            return f"-{name}" if name == _EXEC else f"--mca {name}", agent
    return _first(inp, (*row.agent_vars, *ALSO_AGENT))


def _arguments(inp: PlanInput) -> tuple[str, str]:
    """Find the user's ssh arguments, and by what they are named."""
    for name in _argument_parameters(inp.row):
        if given := inp.line.mca.get(name, "").strip():
            return f"--mca {name}", given
    return _first(inp, _argument_variables(inp.row))


def _argument_variables(row: Dialect) -> tuple[str, ...]:
    return (*row.agent_args_vars, *ALSO_AGENT_ARGS)


def _argument_parameters(row: Dialect) -> Iterable[str]:
    return dict.fromkeys(map(parameter, _argument_variables(row)))


def _parameters(row: Dialect) -> Iterable[str]:
    return dict.fromkeys(map(parameter, (row.agent_vars[0], *ALSO_AGENT)))


def _source(inp: PlanInput, name: str) -> Source:
    return Source.FLAG if name.startswith("-") else inp.set_by(name)[0]


def _given_by_user(inp: PlanInput, name: str) -> tuple[str, str]:
    """Find what the user gave a parameter: on the line, else in the environment; else nothing."""
    return inp.line.mca.get(parameter(name), "") if name else "", inp.environ.get(name, "")


def _let_all_live(inp: PlanInput, hosts: int) -> Iterator[Item]:
    """Let as many agents live at once as there are hosts: with fewer mpirun waits for ever.

    Without mpiboot it does so too, but where daemons leave their agents (``leaving_var``).
    """
    name, why = inp.row.concurrency_var, "each host's agent runs as long as the job"
    if not name:
        return
    flagged, carried = _given_by_user(inp, name)
    theirs = (flagged or carried).strip()
    if theirs.isascii() and theirs.isdigit() and 0 < int(theirs) < hosts:
        by = f"--mca {parameter(name)} {theirs}" if flagged else f"{name}={theirs}"
        message = f"{by} is raised to {hosts}, the number of hosts: {why}, and mpirun would wait"
        yield warning("settings-conflict", message)
        yield Drop(parameter(name))
        yield Forced(name, str(hosts), f"in place of {by}: {why}")
    elif hosts > DEFAULT_CONCURRENCY:
        reason = f"{why}; fewer at once would wait for ever"
        yield Variable(name, str(hosts), reason, Source.DETECTED)


def _first(inp: PlanInput, names: Iterable[str]) -> tuple[str, str]:
    """Find the first variable that the user set, and its value."""
    found = ((name, inp.environ.get(name, "").strip()) for name in names)
    return next((item for item in found if item[1]), ("", ""))


def _first_of_list(agent: str) -> str:
    """Cut a list of agents, as Open MPI takes it, to the first."""
    return agent.partition(":")[0].strip()


def _ssh_words(agent: str) -> str | None:
    """Return the arguments of an agent that is ssh itself; None where it is another program."""
    program, *words = _first_of_list(agent).split() or ["ssh"]
    return " ".join(words) if program.rsplit("/", 1)[-1] in ("ssh", "rsh") else None
