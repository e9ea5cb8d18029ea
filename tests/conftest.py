from __future__ import annotations

import signal


def pytest_configure() -> None:
    # A gate that a shell runs in the background, or under nohup, inherits these as ignored, and
    # so would every process that a test starts and then signals.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
