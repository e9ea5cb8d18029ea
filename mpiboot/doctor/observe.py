"""Samples the ranks of a pod; py-spy or gdb reads a stack, and gdb halts the rank meanwhile."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.doctor.ranks import (
    SIZES,
    HostRanks,
    Rank,
    number_in,
    one_process_a_rank,
    state_of,
)
from mpiboot.network.rdma import text
from mpiboot.system import processes, programs
from mpiboot.system.processes import Activity
from mpiboot.worker.answer import NUMBERS

_STACK_TIMEOUT_S: Final = 20.0
_MAX_STACK_LINES, _MAX_STACK_CHARACTERS = 30, 200
PROC: Final = Path("/proc")


def ranks(host: str, seconds: float, *, gdb: bool = False) -> HostRanks:
    """Sample the ranks twice.

    Args:
        host: the name by which it is shown.
        seconds: between the samples.
        gdb: whether gdb reads C stacks.
    """
    every = {pid: processes.environ(pid) for pid in processes.pids()}
    environs = {pid: found for pid, found in every.items() if number_in(found, NUMBERS) is not None}
    others = sum(not os.access(f"/proc/{pid}/environ", os.R_OK) for pid in every)
    before = {pid: processes.activity(pid) for pid in environs}
    began = time.monotonic()
    time.sleep(seconds)
    after = {pid: processes.activity(pid) for pid in environs}
    passed = time.monotonic() - began
    found = [
        _rank(pid, host, environ, was, now, passed)
        for pid, environ in environs.items()
        if (was := before[pid]) and (now := after[pid])
    ]
    chosen = sorted(one_process_a_rank(found), key=lambda one: one.number)
    return HostRanks(host, tuple(_details(rank, gdb=gdb) for rank in chosen), others)


def _rank(
    pid: int,
    host: str,
    environ: Mapping[str, str],
    before: Activity,
    now: Activity,
    seconds: float,
) -> Rank:
    cpu = (now.cpu - before.cpu) / seconds
    return Rank(
        number_in(environ, NUMBERS) or 0,
        host,
        pid,
        " ".join(filter(None, (environ.get(LAUNCH_ID), environ.get("PMIX_NAMESPACE")))),
        number_in(environ, SIZES) or 0,
        processes.program(pid).rpartition("/")[2],
        state_of(before.state, now.state, cpu),
        cpu,
        now.cpu / now.age if now.age > 0 else None,
        parent=now.parent,
        mpi="libmpi" in text(PROC / str(pid) / "maps"),
    )


def _details(rank: Rank, *, gdb: bool) -> Rank:
    """Add the kernel function that it waits in, and its stack."""
    process = PROC / str(rank.pid)
    # Of the thread in uninterruptible sleep, or else of the first one.
    stuck = (task for task in process.glob("task/*") if ") D " in text(task / "stat"))
    function = text(next(stuck, process) / "wchan").removeprefix("0")
    return replace(rank, function=function, stack=_stack(rank, gdb=gdb))


def _stack(rank: Rank, *, gdb: bool) -> tuple[str, ...]:
    """Read its stack by a program that is installed: py-spy does not halt the rank, gdb does."""
    pid = str(rank.pid)
    if rank.program.startswith("python") and shutil.which("py-spy"):
        done = programs.run(("py-spy", "dump", "--nonblocking", "--pid", pid), _STACK_TIMEOUT_S)
        lines = (done.stdout + done.stderr).splitlines() if done else []
    elif gdb and shutil.which("gdb"):
        done = programs.run(("gdb", "-nx", "-batch", "-p", pid, "-ex", "bt"), _STACK_TIMEOUT_S)
        lines = [line for line in done.stdout.splitlines() if line[:1] == "#"] if done else []
    else:
        return ()
    return tuple(line[:_MAX_STACK_CHARACTERS] for line in lines[:_MAX_STACK_LINES])
