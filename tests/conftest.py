from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# The machines are shared: how long an example takes says nothing of the code.
settings.register_profile("shared", deadline=None, suppress_health_check=(HealthCheck.too_slow,))


def pytest_configure() -> None:
    settings.load_profile("shared")
    # A gate that a shell runs in the background, or under nohup, inherits these as ignored, and
    # so would every process that a test starts and then signals.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
