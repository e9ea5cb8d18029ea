from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Host, HostAnswer, Worker
from mpiboot.job import job_hosts
from tests.fakes.plans import OPERATOR, POD, observed


@pytest.mark.parametrize(
    ("name", "environ", "count"),
    [("pi-worker-0.pi.ns.svc", OPERATOR, 1), ("pi-launcher", OPERATOR, 0), ("pi-worker-0", {}, 0)],
)
def test_a_worker_at_the_launchers_own_address_is_no_launcher(
    name: str, environ: dict[str, str], count: int
) -> None:
    listed = (Host(name, 1, slots_given=True), Host("pi-worker-1", 1, slots_given=True))
    seen = observed(environ={**POD, **environ}, listed=listed, local=listed[:1])
    found = list(job_hosts.shared_addresses(seen))
    assert len(found) == count
    assert all(item.host == name and "hostNetwork" in item.hint for item in found)


OWN, FIRST, SECOND = "l-c@2026-11-22T06:00:00Z@3", "l-a@2026-11-22T05:00:00Z@1", "l-b@@2"
LAST = "attempt 2; the last one (l-a of 2026-11-22T05:00:00Z) ended: host-lost: w-1"
NEWER = ((FIRST, "no"), (SECOND, ""))


@pytest.mark.parametrize(
    ("own", "seen", "message"),
    [
        *((OWN, seen, "") for seen in ((), ((),), (((OWN, ""),), ()), (((OWN, "failed"),),))),
        (OWN, (((FIRST, "host-lost: w-1"),),), LAST),
        (OWN, (((FIRST, "host-lost: w-1"), (OWN, "")),), LAST),
        # A worker that is new, or that no launcher has told, knows less.
        (OWN, ((), NEWER, ((SECOND, "bad"),)), "attempt 3; the last one (l-b) ended: bad"),
        (OWN, (NEWER,), "attempt 3; the last one (l-b) did not say how it ended (killed, or lost)"),
        # A part of a command.
        ("", (((FIRST, "no"),),), ""),
    ],
)
def test_the_last_attempt_is_told_with_its_end(
    own: str, seen: tuple[tuple[tuple[str, str], ...], ...], message: str
) -> None:
    worker = Worker(Host("w-0"), "10.0.0.1", 22, "root", "10.0.0.9", None)
    found = job_hosts.earlier(
        [replace(worker, answer=HostAnswer(attempts=item)) for item in seen], own
    )
    assert (found[2], bool(found[0])) == (message, bool(message))
