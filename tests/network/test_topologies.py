"""What comes out for nodes as they are, as facts: never less than NCCL would have had by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.core.checks import WARNINGS
from mpiboot.core.facts import Worker
from mpiboot.core.model import DataNetworkUse, Level, MpiNetwork, NcclSocket
from mpiboot.core.settings import Settings
from mpiboot.core.wording import MAX_LINES
from mpiboot.network import cluster_view
from mpiboot.network.records import natural_order
from mpiboot.network.worker_network import choose, socket_addresses
from tests.fakes import workers as w
from tests.fakes.topologies import CASES, decided, files

FOLDER = Path(__file__).parents[1] / "data" / "networks"
MADE = files()
EVERY = {name: made for cases in CASES.values() for name, made in cases.items()}


@pytest.mark.parametrize("name", MADE)
def test_the_networks_are_those_that_were_reviewed(name: str) -> None:
    """``python -m tests.data.build_plans`` writes the files anew."""
    assert MADE[name] == (FOLDER / name).read_text()


@pytest.mark.parametrize("name", EVERY)
def test_each_problem_warns_with_prefer_and_stops_with_require(name: str) -> None:
    made = EVERY[name]
    if "require" not in made.settings.values():
        levels = {item.level for item in decided(made).findings if item.check != "data-link"}
        assert levels <= {Level.WARN} or "rdma_device" in made.settings
    for item in decided(made, data_network="require").findings:
        if item.check != "data-sockets":
            assert item.level is (Level.WARN if item.check in WARNINGS else Level.FAIL), item
        assert item.message
    assert not decided(made, data_network="off").findings


def test_names_are_ordered_as_people_count() -> None:
    names = ["a٣", "net1", "net2", "net10"]
    assert sorted(["net10", "net2", "net1", "a٣"], key=natural_order) == names


CONTROL = {"nccl_socket": NcclSocket.CONTROL}
V6 = w.worker(
    *("w-0", w.eth0(), w.link("net1", "fd00:7::5/64", "192.168.7.5/24")),
    w.link("net2", "fd00:8::5/64"),
)


@pytest.mark.parametrize(
    ("worker", "settings", "expected"),
    [
        (w.rails8(0), {}, ("172.16.1.10",)),  # bootstrap takes a single link
        (w.tcp(0), {}, ("192.168.7.5",)),
        (w.tcp(0), CONTROL, ()),
        (w.tcp(0), {**CONTROL, "mpi_network": MpiNetwork.DATA}, ("192.168.7.5",)),
        (w.tcp(0), {"data_network": DataNetworkUse.OFF}, ()),
        (w.aks(0), {}, ()),
        # A link beside RDMA ports that have none of their own.
        (w.changed(w.aks(0), links=w.facts_of(w.tcp(0)).links), {}, ()),
        (w.plain(0), {}, ()),
        (V6, {}, ("192.168.7.5", "fd00:8::5")),
    ],
)
def test_the_addresses_that_sockets_may_use(
    worker: Worker, settings: dict[str, object], expected: tuple[str, ...]
) -> None:
    read = Settings(**settings)  # type: ignore[arg-type]
    assert socket_addresses(choose(worker, read), read) == expected


def test_very_many_workers_are_a_row_for_each_kind_without_addresses() -> None:
    workers = (*map(w.tcp, range(40)), w.plain(40))
    rows = [cluster_view.row(choose(one, Settings())) for one in workers]
    rare, usual = cluster_view.merge_rows(rows)
    assert rare[:3] == ("w-40", "eth0", "none")
    worker, *links, _, _, _, mtu, _ = usual
    assert (links, mtu) == (["eth0", "net1"], "1500")
    assert worker.startswith("40: w-0, w-1")
    many = [(f"w-{at}", "eth0", "none", *f"{at // 2:04}") for at in range(2 * MAX_LINES + 6)]
    assert [row[0] for row in cluster_view.merge_rows(many)][MAX_LINES:] == [
        "6 more, of other kinds"
    ]
