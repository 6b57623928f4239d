"""Every JSON output is an object whose first key is `schema`."""

import json
from types import SimpleNamespace

import pytest
from PIL import Image

from anocaps.data import load_dataset
from anocaps.study import demo as study_demo
from anocaps.study import reports


@pytest.fixture
def photos(tmp_path):
    digits = load_dataset("digits").train
    for kind in (0, 1):
        folder = tmp_path / "photos" / f"digit {kind}"
        folder.mkdir(parents=True)
        for number, image in enumerate(digits.images[digits.labels == kind][:25]):
            Image.fromarray(image).save(folder / f"{number}.png")
    return tmp_path / "photos"


def told(ended, key):
    """All objects that a command printed, which must have the key."""
    code, out, errors = ended
    assert code == 0, errors
    found = [json.loads(line) for line in out.splitlines()]
    for each in found:
        assert next(iter(each.items())) == ("schema", 1) and key in each
    return found


def test_from_a_folder_to_an_export(command, photos, tmp_path):
    model, table = tmp_path / "m.safetensors", tmp_path / "s.jsonl"
    quick = ("--size", 8, "--preset", "quick", "--epochs", 1, "--no-self-check", "--device", "cpu")
    told(command("check", photos, "--json"), "classes")
    told(command("train", photos, "-o", model, *quick, "--json"), "model")
    told(command("card", model, "--json"), "model")
    assert len(told(command("score", model, photos, "--json"), "verdict")) == 50
    told(command("score", model, photos, "-o", table, "--json"), "scored")
    told(command("test", model, "--normal", photos, "--json"), "folders")
    told(command("export", model, tmp_path / "m.onnx", "--json"), "differences")


def test_datasets(command):
    told(command("data", "list", "--json"), "datasets")
    told(command("data", "fetch", "digits", "--json"), "files")
    quick = ("--preset", "quick", "--epochs", 1, "--limit", 20, "--device", "cpu", "--json")
    told(command("evaluate", "--dataset", "digits", "--held-out", 1, *quick), "metrics")


def test_studies(command, monkeypatch, tmp_path):
    cell = {"dataset": "digits", "method": "dbn", "fingerprint": "f"}
    (tmp_path / "plan.json").write_text(json.dumps({"digits/dbn/1": cell}))
    folder = ("--folder", tmp_path, "--json")
    [status] = told(command("study", "status", "paper", *folder), "rows")
    assert status["rows"][0]["left"] == 1
    monkeypatch.setattr(reports, "write_study", lambda name, place, out, data: [out / "index.html"])
    [report] = told(command("study", "report", "paper", *folder), "files")
    assert report["files"] == [str(tmp_path / "report" / "index.html")]


def test_the_demo(command, monkeypatch, tmp_path):
    cell = SimpleNamespace(summary=lambda: {"dataset": "digits"})
    monkeypatch.setattr(study_demo, "run_demo", lambda *_: ([cell], 1.0))
    [found] = told(command("demo", "--out", tmp_path / "report.html", "--json"), "cells")
    assert found["cells"] == [{"dataset": "digits"}]
