"""One command on one host by mpiboot's own SSH client: the agent's streams and the channel."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncssh

from mpiboot.ssh.streams import InputStream, OutputStream

# The status of a session that did not come to an end of its own, as ssh has it.
FAILED = 255


class ClientSession(asyncssh.SSHClientSession[bytes]):
    """One command on one host, between the agent's streams and the connection."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._source = InputStream(descriptors[0], self._feed)
        self._out = OutputStream(descriptors[1], self._throttle)
        self._error = OutputStream(descriptors[2], self._throttle)
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._full = False
        self._flushing = False
        self._closed = False
        self.status = FAILED
        self.why: Exception | None = None
        self.done = asyncio.Event()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Take the channel over."""
        self._channel = chan

    @property
    def begun(self) -> bool:
        """Whether a connection has given it a channel."""
        return self._channel is not None

    def session_started(self) -> None:
        """Begin to read what the command is to read."""
        self._source.resume()

    def _feed(self, data: bytes) -> None:
        if self._channel is None or self._channel.is_closing():
            return
        if data:
            self._channel.write(data)
        else:
            self._channel.write_eof()

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Write what the command has written."""
        (self._error if datatype == asyncssh.EXTENDED_DATA_STDERR else self._out).write(data)

    def _throttle(self) -> None:
        # asyncssh opens the window anew with the first part that it hands on. Who paused it again
        # before the last would let as much come in each time as goes out, and much more.
        if self._flushing:
            return
        full = self._out.full or self._error.full
        if full != self._full and self._channel is not None:
            self._full = full
            if full:
                self._channel.pause_reading()
            else:
                self._flushing = True
                self._channel.resume_reading()
                self._flushing = False
                self._throttle()
        self._finish()

    def pause_writing(self) -> None:
        """Read no more until the channel has room."""
        self._source.pause()

    def resume_writing(self) -> None:
        """Read on."""
        self._source.resume()

    def eof_received(self) -> bool:
        """Go on at the end of what the command writes."""
        return True  # our own side stays open: the command may still read

    def exit_status_received(self, status: int) -> None:
        """Keep the command's status."""
        self.status = status

    def connection_lost(self, exc: Exception | None) -> None:
        """End, with the reason where the connection was lost."""
        self.why = exc
        self._closed = True
        self._source.close()
        self._finish()

    def _finish(self) -> None:
        if self._closed and self._out.idle and self._error.idle:
            self.done.set()

    def close(self) -> None:
        """Close the agent's streams."""
        for stream in (self._source, self._out, self._error):
            stream.close()
