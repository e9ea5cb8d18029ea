"""Puts mpiboot's launch agent in front of ssh or of the user's own agent, by variables. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from mpiboot.core.model import Decision, Source
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.mpis import IMPLEMENTATIONS
from mpiboot.job.parameter_files import parameter
from mpiboot.job.plan_input import Implementation, PlanInput
from mpiboot.job.resolve import Drop, Forced, Item, Removal, warning
from mpiboot.ssh import config as sshconfig

# Hydra's option for its agent.
_EXEC: Final = "launcher-exec"
# The same intent under the name of another version: read where the MPI's own name isn't set.
_ALSO: Final = ("OMPI_MCA_plm_rsh", "OMPI_MCA_plm_ssh", "PRTE_MCA_plm_ssh", "PRTE_MCA_plm_rsh")


@dataclass(frozen=True, slots=True)
class Agent:
    """The user's own launch agent, empty for ssh; and ssh arguments for the private ssh_config."""

    items: tuple[Item, ...]
    user_agent: str = ""
    user_args: sshconfig.UserArgs = field(default_factory=sshconfig.UserArgs)


def place(inp: PlanInput, hosts: int, remote: Collection[str]) -> Agent:
    """Put mpiboot's launch agent in front of ssh or of the user's own agent.

    Args:
        inp: what the plan is made of.
        hosts: the number of the job's.
        remote: those that are not this pod.
    """
    mpi, own = inp.implementation, inp.paths.agent
    agents, arguments = _names(mpi)
    agent_by, agent = _first(inp.environ, inp.line, agents, _EXEC)
    args_by, given = _first(inp.environ, inp.line, arguments)
    options = dict.fromkeys((_EXEC, *map(parameter, (*agents, *arguments))))
    items: list[Item] = [*map(Drop, options), *mpi.agent(inp, hosts, remote)]
    more = "" if agent == own else _ssh_words(agent)
    if more is None:
        agent = _first_of_list(agent)
        reason = (
            f"{agent_by}, kept behind mpiboot's: mpiboot does not see whether it is connected, and "
            "can't end what it leaves on a host"
        )
        items.append(Decision("launch-agent", agent, _source(inp, agent_by), reason))
        items += [Forced(mpi.agent_args_vars[0], given)] if given else []
        return Agent(tuple(items), agent)
    for name, text in ((agent_by, more), (args_by, given)):
        items += _shown_arguments(inp, name, text) if text else ()
    both = sshconfig.read_args(f"{more} {given}".strip())
    if both.words or mpi.agent_args_vars[0] in inp.of_files:
        # Else the file's would count.
        items.append(Forced(mpi.agent_args_vars[0], " ".join(both.words) or "-x"))
    else:
        items.append(Removal(mpi.agent_args_vars[0]))
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
    environ: Mapping[str, str],
    line: UserLine | None = None,
    mpi: Implementation | None = None,
) -> sshconfig.UserArgs:
    """Read the user's own ssh arguments, of the line first.

    Args:
        environ: mpirun's environment, with what the MPI's own files set.
        line: the user's.
        mpi: the MPI, if known.
    """
    agents, arguments = _names(mpi)
    line = line or UserLine()
    words = _ssh_words(_first(environ, line, agents, _EXEC)[1])
    if words is None:  # they are another program's
        return sshconfig.UserArgs()
    return sshconfig.read_args(f"{words} {_first(environ, line, arguments)[1]}")


def all_arguments(environ: Mapping[str, str]) -> str:
    """Join the user's own ssh arguments for each MPI, where it isn't known which one will run."""
    names = dict.fromkeys(chain(*(_names(mpi)[1] for mpi in IMPLEMENTATIONS.values())))
    return " ".join(environ.get(name, "") for name in names)


def _names(mpi: Implementation | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give the variables of an agent, and those of ssh arguments, the strongest first."""
    agents, arguments = (mpi.agent_vars, mpi.agent_args_vars) if mpi else ((), ())
    also = [(f"{name}_agent", f"{name}_args") for name in _ALSO]
    return (*agents, *(agent for agent, _ in also)), (*arguments, *(args for _, args in also))


def _first(
    environ: Mapping[str, str], line: UserLine, names: Sequence[str], option: str = ""
) -> tuple[str, str]:
    """Find the user's own value, of the line first; returns what names it, and the value."""
    found = [
        (f"-{option}", line.given.get(option, "")),
        *((f"--mca {name}", line.mca.get(name, "")) for name in map(parameter, names)),
        *((name, environ.get(name, "")) for name in names),
    ]
    return next(((by, text.strip()) for by, text in found if text.strip()), ("", ""))


def _source(inp: PlanInput, name: str) -> Source:
    return Source.FLAG if name.startswith("-") else inp.set_by(name)[0]


def _first_of_list(agent: str) -> str:
    """Cut a list of agents, as Open MPI takes it, to the first."""
    return agent.partition(":")[0].strip()


def _ssh_words(agent: str) -> str | None:
    """Return the arguments of an agent that is ssh itself; None where it is another program."""
    program, *words = _first_of_list(agent).split() or ["ssh"]
    return " ".join(words) if program.rsplit("/", 1)[-1] in ("ssh", "rsh") else None
