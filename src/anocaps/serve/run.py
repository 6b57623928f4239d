"""Start the server: bind, print the address, serve until Ctrl-C."""

import os
import socket
import ssl
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn

from anocaps.base.errors import InputError
from anocaps.base.text import shown
from anocaps.serve.app import create_app
from anocaps.serve.connections import Listener, Protocol
from anocaps.serve.project import Project
from anocaps.serve.security import access, is_loopback

_FILES = 8192  # open files: one for each client
_BACKLOG = 1024  # connections that wait to be accepted


def serve(
    folder: Path,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    host: str = "127.0.0.1",
    port: int = 8765,
    token_file: Path | None = None,
    public_url: str | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    roots: Sequence[Path] = (),
    models: Sequence[Path] = (),
    browser: bool = True,
) -> None:
    """Serve a project folder; `say` gets the address and `warn` what is unsafe."""
    tls = tls_cert is not None
    if tls != (tls_key is not None):
        raise InputError("give both --tls-cert and --tls-key, or neither")
    if tls_cert is not None and tls_key is not None:
        _check_certificate(tls_cert, tls_key)
    access(host, port, tls, token_file, public_url)  # refuses before anything is opened
    project = Project(folder, roots, models)
    config = uvicorn.Config(
        lambda: create_app(project, allowed),
        factory=True,
        host=host,
        port=port,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
        http=Protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
    )
    bound = _bound(host, port)
    bound.most_files = _allow_files() * 3 // 4  # the rest is for images and models
    allowed = access(host, bound.getsockname()[1], tls, token_file, public_url)
    if not is_loopback(host) and not tls:
        warn("without TLS, others on the network can read the token; see --tls-cert.")
    address = f"{allowed.origins[0]}/"
    if token_file is None:
        address += f"?token={allowed.token}"
    say(f"Open {address}")
    if browser:
        with suppress(Exception):  # a machine without a browser
            webbrowser.open(address)
    _Server(config, project).run(sockets=[bound])


def _check_certificate(cert: Path, key: Path) -> None:
    for file in (cert, key):
        if not file.is_file():
            raise InputError(f"{shown(file)}: there is no such file")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
    except ssl.SSLError as error:
        raise InputError(
            f"{shown(cert)}: not a certificate in PEM format with its key {shown(key)}"
        ) from error


def _bound(host: str, port: int) -> Listener:
    """A socket that listens: from now on a browser waits instead of failing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InputError(
            f"{host}, port {port}: {error.strerror}; choose others with --host and --port"
        ) from error
    return Listener(fileno=server.detach())


class _Server(uvicorn.Server):
    """Ends streams of events at once, so that Ctrl-C need not wait for open pages."""

    def __init__(self, config: uvicorn.Config, project: Project) -> None:
        super().__init__(config)
        self._project = project

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._project.jobs.closing = True
        super().handle_exit(sig, frame)


def _allow_files() -> int:
    """Raise the limit of open files as far as the system allows; return it."""
    if os.name != "posix":
        return _FILES
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _FILES:
        return _FILES
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
