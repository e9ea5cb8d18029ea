from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.model import MpiFamily
from mpiboot.job.mpirun_line import UserLine, read
from mpiboot.job.mpirun_options import ORTE
from mpiboot.job.program_words import called, is_mpirun, misquoted_args


def line(text: str, family: str = "openmpi4") -> UserLine:
    return read(["mpirun", *text.split()], MpiFamily(family))


def index_in(line: UserLine) -> int | None:
    """Where the line's first program stands."""
    return line.apps[0].program if line.apps else None


@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
def test_a_usual_line_is_read_to_the_program(family: str) -> None:
    found = line(
        "--allow-run-as-root -np 16 -N 8 --map-by node --bind-to none -x NCCL_DEBUG=INFO -x PATH "
        "--mca btl self,tcp -mca pml ob1 --tag-output --timeout 60 ./prog -n 3 --unknown",
        family,
    )
    assert found.unknown == ""
    assert found.program == "./prog"
    assert (found.np, found.per_node, found.policy) == (16, 8, "node")
    assert (found.given["bind-to"], found.given["timeout"]) == ("none", "60")
    assert found.exports == {"NCCL_DEBUG": "INFO", "PATH": None}
    assert found.mca == {"btl": "self,tcp", "pml": "ob1"}
    assert "tag-output" in found.given
    assert found.settles_ranks


@pytest.mark.parametrize("spelling", ["-n", "--n", "-np", "--np", "-c"])
@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
def test_the_number_of_ranks_has_many_spellings(spelling: str, family: str) -> None:
    assert line(f"{spelling} 3 ./prog", family).np == 3


def test_open_mpi_5_and_hydra_take_a_value_behind_an_equals_sign_and_4_does_not() -> None:
    assert line("--np=2 ./prog", "openmpi5").np == 2
    assert line("--mca=btl self ./prog", "openmpi5").mca == {"btl": "self"}
    assert line("-n=2 ./prog", "mpich").np == 2
    refused = line("--np=2 ./prog", "openmpi4")
    assert (refused.np, refused.unknown) == (None, "--np=2")


def test_of_an_option_given_twice_the_last_counts_in_4_and_the_first_in_5() -> None:
    text = "-n 1 -n 3 -N 2 -N 1 --map-by slot --map-by node ./prog"
    four, five = line(text), line(text, "openmpi5")
    assert (four.np, four.per_node, four.policy) == (3, 1, "node")
    assert (five.np, five.per_node, five.policy) == (1, 2, "slot")


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
    assert line(written).rewritten == ()


def test_a_rewritten_option_says_what_it_says() -> None:
    found = line("-bind-to socket -map-by=ppr:1:node ./p", "openmpi5")
    assert (found.given["bind-to"], found.given["map-by"]) == ("socket", "ppr:1:node")
    assert found.places["map-by"] == (3,)
    assert found.rewritten == ("-bind-to", "-map-by=ppr:1:node")
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
@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
def test_which_mpirun_a_line_calls_and_whose_daemons_it_starts(
    program: str, name: str, path: str, family: str
) -> None:
    words = program.split()
    assert called(words) == name
    assert read(words, MpiFamily(family)).daemons_mpirun == path


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("--novm ./p", "openmpi5"),
        ("-n 2 --report-events x ./p", "openmpi5"),
        ("--display map ./p", "openmpi4"),
        ("--prtemca a b ./p", "openmpi4"),
        ("-q ./p", "openmpi5"),
        ("-bind-to-socket ./p", "openmpi5"),
    ],
)
def test_an_option_that_only_the_other_open_mpi_has_is_passed_on_as_it_is(
    text: str, family: str
) -> None:
    found = line(text, family)
    assert found.unknown == next(word for word in text.split() if word not in ("-n", "2"))
    assert found.argv == ("mpirun", *text.split())
    other = {"openmpi4": "openmpi5", "openmpi5": "openmpi4"}[family]
    assert line(text, other).unknown == ""


def test_reading_stops_at_the_first_unknown_option_and_keeps_what_was_read() -> None:
    found = line("-n 2 --frobnicate 7 --map-by node ./prog : -n 3 ./other")
    assert found.unknown == "--frobnicate"
    assert "--frobnicate" in found.reason
    assert (found.np, found.policy, index_in(found)) == (2, "", None)
    assert found.settles_ranks
    assert not found.may_hide_hosts


@pytest.mark.parametrize("rest", ["-H w-0", "--host w-0", "--hostfile x", "--tune x"])
def test_what_was_not_read_may_choose_other_hosts(rest: str) -> None:
    assert line(f"--frobnicate {rest} ./prog").may_hide_hosts
    assert not line(f"--tag-output {rest} ./prog").may_hide_hosts


def test_the_rest_of_a_line_begins_behind_the_word_that_is_not_known() -> None:
    """That word may stand before as an option's value."""
    found = line("-x --zap --hostfile h --zap ./prog")
    assert (found.unknown, found.may_hide_hosts) == ("--zap", False)
    assert line("-zap -HOSTS a ./prog", "mpich").may_hide_hosts


def test_an_option_is_told_as_it_is_written() -> None:
    assert line("--host=+n1 ./prog", "openmpi5").moves_hosts == ("--host=+n1",)
    assert line("-n=x ./prog", "mpich").reason == "-n=x: expected a number"
    assert line("-n x ./prog").reason == "-n x: expected a number"


@pytest.mark.parametrize(
    "text", ["-n", "-n x ./prog", "-n -1 ./prog", "--mca btl", "-x", "-N two ./prog", "-H"]
)
def test_an_option_without_its_value_ends_the_reading(text: str) -> None:
    found = line(text)
    assert found.unknown == text.split(maxsplit=1)[0]
    assert found.np is None


def test_no_ranks_asked_for_is_no_number() -> None:
    assert (line("-n 0 ./prog").np, line("-n 0 ./prog").settles_ranks) == (None, True)
    assert line("./prog").np is None
    assert not line("./prog").settles_ranks
    assert UserLine().np is None
    assert not UserLine().settles_ranks


@pytest.mark.parametrize("hosts", ["+n1", "+e", "a:2,+n1", "a,", "fd00::1"])
def test_hosts_that_are_not_plain_names_are_left_to_mpirun(hosts: str) -> None:
    found = line(f"-H b -H {hosts} ./prog")
    assert (found.moves_hosts, found.hosts) == ((f"-H {hosts}",), ())


@pytest.mark.parametrize("hosts", ["a:8,b:*", "a:0,b:2"])
def test_the_slots_of_a_host_may_be_left_to_mpirun(hosts: str) -> None:
    found = line(f"-H {hosts} ./prog")
    assert [host.name for host in found.hosts] == ["a", "b"]
    assert (found.moves_ranks, found.moves_hosts) == ((f"-H {hosts}",), ())


@pytest.mark.parametrize("option", ["--hostfile", "-hostfile", "--machinefile", "-machinefile"])
def test_a_hostfile_is_found_with_the_place_of_its_word(option: str) -> None:
    found = line(f"-n 2 {option} /my/hosts ./prog")
    assert found.hostfiles == ("/my/hosts",)
    assert [found.argv[index] for index in found.hostfile_words] == ["/my/hosts"]


def test_a_hostfile_wins_over_the_default_one_and_a_parameter_names_it_too() -> None:
    assert line("--default-hostfile a --hostfile b ./prog").hostfiles == ("b",)
    assert line("--hostfile b --default-hostfile a ./prog").hostfiles == ("b",)
    found = line("--mca orte_default_hostfile /x ./prog")
    assert (found.hostfiles, [found.argv[i] for i in found.hostfile_words]) == (("/x",), ["/x"])
    assert line("--mca orte_default_hostfile /x ./prog", "openmpi5").hostfiles == ()
    assert line("--prtemca prte_default_hostfile /x ./prog", "openmpi5").hostfiles == ("/x",)


def test_each_program_has_its_own_hostfile_but_with_hydra_where_the_last_one_is_that_of_all() -> (
    None
):
    text = "-f a -n 1 ./one : -f b -n 1 ./two : -f a -n 1 ./three"
    assert line(text, "intel").hostfiles == ("a",)
    assert line("-f a -f b ./one", "intel").hostfiles == ("b",)
    assert line(text.replace("-f", "--hostfile")).hostfiles == ("a", "b")


def test_several_programs_are_read_each_with_its_own_options() -> None:
    found = line("-n 2 -H a ./one x : -n 3 -x FOO ./two")
    assert [app.np for app in found.apps] == [2, 3]
    assert [found.argv[app.program or 0] for app in found.apps] == ["./one", "./two"]
    assert found.np == 5
    assert [*found.exports] == ["FOO"]
    assert line("-n 2 ./one : ./two").np is None


@pytest.mark.parametrize(
    ("text", "policy", "has"),
    [
        ("--map-by node:oversubscribe", "node", "pins"),
        ("--map-by :OVERSUBSCRIBE", "", ""),
        ("--map-by NODE:pe=1,oversubscribe", "node", "pins"),
        ("--map-by slot:nooversubscribe", "slot", "pins"),
        ("--map-by ppr:2:node", "ppr", "pins ranks"),
        ("--oversubscribe", "", ""),
        ("--bynode", "", "pins"),
        ("--pernode", "", "pins ranks"),
        ("--ppr 2:node", "", "pins ranks"),
    ],
)
def test_a_mapping_may_decide_the_number_of_ranks_and_their_cpus(
    text: str, policy: str, has: str
) -> None:
    found = line(f"{text} ./prog")
    assert found.policy == policy
    assert found.settles_ranks == ("ranks" in has)
    assert found.pinned_by == (text,) * ("pins" in has)


def test_options_that_move_ranks_or_hosts_in_other_ways_are_named() -> None:
    assert line("--rankfile x ./prog").moves_ranks == ("--rankfile x",)
    assert line("--mca rmaps_base_mapping_policy node ./prog").moves_ranks == (
        "rmaps_base_mapping_policy node",
    )
    assert line("--novm ./prog").moves_hosts == ("--novm",)
    assert line("-N 0 ./prog").moves_ranks == ("-N 0",)
    assert line("-configfile x", "mpich").moves_hosts == ("-configfile x",)
    assert line("--nolocal ./prog").moves_ranks == ("--nolocal",)
    assert line("-skip-launch-node ./prog", "mpich").moves_ranks == ("-skip-launch-node",)


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


def test_one_rank_per_host_has_many_names() -> None:
    assert line("--pernode ./prog").per_node == line("-npernode 1 ./prog").per_node == 1
    for words in ("-ppn 1", "-perhost 1", "-grr 1", "-rr"):
        assert line(f"{words} -n 4 ./prog", "intel").per_node == 1
    assert line("-perhost 1 ./prog", "mpich").unknown == "-perhost"


def test_two_dashes_alone_end_the_options_of_open_mpi() -> None:
    found = line("-n 2 -- -prog")
    assert found.program == "-prog"
    assert line("-- ./prog", "mpich").unknown == "--"


def test_hydras_launch_agent_and_its_kind_are_read() -> None:
    found = line("-bootstrap fork -launcher-exec /opt/ssh ./prog", "mpich")
    assert (found.given["launcher"], found.given["launcher-exec"]) == ("fork", "/opt/ssh")
    assert found.places == {"launcher": (1, 2), "launcher-exec": (3, 4)}


def test_hydras_words_are_read_in_any_case_with_its_environment_options() -> None:
    found = line(
        "-NP 4 -ppn 2 -hosts a:2,b -genv A 1 -genv B=2 -genvlist C,D -iface eth0 -l ./prog", "mpich"
    )
    assert found.unknown == ""
    assert (found.np, found.per_node) == (4, 2)
    assert [(host.name, host.slots) for host in found.hosts] == [("a", 2), ("b", 1)]
    assert found.exports == {"A": "1", "B": "2", "C": None, "D": None}
    assert (found.program, found.settles_ranks) == ("./prog", True)


def test_the_program_is_known_where_it_is_one_and_stands_where_it_is_looked_for() -> None:
    assert line("-n 2 ./prog x").program == "./prog"
    for elsewhere in (
        "--wdir /x ./prog",
        "--preload-binary ./prog",
        "./one : ./two",
        "-n 2",
        "--o",
    ):
        assert line(elsewhere).program == ""


def test_of_an_mpi_without_a_table_nothing_is_read() -> None:
    found = line("-n 2 ./prog", MpiFamily.UNKNOWN)
    assert (found.unknown, found.np, index_in(found)) == ("mpirun", None, None)
    assert found.may_hide_hosts


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
        ("mpich intel", "-n 2 -bind-to -help ./prog", "-bind-to"),
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
