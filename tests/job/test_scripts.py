from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.job.scripts import Script, calls, is_caller, named


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("./run.sh 3", Script(path="./run.sh")),
        ("/bin/bash -eu -o pipefail run.sh -c x", Script(path="run.sh")),
        ("sh -ec TEXT", Script(text="TEXT")),
        ("bash --norc run.sh", Script(path="run.sh")),
        ("bash", Script()),
        ("./train --epochs 3", Script(path="./train")),
    ],
)
def test_the_script_of_a_line_is_found(words: str, found: Script) -> None:
    assert named(words.split()) == found


@pytest.mark.parametrize(
    "text",
    [
        "mpirun -n 2 ./a",
        "#!/bin/sh\nset -e\n  mpirun -n 2 ./a\n",
        "cd /data && mpirun ./a",
        "OMP_NUM_THREADS=4 A='b' mpiexec -n 2 ./a",
        "exec mpirun ./a",
        "time mpirun ./a",
        "timeout 60 mpirun ./a",
        "if ! mpirun ./a; then exit 1; fi",
        "for i in 1 2; do mpirun ./a; done",
        "out=$(mpirun ./a)",
        "(mpirun ./a) | tee log",
        "echo \\\n  a; mpirun \\\n -n 2 ./a",
        "horovodrun -np 4 python train.py",
    ],
)
def test_a_call_of_mpirun_is_seen(text: str) -> None:
    assert calls(text) == ("",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "./train",
        "# mpirun -n 2 ./a",
        "echo done # then mpirun ./a",
        "echo mpirun ./a",
        "./mpirun_helper",
        "mpirunner ./a",
        "which mpirun",
        "cp /usr/bin/mpirun /tmp",
    ],
)
def test_what_only_speaks_of_mpirun_calls_nothing(text: str) -> None:
    assert calls(text) == ()


def test_a_call_by_its_path_is_told_apart() -> None:
    assert calls("/usr/bin/mpirun ./a\nmpirun ./b\n$MPI_HOME/bin/mpiexec ./c") == (
        "/usr/bin/",
        "",
        "$MPI_HOME/bin/",
    )


def test_programs_that_call_mpirun_are_known_by_name() -> None:
    assert is_caller(["/opt/bin/horovodrun", "-np", "4"])
    assert not is_caller(["python", "horovodrun"])


@given(st.text(max_size=200))
def test_any_text_can_be_looked_at(text: str) -> None:
    assert all(isinstance(path, str) for path in calls(text))


@given(st.lists(st.text(max_size=8), min_size=1, max_size=6))
def test_any_line_can_be_looked_at(words: list[str]) -> None:
    found = named(words)
    assert not (found.path and found.text)
