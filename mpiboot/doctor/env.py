"""``mpiboot doctor --env``: what differs between a pod's environment, a session's and a rank's.

On a launcher every host is asked in one session each, elsewhere this pod alone. It starts nothing,
changes nothing and writes nothing but doctor's private folder.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.masking import mask_within
from mpiboot.core.model import Finding, Level, Role
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted, first_few, grouped, majority
from mpiboot.doctor import job, looks, role
from mpiboot.hosts import host_shell
from mpiboot.hosts.gate import DoctorLook
from mpiboot.hosts.remote_commands import RemoteCommands
from mpiboot.job import dialects, render
from mpiboot.job import plan as plans
from mpiboot.job.forward import local_reason, matches
from mpiboot.job.plan import Plan
from mpiboot.launcher import launch_folder, look
from mpiboot.system import programs


@dataclass(frozen=True, slots=True)
class Forwarding:
    """``values`` go to ranks; ``reason`` has why these do, and why the launcher's others do not.

    ``per_host`` is what the plan sets on single hosts. All are empty where there is no plan.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    reason: Mapping[str, str] = field(default_factory=dict)
    per_host: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def of_plan(plan: Plan, environ: Mapping[str, str]) -> Forwarding:
    """Read it from a plan, with the launcher's environment."""
    has = plan.environment(environ)
    settled = {item.name: item.reason for item in plan.decisions if item.name in plan.set_env}
    goes = {name: settled.get(name, why) for name, why in plan.forwarded.items() if name in has}
    taken = "mpiboot takes it out for mpirun; `mpiboot plan` says what for"
    stays = dict.fromkeys(plan.unset_env, taken)
    stays |= {**dict.fromkeys(plan.set_env, "mpiboot sets it for mpirun itself"), **plan.stays}
    unknown = "no rule names it; MPIBOOT_FORWARD={} hands it on"
    stays |= {
        name: local_reason(name, value) or unknown.format(name)
        for name, value in environ.items()
        if name not in stays
    }
    return Forwarding({name: has[name] for name in goes}, {**stays, **goes}, plan.per_host)


# Whose environment, as doctor_questions calls it, and as it is shown.
TITLES: Final = {"first": "pod", "session": "SSH session", "rank": "rank"}
NOT_SET: Final = "(not set)"

_FIRST: Final = (
    "PATH LD_LIBRARY_PATH LD_PRELOAD PYTHONPATH NCCL_* UCX_* OMPI_* PMIX_* PRTE_* I_MPI_* FI_* "
    "MPICH_* MPIR_* MPIBOOT_* CUDA_* NVIDIA_* *_PROXY *_proxy"
)
# What belongs to one shell or one connection; LC_CTYPE is Python's, without a locale (PEP 538).
_SESSIONS: Final = "LC_CTYPE PWD OLDPWD SHLVL _ TERM MAIL SSH_* MPIBOOT_SESSION MPIBOOT_WORKER_DIR"
_USERS: Final = "HOME USER LOGNAME SHELL"
# What mpirun, its daemons and mpiboot's launch agents set in ranks.
_MPIRUNS: Final = (
    "OMPI_* PMIX_* PMI_* PRTE_* HYDRA_* HYDI_* MPIR_* MPI_LOCAL* MPICH_* I_MPI_* "
    "MPIBOOT_* IPATH_NO_BACKTRACE HFI_NO_BACKTRACE"
)
_NO_PLAN: Final = Forwarding()
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class HostEnvironments:
    """The environments of a host by the keys of ``TITLES``; ``missing`` has why one is not there.

    ``rank`` names the rank, or what stands for one.
    """

    host: str
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    rank: str = ""

    def with_rank(self, values: Mapping[str, str], rank: str) -> HostEnvironments:
        """Return a copy with these values as a rank's, of which this host has none."""
        missing = {whose: why for whose, why in self.missing.items() if whose != "rank"}
        return replace(self, values={**self.values, "rank": values}, missing=missing, rank=rank)


class DifferenceKind(Enum):
    """What matters to most jobs, the rest, and what a session or a rank has by its nature."""

    FIRST = "first"
    OTHER = "other"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Difference:
    """A variable and its value in each environment, secrets hidden, None where it is not set.

    ``reason`` is empty where mpiboot does not know it.
    """

    name: str
    group: DifferenceKind
    values: Mapping[str, str | None]
    reason: str = ""


Compared = Sequence[tuple[HostEnvironments, Sequence[Difference]]]


def read(rows: Iterable[str], host: str, *, session: str = "") -> HostEnvironments:
    """Read what ``environments`` of ``libexec/doctor_questions`` printed.

    Args:
        rows: its lines, each begins with whose variable it is.
        host: the name by which it is shown.
        session: why these lines are of no SSH session; empty where they are of one.
    """
    values: dict[str, dict[str, str]] = {}
    rank, first = "", "/proc/1/environ can't be read by this user"
    for row in rows:
        whose, _, text = row.partition(" ")
        if whose in TITLES:
            name, _, value = text.partition("=")
            values.setdefault(whose, {})[name] = value.replace("\1", "\n")
        elif whose == "which":
            number, _, pid = text.partition(" ")
            rank = f"rank {number} (pid {pid})"
        elif whose == "shared":
            first = "the first process is not the container's (shareProcessNamespace)"
    if session:
        values.pop("session", None)
    reasons = {
        "first": first,
        "session": session or "this host did not answer",
        "rank": f"the environment of {rank} can't be read" if rank else "no rank runs here",
    }
    missing = {whose: why for whose, why in reasons.items() if whose not in values}
    return HostEnvironments(host, values, missing, rank)


def differences(one: HostEnvironments, forwarding: Forwarding) -> tuple[Difference, ...]:
    """Give the variables that are not the same in all environments that are known of a host."""
    found = []
    for name in sorted({name for values in one.values.values() for name in values}):
        raw = {whose: values.get(name) for whose, values in one.values.items()}
        if len(set(raw.values())) > 1:
            shown = _shown(name, raw.values())
            values = {whose: shown[value] for whose, value in raw.items()}
            reason = "; ".join(filter(None, _reasons(name, raw, one, forwarding)))
            found.append(Difference(name, _group(name, raw, forwarding), values, reason))
    return tuple(item for group in DifferenceKind for item in found if item.group is group)


def outliers(
    hosts: Sequence[HostEnvironments], forwarding: Forwarding = _NO_PLAN
) -> Iterator[Finding]:
    """Name the hosts of which a variable has another value than on most.

    What is true of one pod only is left out, what the plan sets on single hosts, and what has
    another value on each of them, unless it matters to most jobs.
    """
    planned = {name for mine in forwarding.per_host.values() for name in mine}
    named = set()
    for whose, title in TITLES.items():
        there = {one.host: one.values[whose] for one in hosts if whose in one.values}
        for name in sorted({name for values in there.values() for name in values} - planned):
            raw = {host: values.get(name) for host, values in there.items()}
            if any(_of_one_pod(name, value or "", whose) for value in raw.values()):
                continue
            shown = _shown(name, raw.values())
            found = majority({host: shown[value] or NOT_SET for host, value in raw.items()})
            if not found or (name, found.outliers_text) in named:
                continue
            if found.alike > 1 or _matches(name, _FIRST):
                named.add((name, found.outliers_text))
                others = found.outliers_text
                message = f"{name} of the {title} differs from most hosts: {others}"
                usual = f"on {found.alike} of {len(raw)}: {found.usual}"
                yield Finding(
                    "hosts-differ", Level.WARN, message, hosts=found.hosts, evidence=(usual,)
                )


def _shown(name: str, raw: Iterable[str | None]) -> dict[str | None, str | None]:
    """Mask values; a number keeps different ones apart."""
    shown: dict[str | None, str | None] = {None: None}
    for value in raw:
        if value is not None and value not in shown:
            text = mask_within(name, value) or "(empty)"
            alike = sum(str(other).partition(" [")[0] == text for other in shown.values())
            shown[value] = f"{text} [{alike + 1}]" if alike else text
    return shown


def _matches(name: str, patterns: str) -> bool:
    return any(matches(name, pattern) for pattern in patterns.split())


def _of_one_pod(name: str, value: str, whose: str) -> bool:
    if _matches(name, _SESSIONS) or (whose == "rank" and _matches(name, _MPIRUNS)):
        return True
    return not name.startswith("MPIBOOT_") and bool(local_reason(name, value))


def _group(name: str, raw: Mapping[str, str | None], forwarding: Forwarding) -> DifferenceKind:
    elsewhere = any(value is not None for whose, value in raw.items() if whose != "rank")
    by_mpirun = not elsewhere and name not in forwarding.values
    if _matches(name, _SESSIONS) or (by_mpirun and _matches(name, _MPIRUNS)):
        return DifferenceKind.OWN
    return DifferenceKind.FIRST if _matches(name, _FIRST) else DifferenceKind.OTHER


def _reasons(
    name: str, raw: Mapping[str, str | None], one: HostEnvironments, forwarding: Forwarding
) -> Iterator[str]:
    if "session" in raw and "first" in raw and raw["session"] != raw["first"]:
        yield _of_the_session(name, one.values["session"])
    if "rank" in raw and ("session" not in raw or raw["session"] != raw["rank"]):
        yield _of_the_rank(name, raw["rank"], forwarding)


def _of_the_session(name: str, session: Mapping[str, str]) -> str:
    if _matches(name, f"{_USERS} {_SESSIONS}"):
        return "an SSH session has its own"
    if "MPIBOOT_SESSION" not in session:
        return "this SSH server is not mpiboot's: the pod's environment is not handed to sessions"
    if not _NAME.fullmatch(name):
        return "no shell can set such a name in a session"
    return "set since the pod began: by its entry point, MPIBOOT_ENV_PROFILE or the user's shell"


def _of_the_rank(name: str, value: str | None, forwarding: Forwarding) -> str:
    why = forwarding.reason.get(name, "")
    if why and name not in forwarding.values:
        return f"not forwarded: {why}"
    if why and value == forwarding.values[name]:
        return f"the launcher's: {why}"
    by_mpirun = value is not None and _matches(name, _MPIRUNS)
    return "mpirun or mpiboot sets it in ranks" if by_mpirun else ""


def as_text(
    compared: Compared, found: Sequence[Finding], width: int | None, *, whole: bool = True
) -> str:
    """Write the findings, then a table of each host or of those that are alike.

    Args:
        compared: each host with its differences.
        found: hosts that differ or were not reached.
        width: a terminal's; without one nothing is broken.
        whole: whether it was not interrupted.
    """
    alike: dict[str, list[tuple[HostEnvironments, list[Difference], int]]] = {}
    for one, items in compared:
        shown = [item for item in items if item.group is not DifferenceKind.OWN]
        same = repr((sorted(one.missing.items()), shown))
        alike.setdefault(same, []).append((one, shown, len(items) - len(shown)))
    text = render.findings(found, width)
    for hosts in alike.values():
        one, shown, own = hosts[0]
        text += ("\n" if text else "") + first_few(host.host for host, _, _ in hosts)
        text += f": {one.rank}\n" if one.rank else "\n"
        text += "".join(f"  {TITLES[whose]}: {why}\n" for whose, why in one.missing.items())
        rows = [row for item in shown for row in _rows(item)]
        none = "nothing differs" if len(one.values) > 1 else "nothing to compare"
        head = ("variable", "in", "value")
        text += render.table(head, rows, indent="  ") if rows else f"  {none}\n"
        if own:
            variables = counted(own, "variable")
            text += f"  and {variables} specific to a session or a rank: --json\n"
    return text if whole else f"{text}\ninterrupted: the rest was not looked at\n"


def _rows(item: Difference) -> Iterator[tuple[str, str, str]]:
    """Give a line for each value, and one for the reason."""
    by_value = grouped(
        (NOT_SET if value is None else value, TITLES[whose]) for whose, value in item.values.items()
    )
    name = item.name
    for value, titles in by_value.items():
        yield name, ", ".join(titles), value
        name = ""
    if item.reason:
        yield "", "why", item.reason


_NO_LOGIN: Final = "nobody logs in to a launcher"
_PLANNED: Final = "no rank runs: what the plan would give to one"
_PATIENCE: Final = 60.0  # seconds; a guard against a /proc that hangs


def run(
    resolved: Resolved, environ: Mapping[str, str], only: Sequence[str], *, as_json: bool
) -> None:
    """Print what differs between the pod's environment, an SSH session's and a rank's.

    Args:
        resolved: the settings.
        environ: this process's environment.
        only: the hosts that are asked, by their whole or first names; empty: all.
        as_json: whether a program reads it.

    Raises:
        ShownError: a host could not be asked; with the code 1.
        MpibootError: ``usage``; there is no such host.
        KeyboardInterrupt: it was interrupted while hosts were asked, and has printed the others.
    """
    wrong: Sequence[Finding] = ()
    plan, whole = _NO_PLAN, True
    try:
        if role.role_of(resolved, environ) is Role.LAUNCHER:
            try:
                hosts, plan, wrong, whole = _job(resolved, environ, only)
            except MpibootError as problem:
                if problem.finding.check == "usage":
                    raise
                hosts, wrong = [_here(_NO_LOGIN)], (problem.finding, *problem.others)
        elif only:
            raise error("usage", "--host is for a launcher: this pod asks no other")
        else:
            hosts = [_pod(resolved, environ)]
    finally:
        looks.remove_folder(resolved.settings, environ)
    compared = [(one, differences(one, plan)) for one in hosts]
    # The first is this pod; a launcher is another kind of pod than its workers.
    found = (*wrong, *outliers(hosts[1:], plan))
    if as_json:
        records = [
            {"host": one.host, "rank": one.rank, "missing": one.missing, "differences": items}
            for one, items in compared
        ]
        sys.stdout.write(role.json_report(complete=whole, findings=found, hosts=records))
    else:
        sys.stdout.write(as_text(compared, found, log.width(1), whole=whole))
    if not whole:
        raise KeyboardInterrupt
    role.end(found)


def _job(
    resolved: Resolved, environ: Mapping[str, str], only: Sequence[str]
) -> tuple[list[HostEnvironments], Forwarding, Sequence[Finding], bool]:
    """Ask every host, and this pod, which comes first; whether all had their time to answer."""
    doctor = DoctorLook((host_shell.ENVIRONMENTS,), tuple(only))
    seen, launcher = look.look(resolved, job.ANY_PROGRAM, environ, doctor)
    job.refuse_unknown(only, (host.name for host in seen.observed.hostfile.hosts))
    whole = not seen.passed.unasked
    plan, wrong = _NO_PLAN, seen.passed.findings
    if whole:  # of hosts that were not asked a plan would say what is not so
        try:
            made = plans.make(seen.observed, resolved, launch_folder.paths(launcher.folder))
            if dialects.row_of(seen.observed.mpi) is not None:
                plan = of_plan(made, environ)
        except MpibootError as problem:
            wrong = (*wrong, problem.finding, *problem.others)
    answers = seen.passed.answers
    names = (worker.host.name for worker in seen.passed.workers)
    hosts = [
        _or_planned(_read(answers[name].output, name), plan) for name in names if name in answers
    ]
    here = _here(_NO_LOGIN)
    like = next((one for one in hosts if "rank" in one.values), None)
    if like and "rank" not in here.values:
        here = here.with_rank(like.values["rank"], f"{like.host}: {like.rank}")
    return [here, *hosts], plan, wrong, whole


def _or_planned(one: HostEnvironments, plan: Forwarding) -> HostEnvironments:
    """Put what the plan would give to a rank where none runs."""
    if "rank" in one.values or "session" not in one.values or not plan.values:
        return one
    own = plan.per_host.get(one.host, {})
    return one.with_rank({**one.values["session"], **own, **plan.values}, _PLANNED)


def _read(output: str, host: str, no_session: str = "") -> HostEnvironments:
    return read(host_shell.read(output).environments, host, session=no_session)


def _here(no_session: str) -> HostEnvironments:
    """Look at this pod's own processes."""
    output = asyncio.run(programs.shell(host_shell.environments(), _PATIENCE))
    return _read(output, os.uname().nodename, no_session)


def _pod(resolved: Resolved, environ: Mapping[str, str]) -> HostEnvironments:
    """Look at this pod, and log in to its own SSH server for what a session has."""
    try:
        _, access, worker = job.log_in_here(resolved, environ)
    except MpibootError as wrong:
        return _here(wrong.finding.message)
    commands = RemoteCommands(access, resolved.settings.host_keys)
    output = asyncio.run(commands.run(worker, host_shell.environments())) or ""
    return _read(output, os.uname().nodename)
