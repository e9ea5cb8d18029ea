"""A launcher whose preparation and hosts are scripts: ``launching.py launch|command JSON``."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

from mpiboot.core import log
from mpiboot.core.model import read_record
from mpiboot.core.settings import resolve
from mpiboot.launcher import role
from mpiboot.launcher.prepare import LaunchRun
from mpiboot.launcher.role import LauncherProcess
from mpiboot.supervisor import signals
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.job import LaunchSpec, Verdict
from mpiboot.supervisor.workers import Workers
from mpiboot.system import programs, spawn
from tests.supervisor.answering import pool_for


class Scripted(LaunchRun):
    """A launch whose preparation is in a file."""

    def __init__(self, launcher: LauncherProcess, given: dict[str, Any]) -> None:
        resolved, attempt = resolve(given["flags"], {}), given["attempt"]
        super().__init__(launcher, resolved, (), attempt, cast("Any", None))
        self._given, self._folder = given, given["folder"]

    async def prepare(self) -> tuple[LaunchSpec, Workers, dict[str, str]]:
        """Run the script that prepares."""
        await self._script("prepares")
        spec = self._result()
        if not isinstance(spec, LaunchSpec):
            raise RuntimeError("nothing is prepared")  # noqa: TRY004 - it ends a launch
        env = {**os.environ, **spec.plan.set_env}
        for name in self._given["unset"]:
            env.pop(name, None)
        return spec, Workers(pool_for(self._folder, env), self._snapshots(), env), env

    def _snapshots(self) -> tuple[HostSnapshot, ...]:
        path = Path(self._folder, "hosts.json")
        found = json.loads(path.read_text()) if path.exists() else ()
        return tuple(read_record(HostSnapshot, item) for item in found)

    def failed(self, wrong: Exception) -> Verdict:
        """Give what is in the file; the real one logs it."""
        found = self._result()
        if isinstance(found, Verdict):
            return found
        raise wrong

    async def notify(self, _failure: Verdict) -> None:
        """Run the script that notifies."""
        await self._script("notifies")

    def _result(self) -> object:
        return pickle.loads(Path(self._folder, "result").read_bytes())

    async def _script(self, name: str) -> None:
        if self._given[name]:
            started = await programs.start_async(("/bin/sh", "-c", self._given[name]))
            try:
                while text := await started.stdout.read(100):
                    os.write(1, text)
                await started.child.ended()
            finally:
                started.end()


def main() -> None:
    """Be the launcher."""
    spawn.take_out_locale()
    given = json.loads(sys.argv[2])
    mask = signals.block()
    settings = resolve(given["flags"], {}).settings
    log.configure(level=settings.log_level, form=settings.log_format, role="launcher")

    async def launch(launcher: LauncherProcess) -> int:
        return await Scripted(launcher, given).run()

    role._EXTRA_GRACE_S = 0.1  # type: ignore[misc] # nobody waits for launches below

    async def beside(launcher: LauncherProcess) -> int:
        resolved = resolve(given["flags"], {})
        environ = dict(os.environ)
        program, folder = tuple(given["program"]), Path(given["folder"])
        once = role.CommandRun(launcher, resolved, program, environ, folder)
        return await once.run()

    work: dict[str, Callable[[LauncherProcess], Coroutine[Any, Any, int]]] = {
        "launch": launch,
        "command": beside,
    }
    role.run(settings, mask, work[sys.argv[1]])


if __name__ == "__main__":
    main()
