"""Which form of a name is asked for, and which one is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pytest

from mpiboot.core import log
from mpiboot.core.setting_types import AUTO, Auto, Switch
from mpiboot.hosts.dns import DnsAnswer, NoAddress
from mpiboot.hosts.pipeline import HostNames

if TYPE_CHECKING:
    from mpiboot.hosts.dns import Resolver

SHORT, LONG = "w-0.job.ns.svc", "w-0.job.ns.svc.cluster.local"
NONE = DnsAnswer(SHORT, reason=NoAddress.NXDOMAIN)
SEARCHED = DnsAnswer(SHORT, reason=NoAddress.NXDOMAIN, searched=(f"{LONG}.",))
THERE = DnsAnswer(SHORT, ("10.0.0.5",))


class Scripted:
    """A resolver with an answer for each question, in their order."""

    def __init__(self, answers: Sequence[tuple[str, DnsAnswer]]) -> None:
        self._answers = [*answers]

    async def resolve(self, name: str) -> DnsAnswer:
        wanted, answer = self._answers.pop(0)
        assert name == wanted
        return answer

    @property
    def left(self) -> int:
        return len(self._answers)


@pytest.mark.parametrize(
    ("mode", "answers", "renamed"),
    [
        (AUTO, [(SHORT, THERE)], False),
        (AUTO, [(SHORT, NONE), (LONG, NONE)], False),
        (AUTO, [(SHORT, NONE), (LONG, THERE), (SHORT, NONE)], True),
        # The record came between the two questions.
        (AUTO, [(SHORT, NONE), (LONG, THERE), (SHORT, THERE)], False),
        # The search list leads to the long form by itself.
        (AUTO, [(SHORT, SEARCHED)], False),
        (Switch.ON, [(LONG, THERE)], True),
        (Switch.ON, [(LONG, NONE)], False),
        (Switch.OFF, [(SHORT, NONE)], False),
    ],
)
async def test_the_long_form_is_kept_where_it_alone_leads_anywhere(
    mode: Switch | Auto,
    answers: list[tuple[str, DnsAnswer]],
    renamed: bool,  # noqa: FBT001 - a row of the table
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.configure()
    scripted = Scripted(answers)
    names = HostNames(cast("Resolver", scripted), mode, "cluster.local")
    found = await names.resolve(SHORT)
    assert scripted.left == 0
    assert bool(found.addresses) == any(answer is THERE for _, answer in answers)
    assert names.renamed == ({SHORT: LONG} if renamed else {})
    message = f"mpiboot: {SHORT} resolves only as {LONG}: that name is used\n"
    assert capfd.readouterr().err == (message if renamed and mode is AUTO else "")
