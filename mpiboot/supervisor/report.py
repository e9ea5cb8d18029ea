"""Reports how the job ended, or why it did not start: log, termination message, job record."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from mpiboot.core import log
from mpiboot.core.addresses import is_address
from mpiboot.core.checks import BY_REFERENCE, MpibootError
from mpiboot.core.model import Finding, Level, ProveTransport
from mpiboot.core.wording import counted, took
from mpiboot.network.records import Transport
from mpiboot.supervisor.job import LaunchSpec, Verdict
from mpiboot.system import files


def _finding(verdict: Verdict) -> Finding:
    """Write a verdict as a finding; a code of the program's own has no row, and no hint."""
    name = verdict.reference or ("signal" if verdict.by_signal else verdict.failed)
    row = BY_REFERENCE.get(name)
    hint = row.hint if row else ""
    return Finding(name, Level.FAIL, verdict.message, verdict.host, verdict.evidence, hint)


def _inspection(host: str, *, gone: bool = False) -> str:
    """Give the command that shows more: in the pod that is named, where it is one.

    Args:
        host: the hostfile's name; empty where the failure is not that of one host.
        gone: that host can't be entered.
    """
    labels = host.split(".")
    pod = "" if is_address(host) else labels[0]
    # As in pi-worker-1.pi.default.svc.cluster.local (the kubelet's names of pods with a subdomain).
    namespace = f" -n {labels[2]}" if labels[3:4] == ["svc"] else ""
    if pod and gone:
        logs = f"kubectl logs{namespace} {pod} (with --previous where its container runs again)"
        return f"look closer: kubectl describe pod{namespace} {pod}; {logs}"
    where = "" if pod else " in a worker"  # the launcher's own container has ended
    return f"look closer{where}: kubectl exec{namespace} {pod or 'POD'} -- mpiboot doctor"


def log_end(
    verdict: Verdict, spec: LaunchSpec, seconds: float, earlier: str = ""
) -> dict[str, Any]:
    """Log the end of the job in one event: the reason once, then evidence and what to do.

    Args:
        verdict: how it ended.
        spec: what was started.
        seconds: how long it all took, from the launcher's start.
        earlier: how the attempt before ended; empty if this is the first one.

    Returns:
        The event's fields.
    """
    item, reported = _finding(verdict), verdict.reported
    # A signal to the launcher is no failure.
    failed = bool(verdict.code) and not verdict.by_signal
    # The doctor can't explain a program that failed.
    command = _inspection(item.host, gone=verdict.gone) if failed and verdict.reference else ""
    hints = [*item.hint.splitlines(), *filter(None, (command,))]
    if verdict.code:
        log.fresh_line()  # mpirun or a rank may have left a line without its end
        evidence = (*reported, *item.evidence, *filter(None, (earlier,)))
        lines = (f"{item.check}: {_reason(item)}", *(f"-> {hint}" for hint in hints), *evidence)
        path = spec.settings.termination_log
        log.write_termination(path, "".join(f"{line}\n" for line in lines))
    fields: dict[str, Any] = {
        "seconds": round(seconds, 3),
        "hosts": spec.hosts,
        "ranks": spec.plan.ranks,
        "exit": verdict.code,
        "reference": item.check if verdict.code else "",
        "host": verdict.host,
        "rank": verdict.rank,
        "signal": verdict.signal,
        "cause": reported[0] if reported else item.message,
        "reason": item.message,
        "hint": "\n".join(hints),
        "evidence": [*reported[1:], *item.evidence],
    }
    ranks = "" if spec.plan.ranks is None else f", {counted(spec.plan.ranks, 'rank')}"
    what = f"{took(seconds)}, {counted(spec.hosts, 'host')}{ranks}, exit {verdict.code}"
    mark = f"[{item.check}] " if failed else ""
    write = log.error if failed else log.info
    write("ended", f"{mark}job ended: {what}: {_reason(item, reported)}", **fields)
    return fields


def why(verdict: Verdict) -> str:
    """Give why a job failed, for the next attempt; empty after a good end."""
    if not verdict.code:
        return ""
    item = _finding(verdict)
    return f"{item.check}: {_reason(item, verdict.reported)}, exit {verdict.code}"


def _reason(item: Finding, evidence: tuple[str, ...] = ()) -> str:
    where = f"{item.host}: " if item.host else ""
    return f"{where}{item.message}" + (f"; {evidence[0]}" if evidence else "")


def log_not_started(verdict: Verdict, seconds: float, termination_log: str) -> dict[str, Any]:
    """Log that the job ended before mpirun was started, of which the log has the reason already.

    Args:
        verdict: why, in a termination message.
        seconds: how long it all took, from the launcher's start.
        termination_log: where the kubelet reads the reason of a verdict.

    Returns:
        The fields of the end.
    """
    # Without a host it is the launcher's own pod, in which nothing runs any more.
    doctor = verdict.host and not verdict.by_signal
    gone = verdict.reference == "names-unresolved"
    command = _inspection(verdict.host, gone=gone) if doctor else ""
    reason, newline, more = verdict.message.partition("\n")
    hint = f"-> {command}\n" if command else ""
    log.write_termination(termination_log, f"{reason}{newline}{hint}{more}")
    fields: dict[str, Any] = {
        "seconds": round(seconds, 3),
        "exit": verdict.code,
        "reference": verdict.reference,
        **({"hint": command} if command else {}),
    }
    write = log.info if verdict.by_signal else log.error
    what = f"{took(seconds)}, exit {verdict.code} ({verdict.reference})"
    write("ended", f"job did not start: {what}", **fields)
    return {**fields, "reason": reason.removeprefix(f"{verdict.reference}: ")}


# Raised when a field of the record goes or changes its meaning.
_RECORD_VERSION: Final = 1


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


# The path by which the record is a line of the log.
_LOG: Final = "-"
# What the seconds of a job went into: until the last name resolved, until all hosts answered by
# SSH, until mpirun was started, until it ended, and until the end was reported.
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
    """Remove an earlier job's record, so that a launcher that is killed leaves no stale one."""
    if path != _LOG and _is_file(path):
        with suppress(OSError):
            os.unlink(path)


def requires_rdma(spec: LaunchSpec) -> bool:
    """Whether a job that ended well fails where its data went another way than planned."""
    return spec.prove is ProveTransport.FAIL and spec.plan.transport is not Transport.TCP


def log_transport(
    spec: LaunchSpec, code: int, counters: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Log what carried the data of a job that ended with a code; give what is recorded of it.

    Args:
        spec: what was started.
        code: the exit code.
        counters: what ``evidence.judge_transport`` found; None where they were not read in time.
    """
    found = dict(counters or {})
    if not found:
        message = "the workers' counters were not read"
        found = {"verdict": "unknown", "message": message, "lines": []}
    for line in found.pop("lines"):
        log.info("transport", line, verdict=found["verdict"])
    warns, hint = found["verdict"] == "unused", BY_REFERENCE["transport"].hint
    warns = warns and spec.plan.transport is not Transport.TCP
    message = found["message"]
    if not code and requires_rdma(spec):
        warns, hint = found["verdict"] == "unknown", ""
        message = f"MPIBOOT_PROVE_TRANSPORT=fail can't be applied: {message}"
    if warns:
        log.finding(Finding("transport", Level.WARN, message, hint=hint))
    return found


def write_record(path: str, fields: Mapping[str, Any]) -> None:
    """Write the job's end for programs, whole or not at all; where that fails it is a warning.

    The end of a command is added to that of its last launch, which is there.

    Args:
        path: the file; - for a line of the log.
        fields: those of the event ``ended``, and more.
    """
    to_log = path == _LOG
    if not to_log and os.path.lexists(path) and not _is_file(path):  # such as /dev/stdout
        log.warning("job-record", f"MPIBOOT_JOB_RECORD={path}: not a regular file")
        return
    record: dict[str, Any] = {"version": _RECORD_VERSION, "hosts": (), "ranks": None, "phases": {}}
    if not to_log:
        with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            record |= json.load(file)
    transport = {"planned": "none", "verdict": "none", "message": "", "hosts": {}, "moved": {}}
    record |= fields
    record["transport"] = transport | record.get("transport", {})
    if to_log:
        log.record("job-record", "the record of the job", **record)
        return
    try:
        files.write_private(Path(path), json.dumps(log.without_secrets(record)) + "\n")
    except MpibootError as error:
        log.warning("job-record", f"MPIBOOT_JOB_RECORD: {error}")
