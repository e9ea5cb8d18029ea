"""mpiboot's agent in front of ssh, or of the user's own: which variables say so. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mpiboot.checks import failed
from mpiboot.job.dialects import ALSO_AGENT, ALSO_AGENT_ARGS, parameter
from mpiboot.job.plan_builder import Making, Paths
from mpiboot.model import Finding, Level, Source
from mpiboot.ssh_client import config as sshconfig

# More concurrent launches than this is MPI's own default; fewer than hosts hangs it.
DEFAULT_CONCURRENCY: Final = 128


def place(
    making: Making, paths: Paths, hosts: int, *, own_client: bool
) -> tuple[str, sshconfig.UserArgs]:
    """Put mpiboot's launch agent in front of ssh or of the user's own agent.

    ``own_client`` tells that the agents use mpiboot's own SSH client, which reads no arguments.

    Returns:
        The user's own agent (empty: ssh), and the ssh arguments for the private ssh_config.
    """
    row = making.row
    agent_by, agent = _first(making, (row.agent_var, *ALSO_AGENT))
    args_by, given = _first(making, (row.agent_args_var, *ALSO_AGENT_ARGS))
    making.force(
        row.agent_var, paths.agent, "tells which hosts mpirun really starts", Source.DEFAULT
    )
    if row.concurrency_var:
        _let_all_live(making, hosts)
    if any(_given_by_user(making, row.leaving_var)):
        for item in row.attached:
            making.variable(item.name, item.value, item.because, Source.DETECTED)
    _say_flagged_arguments(making, own_client=own_client)
    more = "" if agent == paths.agent else _ssh_words(agent)
    if more is None:
        making.decide("launch-agent", agent, Source.ENVIRONMENT, f"{agent_by}, behind mpiboot's")
        if given:
            making.set_env[row.agent_args_var] = given
        return agent, sshconfig.UserArgs()
    lines: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    for name, text in ((agent_by, more), (args_by, given)):
        if not text:
            continue
        args = sshconfig.read_args(text)
        lines, words = (*lines, *args.lines), (*words, *args.words)
        because = f"{name}, read into the private ssh_config behind mpiboot's own"
        if own_client:
            because = f"{name}, which mpiboot's own SSH client does not read"
            _say_lost(making, name, sshconfig.lost_with_own_client(args))
        making.decide("ssh-arguments", text, Source.ENVIRONMENT, because)
        if args.without_effect:
            making.findings.append(
                Finding(
                    "settings-conflict",
                    Level.WARN,
                    f"{name} has {', '.join(args.without_effect)}: without effect, "
                    "mpiboot settles these from what it verified",
                )
            )
    if words:
        making.set_env[row.agent_args_var] = " ".join(words)
    else:
        making.unset_env.add(row.agent_args_var)
    return "", sshconfig.UserArgs(lines, words)


def _given_by_user(making: Making, name: str) -> tuple[str, str]:
    """Find what the user gave a parameter: on the line, else in the environment; else nothing."""
    flagged = making.line.mca.get(parameter(name), "") if name else ""
    return flagged, making.environ.get(name, "")


def _let_all_live(making: Making, hosts: int) -> None:
    """Let as many agents live at once as there are hosts: with fewer mpirun waits for ever."""
    name, why = making.row.concurrency_var, "every agent lives as long as its host"
    flagged, carried = _given_by_user(making, name)
    theirs = (flagged or carried).strip()
    if theirs.isascii() and theirs.isdigit() and 0 < int(theirs) < hosts:
        by = f"--mca {parameter(name)} {theirs}" if flagged else f"{name}={theirs}"
        said = f"{by} lets mpirun start {theirs} of {hosts} hosts, then wait for ever: {why}"
        hint = f"take it out, or give at least {hosts}"
        making.findings.append(failed("settings-conflict", said, hint=hint))
    elif hosts > DEFAULT_CONCURRENCY:
        because = f"{why}; fewer at once would wait for ever"
        making.variable(name, str(hosts), because, Source.DETECTED)


def _first(making: Making, names: Iterable[str]) -> tuple[str, str]:
    """Find the first variable that the user set, and its value."""
    found = ((name, making.environ.get(name, "").strip()) for name in names)
    return next((item for item in found if item[1]), ("", ""))


def _ssh_words(agent: str) -> str | None:
    """Return the arguments of an agent that is ssh itself; None where it is another program."""
    program, *words = agent.partition(" : ")[0].split() or ["ssh"]
    return " ".join(words) if program.rsplit("/", 1)[-1] in ("ssh", "rsh") else None


def _say_lost(making: Making, name: str, lost: tuple[str, ...]) -> None:
    """Say which of a user's ssh arguments have no effect because no ssh reads them."""
    if lost:
        making.findings.append(
            Finding(
                "settings-conflict",
                Level.WARN,
                f"{name} has {', '.join(lost)}: without effect, mpiboot's own SSH client is used",
                hint="see ssh-client in the plan for why it is used",
            )
        )


def _say_flagged_arguments(making: Making, *, own_client: bool) -> None:
    """Say what ssh arguments on the mpirun line change: they come before the configuration."""
    for name in dict.fromkeys(map(parameter, (making.row.agent_args_var, *ALSO_AGENT_ARGS))):
        value = making.line.mca.get(name)
        if value is None:
            continue
        by = f"--mca {name} on the mpirun line"
        args = sshconfig.read_args(value)
        settled = args.without_effect
        unread = ", which mpiboot's own SSH client does not read" if own_client else ""
        making.decide("ssh-arguments", value, Source.FLAG, by + unread)
        if own_client:
            _say_lost(making, by, (*settled, *sshconfig.lost_with_own_client(args)))
        elif settled:
            making.findings.append(
                Finding(
                    "settings-conflict",
                    Level.WARN,
                    f"{by} has {', '.join(settled)}, which takes the place of what mpiboot "
                    "verified",
                    hint="take it out of the line",
                )
            )
