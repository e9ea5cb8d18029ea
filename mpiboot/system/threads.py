"""Work that may block, in threads that nobody joins; and the end of tasks.

A volume may hang (NFS without its server), and so may ``/proc`` of a process in uninterruptible
sleep. An executor has few threads, and waits for all of them at the end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")
_CANCEL_AGAIN_S: Final = 1.0


async def in_thread(work: Callable[..., T], *given: Any) -> T:  # noqa: ANN401 - what work takes
    """Do work in a thread of its own; give what it returns, or raise what it raises.

    Where this is cancelled, the thread goes on.
    """
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
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # or asyncio would log that it was never retrieved
