"""Ranks of a Hydra job in the launcher's own pod get back what is kept from the others."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.facts import Host
from mpiboot.core.model import Level
from mpiboot.job.plan import _READ_FILE, OWN_RANKS
from mpiboot.job.plan_input import Observed
from tests.fakes.plans import (
    HYDRAS,
    POD,
    hosts,
    link,
    observed,
    planned,
    warned,
    worker,
)
from tests.job.test_data import with_links

FILE = "/run/mpiboot/launcher/launch/own-ranks.env"
WORDS = ("/bin/sh", "-c", _READ_FILE, FILE, "job-launcher")
HERE = Host("job-launcher", 2, slots_given=True)
HOST = socket.gethostname()
hydra = pytest.mark.parametrize("family", HYDRAS)


def seen(family: str, *others: Host) -> Observed:
    """A launcher that is a host too."""
    listed = (HERE, *others)
    facts = worker(HERE, -1, HYDRAS.get(family)).facts
    return replace(observed(family, POD, listed=listed, local=(HERE,)), own=facts)


@hydra
def test_every_program_of_a_line_is_started_so_before_the_ranks_own(family: str) -> None:
    line = "mpirun -n 1 ./a -n 5 : -n 1 ./b"
    plan = planned(line, seen(family, *hosts(2)), {"rank_env": "true"})
    begin = (*WORDS, "mpiboot", "rank", "--")
    at = [place for place, word in enumerate(plan.argv) if word == WORDS[0]]
    assert [plan.argv[place : place + 9] for place in at] == [(*begin, "./a"), (*begin, "./b")]


@hydra
def test_where_the_program_is_not_known_it_is_said(family: str) -> None:
    plan = planned("mpirun -never-heard-of 1 ./a", seen(family, *hosts(2)))
    assert FILE not in plan.argv
    assert any("ranks in this pod lack USER, LOGNAME" in message for message in warned(plan))
    assert not [item for item in plan.findings if item.level is Level.FAIL]


@hydra
def test_where_no_rank_here_would_lack_anything_nothing_is_read_back(family: str) -> None:
    alone = planned("./train", seen(family))
    assert alone.environment(POD).items() >= {**POD, "USER": "root"}.items()
    open_mpi = planned("./train", seen("openmpi4", *hosts(2)))
    for plan in (alone, open_mpi, planned("./train", observed(family))):
        assert FILE not in plan.argv
    assert FILE.rpartition("/")[2] == OWN_RANKS


@hydra
def test_this_pods_own_links_are_not_the_other_hosts(family: str) -> None:
    """In mpirun's environment they would overwrite what the others' launch agents set."""
    job = seen(family, *hosts(2))
    facts = job.own
    assert facts is not None
    mine = replace(facts, links=(*job.links, link("dranet0", "192.168.0.9/24")))
    plan = planned("./train", replace(with_links(job, "net1"), own=mine))
    assert plan.per_host["w-0.job.ns.svc"]["NCCL_SOCKET_IFNAME"] == "=net1"
    assert plan.agent_env["NCCL_SOCKET_IFNAME"] == "=dranet0"
    assert "NCCL_SOCKET_IFNAME" not in plan.environment(POD)


@pytest.mark.parametrize(
    ("host", "owner", "value"),
    [(HOST, "mine", "here"), ("another", "mine", ""), (HOST, "another's", "")],
)
def test_the_file_of_another_host_or_owner_is_not_read(
    tmp_path: Path, host: str, owner: str, value: str
) -> None:
    file = tmp_path / OWN_RANKS
    file.write_text("export OWN='here';\n")
    if owner == "another's":
        if os.getuid():
            pytest.skip("only root can give a file to another user")
        os.chown(file, 1, 1)
    words = ["/bin/sh", "-c", _READ_FILE, str(file), host, "sh", "-c", 'echo "$# $OWN"', "_"]
    done = subprocess.run([*words, "a b"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"1 {value}\n", "")
