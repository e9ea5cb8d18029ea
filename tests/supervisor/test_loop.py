"""What a process sleeps on, where a pod lacks what it would ask with."""

from __future__ import annotations

import os
import time
from functools import partial

import pytest

from tests.supervisor.loops import Loop


def test_what_fails_is_listened_to_no_more_unless_it_is_vital(
    capfd: pytest.CaptureFixture[str],
) -> None:
    # As in an image, whose other packages lie below a folder of mpiboot's name too.
    other = "/opt/mpiboot/lib/other.py"
    fail = partial(exec, compile("raise ValueError(\"no number: 'x'\")", other, "exec"), {})
    loop = Loop()
    reader, writer = os.pipe()
    os.write(writer, b"x")
    loop.on(reader, fail)
    loop.wait(None)
    loop.wait(time.monotonic())
    message = capfd.readouterr().err
    assert message.count("warning: [bug] an event handler failed at supervisor/signals.py:") == 1
    assert message.endswith("ValueError: no number: 'x'; the job goes on without it\n")
    loop.on(reader, fail, vital=True)
    with pytest.raises(ValueError, match="no number"):
        loop.wait(None)
    os.close(reader)
    os.close(writer)
