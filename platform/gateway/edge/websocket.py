"""One WebSocket connection: uvicorn's sans-I/O protocol, with our refusals and no traceback for bad bytes. Step 1.

Named on uvicorn's command line (`--ws gateway.edge.websocket:WebSocketProtocol`). Invariants: a handshake that is wrong
gets OpenAI's error object; bytes that are no WebSocket end the connection with its own code, never with a traceback;
frames that come before the handshake is answered wait for it; what a client makes us keep is bounded: the pieces of a
message, of which even empty ones cost memory, and the answers to pings that it does not read.
"""

import asyncio
from urllib.parse import unquote

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidHandshake, InvalidHeader, InvalidUpgrade
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from contracts.errors import InvalidRequest, NotFound, WeirError
from gateway.edge.http import drop_when_stalled, refusal
from gateway.surface import limits
from gateway.surface.errors import HeadTooLarge, UpgradeRequired

REALTIME_PATH = "/v1/realtime"  # as `controlplane/asgi.py` routes it
_VERSION = ((b"sec-websocket-version", b"13"), (b"upgrade", b"websocket"))


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection after its upgrade from HTTP."""

    stall_seconds: float = limits.STALL_SECONDS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        drop_when_stalled(transport, seconds=self.stall_seconds)
        self._early = b""

    def handle_connect(self, event: Request) -> None:
        path = unquote(event.path.partition("?")[0])
        if path not in (REALTIME_PATH, f"{REALTIME_PATH}/"):  # told before the upgrade: HTTP has words for it
            self._refuse(NotFound(f"no WebSocket is here; {REALTIME_PATH} is the one"))
            return
        try:
            self.conn.process_request(event)
        except (InvalidUpgrade, InvalidHeader) as error:
            wrong_version = isinstance(error, InvalidHeader) and error.name == "Sec-WebSocket-Version"
            kind = UpgradeRequired if wrong_version else InvalidRequest
            self._refuse(kind(f"the handshake is wrong: {error.name}", param=error.name, code="invalid_handshake"))
        except InvalidHandshake:
            self._refuse(InvalidRequest("the handshake is wrong", param="headers", code="invalid_handshake"))
        else:
            super().handle_connect(event)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()
        if not self.writable.is_set():  # the library reads on once the application has taken all
            self.transport.pause_reading()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self._early and self.handshake_complete and not self.transport.is_closing():
            early, self._early = self._early, b""
            self.transport.resume_reading()
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated and not self.handshake_complete:  # the library would read them by no state at all
            self._early += data
            self.transport.pause_reading()
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:  # the library's own answer is no JSON
            self._refuse(HeadTooLarge("a header of the handshake is too long, or there are too many"))

    def handle_cont(self, event: Frame) -> None:
        if self.transport.is_closing():
            return
        if len(self.frames) >= limits.REALTIME_FRAGMENTS_MAX:
            self.frames = []
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"a message has {limits.REALTIME_FRAGMENTS_MAX} pieces at most")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(CloseCode.INVALID_DATA)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def _refuse(self, error: WeirError) -> None:
        """Instead of the handshake's answer."""
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        self.transport.write(refusal(error, extra=_VERSION if isinstance(error, UpgradeRequired) else ()))
        self.transport.close()
