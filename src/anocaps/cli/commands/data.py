"""`anocaps data …`: the datasets that are known by name."""

from typing import Annotated

import typer

from anocaps.cli.options import DataDir, Json
from anocaps.cli.terminal import print_json

data_app = typer.Typer(
    help="The datasets known by name.",
    no_args_is_help=True,
    epilog="Example: anocaps data fetch mnist",
)


@data_app.command("list", epilog="Example: anocaps data list --json")
def data_list(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show the datasets, their licences, and which are here."""
    from anocaps.data import CATALOGUE, available

    rows = [
        {
            "name": entry.name,
            "title": entry.title,
            "licence": entry.licence,
            "here": available(entry.name, data_dir),
        }
        for entry in CATALOGUE.values()
    ]
    if as_json:
        print_json(datasets=rows)
        return
    for row in rows:
        print(f"{row['name']:<14} {'here' if row['here'] else 'not here':<9} {row['title']}")
        print(f"{'':<24} {row['licence']}")


@data_app.command("fetch", epilog="Example: anocaps data fetch mnist")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name from 'anocaps data list'.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download a dataset and check its checksums, unless it is here already."""
    from anocaps.data import fetch_dataset

    paths = fetch_dataset(name, data_dir)
    if as_json:
        print_json(files=[str(path) for path in paths])
        return
    for path in paths:
        print(path)
    print(f"{name} is ready.")
