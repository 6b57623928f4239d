"""Who may send what: the layer around the application that sees every request first.

It checks, in this order, before a byte of the body is read: the Host header, the site that the
request comes from, the token, the length of the body, and whether too many bodies are being
received. SECURITY.md has the threat model.
"""

import asyncio
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anocaps.base.errors import InputError
from anocaps.base.text import shown

MEGABYTE = 1_000_000
_SHORTEST_TOKEN = 32  # characters
_OPEN = ("/health",)  # paths that need no token
_SAFE = ("GET", "HEAD")
_PORTS = {"http": 80, "https": 443}
_GRACE, _SLOWEST = 30.0, 20_000  # a body may take 30 s plus its length at this many bytes/s
_RETRY = 2  # seconds
_CLOSE = {"connection": "close"}

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """The token, and the addresses under which the server may be called."""

    token: str
    origins: tuple[str, ...]  # http://127.0.0.1:8000, …
    cookie: str = field(init=False)
    session: str = field(init=False)  # the value of the cookie, which does not reveal the token

    def __post_init__(self) -> None:
        parts = urlsplit(self.origins[0])  # cookies do not tell ports apart
        object.__setattr__(self, "cookie", f"anocaps-{parts.port or _PORTS[parts.scheme]}")
        key = hmac.new(self.token.encode(), b"session", hashlib.sha256)
        object.__setattr__(self, "session", key.hexdigest())

    @property
    def hosts(self) -> set[str]:
        return {urlsplit(origin).netloc for origin in self.origins}

    @property
    def secure(self) -> bool:
        return self.origins[0].startswith("https:")


def access(
    host: str, port: int, tls: bool, token_file: Path | None, public_url: str | None
) -> Access:
    """Who may call the server. Access from other machines needs a token file."""
    loopback = is_loopback(host)
    if not loopback and token_file is None:
        raise InputError(f"--host {host} lets other machines in: add --token-file FILE")
    token = secrets.token_urlsafe(32) if token_file is None else read_token(token_file)
    scheme = "https" if tls else "http"
    names = ["127.0.0.1", "localhost", "[::1]"]
    if not loopback:
        names.insert(0, f"[{host}]" if ":" in host else host)
    at = "" if port == _PORTS[scheme] else f":{port}"  # a browser leaves out the usual port
    origins = [f"{scheme}://{name.lower()}{at}" for name in names]
    if public_url is not None:
        parts = urlsplit(public_url.lower())
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/"):
            raise InputError(f"--public-url is like https://photos.example.org, not {public_url}")
        origins.insert(0, f"{parts.scheme}://{parts.netloc}")
    return Access(token, tuple(origins))


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: Path) -> str:
    """A token from a file that only its owner can read."""
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"{shown(path)}: others can read it; run chmod 600 on it")
    token = path.read_text("utf-8").strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise InputError(
            f"{shown(path)}: a token has {_SHORTEST_TOKEN} characters or more in one line; "
            "openssl rand -hex 32 makes one"
        )
    return token


class Guard:
    """ASGI middleware that lets only permitted requests through."""

    def __init__(
        self, app: ASGIApp, access: Access, most_bytes: int, most_receiving: int, observe: Any
    ) -> None:
        self.app, self.access = app, access
        self.most_bytes = most_bytes  # of one body
        self.most_receiving = most_receiving  # bodies at the same time
        self.receiving = 0
        self.observe = observe  # is called with path, method, status and seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        started, status = loop.time(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(h for h in extra if h[0] not in own)]
            await send(message)

        try:
            await self._checked(scope, receive, sending)
        finally:
            self.observe(scope["path"], scope["method"], status, loop.time() - started)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _one_of_each(scope["headers"])
        if headers is None or headers.get("host", "") not in self.access.hosts:
            return await refuse(send, 421, "This host name is not allowed; see --public-url.")
        if _from_elsewhere(headers, self.access.origins):
            return await refuse(send, 403, "Requests from other sites are refused.")
        if scope["path"] not in _OPEN:
            if (
                scope["path"] == "/"
                and scope["method"] == "GET"
                and b"token=" in (query := scope["query_string"])
            ):
                return await self._log_in(query, send)
            if (why := self._not_allowed(scope["method"], headers)) is not None:
                return await refuse(send, 401, why)
        length = headers.get("content-length")
        if length is None and "transfer-encoding" not in headers:
            return await self.app(scope, receive, send)
        if length is not None and (not length.isdigit() or int(length) > self.most_bytes):
            most = f"{self.most_bytes / MEGABYTE:g} MB"
            return await refuse(send, 413, f"The body is longer than {most}.")
        if self.receiving >= self.most_receiving:
            return await refuse(send, 503, "Too many uploads at a time; try again.", retry=_RETRY)
        await self._with_body(scope, receive, send, int(length or self.most_bytes))

    async def _with_body(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        """Pass the body on; refuse it if it becomes too long or too slow."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _GRACE + most / _SLOWEST
        received, held = 0, True
        self.receiving += 1

        def let_go() -> None:
            nonlocal held
            self.receiving -= held
            held = False

        async def limited() -> Message:
            nonlocal received
            if not held:  # the body is complete: this waits for the client to go away
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), deadline - loop.time())
            except TimeoutError:
                raise HTTPException(408, "The body comes too slowly.", _CLOSE) from None
            received += len(message.get("body", b""))
            if received > most:
                raise HTTPException(413, "The body is too long.", _CLOSE)
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                let_go()
            return message

        try:
            await self.app(scope, limited, send)
        finally:
            let_go()

    async def _log_in(self, query: bytes, send: Send) -> None:
        given = parse_qs(query.decode("ascii", "replace")).get("token", [""])[0]
        if not _same(given, self.access.token):
            return await refuse(send, 401, "The token in this address is wrong or old.")
        secure = "; Secure" if self.access.secure else ""
        cookie = f"{self.access.cookie}={self.access.session}; Path=/; HttpOnly; SameSite=Strict"
        await respond(send, 303, "", {"location": "/", "set-cookie": cookie + secure})

    def _not_allowed(self, method: str, headers: dict[str, str]) -> str | None:
        """None if the request has the token, or the cookie and comes from our own page."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given.strip(), self.access.token):
            return None
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.access.cookie)
        except CookieError:
            cookie = None
        if cookie is None or not _same(cookie.value, self.access.session):
            return "Open the address that 'anocaps serve' printed, or send a bearer token."
        ours = headers.get("sec-fetch-site") == "same-origin" or "origin" in headers
        return None if method in _SAFE or ours else "The header Origin is missing."


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _one_of_each(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str] | None:
    """The headers by name; None if one that is checked here is given twice."""
    found: dict[str, str] = {}
    for name, value in headers:
        key = name.decode("latin-1").lower()
        if key in found and key in ("host", "origin", "authorization", "content-length", "cookie"):
            return None
        found[key] = value.decode("latin-1")
    return found


def _from_elsewhere(headers: dict[str, str], origins: Iterable[str]) -> bool:
    """Whether another site sent the request, as the browser says."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    return "origin" in headers and headers["origin"] not in origins


async def refuse(send: Send, status: int, why: str, retry: int | None = None) -> None:
    """Answer without reading the body, and close the connection."""
    extra = {} if retry is None else {"retry-after": str(retry)}
    await respond(send, status, why + "\n", _CLOSE | extra)


async def respond(send: Send, status: int, text: str, headers: dict[str, str]) -> None:
    body = (text or HTTPStatus(status).phrase).encode()
    all_headers = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}
    all_headers |= {"content-length": str(len(body))} | headers
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in all_headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})


class Roots:
    """The folders on this machine from which files may be read."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = [Path(os.path.realpath(folder)) for folder in folders]
        for folder in self.folders:
            if not folder.is_dir():
                raise InputError(f"{shown(folder)}: there is no such folder")

    def inside(self, path: str | os.PathLike[str]) -> Path:
        """The path with all links resolved, if it lies inside a root; else an error."""
        if "\0" in os.fspath(path):
            raise InputError("a path must not contain NUL")
        try:
            real = Path(os.path.realpath(path))
        except UnicodeEncodeError as error:  # half a character, which JSON can hold
            raise InputError(f"{shown(path)}: no path has this name") from error
        if not any(real.is_relative_to(root) for root in self.folders):
            raise InputError(f"{shown(path)}: outside the folders that this server may read")
        return real
