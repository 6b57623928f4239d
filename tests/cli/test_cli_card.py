"""`anocaps card`: what it prints and what it refuses. For ONNX see test_runtime."""

import json

import pytest
from cards import card, check

from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import ModelFileError
from anocaps.cli.commands.card import card as command
from anocaps.inspect.card import sentences


@pytest.fixture
def written(tmp_path):
    """Writes a model file with this header."""

    def write(header, kind="model"):
        path = tmp_path / "model.safetensors"
        modelfile.write(path, kind, {}, header)
        return path

    return write


def test_four_lines_the_whole_card_or_json(written, capsys):
    told = card(fit="Images are read in grey.", self_check=check(knn=0.91))
    model = written({"card": told})
    command(model)
    four = capsys.readouterr().out.splitlines()
    assert len(four) == 4 and f"score {model}" in four[3]
    command(model, full=True)
    assert capsys.readouterr().out.splitlines() == [*four, "", *sentences(told)]
    command(model, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "model": str(model)} | told


def test_warnings_are_repeated(written, capsys):
    model = written({"card": card(self_check=check(knn=0.6))})
    for as_json in (False, True):
        command(model, as_json=as_json)
        errors = capsys.readouterr().err
        assert errors.startswith("Warning: ")
        assert errors.count("\n") == 1


def test_text_in_a_card_is_escaped_for_a_terminal(written, capsys):
    evil = "\x1b[2J\nImages"
    command(written({"card": card(fit=evil, score_function_reason=evil)}), full=True)
    out = capsys.readouterr().out
    assert out.count(r"\x1b[2J\nImages") == 2 and "\x1b" not in out


def refused(model, **options):
    with pytest.raises(ModelFileError) as error:
        command(model, **options)
    assert str(model) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("header", [{}, {"card": None}, {"card": {}}, {"card": "good"}])
def test_a_model_without_a_card_is_refused(written, header):
    refused(written(header))


def too_few_tested():
    found = check(knn=0.9)
    found["tested"]["bolt"]["anomalous"] = 0
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"images": "many"},
        {"classes": {}, "accuracy": {"share": 0.5, "images": 3}},
        {"smallest_alpha": 0},
        {"calibration_images": None},
        {"self_check": {"auroc": {"knn": 1}}},
        {"self_check": too_few_tested()},
        {"passed_over": 3},
    ],
)
def test_an_impossible_card_is_refused(written, changes):
    refused(written({"card": card(**changes)}), full=True)


def test_files_that_are_not_models_are_refused(written, tmp_path):
    refused(tmp_path / "none.safetensors")
    refused(tmp_path)
    refused(written({"card": card()}, "checkpoint"))
    model = written({"card": card()})
    model.write_bytes(model.read_bytes().replace(b"1234", b"9234"))
    refused(model)
