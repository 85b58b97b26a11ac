"""A client that sends no more, and may have gone or may still read: which of both. Step 1; used by `http.py`.

Both look alike: the kernel says that the peer's half is closed (FIN), and nothing more until something is sent. A peer
that still reads acknowledges what is sent; one that has closed its socket answers by a reset, after which the kernel
has the connection as closed (RFC 9293, section 3.10.7.1). So something that means nothing is sent, and looked after.
Invariant: who has gone is given up within a second of it; who reads is asked again, ever less often.
"""

import asyncio
import fcntl
import socket
import sys
import termios
from collections.abc import Callable

LOOK_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.3)  # after a question; then each half second
LOOK_LAST_SECONDS = 0.5
ASK_AGAIN_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
ASK_LAST_SECONDS = 10.0
_CLOSED = 7  # TCP_CLOSE of Linux, in the first byte of its tcp_info


def can_tell(transport: asyncio.BaseTransport) -> bool:
    """Whether the kernel says of this connection what is needed: TCP, on Linux."""
    connection = transport.get_extra_info("socket")
    return connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6)


def unread_bytes(transport: asyncio.WriteTransport) -> int:
    """Bytes that were written and that the peer has not acknowledged: those here and those in the kernel."""
    connection = transport.get_extra_info("socket")
    if connection is None or transport.is_closing():
        return 0
    waiting = int.from_bytes(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return waiting + transport.get_write_buffer_size()


class HalfClose:
    """`question` gives bytes that mean nothing between two writes of the answer; empty where nothing may be sent."""

    def __init__(
        self,
        transport: asyncio.WriteTransport,
        *,
        loop: asyncio.AbstractEventLoop,
        question: Callable[[], bytes],
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._question = question
        self._asked = 0
        self._looked = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ask()

    def stop(self) -> None:
        """The answer or the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask(self) -> None:
        data = self._question()
        if data:
            self._transport.write(data)
        self._looked = 0
        self._later(LOOK_SECONDS[0], self._look)

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        connection = self._transport.get_extra_info("socket")
        if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED:
            self._transport.abort()
            return
        self._looked += 1
        if unread_bytes(self._transport) == 0:
            self._later(_at(ASK_AGAIN_SECONDS, self._asked, ASK_LAST_SECONDS), self._ask)
            self._asked += 1
        else:
            self._later(_at(LOOK_SECONDS, self._looked, LOOK_LAST_SECONDS), self._look)

    def _later(self, seconds: float, step: Callable[[], None]) -> None:
        self._timer = self._loop.call_later(seconds, step)


def _at(seconds: tuple[float, ...], index: int, last: float) -> float:
    return seconds[index] if index < len(seconds) else last
