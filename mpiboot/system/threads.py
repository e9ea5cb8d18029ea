"""Work that may block, in threads that nobody joins.

A volume may hang (NFS without its server), and so may ``/proc`` of a process in uninterruptible
sleep. An executor has few threads, and waits for all of them at the end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *given: Any) -> T:  # noqa: ANN401 - what work takes
    """Do work in a thread of its own; give what it returns, or raise what it raises.

    Where this is cancelled, the thread goes on.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def note(result: T | None, wrong: Exception | None) -> None:
        if found.done():
            return
        if wrong is None:
            found.set_result(result)  # type: ignore[arg-type] # T may be None
        else:
            found.set_exception(wrong)

    def run() -> None:
        result, wrong = None, None
        try:
            result = work(*given)
        except Exception as problem:  # noqa: BLE001 - it is raised where this is awaited
            wrong = problem
        with suppress(RuntimeError):  # the loop is closed: the result isn't wanted any more
            loop.call_soon_threadsafe(note, result, wrong)

    threading.Thread(target=run, daemon=True).start()
    return await found
