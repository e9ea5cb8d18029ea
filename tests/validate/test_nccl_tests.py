"""What nccl-tests print, by release, and the verdict on a run by tables of values.

There are no GPUs here: the lines are those of nccl-tests' source (src/util.cu) and of reports in
its issues.
"""

from __future__ import annotations

from typing import Any

import pytest

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.validate.nccl_tests import Run, Sample, ToolOptions, judge

# By the source of 2.17; older ones have the same columns, 2.17.6 adds a timestamp on request,
# 2.19.2 statistics of the iterations.
HEAD = """\
# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid 895544 on     h100-2 device  0 [0002:00:01] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""  # noqa: E501 - as it is printed
ROW = "   134217728      33554432     float     sum      -1   2513.0   53.41   93.46      0   2419.9   55.48   97.09      0\n"  # noqa: E501
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 95.3009 \n#\n"
GOOD = Sample(134217728, 95.275, 0)
CELLS = "2401.0 1.2e+06 2777.0 3.10"
WITH_STATISTICS = ROW.replace("    0 ", f"    0  {CELLS} ", 1)
FORMATS = {
    "2.17.6": (HEAD, ROW),
    "2.17.6 -T": (HEAD, ROW.replace("\n", "   2026-01-02 03:04:05\n")),
    "2.19.6 with statistics": (
        HEAD.replace("#wrong", "#wrong i_min i_max i_p99 i_cv%"),
        WITH_STATISTICS.replace("     0\n", f"     0  {CELLS}\n"),
    ),
}


def read(text: str, step: int = 1 << 20) -> tuple[Run, str]:
    """Feed a text in pieces of some bytes."""
    run, data = Run(), text.encode(errors="surrogateescape")
    pieces = (data[at : at + step] for at in range(0, len(data), step))
    return run, "".join(map(run.feed, pieces))


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("step", [1, 7, 4096])
def test_rows_are_read_as_they_come(version: str, step: int) -> None:
    text = "".join(FORMATS[version]) + FOOT
    run, shown = read(text, step)
    assert run.samples == [GOOD]
    assert shown == text
    assert run.heads < 2


WARN = "node1:15465:15480 [0] misc/socket.cc:58 NCCL WARN socketProgressOpt: Call to recv failed\n"


@pytest.mark.parametrize(
    ("row", "samples"),
    [
        (ROW.replace("    0 ", "  N/A ", 1).replace("      0\n", "    N/A\n"), [(95.275, None)]),
        (ROW.replace("      0\n", "      3\n"), [(95.275, 3)]),
        (ROW.replace("      0\n", "  1e+06\n"), [(95.275, 1_000_000)]),
        (ROW.replace("\n", " " + WARN), [(95.275, 0)]),
        (ROW[:70] + "\n", []),
        *[(text, []) for text in ("\0\udcff\n", "1\n", "9" * 5000 + " 1\n", "nan nan\n", "#" * 99)],
    ],
    ids=["unchecked", "wrong", "a float", "before NCCL's", "cut off", *"12345"],
)
def test_cells_that_differ(row: str, samples: list[tuple[float, int | None]]) -> None:
    assert [(item.busbw, item.wrong) for item in read(HEAD + row)[0].samples] == samples
    assert read(row)[0].samples == []  # without a header


def test_an_unfinished_line_waits_for_its_end() -> None:
    run, shown = read(HEAD + ROW + ROW[:70])
    assert (run.samples, run.rest) == ([GOOD], ROW[:70])
    assert shown == HEAD + ROW


def test_what_ranks_report_is_read_by_host_and_not_shown() -> None:
    lines = (
        *("mpiboot-validate|w-0|start|all_reduce_perf", "mpiboot-validate|w-1|start|all_gather"),
        *("[1,0]<stdout>: mpiboot-validate|w-0|nccl|Using network IB", "mpiboot-validate|"),
        *("mpiboot-validate|w-2|missing|all_reduce_perf in /bin", "mpiboot-validate|w-0|nccl|a|b"),
    )
    run, shown = read("\n".join(lines) + "\n")
    assert run.started == {"w-0": "all_reduce_perf", "w-1": "all_gather"}
    assert run.nccl == {"w-0": {"Using network IB", "a|b"}}
    assert run.missing == {"w-2": "all_reduce_perf in /bin"}
    assert shown == ""


GIB = 1 << 30


def ports(*rates: float, rdma: bool = True) -> dict[str, Any]:
    """A host's ports as the job's record has them; rates in Gb/s."""
    return {
        f"mlx5_{at}:1": {"rdma": rdma, "data": True, "rate": rate * 1e9, "mtu": 0}
        for at, rate in enumerate(rates)
    }


def record(planned: str = "RoCE", verdict: str = "ok", **hosts: Any) -> dict[str, Any]:  # noqa: ANN401
    hosts = hosts or {"w-0": ports(400.0), "w-1": ports(400.0)}
    transport = {"planned": planned, "verdict": verdict, "message": "no byte", "hosts": hosts}
    return {"version": 1, "ranks": 16, "transport": transport}


def run(busbw: float = 45.0, nccl: str = "Using network IB", **given: Any) -> Run:  # noqa: ANN401
    """A run of nccl-tests on two hosts of one 400 Gb/s port each."""
    wrong = given.pop("wrong", 0)
    samples = [Sample(1024, 0.1, 0), *(Sample(GIB << at, busbw, wrong) for at in range(3))]
    started = dict.fromkeys(("w-0", "w-1"), "all_reduce_perf")
    lines = {"w-0": {"Using network IB"}, "w-1": set(nccl.splitlines())}
    whole = {"samples": samples, "started": started, "nccl": lines, "record": record()}
    return Run(**{**whole, **given})


def asked(**given: Any) -> Any:  # noqa: ANN401
    return {"options": ToolOptions(**given)}


SMALL = [Sample(1024, 0.1, 0)]
SOCKET = "Using network Socket"
# A run; the reference of what fails, empty where it is fit; a part of the message.
JUDGED: dict[str, tuple[Run, str, str]] = {
    "good": (run(), "", "45 GB/s average bus bandwidth at 1 GiB to 4 GiB, 90% of the 50 GB/s"),
    "too slow": (run(30.0), "bandwidth", "60% of the 50 GB/s that the ports of a host"),
    "less is expected": (run(30.0, **asked(fraction=0.5)), "", "60%"),
    "more is expected": (run(**asked(fraction=0.95)), "bandwidth", "95% are expected"),
    "in GB/s": (run(30.0, **asked(busbw=29.0)), "", "30 GB/s"),
    "not in GB/s": (run(30.0, **asked(busbw=31.0)), "bandwidth", "31 GB/s are required"),
    "wrong": (
        *(run(30.0, wrong=3), "wrong-results"),
        "9 wrong values in messages of 1 GiB, 2 GiB, 4 GiB",
    ),
    "socket": (
        *(run(3.0, SOCKET), "transport"),
        "RoCE was planned, NCCL used TCP on 1 of 2 hosts (w-1)",
    ),
    "counters": (run(record=record(verdict="unused")), "transport", "no byte"),
    "by NVLink": (run(record=record(verdict="unknown")), "", "45 GB/s"),
    "nothing was planned": (run(3.0, SOCKET, record=record("none")), "", "3 GB/s average bus"),
    "no record": (run(3.0, record={}), "", "3 GB/s average bus bandwidth"),
    "small messages alone": (run(samples=[Sample(1 << 20, 1.0, 0)]), "", "2% of"),
    "hangs": (
        *(run(samples=[], over=True), "not-measured"),
        "nothing was measured within 1m: the tool hangs",
    ),
    "hangs later": (run(30.0, over=True), "bandwidth", "60%"),
    "hangs early": (
        *(run(samples=SMALL, over=True, started={"w-0": "a"}), "not-measured"),
        "at 1 KiB; time was up before 16 MiB",
    ),
    "hangs early, and is fast enough": (
        *(run(samples=SMALL, over=True, started={"w-0": "a"}, **asked(busbw=0.1)), ""),
        "at 1 KiB",
    ),
    "a crash": (
        *(run(samples=[], code=139), "not-measured"),
        "all_reduce_perf ended without a result that could be read, exit 139",
    ),
    "the job did not start": (
        *(run(samples=[], started={}, record={"reason": "no route"}, code=72), "not-measured"),
        "no route",
    ),
    "one host lacks it": (
        *(run(missing={"w-1": "all_reduce_perf in /bin"}), "program-missing"),
        "no nccl-tests on w-1: looked for all_reduce_perf in /bin",
    ),
    "without MPI": (run(heads=2), "not-measured", "built without MPI"),
    "not a ring's": (run(3.0, started=dict.fromkeys("ab", "alltoall_perf")), "", "3 GB/s"),
    "inside a pod": (run(3.0, started={"w-0": "all_reduce_perf"}), "", "3 GB/s"),
}


@pytest.mark.parametrize(("given", "reference", "message"), JUDGED.values(), ids=JUDGED)
def test_a_run_is_judged(given: Run, reference: str, message: str) -> None:
    verdict = judge(given)
    assert message in verdict.finding.message
    assert verdict.fit == (not reference)
    if reference:
        assert verdict.finding.check == reference
        assert verdict.finding.hint
        assert reference in BY_REFERENCE


UNKNOWN = "which ports carry the data, or their rates, are not known: no fraction"


def test_what_the_ports_carry() -> None:
    two, none = ports(400, 400), {"version": 1, "transport": {"planned": "RoCE", "hosts": {}}}
    cases = [
        (record(), 50.0),
        (record(a=two, b=two), 100.0),
        (record("InfiniBand"), 50.0),
        (record("TCP", a=ports(10, rdma=False)), 1.25),
        (record(a=two, b=ports(400)), 50.0),
        *[(found, 0.0) for found in (record(a=two, b=ports(0)), record(a={}), none)],
    ]
    for given, limit in cases:
        verdict = judge(run(record=given))
        assert verdict.limit == pytest.approx(limit, rel=1e-3), given
        assert (UNKNOWN in verdict.notes) == (not limit), given


NO_GPUDIRECT = "no GPUDirect RDMA"


def test_notes() -> None:
    def notes(given: Run) -> str:
        return "\n".join(("", *judge(given).notes))

    assert "\ntime was up (1m) after 4 GiB" in notes(run(over=True))
    assert f"\n{NO_GPUDIRECT}" in notes(run(nccl="Using network IB\nvia NET/IB/0"))
    assert "\nNCCL's network: Socket on w-1" in notes(run(nccl=SOCKET, record={}))
    other = run(started=dict.fromkeys("ab", "/x/alltoall_perf"))
    assert "\n/x/alltoall_perf is no ring over the ports: no fraction" in notes(other)
    assert "\ninside one pod: no network was involved" in notes(
        run(started={"w-0": "all_reduce_perf"})
    )
    for paths in ("via NET/Socket/0", "via NET/IB/0\nvia NET/IB/1/GDRDMA"):
        assert NO_GPUDIRECT not in notes(run(nccl=f"Using network IB\n{paths}"))
