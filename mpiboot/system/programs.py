"""Programs and threads: started, waited for; and which mpirun a line calls.

``wait`` for any child takes every status, so nobody else may wait: as PID 1 the launcher reaps what
is left to it, and asyncio's child watchers and ``subprocess`` beside that lose statuses (4 of 20 on
Python 3.11.2). In the launcher ``reap`` is called at each SIGCHLD; elsewhere a thread waits for
each program.

Of an MPI a program's answer counts, never its name or folder. Nothing here starts a job. PATH has
been cleared of mpiboot's shims before (see ``shims.cleared``).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from mpiboot.core.model import Mpi, MpiFamily
from mpiboot.system import spawn
from mpiboot.system.spawn import DEFAULT_PATH

if TYPE_CHECKING:
    import asyncio


class Child:
    """A program that was started; ``status`` is its wait status once it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self._callbacks: list[Callable[[int], None]] = []
        self._ended = threading.Event()

    def on_end(self, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the status, in the thread that reaps it; at once if it ended."""
        with _LOCK:
            if self.status is None:
                self._callbacks.append(callback)
                return
        callback(self.status)

    def wait(self, seconds: float) -> int | None:
        """Wait for the end in a thread; give the status, None after so many seconds."""
        self._ended.wait(seconds)
        return self.status

    async def ended(self) -> int:
        """Wait for the end in an event loop; give the status."""
        import asyncio  # noqa: PLC0415 - who calls this has it; a worker has not
        from concurrent.futures import Future  # noqa: PLC0415 - as asyncio

        found = Future[int]()
        found.set_running_or_notify_cancel()
        self.on_end(found.set_result)
        return await asyncio.wrap_future(found)

    def end_with(self, status: int) -> None:
        """Note its end."""
        with _LOCK:
            self.status = status
            callbacks, self._callbacks = self._callbacks, []
        self._ended.set()
        for callback in callbacks:
            callback(status)


_LOCK: Final = threading.Lock()


class _Table:
    """The programs that run, and whether ``reap`` is called for them."""

    def __init__(self) -> None:
        self.running: dict[int, Child] = {}
        self.reaped = False
        # A program may end before it is known here; meanwhile other statuses are nobody's, or its.
        self.starting = 0
        self.early: dict[int, int] = {}


_TABLE: Final = _Table()


def start(argv: Sequence[str], environ: Mapping[str, str], **how: Any) -> Child:  # noqa: ANN401 - as spawn has them
    """Start a program as ``spawn.spawn`` does.

    Raises:
        OSError: it can't be executed.
    """
    with _LOCK:
        _TABLE.starting += 1
    child = None
    try:
        child = Child(spawn.spawn(argv, environ, **how))
    finally:
        with _LOCK:
            _TABLE.starting -= 1
            status = _TABLE.early.pop(child.pid, None) if child is not None else None
            if child is not None and status is None:
                _TABLE.running[child.pid] = child
            if not _TABLE.starting:
                _TABLE.early.clear()
    if status is not None:
        child.end_with(status)
    elif not _TABLE.reaped:
        try:
            threading.Thread(target=_wait, args=(child,), daemon=True).start()
        except BaseException:  # a limit, or Ctrl-C: nobody would wait for it
            os.kill(child.pid, signal.SIGKILL)
            raise
    return child


def _wait(child: Child) -> None:
    status = 0  # as far as is known where somebody else, as a worker's own loop, was faster
    with suppress(ChildProcessError):
        _, status = os.waitpid(child.pid, 0)
    _TABLE.running.pop(child.pid, None)
    child.end_with(status)


def reap() -> None:
    """Take every child that has ended off the process table: once, then at each SIGCHLD."""
    _TABLE.reaped = True
    for pid, status in spawn.reap():
        with _LOCK:
            child = _TABLE.running.pop(pid, None)
            if child is None and _TABLE.starting:
                _TABLE.early[pid] = status
        if child:
            child.end_with(status)


_KILL_S: Final = 1.0  # seconds
_MODES: Final = ("rb", "wb")  # of a pipe
OUTPUT_LIMIT: Final = 1 << 20  # bytes


class ProgramEnd(NamedTuple):
    """How a program ended, negative by a signal, and what it printed."""

    status: int
    stdout: str
    stderr: str


def run(
    words: Sequence[str],
    seconds: float,
    environ: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    errors: str = "replace",
) -> ProgramEnd | None:
    """Run a program; with all that it started it is killed after ``seconds``: then None.

    What it leaves running when it ends is not waited for: its streams are files in memory.

    Args:
        words: the program and its arguments.
        seconds: how long it may take.
        environ: its environment; None for our own.
        stdin: what it reads.
        errors: what becomes of bytes that are not UTF-8, as ``bytes.decode`` has it.

    Raises:
        OSError: it can't be started.
    """
    with ExitStack() as opened:
        files = [opened.enter_context(_file()) for _ in range(3)]
        os.fchmod(files[0].fileno(), 0o600)  # ssh-keygen refuses a key that others can read
        files[0].write(stdin)
        files[0].seek(0)
        streams = {number: file.fileno() for number, file in enumerate(files)}
        child, mask = None, signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            # What a signal raises comes once there is a child to kill.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            child = start(words, **_given(words, environ), streams=streams, own_session=True)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            status = child.wait(seconds)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if child is not None and child.status is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait(_KILL_S)
        if status is None:
            return None
        for file in files[1:]:
            file.seek(max(0, file.seek(0, os.SEEK_END) - OUTPUT_LIMIT))
        texts = (file.read().decode("utf-8", errors) for file in files[1:])
        return ProgramEnd(os.waitstatus_to_exitcode(status), *texts)


def _file() -> IO[bytes]:
    """Make a file in memory; on disk where this Python (conda's) or kernel (before 3.17) can't."""
    with suppress(AttributeError, OSError):
        return os.fdopen(os.memfd_create(""), "w+b")
    import tempfile  # noqa: PLC0415 - see above

    return tempfile.TemporaryFile()


def _given(words: Sequence[str], environ: Mapping[str, str] | None) -> dict[str, Any]:
    """Give a program's environment, and its file where that is on the PATH of that."""
    env = os.environ if environ is None else environ
    named = "" if "/" in words[0] else shutil.which(words[0], path=search_path(env)) or ""
    return {"environ": env, "path": named}


async def read_end(read: Callable[[int], Awaitable[bytes]]) -> bytes:
    """Read a stream to its end and keep the last bytes: a login shell may print much before."""
    tail = bytearray()
    while part := await read(1 << 16):
        tail += part
        del tail[:-OUTPUT_LIMIT]
    return bytes(tail)


class RunningProgram:
    """A program whose standard streams an event loop reads and writes."""

    stdin: asyncio.WriteTransport
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self, child: Child, pipes: Sequence[IO[bytes]]) -> None:
        self.child = child
        self._pipes: list[IO[bytes] | asyncio.BaseTransport] = list(pipes)

    async def open(self) -> None:
        """Let the loop have its streams."""
        import asyncio  # noqa: PLC0415 - who calls this has it; who calls `run` does not want it

        loop, readers = asyncio.get_running_loop(), list[asyncio.StreamReader]()
        stdin, *outputs = self._pipes
        self.stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, stdin)
        self._pipes[0] = self.stdin
        for number, pipe in enumerate(outputs, 1):
            readers.append(asyncio.StreamReader())
            protocol = partial(asyncio.StreamReaderProtocol, readers[-1])
            self._pipes[number], _ = await loop.connect_read_pipe(protocol, pipe)
        self.stdout, self.stderr = readers

    def end(self) -> None:
        """Kill it where it still runs, and close what nobody has read."""
        if self.child.status is None:
            with suppress(ProcessLookupError):
                os.kill(self.child.pid, signal.SIGKILL)
        for pipe in self._pipes:
            pipe.close()


async def start_async(
    words: Sequence[str], environ: Mapping[str, str] | None = None
) -> RunningProgram:
    """Start a program in an event loop, with pipes as its standard streams.

    Raises:
        OSError: it can't be started.
    """
    with ExitStack() as ours, ExitStack() as of_program:
        files, streams = list[IO[bytes]](), dict[int, int | None]()
        for number in range(3):
            ends = [os.fdopen(end, mode, 0) for end, mode in zip(os.pipe(), _MODES, strict=True)]
            streams[number] = of_program.enter_context(ends.pop(number > 0)).fileno()
            files.append(ours.enter_context(ends.pop()))
        # A terminal's Ctrl-C is not for it.
        child = start(words, **_given(words, environ), streams=streams, own_group=True)
        ours.pop_all()  # the program's to close
    program = RunningProgram(child, files)
    try:
        await program.open()
    except BaseException:
        program.end()
        raise
    return program


T = TypeVar("T")
_CANCEL_AGAIN_S: Final = 1.0


async def in_thread(work: Callable[..., T], *given: Any) -> T:  # noqa: ANN401 - what work takes
    """Do work that may block in a thread of its own; give what it returns, or raise what it raises.

    Nobody joins that thread, which goes on where this is cancelled. A volume may hang (NFS without
    its server), and so may ``/proc`` of a process in uninterruptible sleep: an executor has few
    threads, and waits for all of them at the end.
    """
    import asyncio  # noqa: PLC0415 - who calls this has it; a worker has not
    from concurrent.futures import Future  # noqa: PLC0415 - as asyncio

    done = Future[T]()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work(*given))
        except Exception as problem:  # noqa: BLE001 - it is raised where this is awaited
            done.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(done)


async def end_tasks(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for their end; their results and errors are dropped.

    Cancelled repeatedly: before Python 3.12 `wait_for` loses a cancellation that comes together
    with its own result (python/cpython#86296), which hits one of thousands of tasks.
    """
    import asyncio  # noqa: PLC0415 - who calls this has it; a worker has not

    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # or asyncio would log that it was never retrieved


LAUNCHERS: Final = ("mpirun", "mpiexec")
# Intel's mpirun and mpiexec are scripts, or links, around it.
_HYDRA: Final = "mpiexec.hydra"
# How long a program may take, in seconds, where a person waits.
SHORT: Final = 10.0
# For who starts a job: a cold or busy node with a slow disk needs long for its first program.
LONG: Final = 60.0
# What each prints as its version; the first match counts.
_VERSIONS: Final = (
    # As https://github.com/cp2k/cp2k/pull/1353 shows it.
    (MpiFamily.SPECTRUM, re.compile(r"\(IBM Spectrum MPI\) (\d\S*)")),
    (MpiFamily.OPENMPI4, re.compile(r"\((?:OpenRTE|Open MPI)\) (\d+\.\d+\S*)")),
    (MpiFamily.INTEL, re.compile(r"Intel\(R\) MPI Library.*?Version (\d\S*)")),
    (MpiFamily.MPICH, re.compile(r"(?s)HYDRA build details(?:.*?\bVersion:\s+(\d\S*))?")),
)
_IPV6: Final = re.compile(r"^options:ipv6:(yes|no)\s*$", re.MULTILINE)
_FOLDER: Final = re.compile(r"^path:sysconfdir:(\S.*?)\s*$", re.MULTILINE)
# The runtime changed from ORTE to PRRTE here, and with it every parameter's name.
_FIRST_PRRTE: Final = 5


def search_path(environ: Mapping[str, str]) -> str:
    """PATH, or the usual folders where it is not set or empty."""
    return environ.get("PATH") or DEFAULT_PATH


def recognise(path: str, text: str) -> Mpi:
    """Name the MPI whose ``--version`` printed this; the family is empty where it is unknown."""
    for family, pattern in _VERSIONS:
        if found := pattern.search(text):
            version = found[1] or ""
            if family is MpiFamily.OPENMPI4 and int(version.partition(".")[0]) >= _FIRST_PRRTE:
                family = MpiFamily.OPENMPI5  # noqa: PLW2901
            start = text.rfind("\n", 0, found.start()) + 1
            return Mpi(family, version, path, text[start:].partition("\n")[0].strip())
    first = next(filter(None, map(str.strip, text.splitlines())), "it printed nothing")
    return Mpi(MpiFamily.UNKNOWN, "", path, first)


def detect_mpi(
    environ: Mapping[str, str], called: str = "", *, patience: float = SHORT
) -> Mpi | None:
    """Find whose mpirun is called, by name or path; None where it is not there.

    Where none is called, it is the first mpirun on PATH, or else mpiexec. It blocks,
    for ``patience`` seconds at most. A program that can't be run or doesn't answer is an MPI
    without a family, whose ``banner`` is what happened. Of Intel's the path is that of the
    program that its script would start.
    """
    names = (called,) if called else LAUNCHERS
    path = next(filter(None, (shutil.which(name, path=search_path(environ)) for name in names)), "")
    if not path:
        return None
    found = _query_version(path, environ, patience)
    if found.family is not MpiFamily.INTEL or Path(path).name == _HYDRA:
        return found
    hydra = Path(path).resolve().with_name(_HYDRA)
    return _query_version(str(hydra), environ, patience) if os.access(hydra, os.X_OK) else found


def _query_version(path: str, environ: Mapping[str, str], patience: float) -> Mpi:
    """Query one program for its version."""
    # Intel's mpirun is a script that takes mpiexec.hydra from PATH, so its own folder comes first.
    folders = dict.fromkeys((str(Path(path).resolve().parent), str(Path(path).parent)))
    env = {**environ, "PATH": os.pathsep.join((*folders, search_path(environ)))}
    env.setdefault("HOME", "/")  # Open MPI 5 prints nothing without one
    try:
        done = run((path, "--version"), patience, env)
    except OSError as why:
        return Mpi(MpiFamily.UNKNOWN, "", path, f"it can't be run: {why.strerror}")
    if done is None:
        return Mpi(MpiFamily.UNKNOWN, "", path, f"it gave no answer within {patience:g} s")
    return recognise(path, done.stdout if done.stdout.strip() else done.stderr)


def has_ipv6(mpi: Mpi, environ: Mapping[str, str]) -> bool | None:
    """Whether an Open MPI is built with IPv6; None where that is unknown.

    Most builds are without it unless configured (``--enable-ipv6``).
    """
    found = _IPV6.search(_ompi_info(mpi, environ, "--config"))
    return found[1] == "yes" if found else None


def config_folder(mpi: Mpi, environ: Mapping[str, str]) -> str:
    """Find an Open MPI's configuration folder; empty where that is unknown."""
    found = _FOLDER.search(_ompi_info(mpi, environ, "--path", "sysconfdir"))
    return found[1] if found else ""


def _ompi_info(mpi: Mpi, environ: Mapping[str, str], *words: str) -> str:
    path = str(Path(mpi.path).parent / "ompi_info")
    try:
        done = run((path, "--parsable", *words), SHORT, {"HOME": "/", **environ})
    except OSError:
        return ""
    return done.stdout if done else ""
