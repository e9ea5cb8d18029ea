"""Mpirun's own streams: which of them are pipes of this process, and what reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from mpiboot.core.launch_spec import LaunchSpec
from mpiboot.supervisor import mpirun_messages
from mpiboot.supervisor.events import RankEnded
from mpiboot.supervisor.hydra_messages import HydraMessages
from mpiboot.supervisor.mpirun_messages import MessagePipe, MpirunMessages
from mpiboot.supervisor.mpirun_pipes import MpirunPipe, MpirunPipes, StderrPipe, open_pipes
from mpiboot.supervisor.output_writer import OutputWriter
from mpiboot.supervisor.state import Family
from mpiboot.system.loop import EventLoop

_OUT, _ERR = 1, 2


class MpirunStreams:
    """The pipes of one mpirun, from its start to its end."""

    def __init__(
        self,
        loop: EventLoop,
        stderr: OutputWriter,
        tell: Callable[[list[RankEnded]], None],
        spec: LaunchSpec,
        family: Family,
    ) -> None:
        """Open none yet; what mpirun says of ranks goes to ``tell``."""
        self.stdout: OutputWriter | None = None  # where that is passed on
        self._stderr = stderr
        self._loop = loop
        self._tell = tell
        self._spec = spec
        self._family = family
        self._all = [MpirunPipes(loop, stderr, tell)]
        self._opened: dict[int, tuple[int, int]] = {}
        self._messages: MessagePipe | None = None

    def open(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Open what this mpirun gets; give the variables that it needs for that."""
        spec, family = self._spec, self._family
        self._messages = mpirun_messages.open_pipe(spec.family, environ, local=spec.local)
        self._opened = open_pipes(told_there=family.mixes_statuses, dropped=family.drops_output)
        return self._messages.environ if self._messages else {}

    @property
    def writers(self) -> dict[int, int]:
        """The ends that are mpirun's streams, by their numbers there."""
        return {number: writer for number, (_, writer) in self._opened.items()}

    def listen(self) -> None:
        """Leave mpirun its ends, and read the others."""
        for writer in set(self.writers.values()):
            os.close(writer)
        out, err = (self._opened.get(number, (-1, -1))[0] for number in (_OUT, _ERR))
        if self._family.drops_output:
            self._stderr.overflow()
        if err >= 0:
            kind = StderrPipe if self._family.writes_nul and err != out else MpirunPipe
            self._all[0].add(kind(err, self._stderr.write, ends_with_stream=True))
        if out not in (-1, err):
            self._read_stdout(out)
        if self._messages:
            self._all[0].add(MpirunMessages(self._messages.started(), self._stderr.write))

    def read_last(self) -> None:
        """Take in what is there, whoever reads what it goes on to."""
        for pipes in self._all:
            pipes.read_last()

    def _read_stdout(self, reader: int) -> None:
        self.stdout = stdout = OutputWriter(_OUT)
        pipes = MpirunPipes(self._loop, stdout, self._tell)
        self._all.append(pipes)
        if self._family.drops_output:
            stdout.overflow()
            pipes.add(MpirunPipe(reader, stdout.write, ends_with_stream=True))
            return
        hosts, take_out = self._spec.one_rank_each, self._spec.exit_codes
        pipes.add(HydraMessages(reader, stdout.write, hosts, take_out=take_out))
