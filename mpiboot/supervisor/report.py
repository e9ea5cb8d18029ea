"""Reports how the job ended, or why it did not start: log, termination message, job record.

The verdict is made elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from mpiboot.core import log
from mpiboot.core.checks import BY_REFERENCE, MpibootError
from mpiboot.core.launch_spec import Failure, LaunchSpec
from mpiboot.core.model import Finding, Level
from mpiboot.core.setting_types import ProveTransport
from mpiboot.core.wording import counted
from mpiboot.supervisor.state import Verdict

# Prefixes of MPI's own variables, and of those of its libraries.
_OF_MPI = ("OMPI_", "PRTE_", "PMIX_", "UCX_", "FI_", "I_MPI_", "MPIR_", "MPICH_", "HYDRA_")


def _finding(verdict: Verdict) -> Finding:
    """Write a verdict as a finding; a code of the program's own has no row, and no hint."""
    name = verdict.reference or ("signal" if verdict.by_signal else verdict.failed)
    row = BY_REFERENCE.get(name)
    hint = row.hint if row else ""
    return Finding(name, Level.FAIL, verdict.message, verdict.host, verdict.evidence, hint)


def _set_by_mpiboot(spec: LaunchSpec) -> tuple[str, ...]:
    """List the MPI variables that mpiboot had set; `mpiboot plan` gives the reasons.

    A list of variables with values, or ssh's arguments, may hold a secret of the user's.
    """
    named = sorted(item for item in spec.set_env.items() if item[0].startswith(_OF_MPI))
    shown = ", ".join(name if "=" in value else f"{name}={value}" for name, value in named)
    return (f"mpiboot had set {shown} (`mpiboot plan` says why)",) if named else ()


def _look_closer(host: str, *, gone: bool = False, unresolved: bool = False) -> str:
    """Say where to run the doctor: in the pod that is named, where it is one.

    Args:
        host: the hostfile's name; empty where the failure is not that of one host.
        gone: that host can't be entered any more.
        unresolved: its name has no address, and perhaps no pod.
    """
    labels = host.split(".")
    pod = labels[0] if host and not host[0].isdigit() and ":" not in host else ""
    # As in pi-worker-1.pi.default.svc.cluster.local (the kubelet's names of pods with a subdomain).
    namespace = f" -n {labels[2]}" if labels[3:4] == ["svc"] else ""
    if pod and (gone or unresolved):
        logs = f"; kubectl logs{namespace} {pod} (with --previous where its container runs again)"
        return f"look closer: kubectl describe pod{namespace} {pod}{logs * gone}"
    where = "" if pod else " in a worker"  # the launcher's own container has ended
    return f"look closer{where}: kubectl exec{namespace} {pod or 'POD'} -- mpiboot doctor"


def tell(
    verdict: Verdict,
    spec: LaunchSpec,
    seconds: float,
    termination_log: str,
) -> None:
    """Log the end of the job in one record: the reason once, then evidence and what to do.

    Args:
        verdict: how it ended.
        spec: what was started.
        seconds: how long it all took, from the launcher's start.
        termination_log: where the kubelet looks for the reason of a failure.
    """
    if verdict.code and not verdict.reference and verdict.failed in ("mpi", "mpirun"):
        verdict = replace(verdict, evidence=(*verdict.evidence, *_set_by_mpiboot(spec)))
    item = _finding(verdict)
    evidence = verdict.reported
    reason = _reason(item, evidence)
    # A launcher that was told to end did not fail.
    failed = bool(verdict.code) and not verdict.by_signal
    mark = f"[{item.check}] " if failed else ""
    # The doctor can't explain a program that failed by itself.
    look = _look_closer(item.host, gone=verdict.gone) if failed and verdict.reference else ""
    hint = "\n".join(filter(None, (item.hint, look)))
    if verdict.code:
        log.fresh_line()  # mpirun or a rank may have left a line without its end
        lines = (*evidence, *item.evidence)
        text = f"{item.check}: {_reason(item)}\n"
        text += "".join(f"-> {line}\n" for line in hint.splitlines())
        lines = (*lines, spec.earlier) if spec.earlier else lines
        log.write_termination(termination_log, text + "".join(f"{line}\n" for line in lines))
    hosts = counted(spec.hosts, "host")
    ranks = "" if spec.ranks is None else f", {counted(spec.ranks, 'rank')}"
    what = f"{seconds:.1f} s, {hosts}{ranks}, exit {verdict.code}"
    say = log.error if failed else log.info
    say(
        "ended",
        f"{mark}job ended: {what}: {reason}",
        seconds=round(seconds, 3),
        hosts=spec.hosts,
        ranks=spec.ranks,
        exit=verdict.code,
        reference=item.check if verdict.code else "",
        host=verdict.host,
        rank=verdict.rank,
        signal=verdict.signal,
        cause=evidence[0] if evidence else item.message,
        reason=item.message,
        hint=hint,
        evidence=[*evidence[1:], *item.evidence],
    )


def why(verdict: Verdict) -> str:
    """Say why a job failed, for the next attempt; empty after a good end."""
    if not verdict.code:
        return ""
    item = _finding(verdict)
    return f"{item.check}: {_reason(item, verdict.reported)}, exit {verdict.code}"


def _reason(item: Finding, evidence: tuple[str, ...] = ()) -> str:
    where = f"{item.host}: " if item.host else ""
    return f"{where}{item.message}" + (f"; {evidence[0]}" if evidence else "")


def tell_not_started(failure: Failure, seconds: float, termination_log: str) -> None:
    """Say that the job ended before mpirun was started: why is in the log already.

    Args:
        failure: what came instead.
        seconds: how long it all took, from the launcher's start.
        termination_log: where the kubelet looks for the reason of a failure.
    """
    # Without a host it is the launcher's own pod, in which nothing runs any more.
    doctor = failure.held and failure.host
    unresolved = failure.reference == "names-unresolved"
    look = _look_closer(failure.host, unresolved=unresolved) if doctor else ""
    log.write_termination(termination_log, _with_hint(failure.message, look))
    say = log.error if failure.held else log.info  # not held: it was told to end
    say(
        "ended",
        f"job did not start: {seconds:.1f} s, exit {failure.code} ({failure.reference})",
        seconds=round(seconds, 3),
        exit=failure.code,
        reference=failure.reference,
        **({"hint": look} if look else {}),
    )


def _with_hint(message: str, look: str) -> str:
    """Put a hint below those that are there, above evidence that may be cut off."""
    lines = message.splitlines(keepends=True)
    at = 1
    while look and lines[at : at + 1] and lines[at].startswith("-> "):
        at += 1
    return "".join([*lines[:at], *([f"-> {look}\n"] if look else []), *lines[at:]])


# Raised when a field of the record goes or changes its meaning.
_RECORD_VERSION: Final = 1


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


# For whom the record is a line of the log.
_LOG: Final = "-"
# What the seconds of a job went into: until the last name resolved, until all hosts answered by
# SSH, until mpirun was started, until it ended, and until all was said.
_PHASES: Final = ("names", "ssh", "plan", "run", "end")


def phases(times: Sequence[float]) -> dict[str, float]:
    """Give each phase its seconds, of the times between them; nothing where one is missing."""
    if len(times) != len(_PHASES) + 1:
        return {}
    return {
        name: round(max(0.0, after - before), 3)
        for name, before, after in zip(_PHASES, times, times[1:], strict=False)
    }


def remove_record(path: str) -> None:
    """Remove the record of an earlier job: a launcher that is killed leaves none."""
    if path != _LOG and _is_file(path):
        with suppress(OSError):
            os.unlink(path)


def _of_last_launch(path: str) -> dict[str, Any]:
    """Read what the last launch of a command has recorded, and is its own."""
    with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        found = json.load(file)
        return {name: found[name] for name in ("hosts", "ranks", "phases", "transport")}
    return {}


def _fails_by_transport(spec: LaunchSpec) -> bool:
    return spec.prove == ProveTransport.FAIL.value and spec.transport != "TCP"


def tell_transport(
    spec: LaunchSpec, code: int, counters: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Log what carried the data of a job that ended with a code; give what is recorded of it.

    Args:
        spec: what was started.
        code: the exit code.
        counters: what ``transport.judge`` says; None where they were not read in time.
    """
    told = dict(counters or {})
    if not told:
        message = "the workers' counters were not read"
        told = {"verdict": "unknown", "message": message, "lines": []}
    for line in told.pop("lines"):
        log.info("transport", line, verdict=told["verdict"])
    message, hint = told["message"], BY_REFERENCE["transport"].hint
    warns = told["verdict"] == "unused" and spec.transport != "TCP"
    if not code and _fails_by_transport(spec):
        warns, hint = told["verdict"] == "unknown", ""
        message = f"MPIBOOT_PROVE_TRANSPORT=fail can't be applied: {message}"
    if warns:
        log.finding(Finding("transport", Level.WARN, message, hint=hint))
    return {**told, "planned": spec.transport}


def fails(spec: LaunchSpec, transport: Mapping[str, Any]) -> bool:
    """Whether a job that ended well fails by what carried its data."""
    return _fails_by_transport(spec) and transport.get("verdict") == "unused"


def write_record(
    path: str,
    end: Verdict | Failure,
    seconds: float,
    spec: LaunchSpec | None = None,
    transport: Mapping[str, Any] | None = None,
    times: Sequence[float] = (),
) -> None:
    """Write the job's end for programs, whole or not at all; a warning where it can't be written.

    Args:
        path: the file; - for a line of the log.
        end: how it ended, or why mpirun was not started.
        seconds: how long it all took, from the launcher's start.
        spec: what was started; None where nothing was.
        transport: what carried the data.
        times: when the phases of the job began, and when the last one ended.
    """
    if isinstance(end, Failure):
        reference = end.reference
        reason = end.message.partition("\n")[0].removeprefix(f"{reference}: ")
    else:
        reference, reason = _finding(end).check if end.code else "", end.message
    nothing = {"planned": "none", "verdict": "none", "message": "", "hosts": {}, "moved": {}}
    record: dict[str, Any] = {
        "version": _RECORD_VERSION,
        "exit": end.code,
        "reference": reference,
        "reason": reason,
        "hosts": spec.all_hosts if spec else (),
        "ranks": spec.ranks if spec else None,
        "seconds": round(seconds, 3),
        "phases": phases(times),
        "transport": {**nothing, **(transport or {})},
    }
    if spec is None and path != _LOG:
        record |= _of_last_launch(path)
    if path == _LOG:
        log.record("job-record", "the record of the job", **record)
        return
    # Loaded late: few jobs have a record, and pathlib costs a megabyte while the job runs.
    from pathlib import Path  # noqa: PLC0415

    from mpiboot.system import files  # noqa: PLC0415

    if os.path.lexists(path) and not _is_file(path):  # such as /dev/stdout
        log.warning("job-record", f"MPIBOOT_JOB_RECORD={path}: that is no plain file")
        return
    try:
        files.write_private(Path(path), json.dumps(log.without_secrets(record)) + "\n")
    except MpibootError as wrong:
        log.warning("job-record", f"MPIBOOT_JOB_RECORD: {wrong}")
