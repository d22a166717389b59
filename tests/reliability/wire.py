"""A wire between a client and servers of this machine, which breaks at a byte that is chosen beforehand."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

_LINGER = struct.pack("ii", 1, 0)  # what is closed then is reset


class Wire:
    """Forwards what comes to one of its ports, both ways.

    passed   bytes of all connections since `begin`; marks: how many there were before each piece, about a message each
    """

    def __init__(self) -> None:
        self.passed = 0
        self.marks: list[int] = []
        self._lock = threading.Lock()
        self._breaks: list[int] = []
        self._then: Callable[[], object] = lambda: None
        self._reset = False

    def begin(self, breaks: Sequence[int] = (), then: Callable[[], object] = lambda: None, reset: bool = False) -> None:
        """Count from nothing; at each of the bytes `breaks` do `then` and end the connection that carries it, by a
        reset, or as if the other side had closed it.
        """
        with self._lock:
            self.passed, self.marks = 0, []
            self._breaks, self._then, self._reset = sorted(breaks), then, reset

    def carry(self, connection: socket.socket, port: int) -> None:
        try:
            onward = socket.create_connection(("127.0.0.1", port))
        except OSError:
            connection.close()
            return
        ways = [(connection, onward), (onward, connection)]
        threads = [threading.Thread(target=self._pump, args=(*way, ways[0]), daemon=True) for way in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for end in (connection, onward):
            end.close()

    def _pump(self, source: socket.socket, target: socket.socket, both: tuple[socket.socket, ...]) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    whole = not self._breaks or self.passed + len(data) < self._breaks[0]
                    some = data if whole else data[: self._breaks.pop(0) - self.passed]
                    self.marks.append(self.passed)
                    self.passed += len(some)
                target.sendall(some)
                if not whole:
                    self._then()
                    break
            else:
                target.shutdown(socket.SHUT_WR)
                return
            if self._reset:
                for end in both:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        for end in both:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire_to(*ports: int) -> Iterator[tuple[Wire, list[str]]]:
    """A wire, and the URL of its port for each of `ports`."""
    wire, listening = Wire(), [socket.create_server(("127.0.0.1", 0)) for _ in ports]

    def listen(server: socket.socket, port: int) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = server.accept()
                threading.Thread(target=wire.carry, args=(connection, port), daemon=True).start()

    threads = [threading.Thread(target=listen, args=pair, daemon=True) for pair in zip(listening, ports, strict=True)]
    for thread in threads:
        thread.start()
    try:
        yield wire, [f"http://127.0.0.1:{server.getsockname()[1]}" for server in listening]
    finally:
        for server, thread in zip(listening, threads, strict=True):
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # ends accept()
            thread.join(10)
            server.close()
