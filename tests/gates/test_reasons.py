from __future__ import annotations

import pytest

from mpiboot.gates import reasons
from mpiboot.model import Mesh
from mpiboot.ssh_client.attempt import Attempt, Outcome, Target

ISTIO = Mesh("istio", ())
TARGET = Target("w-0", "10.0.0.1", 22, "root")


def why(outcome: Outcome, mesh: Mesh | None = None, *, stalled: bool = False) -> tuple[str, str]:
    probe = Attempt(TARGET, outcome, stalled=stalled)
    said, hint = reasons.why(probe, mesh, {22}, "40000-40001")
    return said, hint or ""


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_proxy_is_named_where_it_explains_the_failure(outcome: Outcome) -> None:
    said, hint = why(outcome, ISTIO)
    proxied = outcome in (Outcome.SILENT, Outcome.CLOSED)
    assert ("istio's proxy is in front of this pod" in said) == proxied
    assert ('"22,40000,40001"' in hint) == proxied
    assert said.startswith(outcome.value)


def test_silence_without_a_proxy_here_may_be_one_there() -> None:
    assert why(Outcome.SILENT)[0] == Outcome.SILENT.value
    assert "sidecar in front of the worker" in why(Outcome.SILENT)[1]
    assert why(Outcome.REFUSED) == (Outcome.REFUSED.value, "")


@pytest.mark.parametrize("outcome", [Outcome.SLOW, Outcome.COMMAND_FAILED])
def test_what_hangs_after_the_greeting_may_be_the_mtu(outcome: Outcome) -> None:
    said, hint = why(outcome, stalled=True)
    assert said == f"{outcome.value}: are large packets lost (MTU)?"
    assert "ping -M do" in hint
    assert "MTU" not in why(outcome)[0]
