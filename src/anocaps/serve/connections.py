"""Bounds on connections: their number, and the length and time of their headers.

They hold before a request is known, so they need no token.
"""

import asyncio
import socket
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_LONGEST_HEADERS = 16_384  # bytes


class Listener(socket.socket):
    """Closes connections that would leave too few files for the server itself."""

    most_files: int

    def accept(self) -> tuple[socket.socket, Any]:
        client, address = super().accept()
        if client.fileno() >= self.most_files:  # the system gives the lowest free number
            client.close()
            raise ConnectionAbortedError
        return client, address


class Protocol(HttpToolsProtocol):
    """HTTP with bounds on the length and time of headers, and without upgrades.

    The timer of uvicorn ends a connection that is silent after an answer. Here it starts with the
    connection, and only complete headers stop it.
    """

    _unread = 0  # bytes since the last header block or piece of a body was complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        rest = memoryview(data)
        try:
            while rest:
                try:
                    self.parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as offer:
                    rest = rest[offer.args[0] :]
                    head = self._without_upgrade()
                    self.parser = httptools.HttpRequestParser(self)  # the old one may have closed
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                    self.parser.feed_data(head)
        except httptools.HttpParserError:
            self.send_400_response("This is no valid request, or its headers are too long.")
            return
        if self._unread > _LONGEST_HEADERS and not self.transport.is_closing():
            self.send_400_response("The headers are too long.")

    def _without_upgrade(self) -> bytes:
        """The header block that the parser stopped at, without the offer."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % each for each in self.headers if each[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _should_upgrade(self) -> bool:
        return True  # so that uvicorn starts no request before the offer is removed

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("this is no proxy")  # is answered with 400
        lines = sum(len(name) + len(value) + 3 for name, value in self.headers)
        if len(self.url) + lines > _LONGEST_HEADERS:
            raise ValueError("too long")
        self._unread = 0
        self._unset_keepalive_if_required()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)
