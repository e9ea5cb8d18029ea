"""Starting programs, replacing this process, and sleeping: what a pod's first process must do.

Never polls and never runs a shell; argv is a list from end to end.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import selectors
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import mpiboot
from mpiboot.core import log
from mpiboot.core.checks import error
from mpiboot.core.launch_spec import BY_SIGNAL
from mpiboot.system import spawn
from mpiboot.system.spawn import DEFAULT_PATH

# More than the hosts of any job need; old programs close every number below the limit one by one.
MAX_OPEN_FILES: Final = 1 << 16


def max_open_files() -> int:
    """How many files this process may have open once ``raise_file_limit`` was called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard):
        return MAX_OPEN_FILES
    return max(soft, min(hard, MAX_OPEN_FILES))


def raise_file_limit() -> None:
    """Raise the soft limit of open files, also for what this process starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and (wanted := max_open_files()) > soft:
        with suppress(OSError, ValueError):  # a sandbox may refuse
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def process_handle(pid: int) -> int | None:
    """Open a handle that is readable once a process has ended; None where there is no such thing.

    Older kernels and sandboxes have none, nor has a Python that was built for them.

    Raises:
        ProcessLookupError: the process has ended.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


def exit_status(status: int) -> int:
    """Give the exit status of a wait status, as shells count it: 128+n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else BY_SIGNAL - code


# epoll_wait(2) takes milliseconds in a C int, which is 24.8 days.
_MAX_WAIT_S: Final = 86400.0
# Programs that start one other and wait for it.
_INITS: Final = frozenset({"tini", "tini-static", "dumb-init", "docker-init", "catatonit"})


def host_and_time() -> str:
    """By what people know a launcher again: its pod's host name, and when it began.

    That time is compared with nothing.
    """
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"{re.sub('[^A-Za-z0-9.-]', '', os.uname().nodename)}@{began}"


def working_directory(environ: Mapping[str, str]) -> str:
    """Give this process's directory as MPIs pass it on, by PWD where that is it; empty: removed."""
    named = Path(environ.get("PWD", ""))
    with suppress(OSError):
        own = Path.cwd()
        same = named.is_absolute() and named.is_dir() and named.samefile(own)
        return str(named if same else own)
    return ""


def lookup(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Find the file that a command line starts.

    Raises:
        MpibootError: ``program-missing``; it isn't there or can't be executed.
    """
    path = environ.get("PATH", DEFAULT_PATH)
    found = shutil.which(argv[0], path=path)
    if found:
        return found
    if "/" not in argv[0]:
        message = f"{argv[0]} is not on PATH"
        raise error("program-missing", message, evidence=(f"PATH={path}",))
    there = os.path.exists(argv[0])  # noqa: PTH110 - raises nothing
    message = "can't be executed: no permission, or a folder" if there else "doesn't exist"
    hint = "write each word as an argument of its own" if " " in argv[0] else None
    raise error("program-missing", f"{argv[0]} {message}", hint=hint)


# glibc starts threads and programs by clone3, and falls back on clone at ENOSYS alone; profiles of
# older containerd, CRI-O and Docker fail it with EPERM.
_NO_CLONE3: Final = "has a seccomp profile that fails clone3 with EPERM, not ENOSYS"


def check_threads() -> None:
    """Check that a thread can be started here, which a launcher needs.

    Raises:
        MpibootError: ``launcher-limits``; a seccomp profile or a limit is in the way.
    """
    import threading  # noqa: PLC0415 - a worker needs none

    thread = threading.Thread(target=int)
    try:
        thread.start()
    except RuntimeError as problem:
        why = f"{problem} (pids.max, ulimit -u, or the pod {_NO_CLONE3})"
        raise error("launcher-limits", why) from None
    thread.join()


def _failed(program: str, problem: OSError) -> NoReturn:
    message = {
        errno.ENOENT: "it names an interpreter or loader that doesn't exist",
        errno.ENOEXEC: "it is neither a program for this machine nor a script with a #! line",
        errno.EPERM: f"it has file capabilities that the pod may not have, or that {_NO_CLONE3}",
    }.get(problem.errno or 0, problem.strerror)
    raise error("program-missing", f"{program} can't be started: {message}") from None


def replace(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Become another program, with the signal dispositions that Python found, none blocked.

    Args:
        argv: the program and its arguments.
        environ: its environment.

    Raises:
        MpibootError: ``program-missing``; it isn't there or can't be executed.
    """
    path = lookup(argv, environ)
    sys.stdout.flush()
    sys.stderr.flush()
    signal.set_wakeup_fd(-1)
    try:
        spawn.replace(argv, environ, (), path=path)
    except OSError as problem:
        _failed(path, problem)


def start(
    argv: Sequence[str],
    environ: Mapping[str, str],
    **how: Any,  # noqa: ANN401 - as spawn has them
) -> int:
    """Start a program as ``spawn.spawn`` does; its name is looked up on its environment's PATH.

    Raises:
        MpibootError: ``program-missing``; it isn't there or can't be executed.
    """
    path = lookup(argv, environ)
    try:
        return spawn.spawn(argv, environ, path=path, **how)
    except OSError as problem:
        _failed(path, problem)


def python(statement: str, *arguments: str) -> list[str]:
    """The argv that runs a statement of mpiboot in this interpreter.

    Files of the current folder never stand in for modules, as they would with ``-m``; and it is
    this mpiboot, also where another one is installed beside it.
    """
    root = str(Path(mpiboot.__file__).parent.parent)
    head = (
        "import sys; sys.path[:] = [sys.argv.pop(1), *filter(None, sys.path)]; import mpiboot; "
        "sys.path.append(sys.path.pop(0)); "
    )
    return [sys.executable, "-c", head + statement, root, *arguments]


def is_containers_own(proc: Path = Path("/proc")) -> bool:
    """Whether this is what the container was started for.

    That is its first process, the child of an init, or what an entrypoint script was given to run
    and stays in front of. A script in a ``-c`` may start more than that. Where pods share a process
    table, one that `kubectl exec` started looks the same.
    """
    if os.getpid() == 1:
        return True
    if os.getppid() != 1:
        return False
    try:
        if (proc / "1/comm").read_text("utf-8").strip() in _INITS:
            return True
        first = os.fsdecode((proc / "1/cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return False
    at = len(first) - len(sys.argv)
    called = [Path(word).name for word in (*first[at : at + 1], sys.argv[0])]
    inline = any(word.startswith("-") and word.endswith("c") for word in first[:at])
    return at > 0 and len(set(called)) == 1 and first[at + 1 :] == sys.argv[1:] and not inline


class SignalLoop:
    """Sleeps until a handle is ready, a signal came or a deadline passed.

    Not asyncio: that alone costs 40 ms before sshd listens.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        """Take over ``signals`` until ``close``."""
        self._selector = selectors.DefaultSelector()
        self._came: tuple[int, ...] = ()
        self._signals, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.on(self._signals, self._note)
        # The handlers do nothing: what came is in the wake-up pipe.
        self._before = {number: signal.signal(number, lambda *_: None) for number in signals}
        self._wakeup = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def on(self, handle: int, do: Callable[[], None], *, vital: bool = False) -> None:
        """Call ``do`` whenever a handle is readable; in place of what was called before.

        An exception there ends this process where it is ``vital``; else it is a warning, and
        the handle is no longer watched.
        """
        self.off(handle)
        self._selector.register(handle, selectors.EVENT_READ, (do, vital))

    def off(self, handle: int) -> None:
        """Forget a handle."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(handle)

    def wait(self, seconds: float) -> tuple[int, ...]:
        """Sleep until something happens, for a day at most; the calls are made, signals returned.

        A turn costs as much as what is ready, not as all that is listened to.
        """
        self._came = ()
        for key, _ in self._selector.select(min(max(0.0, seconds), _MAX_WAIT_S)):
            if self._selector.get_map().get(key.fd) is not key:
                continue  # forgotten by what was called before
            do, vital = key.data
            try:
                do()
            except Exception as wrong:
                if vital:
                    raise
                self.off(key.fd)
                log.failed("an event handler", wrong)
        return self._came

    def fork(self, work: Callable[[], object]) -> int:
        """Do work in a child that is a copy of this process; its process number.

        It is there in a millisecond, where another interpreter with the same modules takes a
        hundred. Only its standard streams stay open: the end of this process shows elsewhere.

        Raises:
            OSError: there is no room for another process.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._before)
        try:
            pid = os.fork()
            if pid:
                return pid
            self.close()  # a signal to the child is its own
            os.closerange(3, max_open_files())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = 1
        try:
            work()
            code = 0
        except Exception as wrong:  # noqa: BLE001 - a copy has no other boundary
            log.failed("a copy of this process", wrong)
        finally:
            os._exit(code)

    def _note(self) -> None:
        self._came = tuple(os.read(self._signals, 4096))

    def close(self) -> None:
        """Give the signals back and close what is ours."""
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._selector.close()
        os.close(self._signals)
        os.close(self._wake)
