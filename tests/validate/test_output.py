"""What nccl-tests print, as recorded; the forms of several versions are stand-ins for a run.

There are no GPUs here: the lines are those of nccl-tests' source (src/util.cu) and of reports in
its issues.
"""

from __future__ import annotations

import pytest

from mpiboot.validate.nccl_tests import Output, Sample

# By the source of each release: the columns of 2.13.4 stay until 2.17.2 (from 2.14 with the whole
# PCI address of a device), #wrong is wider from 2.17.3, 2.17.6 adds a timestamp on request, 2.19.2
# statistics of the iterations.
HEADS = {
    "2.13": """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  15465 on      node1 device  0 [0x07] NVIDIA A100-SXM4-80GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
""",  # noqa: E501 - as it is printed
    "2.17": """\
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
""",  # noqa: E501 - as it is printed
}
ROW = "   134217728      33554432     float     sum      -1   2513.0   53.41   93.46      0   2419.9   55.48   97.09      0\n"  # noqa: E501
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 95.3009 \n#\n"
GOOD = Sample(134217728, 95.275, 0)


def read(text: str, step: int = 1 << 20) -> tuple[Output, list[str]]:
    """Feed a text in pieces of some bytes."""
    output, data = Output(), text.encode()
    shown = [item for at in range(0, len(data), step) for item in output.feed(data[at : at + step])]
    return output, shown


_STATISTICS = ("i_min", "i_max", "i_p99", "i_cv%")
_CELLS = ("2401.0", "1.2e+06", "2777.0", "3.10")
# Each release whose lines differ, as it prints them: what precedes a row, and the row.
FORMATS = {
    "2.13.4": (HEADS["2.13"], ROW),
    "2.14.1": (HEADS["2.13"].replace("[0x07]", "[0000:07:00]"), ROW),
    "2.17.6": (HEADS["2.17"], ROW),
    "2.17.6 -T": (HEADS["2.17"], ROW.replace("\n", "   2026-01-02 03:04:05\n")),
    "2.19.2": (HEADS["2.17"].replace("version 2.17.6", "version 2.19.2"), ROW),
    "2.19.6 with statistics": (
        HEADS["2.17"].replace("#wrong", " ".join(("#wrong", *_STATISTICS))),
        ROW.replace("    0 ", "    0  " + " ".join(_CELLS) + " ", 1).replace(
            "     0\n", "     0  " + " ".join(_CELLS) + "\n"
        ),
    ),
}


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("step", [1, 7, 4096])
def test_rows_are_read_as_they_come(version: str, step: int) -> None:
    text = "".join(FORMATS[version]) + FOOT
    output, shown = read(text, step)
    assert output.samples == [GOOD]
    assert shown == text.splitlines()
    assert output.heads < 2


WARN = "node1:15465:15480 [0] misc/socket.cc:58 NCCL WARN socketProgressOpt: Call to recv failed\n"
ROWS = {
    "not checked (-c 0)": (
        ROW.replace("    0 ", "  N/A ", 1).replace("      0\n", "    N/A\n"),
        None,
    ),
    "wrong in place": (ROW.replace("      0\n", "      3\n"), 3),
    "wrong, as a float": (ROW.replace("      0\n", "  1e+06\n"), 1_000_000),
    "before a line of NCCL": (ROW.replace("\n", " " + WARN), 0),
}


@pytest.mark.parametrize(("row", "wrong"), ROWS.values(), ids=ROWS)
def test_cells_that_differ(row: str, wrong: int | None) -> None:
    output, _ = read(HEADS["2.17"] + row)
    assert [item.wrong for item in output.samples] == [wrong]
    assert output.samples[0].busbw == GOOD.busbw


def test_a_row_that_is_cut_off_says_nothing() -> None:
    output, shown = read(HEADS["2.13"] + ROW + ROW[:70])
    assert output.samples == [GOOD]
    assert (shown[-1], output.rest) == (ROW.rstrip(), ROW[:70])
    assert read(HEADS["2.13"] + ROW[:70] + "\n")[0].samples == []


def test_what_ranks_report_is_read_by_host_and_not_shown() -> None:
    lines = (
        *("mpiboot-validate|w-0|start|all_reduce_perf", "mpiboot-validate|w-1|start|all_gather"),
        *("[1,0]<stdout>: mpiboot-validate|w-0|nccl|Using network IB", "mpiboot-validate|"),
        *("mpiboot-validate|w-2|missing|all_reduce_perf in /bin", "mpiboot-validate|w-0|nccl|a|b"),
    )
    output, shown = read("\n".join(lines) + "\n")
    assert output.started == {"w-0": "all_reduce_perf", "w-1": "all_gather"}
    assert output.nccl == {"w-0": {"Using network IB", "a|b"}}
    assert output.missing == {"w-2": "all_reduce_perf in /bin"}
    assert shown == []


def test_ranks_that_measure_alone_are_seen() -> None:
    output, _ = read(HEADS["2.13"] + HEADS["2.13"] + ROW + ROW)
    assert output.heads > 1


@pytest.mark.parametrize(
    "text", ["\0\xff\n", "1\n", "9" * 5000 + " 1\n", "nan nan\n", "#" * 99 + "\n"]
)
def test_no_bytes_are_a_reason_to_fail(text: str) -> None:
    read(HEADS["2.17"] + text)
    read(text)
