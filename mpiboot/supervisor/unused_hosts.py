"""Hosts of which mpirun alone decides whether they are used: the unused ones are named once.

Where the plan can't tell, this is what tells that a job of many hosts runs on few. Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from mpiboot.core.wording import counted, first_few


class UnusedHosts:
    """The remote hosts whose use was left to mpirun, and what was seen of them."""

    def __init__(self, hosts: Collection[str]) -> None:
        """``hosts`` are named as in the hostfile that mpirun gets."""
        self._hosts = hosts
        self._started: set[str] = set()

    def started(self, host: str) -> None:
        """Note a launch agent."""
        self._started.add(host)

    def said(self, with_ranks: Collection[str]) -> str:
        """Name the unused hosts; empty where there are none, or they were named before.

        Args:
            with_ranks: the hosts of mpirun's own table of ranks; empty where it wrote none, and
                then hosts without a launch agent are meant.
        """
        used = with_ranks or self._started
        # Some mpirun cut names at the first dot.
        names = self._hosts
        unused = [name for name in names if not {name, name.partition(".")[0]}.intersection(used)]
        if not unused:
            return ""
        self._hosts = ()
        what = "put no rank on" if with_ranks else "started nothing on"
        return f"mpirun {what} {len(unused)} of {counted(len(names), 'host')}: {first_few(unused)}"
