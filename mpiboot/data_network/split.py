"""What follows for the ranks: every variable of the data network, one owner each, per worker. Pure.

The user's own value wins and is shown. Values equal on all workers are given once; the others
belong to their worker and must not travel from the launcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mpiboot.data_network import cluster_view, gids, interfaces, owners, proposals
from mpiboot.data_network.gids import View
from mpiboot.data_network.owners import Wish
from mpiboot.data_network.records import DataSettings, Kind
from mpiboot.model import Decision, Finding, Level, Source, Worker
from mpiboot.wording import first_few

_NOTHING: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Split:
    """The data network's part of a plan.

    ``common`` goes to every rank, ``per_host`` to the ranks of one worker (every worker has an
    entry, which may be empty; no name is in both). ``pending`` tells for a worker what may still
    come and is worth waiting for. ``views`` hold each worker's own decisions with their reasons.
    """

    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]
    common: Mapping[str, str]
    per_host: Mapping[str, Mapping[str, str]]
    rows: tuple[cluster_view.Row, ...]
    pending: Mapping[str, tuple[str, ...]]
    views: tuple[View, ...]


def decide(
    workers: Sequence[Worker],
    settings: DataSettings,
    taken: Mapping[str, str],
    *,
    values: Mapping[str, str] = _NOTHING,
    others: Sequence[Wish] = (),
) -> Split:
    """Decide the data network of a job from every worker's facts.

    Args:
        workers: the hosts that passed the gate.
        settings: what the user asked for.
        taken: names that the user has set for all ranks, each with where (``-x``, the launcher's
            environment). What a worker's own pod sets is in its facts.
        values: the values of those names where they are known here; they are checked and shown.
        others: what other rules want of the same variables; the owner of a name wins.

    Returns:
        The same for the same facts, whatever the order of the mappings.
    """
    views = tuple(_view(worker, settings, taken) for worker in workers)
    rows = tuple(map(cluster_view.row, views))
    pending = {view.network.host: view.network.pending for view in views if view.network.pending}
    hosts = [view.network.host for view in views]
    nothing = None
    if settings.data_network == "off":
        because = "MPIBOOT_DATA_NETWORK=off: nothing is set"
        nothing = Decision("data-network", "off", Source.ENVIRONMENT, because)
    elif not views:
        because = "no worker was reached: nothing is set"
        nothing = Decision("data-network", Kind.UNKNOWN.value, Source.DETECTED, because)
    if nothing:
        return Split((nothing,), (), {}, {host: {} for host in hosts}, rows, {}, views)
    findings = list(cluster_view.findings(views, settings, values))
    made = proposals.make(views, settings, taken, values)
    findings += made.findings
    settled = _settle(views, [*made.wishes, *others], taken)
    findings += settled.findings
    common = _common(settled.values, hosts)
    per_host = {
        host: {name: value for name, value in mine.items() if name not in common}
        for host, mine in settled.values.items()
    }
    decisions = (
        *made.decisions,
        *_shown(views),
        *_variables(settled.values, settled.because, common),
        *_users(settled.kept, taken, values),
    )
    return Split(decisions, tuple(findings), common, per_host, rows, pending, views)


def _view(worker: Worker, settings: DataSettings, taken: Mapping[str, str]) -> View:
    network = interfaces.choose(worker, settings)
    own = {*taken, *(worker.facts.environment if worker.facts else ())}
    return View(network, gids.choose(network.rails, settings.nccl_version, own))


@dataclass(frozen=True, slots=True)
class _Settled:
    """``kept`` are the names that the user's own value kept, by name and where that is."""

    values: dict[str, dict[str, str]]
    because: dict[str, str]
    kept: dict[tuple[str, str], list[str]]
    findings: tuple[Finding, ...]


def _settle(views: Sequence[View], wanted: Sequence[Wish], taken: Mapping[str, str]) -> _Settled:
    """Give every variable its owner's value, unless the user has it or what it hangs on."""
    hosts = {view.network.host: view.network.facts for view in views}
    values: dict[str, dict[str, str]] = {host: {} for host in hosts}
    because: dict[str, str] = {}
    kept: dict[tuple[str, str], list[str]] = {}
    clashes: dict[str, list[str]] = {}
    chosen: dict[tuple[str, str], Wish] = {}
    for wish in wanted:
        for host in hosts if wish.host is None else (wish.host,):
            key = (host, wish.name)
            now = chosen.get(key)
            owner = owners.owner(wish.name)
            if now is None or (now.rule != owner and wish.rule == owner):
                chosen[key] = wish
            if now is not None and now.value != wish.value:
                mine, theirs = (wish, now) if chosen[key] is wish else (now, wish)
                said = (
                    f"{wish.name}: {mine.rule} wants {mine.value}, {theirs.rule} wants "
                    f"{theirs.value}; it belongs to {owner or mine.rule}, whose value is set"
                )
                clashes.setdefault(said, []).append(host)
    for (host, name), wish in chosen.items():
        facts = hosts[host]
        own = facts.environment if facts else ()
        blocker = next((item for item in (name, *owners.hangs_on(name)) if item in taken), "")
        where = taken.get(blocker, "")
        if not blocker:
            blocker = next((item for item in (name, *owners.hangs_on(name)) if item in own), "")
            where = "the worker's pod"
        if blocker:
            reason = where if blocker == name else f"{blocker} is set ({where})"
            kept.setdefault((name, reason), []).append(host)
            continue
        values[host][name] = wish.value
        because.setdefault(name, wish.because)
    findings = tuple(
        Finding(
            "settings-conflict",
            Level.WARN,
            said,
            names[0] if len(names) == 1 else "",
            tuple(names) if len(names) > 1 else (),
            "set the variable yourself to decide",
        )
        for said, names in clashes.items()
    )
    return _Settled(values, because, kept, findings)


def _common(values: Mapping[str, Mapping[str, str]], hosts: Sequence[str]) -> dict[str, str]:
    """Pick what every worker has with one value; a name that one lacks is not among them."""
    first = values[hosts[0]]
    return {
        name: value
        for name, value in first.items()
        if all(values[host].get(name) == value for host in hosts)
    }


def _shown(views: Sequence[View]) -> list[Decision]:
    """Gather the workers' own decisions: one line for each that is the same."""
    hosts: dict[Decision, list[str]] = {}
    for view in views:
        for decision in view.network.decisions:
            hosts.setdefault(decision, []).append(view.network.host)
    everywhere = len(views)
    return [
        decision
        if len(names) == everywhere
        else Decision(
            decision.name,
            decision.value,
            decision.source,
            f"{first_few(names)}: {decision.because}",
        )
        for decision, names in hosts.items()
    ]


def _variables(
    values: Mapping[str, Mapping[str, str]], because: Mapping[str, str], common: Mapping[str, str]
) -> list[Decision]:
    """Show every variable once; what differs by worker with the usual values first."""
    shown = []
    for name, why in because.items():
        if name in common:
            shown.append(Decision(name, common[name], Source.DETECTED, f"{why}; on all workers"))
            continue
        by_value: dict[str, list[str]] = {}
        for host, mine in values.items():
            if name in mine:
                by_value.setdefault(mine[name], []).append(host)
        counts = Counter({value: len(names) for value, names in by_value.items()})
        text = first_few(
            f"{value} ({first_few(by_value[value])})" for value, _ in counts.most_common()
        )
        shown.append(Decision(name, text, Source.DETECTED, f"{why}; per worker"))
    return shown


def _users(
    kept: Mapping[tuple[str, str], Sequence[str]],
    taken: Mapping[str, str],
    values: Mapping[str, str],
) -> list[Decision]:
    """Show what was left to the user."""
    return [
        Decision(
            name,
            values.get(name, "(the user's own)") if name in taken else "(left alone)",
            Source.ENVIRONMENT,
            f"{reason}; on {first_few(hosts)}",
        )
        for (name, reason), hosts in kept.items()
    ]
