from __future__ import annotations

from dataclasses import replace

from mpiboot.launcher.script_gate import by_every_name
from mpiboot.parent.launch_spec import ScriptSpec, from_line, to_line
from tests.fakes import plans


def names(*listed: str, addresses: tuple[str, ...], renamed: dict[str, str]) -> dict[str, str]:
    """The hostfile's name of the host that each name stands for."""
    workers = tuple(
        replace(plans.worker(replace(host, name=name), number, None), address=address)
        for number, (host, name, address) in enumerate(
            zip(plans.hosts(*[1] * len(listed)), listed, addresses, strict=True)
        )
    )
    return {name: worker.host.name for name, worker in by_every_name(workers, renamed).items()}


def test_a_host_is_known_by_each_of_its_names() -> None:
    found = names("w-0.job", addresses=("10.0.0.1",), renamed={"w-0.job": "w-0.job.ns.svc.c"})
    assert set(found) == {"w-0.job", "w-0", "w-0.job.ns.svc.c", "10.0.0.1"}


def test_a_name_that_two_hosts_have_stands_for_neither() -> None:
    found = names("w.a", "w.b", addresses=("10.0.0.1", "10.0.0.1"), renamed={})
    assert found == {"w.a": "w.a", "w.b": "w.b"}


def test_the_hostfiles_own_name_comes_before_anothers_short_one() -> None:
    found = names("w.a", "w", addresses=("10.0.0.1", "10.0.0.2"), renamed={})
    assert found == {"w.a": "w.a", "w": "w", "10.0.0.1": "w.a", "10.0.0.2": "w"}


def test_a_host_that_is_named_by_its_address_has_this_one_name() -> None:
    assert names("10.0.0.1", addresses=("10.0.0.1",), renamed={}) == {"10.0.0.1": "10.0.0.1"}


def test_a_parent_reads_what_the_child_wrote() -> None:
    spec = ScriptSpec(("sh", "a b"), "/run/logins", {"PATH": "/x:/y"}, ("python", "-c"))
    assert from_line(to_line(spec)) == spec
