from __future__ import annotations

import logging

import pytest
from asyncssh.constants import MSG_NEWKEYS
from asyncssh.logging import SSHLogger
from asyncssh.packet import SSHPacketLogger

import mpiboot.ssh.packets  # noqa: F401 - it changes the log


class _Unreadable:
    def __str__(self) -> str:
        raise AssertionError("nobody reads this line")


class _Packets(SSHPacketLogger):
    logger = None  # type: ignore[assignment] # it must not be looked for


def test_what_nobody_reads_of_asyncsshs_log_is_not_put_together() -> None:
    SSHLogger().debug1("%s", [_Unreadable()])
    _Packets().log_sent_packet(MSG_NEWKEYS, 3, b"")


def test_asyncsshs_log_comes_out_where_somebody_reads_it(caplog: pytest.LogCaptureFixture) -> None:
    SSHLogger().warning("%s is wrong", [b"this"])
    with caplog.at_level(logging.DEBUG, "asyncssh"):
        SSHLogger().debug1("%s is read", b"that")
    assert caplog.messages == ["this is wrong", "that is read"]
