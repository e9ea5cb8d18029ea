"""The launcher becomes the small process that stays, beside mpirun or beside a script.

A forked child waits for the hosts, with all that was loaded before, while the small process starts.
Light: a pod's first process has loaded little more than the command line.

A script, or another program that starts processes by itself, runs once: a private folder comes
first on its PATH, in which ``mpirun`` and ``mpiexec`` are mpiboot, so that each call has gates,
flags and an end of its own. A program that may log in to the hosts by itself is started when they
are ready, with an ``ssh`` that knows them (``child.prepare_script``).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from mpiboot.core import log
from mpiboot.core.launch_names import ATTEMPT, KEEP_KEY, LAUNCH_ID, RESULT
from mpiboot.core.launch_spec import ParentOptions, ParentTask
from mpiboot.core.model import Finding, Level, MpiFamily
from mpiboot.core.setting_types import AUTO, Auto, Switch, WorkerExit
from mpiboot.core.settings import ROWS, Resolved, Settings
from mpiboot.job import program_words
from mpiboot.launcher import shims
from mpiboot.supervisor import signals
from mpiboot.supervisor.signals import SIGNALS
from mpiboot.system import control_groups, files, process


def run(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    measure: Callable[[], None] | None = None,
) -> NoReturn:
    """Become the process that stays, and ends with the job's exit code.

    Args:
        resolved: the settings.
        program: the user's line.
        environ: this pod's environment.
        measure: looks at the network first, where the program is one for the hosts.

    Raises:
        MpibootError: it can't be started, or a script doesn't exist.
    """
    if prints(resolved, program, environ):
        process.replace(program, environ)
    once = runs_once(resolved, program, environ)
    if measure and once and _needs_no_hosts(resolved, program, environ):
        measure = None
    if measure:
        measure()
    signals.block()  # from now on they are for the process that stays
    if once:
        _run_script(resolved, program, environ, once, measured=measure is not None)
    _launch(resolved, program, environ)


def _needs_no_hosts(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]
) -> bool:
    """Tell whether a program that runs once starts though no host is ready."""
    ungated = resolved.settings.script_gate is Switch.OFF
    return ungated or program_words.only_stays(program) or bool(_no_hostfile(resolved, environ))


def prints(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    """Tell whether mpirun only prints something: ``mpirun -n 2 --version``, or ``mpirun``."""
    if not program_words.is_mpirun(program[0]) or len(program) == 1:
        return program_words.is_mpirun(program[0])
    # Loaded late: only such a line needs the tables, and mpirun's own answer.
    from mpiboot.job.mpirun_options import PRINTING  # noqa: PLC0415

    options = (word.lstrip("-").partition("=")[0] for word in program if word.startswith("-"))
    if PRINTING.isdisjoint(options):
        return False
    from mpiboot.job import mpirun_line  # noqa: PLC0415
    from mpiboot.system import programs  # noqa: PLC0415

    family = resolved.settings.mpi
    if family is AUTO:
        found = programs.detect_mpi(environ, program_words.called(program))
        family = found.family if found else MpiFamily.UNKNOWN
    return bool(mpirun_line.read(program, family).prints)


_PROGRAM: Final = Path(__file__).resolve().parent.parent / "supervisor" / "__main__.py"


def _launch(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Become the parent of a launch, whose child waits for the hosts and makes the plan.

    Raises:
        MpibootError: ``program-missing``; this interpreter can't be executed.
        OSError: no child can be started.
    """
    attempt = new_attempt(resolved.settings.worker_exit, environ)
    words = start_child(resolved, program, environ, attempt)
    become_parent(ParentTask.LAUNCH, _options(resolved.settings), words, environ)


def _options(settings: Settings, **more: Any) -> ParentOptions:  # noqa: ANN401 - as they are
    """Give the settings that the parent needs."""
    return ParentOptions(
        log_level=settings.log_level,
        log_format=settings.log_format,
        termination_log=settings.termination_log,
        hold_on_failure=settings.hold_on_failure,
        oom_kills=control_groups.kills(),
        job_record=settings.job_record,
        **more,
    )


def start_child(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    attempt: str = "",
    *,
    script: bool = False,
) -> list[str]:
    """Fork the child that waits for the hosts; it remains a child after this process's exec.

    It leads a process group of its own: a terminal's Ctrl-C is handled by the parent.

    Args:
        resolved: the settings.
        program: the user's line.
        environ: the parent's environment.
        attempt: this launcher's name for workers; empty where it is a part of a job.
        script: whether the program starts processes by itself.

    Returns:
        The parent's arguments: the child's process number, and the descriptor of its result.

    Raises:
        OSError: it can't be started.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        os.dup2(writer, RESULT)
        for handle in {reader, writer} - {RESULT}:
            os.close(handle)
        _be_child(resolved, program, environ, attempt, script=script)
    _lead_a_group(pid)  # here too: the parent may end it before it has run
    os.close(writer)
    os.set_inheritable(reader, True)
    return [str(pid), str(reader)]


def _be_child(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    attempt: str,
    *,
    script: bool,
) -> NoReturn:
    _lead_a_group(0)
    given = dict(environ)
    os.environ.clear()
    os.environ.update(given)
    # The parent handles signals; those it forwards end this process until it has handlers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    from mpiboot.launcher import child  # noqa: PLC0415 - the parent has none of it

    child.main(resolved, program, attempt, script=script)


def _lead_a_group(pid: int) -> None:
    with suppress(OSError):
        os.setpgid(pid, pid)


def become_parent(
    task: ParentTask, options: ParentOptions, words: list[str], environ: Mapping[str, str]
) -> NoReturn:
    """Become the small process that stays: no site, no user's PYTHON variables.

    Raises:
        MpibootError: ``program-missing``; this interpreter can't be executed.
    """
    head = (sys.executable, "-I", "-S", str(_PROGRAM), task.value, options.to_json())
    # Signals stay blocked while the new interpreter starts.
    process.replace((*head, *words), environ, blocked=sorted(SIGNALS))


def new_attempt(wanted: WorkerExit | Auto, environ: Mapping[str, str]) -> str:
    """Name this launcher for the workers, which are told of its end: host, start time, a number.

    Args:
        wanted: the setting ``worker_exit``.
        environ: this pod's environment, with a mark inside a launch or a script.

    Returns:
        Empty if this is only a part of a job, as a launcher by ``kubectl exec`` or in a script,
        which others may follow.
    """
    part = environ.get(LAUNCH_ID) or environ.get(ATTEMPT)
    unknown = wanted is AUTO and not process.is_containers_own()
    if wanted is WorkerExit.NEVER or part or unknown:
        return ""
    return f"{process.host_and_time()}@{os.urandom(4).hex()}"


_READ: Final = 1 << 16
# The script's launches have their own grace, and some seconds to kill what ignores signals.
_MORE_GRACE: Final = 10.0


@dataclass(frozen=True, slots=True)
class RunsOnce:
    """Why a program runs once, and whether it may log in to the hosts itself."""

    reason: str
    reaches_hosts: bool


def runs_once(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]
) -> RunsOnce | None:
    """Tell whether a program runs once and starts processes by itself; None if ranks run it."""
    settings, given = resolved.settings, resolved.given["script"]
    # Some mpiruns are scripts themselves.
    if program_words.is_mpirun(program[0]) or settings.script is Switch.OFF:
        return None
    if settings.script is Switch.ON:
        return RunsOnce(str(given), reaches_hosts=True)
    if program_words.starts_by_itself(program):
        return RunsOnce(f"{program[0]} logs in to hosts itself", reaches_hosts=True)
    if program_words.only_stays(program):
        return RunsOnce(f"{' '.join(program)} is for a look around", reaches_hosts=False)
    return _judge_script(program, environ)


def _judge_script(program: tuple[str, ...], environ: Mapping[str, str]) -> RunsOnce | None:
    named = program_words.script_of(program)
    path, text = _script(named, environ)
    if named.python:
        _warn_of_python(path, text)
        return None
    calls = program_words.calls(text)
    if not calls:
        return None
    what = f"the script {path}" if path else "its script"
    names = " and ".join(dict.fromkeys(call.name for call in calls))
    # By its name alone mpirun is mpiboot there.
    own_gates = all(call.is_mpirun and not call.path for call in calls)
    return RunsOnce(f"{what} calls {names}", reaches_hosts=not own_gates)


def _warn_of_python(path: str, text: str) -> None:
    """Warn of a Python program that may start ranks in every rank."""
    found = program_words.python_calls(text)
    if found:
        message = f"{path} calls {found[0].name}, and runs as every rank"
        hint = "MPIBOOT_SCRIPT=on runs it once, here; MPIBOOT_SCRIPT=off says that ranks are meant"
        log.finding(Finding("script", Level.WARN, message, hint=hint))


def calls_by_path(text: str) -> Finding | None:
    """Warn of calls by absolute path, which bypass the folder on PATH."""
    call = next((call for call in program_words.calls(text) if call.path), None)
    if call is None:
        return None
    message = f"the script calls {call.name} by its path ({call.path}), bypassing mpiboot"
    hint = "call it by its name, or put a link to mpiboot in its place in the image"
    if not call.is_mpirun:
        hint = "call it by its name: only so it knows the job's hosts and its key"
    return Finding("shims", Level.WARN, message, hint=hint)


def _script(named: program_words.Script, environ: Mapping[str, str]) -> tuple[str, str]:
    """Read a program's script: its file (empty for ``sh -c``), and the beginning of its text."""
    if not named.path:
        return "", named.text
    # An interpreter doesn't look its script up on PATH.
    found = "" if named.python else shutil.which(named.path, path=environ.get("PATH", ""))
    path = found or named.path
    try:
        with Path(path).open("rb") as file:
            data = file.read(_READ)
    except (OSError, ValueError):
        return path, ""
    return path, "" if b"\0" in data else data.decode("utf-8", "replace")


def _run_script(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    found: RunsOnce,
    *,
    measured: bool = False,
) -> NoReturn:
    """Become the process beside the program, with mpiboot in front of every mpirun.

    ``measured``: the network was, before the script, and is not by each mpirun again.

    Raises:
        MpibootError: the program doesn't exist, or no private folder can be made.
    """
    bypass = calls_by_path(_script(program_words.script_of(program), environ)[1])
    if bypass:
        log.finding(bypass)
    settings = resolved.settings
    process.lookup(program, environ)
    tmpdir = environ.get("TMPDIR", "")
    folder = files.runtime_dir(settings.runtime_dir, os.getuid(), "script", tmpdir=tmpdir)
    shims.link(folder)
    env = {
        **environ,
        **flags(resolved),
        "PATH": os.pathsep.join((str(folder), environ.get("PATH", ""))),
        "MPIBOOT_ROLE": "launcher",
        **({"MPIBOOT_VALIDATE": "off"} if measured else {}),
    }
    attempt = new_attempt(settings.worker_exit, environ)
    if attempt:
        env |= {KEEP_KEY: "1", ATTEMPT: attempt}
    options = _options(
        settings,
        grace=settings.grace + _MORE_GRACE,
        last_launches=str(folder.parent / "launcher") if attempt else "",
    )
    why_not = _no_gate(resolved, environ, found)
    each = "mpiboot checks the hosts and plans for each of its calls of mpirun"
    if why_not:
        log.info("script", f"{found.reason}: {each}; {why_not}")
        become_parent(ParentTask.SCRIPT, options, list(program), env)
    message = "it runs once, here, when all hosts are ready; its ssh and mpirun know them"
    log.info("script", f"{found.reason}: {message}")
    words = start_child(resolved, program, env, script=True)
    become_parent(ParentTask.LAUNCH, options, words, env)


def _no_gate(resolved: Resolved, environ: Mapping[str, str], found: RunsOnce) -> str:
    """Say why a program does not wait for hosts; empty if it does."""
    settings = resolved.settings
    if settings.script_gate is Switch.OFF:
        return f"{resolved.given['script_gate']}: it starts at once"
    if not found.reaches_hosts:
        return "it starts at once"
    return _no_hostfile(resolved, environ)


def _no_hostfile(resolved: Resolved, environ: Mapping[str, str]) -> str:
    """Say why a program does not wait for a hostfile that nobody named; empty if it does."""
    # Loaded late: the module is heavy, and most launchers don't come here.
    from mpiboot.hosts import hostfiles  # noqa: PLC0415

    given = str(resolved.given["hostfile"])
    first = hostfiles.candidates(resolved.settings.hostfile, given, environ)[0]
    # os.path: Path.exists raises where this user may not enter a folder on the way.
    if not first.is_default or os.path.exists(first.path):  # noqa: PTH110
        return ""
    own = os.uname().nodename
    if hostfiles.hosts_by_setting(resolved, environ) or hostfiles.hosts_by_platform(environ, own):
        return ""
    return f"there is no hostfile ({first.path}), so it starts at once"


def flags(resolved: Resolved) -> dict[str, str]:
    """Give this command's flags as variables, for the launchers below it."""
    return {
        item.variable: resolved.flags[item.name] for item in ROWS if item.name in resolved.flags
    }
