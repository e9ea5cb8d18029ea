"""The verdict by tables of values: limits, causes, and which of several failures is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.validate.nccl_tests import Output, Run, Sample, ToolOptions, judge

GIB = 1 << 30


def ports(*rates: float, rdma: bool = True) -> dict[str, Any]:
    """A host's ports as the job's record has them; rates in Gb/s."""
    return {
        f"mlx5_{at}:1": {"rdma": rdma, "data": True, "rate": rate * 1e9, "mtu": 0}
        for at, rate in enumerate(rates)
    }


def record(
    planned: str = "RoCE", hosts: dict[str, Any] | None = None, verdict: str = "ok"
) -> dict[str, Any]:
    hosts = hosts or {"w-0": ports(400.0), "w-1": ports(400.0)}
    transport = {"planned": planned, "verdict": verdict, "message": "no byte", "hosts": hosts}
    return {"version": 1, "ranks": 16, "transport": transport}


def run(busbw: float = 45.0, nccl: str = "", wrong: int = 0, **given: Any) -> Run:  # noqa: ANN401
    """A run of nccl-tests on two hosts of one 400 Gb/s port each."""
    samples = [Sample(1024, 0.1, 0), *(Sample(GIB << at, busbw, wrong) for at in range(3))]
    started = dict.fromkeys(("w-0", "w-1"), "all_reduce_perf")
    lines = {"w-0": {"Using network IB"}, "w-1": set(nccl.splitlines()) or {"Using network IB"}}
    made = Run(Output(samples, started, {}, lines), record())
    return replace(made, **given)


NONE = ToolOptions()
JUDGED: dict[str, tuple[Run, ToolOptions, str, str]] = {
    "good": (
        run(),
        NONE,
        "",
        "45 GB/s average bus bandwidth at 1 GiB to 4 GiB, 90% of the 50 GB/s",
    ),
    "too slow": (run(30.0), NONE, "bandwidth", "60% of the 50 GB/s that the ports of a host"),
    "less is expected": (run(30.0), ToolOptions(fraction=0.5), "", "60%"),
    "more is expected": (run(), ToolOptions(fraction=0.95), "bandwidth", "95% are expected"),
    "in GB/s": (run(30.0), ToolOptions(busbw=29.0), "", "30 GB/s"),
    "not in GB/s": (run(30.0), ToolOptions(busbw=31.0), "bandwidth", "31 GB/s are required"),
    "wrong": (
        run(30.0, wrong=3),
        NONE,
        "wrong-results",
        "9 wrong values in messages of 1 GiB, 2 GiB, 4 GiB",
    ),
    "socket": (
        run(3.0, "Using network Socket"),
        *(NONE, "transport", "RoCE was planned, NCCL used TCP on 1 of 2 hosts (w-1)"),
    ),
    "counters": (run(record=record(verdict="unused")), NONE, "transport", "no byte"),
    "by NVLink": (run(record=record(verdict="unknown")), NONE, "", "45 GB/s"),
    "nothing was planned": (
        *(run(3.0, "Using network Socket", record=record("none")), NONE, ""),
        "3 GB/s average bus bandwidth",
    ),
    "no record": (run(3.0, record={}), NONE, "", "3 GB/s average bus bandwidth"),
    "small messages alone": (
        replace(
            run(),
            output=Output([Sample(1 << 20, 1.0, 0)], dict.fromkeys("ab", "all_reduce_perf")),
        ),
        *(NONE, "", "2% of"),
    ),
    "hangs": (
        replace(run(), output=Output(started={"w-0": "all_reduce_perf"}), over=True),
        *(NONE, "not-measured", "nothing was measured within 1m: the tool hangs"),
    ),
    "hangs later": (run(30.0, over=True), NONE, "bandwidth", "60%"),
    "hangs early": (
        replace(run(), over=True, output=Output([Sample(1024, 0.1, 0)], {"w-0": "a"})),
        *(NONE, "not-measured", "at 1 KiB; time was up before 16 MiB"),
    ),
    "hangs early, and is fast enough": (
        replace(run(), over=True, output=Output([Sample(1024, 0.1, 0)], {"w-0": "a"})),
        *(ToolOptions(busbw=0.1), "", "at 1 KiB"),
    ),
    "a crash": (
        replace(run(), output=Output(started={"w-0": "all_reduce_perf"}), code=139),
        *(
            NONE,
            "not-measured",
            "all_reduce_perf ended without a result that could be read, exit 139",
        ),
    ),
    "one host lacks it": (
        replace(run(), output=Output(missing={"w-1": "all_reduce_perf in /bin"})),
        *(NONE, "program-missing", "no nccl-tests on w-1: looked for all_reduce_perf"),
    ),
    "without MPI": (
        replace(run(), output=replace(run().output, heads=2)),
        *(NONE, "not-measured", "built without MPI"),
    ),
    "not a ring's bandwidth": (
        replace(
            run(3.0), output=replace(run(3.0).output, started=dict.fromkeys("ab", "alltoall_perf"))
        ),
        *(NONE, "", "3 GB/s"),
    ),
    "inside a pod": (run(3.0, inside=True), NONE, "", "3 GB/s"),
}


@pytest.mark.parametrize(("given", "asked", "reference", "message"), JUDGED.values(), ids=JUDGED)
def test_a_run_is_judged(given: Run, asked: ToolOptions, reference: str, message: str) -> None:
    verdict = judge(replace(given, options=asked))
    assert message in verdict.finding.message
    assert verdict.fit == (not reference)
    if reference:
        assert verdict.finding.check == reference
        assert verdict.finding.hint


def test_a_missing_tool_is_reported_with_where_it_was_looked_for() -> None:
    output = Output(missing={"w-0": "all_reduce_perf in /bin:/opt"})
    assert judge(Run(output, {})).finding.evidence == ("in /bin /opt",)


RATES = {
    "RoCE": (record(), 50.0),
    "two rails": (record("RoCE", {"w-0": ports(400, 400), "w-1": ports(400, 400)}), 100.0),
    "NDR": (record("InfiniBand"), 50.0),
    "TCP": (record("TCP", {"w-0": ports(10, rdma=False)}), 1.25),
    "the least host's": (record("RoCE", {"w-0": ports(400, 400), "w-1": ports(400)}), 50.0),
    "unknown": (record("RoCE", {"w-0": ports(400), "w-1": ports(0)}), 0.0),
    "no port is known": (record("RoCE", {"w-0": {}}), 0.0),
}


@pytest.mark.parametrize(("given", "limit"), RATES.values(), ids=RATES)
def test_what_the_ports_carry(given: dict[str, Any], limit: float) -> None:
    verdict = judge(run(record=given))
    assert verdict.limit == pytest.approx(limit, rel=1e-3)


NOTES = {
    "unknown rate": (
        run(record=record("RoCE", {"w-0": ports(400), "w-1": ports(0)})),
        "which ports carry the data, or their rates, are not known: no fraction",
    ),
    "unread": (
        run(record={"version": 1, "transport": {"planned": "RoCE", "hosts": {}}}),
        "which ports carry the data, or their rates, are not known: no fraction",
    ),
    "cut off": (run(over=True), "time was up (1m) after 4 GiB"),
    "no GPUDirect": (run(nccl="Using network IB\nvia NET/IB/0"), "no GPUDirect RDMA"),
    "network": (run(nccl="Using network Socket", record={}), "NCCL's network: Socket on w-1"),
    "another operation": (
        replace(
            run(), output=replace(run().output, started=dict.fromkeys("ab", "/x/alltoall_perf"))
        ),
        "/x/alltoall_perf is no ring over the ports: no fraction",
    ),
}


@pytest.mark.parametrize(("given", "note"), NOTES.values(), ids=NOTES)
def test_notes(given: Run, note: str) -> None:
    assert [line for line in judge(given).notes if line.startswith(note)]


def test_gpudirect_is_not_missed_over_tcp_nor_where_a_channel_has_it() -> None:
    for paths in ("via NET/Socket/0", "via NET/IB/0\nvia NET/IB/1/GDRDMA"):
        notes = judge(run(nccl=f"Using network IB\n{paths}")).notes
        assert not [line for line in notes if "GPUDirect" in line]


def test_every_reference_is_a_row() -> None:
    assert {row[2] for row in JUDGED.values()} - {""} <= set(BY_REFERENCE)
