"""Lines of output that name their rank, and rank 0's alone; the user's own line comes first."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mpiboot.core.model import Source
from mpiboot.job.plan import _TO_FILE, RANK_OUTPUT
from tests.fakes.plans import HYDRAS, MPIS, observed, planned, reason, warned

ON, RANK0 = {"tag_output": "on"}, {"tag_output": "rank0"}
OPTIONS = {
    "openmpi4": ["--tag-output"],
    "openmpi5": ["--output", "tag"],
    **{family: ["-prepend-rank"] for family in HYDRAS},
}
each = pytest.mark.parametrize("family", [*MPIS, *HYDRAS])


@each
@pytest.mark.parametrize("line", ["./train -l", "mpirun -n 2 ./train --tag-output : -n 2 ./b"])
def test_each_mpis_own_option_stands_first(family: str, line: str) -> None:
    plan = planned(line, observed(family), ON)
    own = OPTIONS[family]
    assert plan.argv[1 : 1 + len(own)] == (*own,)
    assert reason(plan, RANK_OUTPUT)[:2] == (" ".join(own), Source.FLAG)
    assert [item for item in warned(plan) if "cuts off" in item] or family != "openmpi4"
    assert RANK_OUTPUT not in {item.name for item in planned(line, observed(family)).decisions}


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("openmpi4", "--tag-output"),
        ("openmpi5", "--output timestamp"),
        ("openmpi5", "--output=dir=/logs"),
        ("openmpi5", "--tag-output"),
        *((family, word) for family in HYDRAS for word in ("-l", "-prepend-pattern %h:")),
        *((family, "-never-heard-of 1 -prepend-rank") for family in HYDRAS),
    ],
)
def test_what_the_line_says_comes_first(family: str, words: str) -> None:
    """Hydra's mpirun ends over an option that is given twice; 5.0 takes the first of two."""
    plan = planned(f"mpirun {words} -n 2 ./train", observed(family), ON)
    assert plan.argv.count(OPTIONS[family][0]) == words.split().count(OPTIONS[family][0])
    assert reason(plan, RANK_OUTPUT)[1:] == (Source.FLAG, "given on the mpirun line")


@each
def test_every_program_but_that_of_rank_0_writes_to_a_file(family: str) -> None:
    line = "mpirun -n 1 ./a -n 5 : -n 1 ./b"
    flags = {**RANK0, "rank_env": "true", "output_dir": "/logs/my job"}
    plan = planned(line, observed(family), flags)
    at = [place for place, word in enumerate(plan.argv) if word == "/logs/my job"]
    begin = ("mpiboot", "rank", "--")
    assert [plan.argv[place + 1 : place + 5] for place in at] == [(*begin, "./a"), (*begin, "./b")]
    assert reason(plan, RANK_OUTPUT)[0] == "/logs/my job/rank.N"


@pytest.mark.parametrize(
    ("family", "words", "why"),
    [
        *((family, "-never-heard-of 1", "it is not known where") for family in OPTIONS),
        *((family, "--path /opt", "mpirun itself finds") for family in MPIS),
        *((family, "-s", "mpirun itself finds") for family in MPIS),
    ],
)
def test_where_no_shell_can_stand_before_the_program_all_output_comes(
    family: str, words: str, why: str
) -> None:
    plan = planned(f"mpirun {words} ./a", observed(family), RANK0)
    assert "/tmp/mpiboot-output" not in plan.argv
    assert [item for item in warned(plan) if item.startswith(f"--tag-output=rank0: {why}")]


def words(folder: Path, rank: str, *program: str) -> subprocess.CompletedProcess[str]:
    """What a rank's shell does."""
    environ = {"PATH": os.environ["PATH"], "PMI_RANK": rank} if rank else {}
    line = ["/bin/sh", "-c", _TO_FILE % "PMI_RANK", str(folder), *program]
    return subprocess.run(line, env=environ, capture_output=True, text=True, check=False)


SAYS = ("/bin/sh", "-c", 'echo "$#" "$@"; echo wrong >&2; exit 3', "_", "a b", "c")


def test_a_rank_appends_both_streams_to_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out put"
    for _ in range(2):
        done = words(folder, "1", *SAYS)
        assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert (folder / "rank.1").read_text() == "2 a b c\nwrong\n" * 2
    for rank in ("0", ""):
        done = words(folder, rank, *SAYS)
        assert (done.returncode, done.stdout, done.stderr) == (3, "2 a b c\n", "wrong\n")
    assert [file.name for file in folder.iterdir()] == ["rank.1"]


def test_where_nothing_can_be_written_the_output_stays_in_the_jobs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "rank.2").mkdir(parents=True)
    for folder in (tmp_path / "file", tmp_path / "folder"):
        done = words(folder, "2", *SAYS)
        assert (done.returncode, done.stdout) == (3, "2 a b c\n")
        message = f"mpiboot: warning: {folder}/rank.2 can not be written on {os.uname().nodename}: "
        assert message in done.stderr
        assert done.stderr.endswith("wrong\n")


def test_a_program_that_is_not_there_is_told_in_the_jobs_output(tmp_path: Path) -> None:
    done = words(tmp_path, "1", "./nowhere")
    assert done.returncode == 127
    assert "./nowhere: not found" in done.stderr
    assert list(tmp_path.iterdir()) == []
