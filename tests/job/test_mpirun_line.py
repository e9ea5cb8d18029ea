"""What is read of an mpirun line; ``tests/data/lines`` has it of each that is of interest."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.model import MpiFamily
from mpiboot.job import program_words
from mpiboot.job.mpirun_line import ORTE, UserLine, read
from mpiboot.job.program_words import Rendezvous, called, is_mpirun
from tests.fakes import user_lines

FOLDER = Path(__file__).parents[1] / "data" / "lines"
MADE = user_lines.files()


def line(text: str, family: str = "openmpi4") -> UserLine:
    return read(["mpirun", *text.split()], MpiFamily(family))


@pytest.mark.parametrize("name", MADE)
def test_what_is_read_of_a_line_is_what_was_reviewed(name: str) -> None:
    """``python -m tests.data.build_plans`` writes the files anew."""
    assert MADE[name] == (FOLDER / name).read_text()


@pytest.mark.parametrize("text", ["-bind-to none -map-by slot", "-map-by=node", "-rank-by slot"])
def test_one_dash_that_5_0_reads_otherwise_becomes_two(text: str) -> None:
    found = line(f"{text} ./p -bind-to x", "openmpi5")
    assert found.argv[-3:] == ("./p", "-bind-to", "x")
    assert found.rewritten
    assert not line(" ".join(found.argv[1:]), "openmpi5").rewritten
    assert line(text).rewritten == []


@pytest.mark.parametrize(
    ("family", "values", "options"),
    [
        ("openmpi4", 0, "novm dvm nolocal tag-output debug"),
        ("openmpi4", 1, "hnp max-vm-size rankfile xml-file"),
        ("openmpi5", 0, "stop-on-exec parsable p nolocal hetero-nodes display-comm soft"),
        ("openmpi5", 1, "dvm output rankfile display-topo mapby bindto rtos unset-env file"),
        ("openmpi5", 2, "prtemca pmixmca mca gomca prepend-env append-env"),
        ("mpich", 0, "skip-launch-node genvall l pmi-port"),
        ("mpich", 1, "rankmap order-nodes machine launcher"),
        ("mpich intel", 2, "genv env"),
        (
            "intel",
            0,
            (
                "rr nolocal prot print-rank-map prepend-timestamp silent-abort check_mpi trace aps "
                "ordered-output cleanup noconf ilp64 trace=libVT.so"
            ),
        ),
        (
            "intel",
            1,
            (
                "s gtool gtoolfile tune path branch-count tmpdir gpath gwdir genvexcl envexcl "
                "cpu-bind bootstrap-exec-args hosts-group hostlist machine"
            ),
        ),
    ],
)
def test_what_follows_an_option_is_its_values_and_no_program(
    family: str, values: int, options: str
) -> None:
    # As the real ones were seen to start the program: 4.1.4, 5.0.11, 5.0.2, 2021.18.1.
    for name, option in product(family.split(), options.split()):
        dash = "--" if name.startswith("openmpi") and len(option) > 1 else "-"
        found = line(f"{dash}{option} {'value ' * values}-n 3 ./prog", name)
        assert not found.unknown, option
        (app,) = found.apps
        assert app.program is not None
        assert (app.np, found.argv[app.program]) == (3, "./prog")


def test_an_mpirun_is_known_by_its_name() -> None:
    for word in ("mpirun", "/usr/bin/mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi"):
        assert is_mpirun(word)
    assert not any(map(is_mpirun, ("./mpirun_test", "horovodrun", "python", "", "mpirun/x")))
    for word, name in (
        *((word, word) for word in ("mpiexec", "/opt/o/bin/mpiexec", "bin/mpirun")),
        ("prterun", "mpirun"),
        ("/opt/o/bin/prterun", "/opt/o/bin/mpirun"),
        ("./a", ""),
    ):
        assert called([word, "./p"]) == name


_options = sorted(ORTE.options)
_words = st.one_of(
    st.sampled_from([f"-{name}" for name in _options] + [f"--{name}" for name in _options]),
    st.sampled_from(["1", "2", "node", "./prog", ":", "--", "a:2,b", "-", "x=y"]),
    st.text(max_size=6),
)


@given(st.lists(_words, max_size=12), st.sampled_from(MpiFamily))
def test_any_words_are_read_without_an_error_and_only_changed_with_a_word(
    words: list[str], family: MpiFamily
) -> None:
    found = read(["mpirun", *words], family)
    assert found.rewritten or found.argv == ("mpirun", *words)
    for app in found.apps:
        assert app.program is None or 0 < app.program < len(found.argv)
        assert app.np is None or app.np > 0
    assert found.per_node != 0
    assert all(0 < index < len(found.argv) for index in found.hostfile_words)
    assert found.unknown in found.argv if found.reason else not found.unknown


ENDPOINT = {"PET_RDZV_ENDPOINT": "c:1"}


@pytest.mark.parametrize(
    ("line", "environ", "host", "by"),
    [
        ("torchrun --rdzv_endpoint=trainer-0:29500 a.py", {}, "trainer-0", "--rdzv-endpoint"),
        ("torchrun --rdzv-endpoint trainer-0 a.py", {}, "trainer-0", "--rdzv-endpoint"),
        ("torchrun --rdzv-endpoint [fd00::1]:29500 a.py", {}, "fd00::1", "--rdzv-endpoint"),
        ("torchrun --rdzv-endpoint=fd00::1 a.py", {}, "fd00::1", "--rdzv-endpoint"),
        ("python -m torch.distributed.run --master_addr t-0.t a.py", {}, "t-0.t", "--master-addr"),
        ("torchrun --master-addr b --rdzv-endpoint a:1 x", ENDPOINT, "a", "--rdzv-endpoint"),
        ("torchrun x.py", ENDPOINT, "c", "PET_RDZV_ENDPOINT"),
        ("torchrun --rdzv-endpoint= x.py", ENDPOINT, "c", "PET_RDZV_ENDPOINT"),
        ("torchrun x", {"PET_MASTER_ADDR": "d", "MASTER_ADDR": "e"}, "d", "PET_MASTER_ADDR"),
        ("python x.py", {"MASTER_ADDR": " e ", "MASTER_PORT": "1"}, "e", "MASTER_ADDR"),
        ("torchrun --standalone x.py", {"MASTER_ADDR": "e"}, "", ""),
        ("python x.py", {"MASTER_ADDR": ""}, "", ""),
        *((f"torchrun --rdzv-endpoint{more}", {}, "", "") for more in ("", "=:29500", "s=a x.py")),
    ],
)
def test_the_host_to_meet_at_is_what_the_strongest_says(
    line: str, environ: dict[str, str], host: str, by: str
) -> None:
    expected = Rendezvous(host, by) if host else None
    assert program_words.find_rendezvous(line.split(), environ) == expected
