"""Broken pods, one fault each, and what doctor says of it.

From this table come the tests of `test_doctor_faults.py` and the page `docs/reference/faults.md`.
"""

from __future__ import annotations

from typing import Final

from tests.pods import faults_network, faults_pod

FAULTS: Final = (*faults_pod.FAULTS, *faults_network.FAULTS)
