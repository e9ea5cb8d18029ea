"""Whose value a variable gets, and with which of the user's own it is left alone."""

from __future__ import annotations

import pytest

from mpiboot.core.facts import Variable
from mpiboot.core.settings import Settings
from mpiboot.network import decision, worker_network
from tests.fakes import workers as w

NETWORKS = [worker_network.choose(worker, Settings()) for worker in (w.plain(0), w.plain(1))]
EVERY = sorted({*decision.VARIABLES, *(one for row in decision.VARIABLES.values() for one in row)})


@pytest.mark.parametrize("name", decision.VARIABLES)
def test_a_variable_is_left_alone_with_some_of_the_users_own(name: str) -> None:
    wanted = [Variable(name, "value", "why", host="w-1")]
    for own in EVERY:
        found = decision.resolve_by_host(NETWORKS, wanted, {own: "-x"})
        left = own in (name, *decision.VARIABLES[name])
        assert found.values == {"w-0": {}, "w-1": {} if left else {name: "value"}}, own
        why = "-x" if own == name else f"{own} is set (-x)"
        assert found.by_user == ({(name, why): ["w-1"]} if left else {}), own
        assert found.reason == ({} if left else {name: "why"})
