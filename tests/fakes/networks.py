"""The data network of workers, with what becomes of its proposals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpiboot.core.facts import Variable, Worker
from mpiboot.core.model import Source
from mpiboot.core.settings import Settings
from mpiboot.job import mpi_environment
from mpiboot.network import decision, worker_network
from mpiboot.network.decision import DataNetwork
from mpiboot.network.records import Owned


def decide(
    workers: Sequence[Worker],
    settings: Settings,
    taken: Mapping[str, str] | None = None,
    values: Mapping[str, str] | None = None,
    *,
    blocked: str = "",
    others: Sequence[Variable] = (),
) -> DataNetwork:
    """Decide as a plan does; ``taken`` are the user's names for all ranks, each with where."""
    networks = [worker_network.choose(one, settings) for one in workers]
    known = values or {}
    users = {
        name: Owned(known.get(name), Source.ENVIRONMENT, by) for name, by in (taken or {}).items()
    }
    found = decision.decide(networks, settings, users, others=others, blocked=blocked)
    return mpi_environment.of_ranks(found)
