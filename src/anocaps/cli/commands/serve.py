"""`anocaps serve`: a page and an API for one project folder."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from anocaps.cli.heap import share_memory_of_threads
from anocaps.cli.options import RUNNING, ExpectSha256, PublicKey, check_model
from anocaps.cli.terminal import say

SERVE_EXAMPLE = "Example: anocaps serve my-project --root /data/photos"

_REACH = "Who can reach it"


def serve(
    project: Annotated[Path, typer.Argument(help="The project folder; made if missing.")],
    root: Annotated[
        list[Path] | None,
        typer.Option(help="A folder whose images may be read. Can be repeated."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Also serve this model file, .onnx or .safetensors.")
    ] = None,
    expect_sha256: ExpectSha256 = None,
    public_key: PublicKey = None,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="The port; 0 takes any free one.", rich_help_panel=RUNNING
        ),
    ] = 8765,
    browser: Annotated[
        bool, typer.Option(help="Open the page in a browser.", rich_help_panel=RUNNING)
    ] = True,
    host: Annotated[
        str,
        typer.Option(
            help="The address to bind; any other than 127.0.0.1 needs --token-file.",
            rich_help_panel=_REACH,
        ),
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(help="Read the token from a file.", rich_help_panel=_REACH),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            help="The address behind a reverse proxy: https://NAME.", rich_help_panel=_REACH
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate for HTTPS.", rich_help_panel=_REACH)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Its private key.", rich_help_panel=_REACH)
    ] = None,
) -> None:
    """Serve a page to train and review in the browser, and an API for programs."""
    from anocaps.base.errors import InputError
    from anocaps.base.extras import needing

    if model is not None:
        check_model(model, expect_sha256, public_key)
    elif expect_sha256 is not None or public_key is not None:
        given = "--public-key" if expect_sha256 is None else "--expect-sha256"
        raise InputError(f"{given} needs a model file: name it with --model")
    share_memory_of_threads()
    with needing("anocaps[serve,runtime]"):
        from anocaps.serve.run import serve as run

    run(
        project,
        say,
        lambda text: print(f"Warning: {text}", file=sys.stderr),
        host=host,
        port=port,
        token_file=token_file,
        public_url=public_url,
        tls_cert=tls_cert,
        tls_key=tls_key,
        roots=root or (),
        models=[] if model is None else [model],
        browser=browser,
    )
