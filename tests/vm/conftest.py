from __future__ import annotations

import os

import pytest

# These need the machine of scripts/rdma-vm around them; test_rdma_vm.py starts it.
collect_ignore = [] if os.environ.get("RDMA_VM") else ["inside"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vm: runs in the virtual machine of scripts/rdma-vm")
