"""The program that stays while mpirun runs, and makes its end honest.

Entered by exec as ``python -I -S mpiboot/parent/__main__.py FOLDER [PID FIFO]``; stdlib only,
without asyncio, so that a few megabytes stay.
"""

# Run by its path, it must find its package first; pathlib costs a megabyte.
# ruff: noqa: PTH100, PTH120, PTH123
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

if __name__ == "__main__":
    # -I: not even the folder of this file, whose names are not the top of anything.
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(os.path.dirname(package))

from mpiboot import log
from mpiboot.parent import guard
from mpiboot.parent.after import ask
from mpiboot.parent.end import end_all, tell
from mpiboot.parent.events import Verdict
from mpiboot.parent.judgement import proved
from mpiboot.parent.launch_spec import FILE, MARK, LaunchSpec, Started
from mpiboot.parent.os_calls import block_signals
from mpiboot.parent.parent import Parent
from mpiboot.parent.state import FAMILIES, UNKNOWN

Evidence = Callable[[Verdict, LaunchSpec], tuple[str, ...]]


def wanted(verdict: Verdict, spec: LaunchSpec) -> str:
    """Give the program whose lack on some host may be what a verdict is about; else nothing."""
    family = FAMILIES.get(spec.family, UNKNOWN)
    return spec.program if not verdict.reference and verdict.code in family.lacking else ""


def no_evidence(_verdict: Verdict, _spec: LaunchSpec) -> tuple[str, ...]:
    """Ask nobody."""
    return ()


def run(
    folder: str,
    environ: Mapping[str, str],
    evidence: Evidence = no_evidence,
    started: Started | None = None,
) -> int:
    """Be the parent of the mpirun that a launch folder describes; give the exit code."""
    mask = block_signals()
    with open(f"{folder}/{FILE}", encoding="utf-8") as file:
        spec = LaunchSpec.from_json(file.read())
    log.configure(level=spec.log_level, form=spec.log_format, role="launcher")
    # As PID 1 this process takes everything along when it is killed.
    keeper = guard.start(folder, environ, spec.log_format) if os.getpid() != 1 else None
    parent = Parent(spec, folder, {**environ, MARK: folder}, started)
    try:
        verdict = parent.run(mask)
    except BaseException:
        # Never leave an mpirun without a parent: nobody would end it, or say how it ended.
        if parent.child:
            end_all(parent.child, folder)
        raise
    left = end_all(parent.child, folder) if parent.child else 0
    if left:
        log.debug("ended", f"ended {left} processes that mpirun left")
    if keeper is not None:
        guard.dismiss(keeper)
    by_signal = verdict.said.startswith("ended by")
    asked = verdict.code and parent.child and not by_signal
    verdict, lines = proved(verdict, evidence(verdict, spec) if asked else ())
    tell(verdict, spec, lines)
    if spec.let_go and not verdict.code:
        ask(folder, environ, "let-go")
    if verdict.code and spec.hold_on_failure and not by_signal:
        log.info("hold", f"held for {spec.hold_on_failure:g} s; SIGTERM ends it")
        parent.hold(spec.hold_on_failure)
    return verdict.code


def main() -> NoReturn:
    """Run as a program; whatever goes wrong here is said in one line."""
    folder, started = sys.argv[1], Started(*map(int, sys.argv[2:])) if sys.argv[2:] else None
    for handle in started[1:] if started else ():
        if handle >= 0:  # they were to outlive the exec, and are nobody else's
            os.set_inheritable(handle, False)
    try:
        code = run(
            folder,
            os.environ,
            lambda verdict, spec: ask(
                folder, os.environ, "evidence", verdict.host, wanted(verdict, spec), verdict.signal
            ),
            started,
        )
    except Exception as wrong:  # noqa: BLE001 - the last line of defence: never a traceback
        log.error("bug", f"[bug] the parent of mpirun failed: {type(wrong).__name__}: {wrong}")
        code = 70
    # The thread that waits for signals never ends, and nothing here is to be tidied up.
    os._exit(code)


if __name__ == "__main__":
    main()
