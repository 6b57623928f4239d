"""All commands. Each imports heavy packages inside its function: `anocaps --help` is instant."""

from typing import Annotated

import typer

from anocaps import __version__
from anocaps.cli.commands.card import CARD_EXAMPLE, card
from anocaps.cli.commands.check import CHECK_EXAMPLE, check
from anocaps.cli.commands.data import data_app
from anocaps.cli.commands.evaluate import DEMO_EXAMPLE, EVALUATE_EXAMPLE, demo, evaluate
from anocaps.cli.commands.export import EXPORT_EXAMPLE, export
from anocaps.cli.commands.score import SCORE_EXAMPLE, score
from anocaps.cli.commands.serve import SERVE_EXAMPLE, serve
from anocaps.cli.commands.sign import KEYGEN_EXAMPLE, SIGN_EXAMPLE, keygen, sign
from anocaps.cli.commands.study import study_app
from anocaps.cli.commands.test import TEST_EXAMPLE, test
from anocaps.cli.commands.train import TRAIN_EXAMPLE, train

app = typer.Typer(
    name="anocaps",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def anocaps(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Image anomaly detection when normal images come from one or several classes."""


for command, example in (
    (demo, DEMO_EXAMPLE),
    (check, CHECK_EXAMPLE),
    (train, TRAIN_EXAMPLE),
    (card, CARD_EXAMPLE),
    (test, TEST_EXAMPLE),
    (score, SCORE_EXAMPLE),
    (serve, SERVE_EXAMPLE),
    (export, EXPORT_EXAMPLE),
    (keygen, KEYGEN_EXAMPLE),
    (sign, SIGN_EXAMPLE),
    (evaluate, EVALUATE_EXAMPLE),
):
    app.command(epilog=example)(command)
app.add_typer(study_app, name="study")
app.add_typer(data_app, name="data")
