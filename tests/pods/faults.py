"""Broken pods and jobs with one fault each, and doctor's findings.

From this table come the tests of `test_doctor_faults.py` and the page `docs/reference/errors.md`.
"""

from __future__ import annotations

from typing import Final

from tests.pods import faults_job, faults_network, faults_pod

PODS: Final = (*faults_pod.FAULTS, *faults_network.FAULTS)
JOBS: Final = faults_job.FAULTS
FAULTS: Final = (*PODS, *JOBS)
