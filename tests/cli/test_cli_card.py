"""`anocaps card`: what it prints out of a model file, and what it refuses. ONNX: test_runtime."""

import json

import pytest
from cards import card, check

from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import ModelFileError
from anocaps.cli.card import card as command
from anocaps.inspect.card import sentences


@pytest.fixture
def written(tmp_path):
    """A model file with this in its header."""

    def write(header, kind="model"):
        path = tmp_path / "model.safetensors"
        modelfile.write(path, kind, {}, header)
        return path

    return write


def test_four_lines_and_on_demand_the_rest(written, capsys):
    told = card(fit="Images are read in grey.", self_check=check(knn=0.91))
    model = written({"card": told})
    command(model)
    four = capsys.readouterr().out.splitlines()
    assert len(four) == 4 and f"score {model}" in four[3]
    command(model, full=True)
    assert capsys.readouterr().out.splitlines() == [*four, "", *sentences(told)]
    command(model, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"model": str(model)} | told


def test_warnings_are_told_again(written, capsys):
    model = written({"card": card(self_check=check(knn=0.6))})
    for as_json in (False, True):
        command(model, as_json=as_json)
        errors = capsys.readouterr().err
        assert errors.startswith("Warning: ")
        assert errors.count("\n") == 1


def test_what_somebody_wrote_into_it_cannot_steer_a_terminal(written, capsys):
    evil = "\x1b[2J\nImages"
    command(written({"card": card(fit=evil, score_function_reason=evil)}), full=True)
    out = capsys.readouterr().out
    assert out.count(r"\x1b[2J\nImages") == 2 and "\x1b" not in out


def refused(model, says):
    with pytest.raises(ModelFileError, match=says) as error:
        command(model)
    assert str(model) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("header", [{}, {"card": None}, {"card": {}}, {"card": "good"}])
def test_a_model_without_a_card_is_told_so(written, header):
    refused(written(header), "there is no model card in it")


def too_few_tested():
    found = check(knn=0.9)
    found["tested"]["bolt"]["odd"] = 0
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
def test_a_card_that_makes_no_sense_is_refused(written, changes):
    model = written({"card": card(**changes)})
    with pytest.raises(ModelFileError, match="not one that training makes"):
        command(model, full=True)


def test_what_is_no_model_is_refused(written, tmp_path):
    refused(tmp_path / "none.safetensors", "there is no such file")
    refused(tmp_path, "a folder where a model file is expected")
    refused(written({"card": card()}, "checkpoint"), "a checkpoint file, not a model file")
    model = written({"card": card()})
    content = model.read_bytes()
    model.write_bytes(content.replace(b"1234", b"9234"))
    refused(model, "the checksum does not match, the file was altered")
    model.write_bytes(content[:100])
    refused(model, "not a model file of anocaps, or a truncated one")
