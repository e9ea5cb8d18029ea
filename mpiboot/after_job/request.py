"""What the parent wants of ``ask_workers``; stdlib only, for the parent imports it."""

from __future__ import annotations

from enum import Enum


class Request(str, Enum):
    """What the workers are asked or told; the words that follow it are behind each."""

    EVIDENCE = "evidence"  # why the job failed: HOST PROGRAM SIGNAL OTHER-HOST...
    CONNECTING = "connecting"  # which connections nobody answers, while the job runs
    IN_MPI = "in-mpi"  # how many ranks have not left MPI, while the job runs
    OVER = "over"  # that it ended well
    FAILED = "failed"  # that it failed: NAME HOLD WHY
