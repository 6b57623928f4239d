"""`anocaps test`: what it prints, writes and refuses."""

import json
import sys
import types

import pytest
from brightness import DARK, NORMAL, Brightness, draw
from html_page import HOSTILE, Page


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    return tmp_path / "model.onnx"


@pytest.fixture
def good(tmp_path):
    for k in range(12):
        draw(tmp_path / "good" / f"{k}.png", NORMAL + k)
    return tmp_path / "good"


@pytest.fixture
def bad(tmp_path):
    for k in range(4):
        draw(tmp_path / "bad" / ("crack" if k else "stain") / f"{k}.png", DARK + k)
    return tmp_path / "bad"


def test_found_and_false_alarms(anocaps, model, good, bad):
    code, out, errors = anocaps("test", model, "--normal", good, "--anomalous", bad)
    assert (code, errors) == (0, "")
    assert "12 normal and 4 anomalous" in out and "AUROC 1.000" in out
    for rate in ("1 %", "5 %", "10 %"):
        [line] = [line for line in out.splitlines() if f"rate of {rate}:" in line and "At" in line]
        assert "4 of 4" in line and "0 of 12" in line
    assert "bad/crack: 3 anomalous" in out and "bad/stain: 1 anomalous" in out


def test_json_for_programs(anocaps, model, good, bad, tmp_path):
    words = ("--normal", good, "--anomalous", bad / "crack", "--anomalous", bad / "stain")
    code, out, errors = anocaps("test", model, *words, "--json", "-o", tmp_path / "r.html")
    found = json.loads(out)
    assert (code, errors) == (0, "") and found["schema"] == 1
    assert found["auroc"] == 1 and found["auroc_low"] < 1 and found["model"] == str(model)
    assert [at["found"]["share"] for at in found["at"]] == [1, 1, 1]
    assert len(found["folders"]) == 3 and found["out"] == str(tmp_path / "r.html")


def test_only_normal_images(anocaps, model, good, tmp_path):
    page = tmp_path / "r.html"
    code, out, _ = anocaps("test", model, "--normal", good, "-o", page)
    assert code == 0 and "AUROC" not in out and "0 of 12" in out and str(page) in out
    assert Page(page).row("5\xa0%")[1] == "–"


def test_a_bad_file_is_named_and_left_out(anocaps, model, good, bad):
    (good / "3.png").write_bytes(b"no image")
    code, out, errors = anocaps("test", model, "--normal", good, "--anomalous", bad)
    assert code == 0 and "11 normal" in out
    assert errors.count("\n") == 1 and "3.png" in errors


def test_a_model_without_a_calibration_set(anocaps, model, good, bad, monkeypatch, tmp_path):
    onnx = types.SimpleNamespace(OnnxModel=lambda path, device: Brightness(calibrated=False))
    monkeypatch.setitem(sys.modules, "anocaps.export.runtime", onnx)
    page = tmp_path / "r.html"
    code, out, _ = anocaps("test", model, "--normal", good, "--anomalous", bad, "-o", page)
    assert code == 0 and "AUROC 1.000" in out and "At a false-alarm rate" not in out
    assert Page(page).row("bad/crack")[-1] == "1.000"


def test_the_page_holds_everything_and_runs_nothing(anocaps, model, good, bad, tmp_path):
    hostile = HOSTILE.replace("/", "∕")  # a file name has no slash
    draw(bad / hostile / "missed.png", NORMAL)
    draw(good / "alarm.png", DARK)
    (good / "broken.png").write_bytes(b"")
    page = tmp_path / "r.html"
    code, _, _ = anocaps("test", model, "--normal", good, "--anomalous", bad, "-o", page)
    assert code == 0
    found = Page(page)
    found.assert_fetches_nothing()
    assert "script" not in {tag for tag, _ in found.tags}
    assert hostile in "".join(found.text)
    assert len(found.attributes("img", "src")) == 2  # the missed anomaly and the false alarm
    text = "".join(found.text)
    assert "missed.png" in text and "alarm.png" in text and "broken.png" in text
    assert found.row("5\xa0%")[1].startswith("80.0")


def test_requests_that_cannot_be_met_are_refused_first(anocaps, model, good, bad, tmp_path):
    for words, says in (
        (("--normal", good, "-o", tmp_path / "r.pdf"), "name it .html"),
        (("--normal", good, "--anomalous", good), "share no image"),
        (("--normal", tmp_path / "nowhere"), "does not exist"),
        (("--normal", good, "--expect-sha256", "0" * 64), "SHA-256"),
    ):
        code, _, errors = anocaps("test", model, *words)
        assert code == 2 and errors.startswith("Error: ") and says in errors
    assert anocaps("test", model, "--anomalous", bad)[0] == 2  # --normal is missing
