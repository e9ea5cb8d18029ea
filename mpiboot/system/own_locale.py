"""The variable that Python itself sets where its pod has no locale (PEP 538), taken out again."""

import contextlib
import os


def take_out() -> None:
    """Take LC_CTYPE out of the environment, unless this process was started with it.

    A program that mpiboot starts, and its ranks, would else have a variable that nobody set, and
    the launcher's log would name it as one of the pod's. Python keeps the locale that it chose.
    """
    if "LC_CTYPE" in os.environ:
        with contextlib.suppress(OSError), open("/proc/self/environ", "rb") as given:  # noqa: PTH123 - light
            if not any(item.startswith(b"LC_CTYPE=") for item in given.read().split(b"\0")):
                del os.environ["LC_CTYPE"]
