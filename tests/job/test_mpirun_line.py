"""What is read of an mpirun line: a table of lines, each with what the record has of them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.model import MpiFamily
from mpiboot.job.mpirun_line import UserLine, read
from mpiboot.job.mpirun_options import ORTE
from mpiboot.job.program_words import called, is_mpirun, misquoted_args

OPEN_MPI, HYDRA = "openmpi4 openmpi5", "mpich intel"
USUAL = (
    "--allow-run-as-root -np 16 -N 8 --map-by node --bind-to none -x NCCL_DEBUG=INFO -x PATH "
    "--mca btl self,tcp -mca pml ob1 --tag-output --timeout 60 ./prog -n 3 --unknown"
)
HYDRAS = "-NP 4 -ppn 2 -hosts a:2,b -genv A 1 -genv B=2 -genvlist C,D -iface eth0 -l ./prog"
TWICE = "-n 1 -n 3 -N 2 -N 1 --map-by slot --map-by node ./prog"
STOPS = "-n 2 --frobnicate 7 --map-by node ./prog : -n 3 ./other"
SEVERAL = "-n 2 -H a ./one x : -n 3 -x FOO ./two"
FILES = "-f a -n 1 ./one : -f b -n 1 ./two : -f a -n 1 ./three"


def line(text: str, family: str = "openmpi4") -> UserLine:
    return read(["mpirun", *text.split()], MpiFamily(family))


@pytest.mark.parametrize(
    ("families", "text", "expected"),
    [
        (OPEN_MPI, USUAL, {"unknown": "", "program": "./prog", "np": 16, "per_node": 8}),
        (OPEN_MPI, USUAL, {"policy": "node", "decides_ranks": True}),
        (OPEN_MPI, USUAL, {"exports": {"NCCL_DEBUG": "INFO", "PATH": None}}),
        (OPEN_MPI, USUAL, {"mca": {"btl": "self,tcp", "pml": "ob1"}}),
        *((OPEN_MPI, f"{name} 3 ./prog", {"np": 3}) for name in ("-n", "--n", "-np", "-c")),
        # Which value counts, and where it may stand.
        ("openmpi4", TWICE, {"np": 3, "per_node": 1, "policy": "node"}),
        ("openmpi5", TWICE, {"np": 1, "per_node": 2, "policy": "slot"}),
        ("openmpi5", "--np=2 ./prog", {"np": 2}),
        ("openmpi5", "--mca=btl self ./prog", {"mca": {"btl": "self"}}),
        ("mpich", "-n=2 ./prog", {"np": 2}),
        ("openmpi4", "--np=2 ./prog", {"np": None, "unknown": "--np=2"}),
        # What no option takes ends the reading.
        ("openmpi4", STOPS, {"unknown": "--frobnicate", "np": 2, "policy": "", "program": ""}),
        ("openmpi4", STOPS, {"decides_ranks": True, "may_hide_hosts": False}),
        # The word may stand before as an option's value.
        ("openmpi4", "-x --z --hostfile h --z ./a", {"unknown": "--z", "may_hide_hosts": False}),
        ("mpich", "-zap -HOSTS a ./prog", {"may_hide_hosts": True}),
        ("mpich", "-n=x ./prog", {"reason": "-n=x: expected a number"}),
        ("openmpi4", "-n x ./prog", {"reason": "-n x: expected a number"}),
        *(
            ("openmpi4", text, {"unknown": text.split(maxsplit=1)[0], "np": None})
            for text in ("-n", "-n x ./a", "-n -1 ./a", "--mca btl", "-x", "-N two ./a", "-H")
        ),
        *(
            ("openmpi4", f"--frobnicate {rest} ./prog", {"may_hide_hosts": True})
            for rest in ("-H w-0", "--host w-0", "--hostfile x", "--tune x")
        ),
        ("", "-n 2 ./prog", {"unknown": "mpirun", "np": None, "apps": [], "may_hide_hosts": True}),
        # The number of ranks.
        ("openmpi4", "-n 0 ./prog", {"np": None, "decides_ranks": True}),
        ("openmpi4", "./prog", {"np": None, "decides_ranks": False}),
        ("openmpi4", "-n 2 ./one : ./two", {"np": None}),
        ("openmpi4", "--pernode ./prog", {"per_node": 1}),
        *(("intel", f"{words} ./prog", {"per_node": 1}) for words in ("-ppn 1", "-grr 1", "-rr")),
        ("mpich", "-perhost 1 ./prog", {"unknown": "-perhost"}),
        # Hosts that are not plain names, or whose slots are not known, are left to mpirun.
        *(
            ("openmpi4", f"-H b -H {hosts} ./prog", {"moves_hosts": [f"-H {hosts}"], "hosts": ()})
            for hosts in ("+n1", "+e", "a:2,+n1", "a,", "fd00::1")
        ),
        ("openmpi4", "-H a:8,b:* ./prog", {"moves_ranks": ["-H a:8,b:*"], "moves_hosts": []}),
        ("openmpi4", "-H a:0,b:2 ./prog", {"moves_ranks": ["-H a:0,b:2"], "moves_hosts": []}),
        ("openmpi5", "--host=+n1 ./prog", {"moves_hosts": ["--host=+n1"]}),
        # Hostfiles.
        *(
            ("openmpi4", f"-n 2 {name} /x ./prog", {"hostfiles": ["/x"], "hostfile_words": [4]})
            for name in ("--hostfile", "-hostfile", "--machinefile", "-machinefile")
        ),
        ("openmpi4", "--default-hostfile a --hostfile b ./prog", {"hostfiles": ["b"]}),
        ("openmpi4", "--hostfile b --default-hostfile a ./prog", {"hostfiles": ["b"]}),
        ("openmpi4", "--mca orte_default_hostfile /x ./p", {"hostfiles": ["/x"]}),
        ("openmpi4", "--mca orte_default_hostfile /x ./p", {"hostfile_words": [3]}),
        ("openmpi5", "--mca orte_default_hostfile /x ./p", {"hostfiles": []}),
        ("openmpi5", "--prtemca prte_default_hostfile /x ./p", {"hostfiles": ["/x"]}),
        ("intel", FILES, {"hostfiles": ["a"]}),
        ("intel", "-f a -f b ./one", {"hostfiles": ["b"]}),
        ("openmpi4", FILES.replace("-f", "--hostfile"), {"hostfiles": ["a", "b"]}),
        # Mappings, and what they decide.
        ("openmpi4", "--map-by node:oversubscribe ./a", {"policy": "node", "decides_ranks": False}),
        ("openmpi4", "--map-by :OVERSUBSCRIBE ./a", {"policy": "", "pinned_by": []}),
        ("openmpi4", "--map-by NODE:pe=1 ./a", {"policy": "node", "moves_ranks": []}),
        ("openmpi4", "--map-by slot:pe=1 ./a", {"pinned_by": ["--map-by slot:pe=1"]}),
        ("openmpi4", "--map-by ppr:2:node ./a", {"policy": "ppr", "decides_ranks": True}),
        ("openmpi4", "--oversubscribe ./a", {"pinned_by": [], "decides_ranks": False}),
        ("openmpi4", "--bynode ./a", {"pinned_by": ["--bynode"], "decides_ranks": False}),
        ("openmpi4", "--pernode ./a", {"pinned_by": ["--pernode"], "decides_ranks": True}),
        ("openmpi4", "--ppr 2:node ./a", {"pinned_by": ["--ppr 2:node"], "decides_ranks": True}),
        ("openmpi4", "--rankfile x ./a", {"moves_ranks": ["--rankfile x"]}),
        ("openmpi4", "--mca rmaps_x node ./a", {"moves_ranks": ["rmaps_x node"]}),
        ("openmpi4", "--novm ./a", {"moves_hosts": ["--novm"]}),
        ("openmpi4", "-N 0 ./a", {"moves_ranks": ["-N 0"], "per_node": None}),
        ("openmpi4", "--nolocal ./a", {"moves_ranks": ["--nolocal"]}),
        ("mpich", "-configfile x", {"moves_hosts": ["-configfile x"]}),
        ("mpich", "-skip-launch-node ./a", {"moves_ranks": ["-skip-launch-node"]}),
        # The program.
        ("openmpi4", "-n 2 -- -prog", {"program": "-prog"}),
        ("mpich", "-- ./prog", {"unknown": "--"}),
        *(
            ("openmpi4", text, {"program": ""})
            for text in ("--wdir /x ./a", "--preload-binary ./a", "./one : ./two", "-n 2", "--o")
        ),
        ("openmpi4", SEVERAL, {"np": 5, "exports": {"FOO": None}, "program": ""}),
        # Hydra's words, in any case.
        ("mpich", HYDRAS, {"unknown": "", "np": 4, "per_node": 2, "program": "./prog"}),
        ("mpich", HYDRAS, {"exports": {"A": "1", "B": "2", "C": None, "D": None}}),
        (
            "mpich",
            "-bootstrap fork -launcher-exec /opt/ssh ./prog",
            {"places": {"launcher": [1, 2], "launcher-exec": [3, 4]}},
        ),
    ],
)
def test_what_a_line_has(families: str, text: str, expected: dict[str, object]) -> None:
    for family in families.split() or [""]:
        found = line(text, family)
        assert {name: getattr(found, name) for name in expected} == expected


def test_hosts_and_programs_of_a_line() -> None:
    assert [(host.name, host.slots) for host in line(HYDRAS, "mpich").hosts] == [("a", 2), ("b", 1)]
    assert [host.name for host in line("-H a:8,b:* ./prog").hosts] == ["a", "b"]
    several = line(SEVERAL)
    programs = [(app.np, several.argv[app.program or 0]) for app in several.apps]
    assert programs == [(2, "./one"), (3, "./two")]
    assert (UserLine().np, UserLine().decides_ranks) == (None, False)


@pytest.mark.parametrize(
    ("written", "got"),
    [
        ("-n 2 -bind-to none -map-by slot ./p -bind-to x", "-n 2 --bind-to none --map-by slot"),
        ("-map-by=node --bind-to none ./p -bind-to x", "--map-by=node --bind-to none"),
        ("-rank-by slot ./p -bind-to x", "--rank-by slot"),
        ("-bind-to none ./q : -n 1 -map-by node ./p -bind-to x", "--bind-to none ./q : -n 1"),
        ("-bind-to none --frobnicate ./p -bind-to x", "--bind-to none --frobnicate"),
        ("-bind-to none -bind-to core ./p -bind-to x", "--bind-to none --bind-to core"),
    ],
)
def test_one_dash_that_5_0_reads_otherwise_becomes_two_and_is_said(written: str, got: str) -> None:
    found = line(written, "openmpi5")
    assert " ".join(found.argv).startswith(f"mpirun {got} ")
    assert found.argv[-3:] == ("./p", "-bind-to", "x")
    if not found.unknown:
        assert found.argv[found.apps[-1].program or 0] == "./p"
    assert found.rewritten
    assert not line(" ".join(found.argv[1:]), "openmpi5").rewritten
    assert line(written).rewritten == []


def test_a_rewritten_option_says_what_it_says() -> None:
    found = line("-bind-to socket -map-by=ppr:1:node ./p", "openmpi5")
    assert (found.given["bind-to"], found.given["map-by"]) == ("socket", "ppr:1:node")
    assert found.places["map-by"] == [3]
    assert found.rewritten == ["-bind-to", "-map-by=ppr:1:node"]
    lacking = line("-n 2 -bind-to", "openmpi5")
    assert (lacking.unknown, lacking.argv[-1]) == ("--bind-to", "--bind-to")


@pytest.mark.parametrize(
    ("program", "name", "path"),
    [
        ("mpirun -n 2 ./p", "mpirun", ""),
        ("mpiexec ./p", "mpiexec", ""),
        ("/opt/o/bin/mpiexec ./p", "/opt/o/bin/mpiexec", "/opt/o/bin/mpiexec"),
        ("bin/mpirun ./p", "bin/mpirun", ""),
        ("prterun ./p", "mpirun", ""),
        ("/opt/o/bin/prterun ./p", "/opt/o/bin/mpirun", "/opt/o/bin/prterun"),
        ("mpirun --prefix /opt/o/ ./p", "mpirun", "/opt/o/bin/mpirun"),
        ("/usr/bin/mpirun -prefix /opt/o ./p", "/usr/bin/mpirun", "/opt/o/bin/mpirun"),
    ],
)
def test_which_mpirun_a_line_calls_and_whose_daemons_it_starts(
    program: str, name: str, path: str
) -> None:
    words = program.split()
    assert called(words) == name
    assert {read(words, MpiFamily(family)).daemons_mpirun for family in OPEN_MPI.split()} == {path}


@pytest.mark.parametrize(
    ("text", "family", "other"),
    [
        *((text, *OPEN_MPI.split()) for text in ("--display map ./p", "--prtemca a b ./p")),
        *(
            (text, *reversed(OPEN_MPI.split()))
            for text in (
                "--novm ./p",
                "-n 2 --report-events x ./p",
                "-q ./p",
                "-bind-to-socket ./p",
            )
        ),
    ],
)
def test_an_option_that_only_the_other_open_mpi_has_is_passed_on_as_it_is(
    text: str, family: str, other: str
) -> None:
    found = line(text, family)
    assert found.unknown == next(word for word in text.split() if word not in ("-n", "2"))
    assert found.argv == ("mpirun", *text.split())
    assert line(text, other).unknown == ""


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
    """As the real ones were seen to start the program: 4.1.4, 5.0.11, 5.0.2, 2021.18.1."""
    for name, option in product(family.split(), options.split()):
        dash = "--" if name.startswith("openmpi") and len(option) > 1 else "-"
        found = line(f"{dash}{option} {'value ' * values}-n 3 ./prog", name)
        assert not found.unknown, option
        (app,) = found.apps
        assert app.program is not None
        assert (app.np, found.argv[app.program]) == (3, "./prog")


@pytest.mark.parametrize(
    "word", ["mpirun", "/usr/bin/mpirun", "mpiexec", "mpiexec.hydra", "prterun", "mpirun.openmpi"]
)
def test_an_mpirun_is_known_by_its_name(word: str) -> None:
    assert is_mpirun(word)


@pytest.mark.parametrize("word", ["./mpirun_test", "horovodrun", "python", "", "mpirun/x"])
def test_another_program_is_none(word: str) -> None:
    assert not is_mpirun(word)


def test_a_whole_line_in_one_argument_is_said() -> None:
    assert '"mpirun", "-n", "4", "./prog"' in misquoted_args(["mpirun -n 4 ./prog"])
    assert '"-n", "4", "./prog"' in misquoted_args(["mpirun", "-n 4 ./prog"])
    assert "hunter2" not in misquoted_args(["mpirun -x API_TOKEN=hunter2 ./prog --key hunter2"])
    assert misquoted_args(["mpirun", "-n", "4", "./prog", "a b c"]) == ""
    assert misquoted_args(["mpirun", "./prog", "-n 4 is my own"]) == ""
    assert misquoted_args(["/opt/my prog/run"]) == ""
    assert misquoted_args([]) == ""


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


@pytest.mark.parametrize(
    ("families", "line", "prints"),
    [
        ("openmpi4 openmpi5 mpich intel", "--help", "--help"),
        ("openmpi4 openmpi5 mpich intel", "-version", "-version"),
        ("openmpi4 openmpi5 intel", "-n 2 -V ./prog", "-V"),
        ("mpich", "-V -n 2 ./prog", ""),  # verbose
        ("mpich", "-INFO ./prog", "-INFO"),
        ("intel", "-INFO ./prog", ""),
        ("mpich intel", "-n 2 -info ./prog", "-info"),
        ("openmpi4 openmpi5", "-n 2 -info ./prog", ""),
        ("openmpi4 openmpi5", "-n 2 --bind-to core -h mapping", "-h"),
        ("openmpi5", "--help=all", "--help=all"),
        ("openmpi4", "--help all", "--help"),
        ("openmpi4", "-n 2 --map-by --help ./prog", ""),
        ("openmpi4 openmpi5 mpich intel", "--not-known 2 --version", ""),
        ("openmpi4 openmpi5 mpich intel", "-n 2 ./prog --version", ""),
        ("openmpi4 openmpi5 mpich intel", "-n 2 ./prog -h", ""),
        ("openmpi4", "-n 2 ./prog : --version ./prog", ""),
    ],
)
def test_an_option_that_prints_and_ends_is_known_before_the_program(
    families: str, line: str, prints: str
) -> None:
    words = ["mpirun", *line.split()]
    for family in families.split():
        assert read(words, MpiFamily(family)).prints == prints


def test_of_an_unknown_mpi_the_first_option_tells() -> None:
    assert read(["mpirun", "--version"], MpiFamily.UNKNOWN).prints == "--version"
    assert read(["mpirun", "-n", "2", "--version"], MpiFamily.UNKNOWN).prints == ""
