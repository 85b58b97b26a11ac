"""A process of the validator pool: `python -m safety.engines.process`, started by `pool` in an environment of its own.

Reads requests on stdin and answers on stdout, one at a time; ends when stdin closes, so it never outlives its pool.
Invariant: it opens no connection and looks up no name. The refusal is installed before anything else is imported.
"""

import os
import sys
from typing import BinaryIO

_NETWORK = frozenset(
    {
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.gethostbyaddr",
        "socket.getnameinfo",
        "socket.sendto",
        "socket.sendmsg",
    }
)


class NetworkGate:
    """A hook of the interpreter (PEP 578) that refuses the network and counts who asked. It cannot be removed."""

    def __init__(self) -> None:
        self.refused = 0

    def close(self) -> None:
        sys.addaudithook(self._refuse)

    def _refuse(self, event: str, _: tuple[object, ...]) -> None:
        if event in _NETWORK:
            self.refused += 1
            raise PermissionError(f"{event} is refused in a validator process")


def main() -> None:
    gate = NetworkGate()
    gate.close()
    source, sink = _private_pipes()
    from safety.engines import frames  # after the gate is closed
    from safety.engines.validators import judge

    def answer(message: dict[str, object]) -> None:
        sink.write(frames.pack(message))
        sink.flush()

    sink.write(frames.READY)
    sink.flush()
    while (request := frames.read_blocking(source)) is not None:
        try:
            result = judge(**request)
        except Exception as error:  # noqa: BLE001  third-party code: any failure is an answer, named by its type only
            answer({"error": type(error).__name__, "refused": gate.refused})
        else:
            answer({"passed": result.passed, "fixed": result.fixed, "refused": gate.refused})


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the pipes for messages; what libraries print goes nowhere, for it could hold a text."""
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    return source, sink


if __name__ == "__main__":
    main()
