"""What the parent wants of ``ask_workers``; stdlib only, for the parent imports it."""

from __future__ import annotations

from enum import Enum


class Request(str, Enum):
    """What the workers are asked or told; the words that follow it are behind each."""

    EVIDENCE = "evidence"  # why the job failed: HOST PROGRAM SIGNAL OTHER-HOST...
    CONNECTING = "connecting"  # connections that nobody answers, while the job runs: KNOWN...
    LOOK_FOR = "look-for"  # what is found where silent hosts should be: HOST...
    IN_MPI = "in-mpi"  # how many ranks have not left MPI, while the job runs
    OVER = "over"  # that it ended well
    FAILED = "failed"  # that it failed: NAME HOLD WHY


class FarEnd(str, Enum):
    """What is known of the far end of a connection that nobody answers: a line's first word."""

    NEW = "new"  # it was not known; the far end was not asked
    SLOW = "slow"  # others wait there to be accepted
    DROPPED = "dropped"  # the far host would answer what reached it
    ELSEWHERE = "elsewhere"  # no host of the job


class Found(str, Enum):
    """What was found where a silent host should be; the first word behind its name."""

    GONE = "gone"  # it isn't there any more, by proof
    NOTHING = "nothing"  # nothing answers, which proves nothing
    ANSWERS = "answers"  # its SSH port answers
