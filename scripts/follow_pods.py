"""What a job's launcher says, as it says it: for people who watch pods of the rig."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.pods.pod import Pod


def say(text: str) -> None:
    """Speak for the script itself, apart from what the pods say."""
    print(f"\033[1m# {text}\033[0m" if sys.stdout.isatty() else f"# {text}", flush=True)


@contextmanager
def following(pod: Pod) -> Iterator[None]:
    """Print what the launcher's container writes meanwhile, as `kubectl logs -f` does."""
    ended = threading.Event()
    tail = threading.Thread(target=_follow, args=(pod, ended), daemon=True)
    tail.start()
    try:
        yield
    finally:
        ended.set()
        tail.join()


def _follow(pod: Pod, ended: threading.Event) -> None:
    shown = {"stderr": 0, "stdout": 0}
    while True:
        last = ended.is_set()
        texts = {"stdout": "", "stderr": ""}
        with suppress(FileNotFoundError):  # it has not started
            # Read last and printed first: what ranks wrote precedes the line of their end.
            texts["stderr"] = pod.stderr()
            texts["stdout"] = pod.stdout()
        for stream, text in texts.items():
            whole = len(text) if last else text.rfind("\n") + 1
            new, shown[stream] = text[shown[stream] : whole], max(whole, shown[stream])
            if new:
                print("\n".join(f"launcher | {line}" for line in new.splitlines()), flush=True)
        if last:
            return
        ended.wait(0.05)
