"""Events of a connection whose server refuses to send."""

import pytest

from gateway.realtime.events import Events
from gateway.stream.relay import ClientLost


def events(error: Exception) -> Events:
    async def send(_: str) -> None:
        raise error

    return Events(send=send, connection="c", stall_seconds=5)


class TestEvents:
    @pytest.mark.parametrize(
        "error",
        [
            OSError("gone"),
            RuntimeError(
                "Unexpected ASGI message 'websocket.send', after sending 'websocket.close' or response completed."
            ),
        ],
    )
    async def test_of_a_client_that_closed_meanwhile_are_lost_with_it(self, error: Exception) -> None:
        """The server answers a client's close by itself, and refuses what is sent after that."""
        told = events(error)
        with pytest.raises(ClientLost):
            await told.emit("session.created")
        assert told.closed
        await told.emit("error")  # nobody is left to read it: no second failure

    async def test_are_refused_where_the_order_is_our_mistake(self) -> None:
        wrong = events(RuntimeError("Expected ASGI message 'websocket.accept', but got 'websocket.send'."))
        with pytest.raises(RuntimeError, match=r"websocket\.accept"):
            await wrong.emit("session.created")
