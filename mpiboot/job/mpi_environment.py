"""What mpirun gets in its environment: links, agent, constants, forwarded names. Pure.

Each function settles one intent for the MPI at hand by the columns of its row in ``dialects``.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Final

from mpiboot.checks import failed
from mpiboot.job import forward, placement, sshconfig
from mpiboot.job.dialects import ALSO_AGENT, ALSO_AGENT_ARGS, ALSO_DAEMON_LINK, Dialect
from mpiboot.job.making import Making, Observed, Paths, parameter
from mpiboot.model import Decision, Finding, Level, Source
from mpiboot.network import control
from mpiboot.settings import Given, Resolved

# More concurrent launches than this is MPI's own default; fewer than hosts hangs it.
DEFAULT_CONCURRENCY: Final = 128


def pin_control(making: Making, observed: Observed, resolved: Resolved) -> None:
    """Pin daemons and MPI TCP to the control link, or carry over what the user pinned."""
    decision, why_not = control.choose(
        resolved.settings.control_ifname,
        observed.links,
        observed.workers,
        given=resolved.given["control_ifname"],
    )
    if decision and ":" in decision.value:
        # Open MPI reads networks of IPv4 alone there (inet_pton with AF_INET), and ends otherwise.
        link = control.name_in(decision.value, observed.links, observed.workers)
        why_not = f"{making.row.title} takes no IPv6 network, and no one link name fits all pods"
        if not link and decision.source is not Source.DETECTED:
            said = f"{decision.because}={decision.value}: {why_not}"
            making.findings.append(failed("settings-conflict", said, hint="name a link"))
        because = f"the link of {decision.value}, as {making.row.title} takes no IPv6 network"
        found = Decision("control-link", link, decision.source, f"{decision.because}: {because}")
        decision = found if link else None
    if decision:
        making.decisions.append(decision)
    else:
        making.decide("control-link", "", Source.DETECTED, f"not pinned: {why_not}")
    _pin_daemons(making, decision)
    for name in making.row.mpi_link_vars:
        if decision and not _excluded(making, name, (name,)):
            making.variable(name, decision.value, "MPI's TCP on the control link", decision.source)


def pin_ports(making: Making, observed: Observed, resolved: Resolved, version: int) -> None:
    """Keep daemons and MPI TCP to the range of ports that the user named, if any.

    ``version`` is the IP version that they speak.
    """
    text = resolved.settings.port_range
    if not text:
        return
    row, given = making.row, resolved.given["port_range"]
    first, last = map(int, text.split("-"))
    count = last - first + 1
    # A part for the daemons alone: Open MPI 5's first one listens on all ports that it is given.
    share = max(2, count // 4)
    most = max((host.slots for host in observed.hostfile.hosts), default=0)
    if count - share < most:
        said = (
            f"{given} has {count} ports, of which daemons need {share}, and a host has {most} slots"
        )
        making.findings.append(failed("settings-conflict", said, hint="name a wider range"))
        return
    # For both versions, the sockets of IPv4 would take the ports that those of IPv6 wait for.
    for name in (item for item in row.daemon_ports_vars if f"_ipv{version}_" in item):
        value = f"{first}-{first + share - 1}"
        making.variable(name, value, f"the daemons' part of {given}", given.source)
    ranges = (
        (row.daemon_range_vars, first, first + share - 1, "the daemons'"),
        (row.range_vars, first + share, last, "MPI's"),
    )
    for names, low, high, whose in ranges:
        # One name is enough, and beside the user's own another would be one of two.
        for name in [name for name in names if making.environ.get(name)] or names[:1]:
            making.variable(name, f"{low}:{high}", f"{whose} part of {given}", given.source)
    for name in row.first_port_vars:
        making.variable(name, str(first + share), f"MPI's part of {given}", given.source)
    for name in row.port_count_vars:
        making.variable(name, str(count - share), f"MPI's part of {given}", given.source)


def _pin_daemons(making: Making, decision: Decision | None) -> None:
    """Settle the daemons' link; a list that this MPI can't take is a failure."""
    row = making.row
    names = (row.daemon_link_var, *ALSO_DAEMON_LINK)
    flag = next((key for key in map(parameter, names) if key in making.line.mca), "")
    carried = next((name for name in names if making.environ.get(name)), "")
    if flag:
        name, value = f"--mca {flag}", making.line.mca[flag]
        making.decide(row.daemon_link_var, value, Source.FLAG, "given on the mpirun line")
    elif carried and carried != row.daemon_link_var:
        name, value = carried, making.environ[carried]
        because = f"carried over from {carried}, which {row.title} does not read"
        making.force(row.daemon_link_var, value, because, Source.ENVIRONMENT)
    else:
        name, value = row.daemon_link_var, making.environ.get(row.daemon_link_var, "")
        if decision and not _excluded(making, name, names):
            making.variable(name, decision.value, decision.because, decision.source)
            value = value or decision.value
    if row.one_link and "," in value:
        making.findings.append(
            failed(
                "settings-conflict",
                f"{name}={value} is a list, and {row.title} takes one name or one network "
                "there (a list crashes it)",
                hint="name one link or one CIDR that launcher and workers all have",
            )
        )


def _excluded(making: Making, name: str, includes: Iterable[str]) -> bool:
    """Tell whether the user excludes links instead: including some as well ends mpirun."""
    excludes = [item.replace("_include", "_exclude") for item in includes if "_include" in item]
    for item in excludes:
        if making.environ.get(item) or parameter(item) in making.line.mca:
            making.decide(name, "", Source.ENVIRONMENT, f"not set: {item} is, and both can't be")
            return True
    return False


def set_constants(making: Making, observed: Observed, *, oversubscribe: Given | None) -> None:
    """Set what this MPI always gets: transports, root, binding, mapping, who the user is.

    ``oversubscribe`` is what asked for more ranks than slots, None where nothing did.
    """
    row = making.row
    for item in row.constants:
        making.variable(item.name, item.value, item.because, Source.DEFAULT)
    if observed.identity.uid == 0:
        for item in row.root:
            making.variable(item.name, item.value, item.because, Source.DETECTED)
    if making.line.bind_to:
        making.decide("binding", making.line.bind_to, Source.FLAG, "given on the mpirun line")
    elif row.bind_var:
        making.variable(
            row.bind_var, "none", "ranks have threads; pods have few cores", Source.DEFAULT
        )
    if oversubscribe and row.oversubscribe_var != row.map_var:
        making.variable(
            row.oversubscribe_var,
            row.oversubscribe_value,
            f"asked for by {oversubscribe}",
            oversubscribe.source,
        )
    if making.line.mapped_by:
        making.decide("mapping", making.line.mapped_by, Source.FLAG, "given on the mpirun line")
    if row.map_var and not making.line.policy:
        policy = placement.default_policy(row.family, oversubscribe=oversubscribe is not None)
        making.variable(row.map_var, policy, "fill a host before the next", Source.DEFAULT)
    for name, value in (
        ("HOME", observed.identity.home),
        ("USER", observed.identity.user),
        ("LOGNAME", observed.identity.user),
    ):
        if not making.environ.get(name):
            making.set_env[name] = value


def place_agent(
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


def listed(making: Making) -> tuple[str, ...]:
    """List the names in the user's own list of variables, where this MPI has such a list."""
    name = making.row.export_var
    theirs = (
        (making.environ.get(name, ""), making.line.mca.get(parameter(name), "")) if name else ()
    )
    return tuple(item.partition("=")[0] for text in theirs for item in text.split(";") if item)


def choose_forwarded(
    making: Making, observed: Observed, resolved: Resolved, added: Mapping[str, str]
) -> tuple[str, ...]:
    """Choose the variables that ranks get; returns the names that go by ``-x``.

    ``added`` are variables that mpirun's environment will have beside the pod's own.
    """
    row, settings = making.row, resolved.settings
    kept, removed = forward.scrub(observed.environ, observed.platform.managers)
    for name, why in removed:
        making.unset_env.add(name)
        making.decide(name, "(removed)", Source.DETECTED, why)
    empty = [name for name, value in kept.items() if row.never_empty and not value]
    for name in fnmatch.filter(empty, f"{row.never_empty}*"):
        del kept[name]
        making.unset_env.add(name)
        because = f"it is empty, which says nothing to {row.title} and crashes it"
        making.decide(name, "(removed)", Source.DETECTED, because)
    for pattern in row.remove:
        making.unset_env.update(fnmatch.filter(observed.environ, pattern))
    theirs = making.environ.get(row.export_var, "") if row.export_var else ""
    chosen = forward.select(
        {**kept, **added},
        settings.forward,
        settings.no_forward,
        family=row.family,
        given=(*making.line.exports, *listed(making)),
    )
    for item in chosen.withheld:
        if item.asked:
            making.findings.append(
                Finding("usage", Level.WARN, f"{item.name} is not forwarded: {item.because}")
            )
    names = [item.name for item in chosen.names]
    making.forwarded = {item.name for item in chosen.by_itself}
    making.decide(
        "forwarded",
        str(len(names)),
        Source.DEFAULT,
        ", ".join(names) or "none of the known variables is set",
    )
    if names and row.export_var and parameter(row.export_var) in making.line.mca:
        if row.export == "list":
            making.forwarded.update(names)
            return tuple(names)  # the line's own list hides the environment's, but takes -x
        if added.keys() >= set(names):
            return ()
        said = f"--mca {parameter(row.export_var)} on the mpirun line forbids -x in {row.title}"
        hint = "name all variables in that list, or use -x"
        making.findings.append(
            Finding("usage", Level.WARN, f"{said}: nothing else is forwarded", hint=hint)
        )
        return ()
    making.forwarded.update(names)
    # 4.1 refuses -x beside the list, so a user's own list takes the names too.
    if names and (row.export == "list" or theirs):
        entries, flags = _entries(names, {**kept, **added}, row)
        making.set_env[row.export_var] = ";".join([*([theirs] if theirs else []), *entries])
        return flags
    return tuple(names) if row.export == "-x" else ()


def _entries(
    names: Iterable[str], values: Mapping[str, str], row: Dialect
) -> tuple[list[str], tuple[str, ...]]:
    """Write the list's entries; what it can't hold goes by ``-x``.

    Where a name of the list has a value with "=" in it (NCCL's exact form, XLA_FLAGS), Open MPI
    5.0 takes the value for an assignment of its own, and two of them may end mpirun; beside its
    name, or by ``-x``, such a value arrives.
    """
    entries, flags = [], []
    for name in names:
        value = values[name]
        if row.export != "list" or "=" not in value:
            entries.append(name)
        elif ";" in value or forward.is_secret(name):
            flags.append(name)
        else:
            entries.append(f"{name}={value}")
    return entries, tuple(flags)


def refuse_unsafe(making: Making) -> None:
    """Refuse values that this MPI lets the workers' shell evaluate."""
    row = making.row
    if not row.evaluated:
        return
    merged = {**making.environ, **making.set_env}
    values = {
        name: value
        for name, value in merged.items()
        if name.startswith(row.evaluated) and name not in making.unset_env
    }
    for name, value in making.line.mca.items():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in row.evaluated_flags):
            values[f"--mca {name}"] = value
    excepted = {*row.evaluated_but, *(f"--mca {parameter(name)}" for name in row.evaluated_but)}
    for name in sorted(values.keys() - excepted):
        bad = sorted(set(values[name]) & set('"$\\`\n'))
        if bad:
            making.findings.append(
                failed(
                    "unsafe-value",
                    f"{name} holds {' '.join(map(repr, bad))}: {row.title} hands it to the "
                    "workers' shell unescaped",
                )
            )
