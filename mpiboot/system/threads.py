"""Work that may block, in threads that nobody joins.

A volume may hang (NFS without its server), and so may ``/proc`` of a process in uninterruptible
sleep. An executor has few threads, and waits for all of them at the end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


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
