"""`anocaps test`: does a model find known anomalies, and how often is it wrong?"""

# ruff: noqa: PT028 - `test` is a command, not a test
import sys
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from anocaps.cli.heap import keep_freed_memory
from anocaps.cli.options import Device, ExpectSha256, FollowLinks, Json, PublicKey, check_model
from anocaps.cli.outputs import check_outputs, inputs_of
from anocaps.cli.terminal import files_bar, print_json, say

TEST_EXAMPLE = (
    "Examples: anocaps test model.safetensors --normal test/good --anomalous test/defect\n\n"
    "anocaps test model.onnx --normal today/ -o report.html"
)


def test(
    model: Annotated[Path, typer.Argument(help="A model file, .safetensors or .onnx.")],
    normal: Annotated[
        list[Path], typer.Option(help="Normal images, not those of training. Can be repeated.")
    ],
    anomalous: Annotated[
        list[Path] | None,
        typer.Option(
            help="Anomalous images. Can be repeated. Without them only false alarms are counted."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write a report page, .html.")
    ] = None,
    follow_links: FollowLinks = True,
    expect_sha256: ExpectSha256 = None,
    public_key: PublicKey = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Test a model on known images: anomalies found and false alarms, with their uncertainty."""
    from anocaps.base.errors import InputError
    from anocaps.base.files import check_writable
    from anocaps.base.text import shown
    from anocaps.inspect.acceptance import accept, check_disjoint, measure_files
    from anocaps.inspect.acceptance_report import sentences, write_page
    from anocaps.inspect.judge import load_judge
    from anocaps.inspect.listing import Listing

    keep_freed_memory()
    check_model(model, expect_sha256, public_key)
    if out is not None:
        if out.suffix.lower() not in (".html", ".htm"):
            raise InputError(f"{shown(out)}: the report is a page, name it .html")
        check_writable(out)
    kinds = [Listing(paths, follow_links) for paths in (normal, anomalous) if paths]
    check_outputs((out,), chain(inputs_of(model, public_key), *kinds))
    if anomalous:
        check_disjoint(*kinds)
    for line in chain.from_iterable(files.passed.sentences() for files in kinds):
        print(line, file=sys.stderr)
    judge = load_judge(model, device)
    total = sum(map(len, kinds))
    with files_bar("testing", shown=not as_json) as tell:
        good = measure_files(judge, kinds[0], lambda done: tell(done, total, done))
        bad = None
        if anomalous:
            first = len(kinds[0])
            bad = measure_files(
                judge, kinds[1], lambda done: tell(first + done, total, first + done)
            )
    found = accept(judge, good, bad)
    for why in found.failed:
        print(why, file=sys.stderr)
    if out is not None:
        write_page(out, model, judge, found, good, bad)
    if as_json:
        places = {} if out is None else {"out": str(out)}
        print_json(**{"model": str(model)} | found.as_json() | places)
    else:
        say(*sentences(found), *([] if out is None else [f"Report: {shown(out)}"]))
