"""No output overwrites an input: one line, exit code 2, and every file as it was."""

import os

import numpy as np
import pytest
from PIL import Image
from study_results import make_result

import anocaps.export.writer  # noqa: F401 - before a test replaces the runtime that it imports
from anocaps.cli.outputs import folder_links
from anocaps.detectors import CapsNetDetector
from anocaps.study.packed import pack
from anocaps.study.resultfile import write_result


@pytest.fixture
def photos(tmp_path):
    generator = np.random.default_rng(0)
    for kind in ("a", "b"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number in range(6):
            pixels = generator.integers(0, 255, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / kind / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"a graph")
    return path


@pytest.fixture
def refused(anocaps, tmp_path):
    """Runs a command that must change nothing."""

    def content():
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def run(*words, says):
        before = content()
        code, out, errors = anocaps(*words)
        assert (code, out) == (2, "") and errors.count("\n") == 1, errors
        assert errors.startswith("Error: ") and says in errors
        assert content() == before

    return run


# ── train ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["photos/a/0.png", "model.png", "model"])
def test_a_model_file_is_named_safetensors(refused, photos, tmp_path, name):
    refused("train", photos, "-o", tmp_path / name, says="name the model file to write .safetens")


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", ["m.safetensors", "m.safetensors.checkpoint"])
def test_a_model_file_that_is_a_training_image(refused, photos, tmp_path, link, name):
    link(photos / "a" / "0.png", tmp_path / name)
    refused("train", photos, "-o", tmp_path / "m.safetensors", says="is also an input")


def test_a_training_image_that_is_the_model_file(refused, photos, tmp_path):
    out = tmp_path / "m.safetensors"
    (photos / "a" / "0.png").rename(out)
    (photos / "a" / "0.png").symlink_to(out)
    refused("train", photos, "-o", out, says="is also an input")


# ── score ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["m.jsonl", "m.csv", "m.parquet"])
def test_a_table_that_is_the_model(refused, photos, tmp_path, name):
    (tmp_path / name).write_bytes(b"a model")
    refused("score", tmp_path / name, photos, "-o", tmp_path / name, says="is also an input")


def test_a_table_named_as_the_model_file(refused, photos, tmp_path):
    model = tmp_path / "m.safetensors"
    model.write_bytes(b"a model")
    refused("score", model, photos, "-o", model, says="m.safetensors")


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("option", ["-o", "--gallery"])
def test_an_output_that_is_an_image(refused, model, photos, tmp_path, link, option):
    out = tmp_path / ("s.csv" if option == "-o" else "g.html")
    link(photos / "b" / "3.png", out)
    refused("score", model, photos, option, out, says="is also an input")


def test_an_output_among_the_images_named(refused, model, photos, tmp_path):
    out = tmp_path / "s.csv"
    (photos / "a" / "0.png").rename(out)
    refused("score", model, photos, out, "-o", out, says="is also an input")


def test_the_rows_of_a_stopped_run_that_are_an_image(refused, model, photos, tmp_path):
    os.link(photos / "b" / "3.png", tmp_path / "s.csv.partial")
    refused("score", model, photos, "-o", tmp_path / "s.csv", "--resume", says="is also an input")


def test_two_outputs_that_are_one_file(refused, model, photos, tmp_path):
    (tmp_path / "s.csv").touch()
    (tmp_path / "g.html").symlink_to(tmp_path / "s.csv")
    words = ("-o", tmp_path / "s.csv", "--gallery", tmp_path / "g.html")
    refused("score", model, photos, *words, says="the same file")


def test_heatmaps_in_a_folder_with_an_image(refused, model, photos):
    refused("score", model, photos / "a" / "0.png", "--heatmaps", photos, says="holds the input")
    (photos.parent / "seen.png").symlink_to(photos / "a" / "0.png")
    words = ("score", model, photos.parent / "seen.png", "--heatmaps", photos / "a")
    refused(*words, says="holds the input")


@pytest.mark.parametrize("name", ["0.png.png", "0.png.npz"])
def test_a_link_among_the_heatmaps(refused, model, photos, tmp_path, name):
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / name).symlink_to(photos / "b" / "0.png")
    words = ("score", model, photos / "a" / "0.png", "--heatmaps", tmp_path / "maps")
    refused(*words, says=f"{name} is a link in an output folder")


def test_a_folder_of_heatmaps_that_leads_to_an_image(refused, model, photos, tmp_path):
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / "a").symlink_to(photos / "a")
    words = ("score", model, photos / "a" / "0.png", photos / "b", "--heatmaps", tmp_path / "maps")
    refused(*words, says="holds the input")


@pytest.mark.parametrize("name", ["part-000000.parquet", "_manifest.jsonl"])
def test_a_link_among_the_parts(anocaps, refused, model, photos, tmp_path, name):
    words = ("score", model, photos, "-o", tmp_path / "parts", "--jobs", 1)
    assert anocaps(*words)[0] == 0
    (tmp_path / "parts" / name).unlink()
    (tmp_path / "parts" / name).symlink_to(photos / "a" / "0.png")
    refused(*words, "--resume", says=f"{name} is a link in an output folder")


@pytest.mark.parametrize("which", ["key", "signature"])
def test_a_table_that_is_the_key_or_the_signature(command, refused, model, photos, tmp_path, which):
    key = tmp_path / "key.pem"
    assert command("keygen", key)[0] == command("sign", model, "--key", key)[0] == 0
    public, out = tmp_path / "key.pem.pub", tmp_path / "s.csv"
    out.symlink_to(public if which == "key" else tmp_path / "model.onnx.sig")
    words = ("score", model, photos, "-o", out, "--public-key", public)
    refused(*words, says="is also an input")


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        (("--gallery", "q.html", "--heatmaps", "q.html"), "the same file"),
        (("--gallery", "q.html", "--heatmaps", "new/../q.html"), "the same file"),
        (("--gallery", "q.html", "--heatmaps", "q.html/maps"), "is inside"),
        (("-o", "q.csv", "--gallery", "q.csv/g.html"), "is inside"),
        (("-o", "q.csv", "--heatmaps", "q.csv.partial"), "the same file"),
    ],
)
def test_outputs_that_exclude_each_other_are_found_before_the_images_are_listed(
    refused, model, photos, tmp_path, monkeypatch, outputs, says
):
    monkeypatch.setattr("anocaps.inspect.listing.Listing", None)
    words = [word if word.startswith("-") else tmp_path / word for word in outputs]
    refused("score", model, photos, *words, says=says)


def test_a_gallery_among_the_heatmaps(anocaps, model, photos, tmp_path):
    maps = tmp_path / "maps"
    words = ("--heatmaps", maps, "--gallery", maps / "g.html")
    assert anocaps("score", model, photos, *words)[0] == 0
    assert (maps / "g.html").is_file() and len(list(maps.rglob("*.npz"))) == 12


def test_older_outputs_are_replaced(anocaps, model, photos, tmp_path):
    words = ("-o", tmp_path / "s.csv", "--gallery", tmp_path / "g.html")
    words += ("--heatmaps", tmp_path / "maps")
    for _ in range(2):
        assert anocaps("score", model, photos, *words)[0] == 0


# ── sign ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("spoil", ["key at its place", "link to the key", "link to the model"])
def test_a_signature_that_is_the_key_or_the_model(command, refused, model, tmp_path, spoil):
    signature, key = tmp_path / "model.onnx.sig", tmp_path / "key.pem"
    if spoil == "key at its place":
        key = signature
    assert command("keygen", key)[0] == 0
    if spoil.startswith("link"):
        signature.symlink_to(key if spoil.endswith("key") else model)
    refused("sign", model, "--key", key, says="model.onnx.sig is also an input")


# ── study ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def packed(tmp_path):
    """The folder of a study with one packed cell."""
    folder = tmp_path / "st"
    write_result(folder / "mnist" / "vae" / "2-seed0.npz", make_result(("2",), method="vae"))
    pack(folder)
    return folder


@pytest.mark.parametrize("name", ["metrics.csv", "index.html", "tables/mnist.csv"])
def test_a_link_in_a_report(refused, packed, model, tmp_path, name):
    link = tmp_path / "rep" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(packed / "vae.parquet" if name == "metrics.csv" else model)
    words = ("study", "report", "paper", "--folder", packed, "--out", tmp_path / "rep")
    refused(*words, says=f"{name} is a link in an output folder")


def test_a_folder_of_a_report_that_is_a_link(refused, packed, model, tmp_path):
    out, elsewhere = tmp_path / "rep", tmp_path / "elsewhere"
    words = ("study", "report", "paper", "--folder", packed, "--out", out)
    out.mkdir()
    (out / "tables").symlink_to(packed)
    refused(*words, says="holds the input")
    (out / "tables").unlink()
    elsewhere.mkdir()
    (elsewhere / "mnist.csv").symlink_to(model)
    (out / "tables").symlink_to(elsewhere)
    refused(*words, says="mnist.csv is a link in an output folder")


def test_links_that_lead_in_circles(tmp_path):
    links = [tmp_path / name for name in ("one", "other")]
    for link in links:
        link.symlink_to(tmp_path)
    assert sorted(folder_links(tmp_path, (".csv",))) == links


@pytest.mark.parametrize(
    ("verb", "name"),
    [("run", "log.jsonl"), ("run", "plan.json"), ("run", "digits/kde/0-seed0.npz"),
     ("pack", "kde.parquet")],
)  # fmt: skip
def test_a_link_in_the_folder_of_a_study(refused, model, tmp_path, verb, name):
    link = tmp_path / "st" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(model)
    words = ("--dataset", "digits", "--method", "kde") if verb == "run" else ()
    says = f"{name} is a link in an output folder"
    refused("study", verb, "paper", *words, "--folder", tmp_path / "st", says=says)


# ── the others ───────────────────────────────────────────────────────────────────────────────


def test_an_export_that_is_the_model_or_an_image(command, refused, two_classes, photos, tmp_path):
    model, out = tmp_path / "m.safetensors", tmp_path / "m.onnx"
    CapsNetDetector("quick", epochs=1, device="cpu").fit(*two_classes).save(model)
    refused("export", model, model, says=".onnx")
    out.symlink_to(model)
    refused("export", model, out, says="is also an input")
    out.unlink()
    os.link(photos / "a" / "0.png", out)
    refused("export", model, out, "--check", photos, says="is also an input")


def test_scores_that_are_a_file_of_the_dataset(refused, monkeypatch, tmp_path):
    file = tmp_path / "images.gz"
    file.write_bytes(b"a dataset")
    monkeypatch.setattr("anocaps.data.fetch_dataset", lambda *_: [file])
    words = ("evaluate", "--dataset", "mnist", "--held-out", 2, "--save-scores")
    refused(*words, file, says=".npz")
    (tmp_path / "s.npz").symlink_to(file)
    refused(*words, tmp_path / "s.npz", says="is also an input")


def test_a_demo_that_is_no_page(refused, photos):
    refused("demo", "--out", photos / "a" / "0.png", says="name it .html")


def test_a_report_among_the_results(refused, packed, model, tmp_path):
    words = ("study", "report", "paper", "--folder", packed, "--out")
    refused(*words, packed, says="holds the input")
    refused(*words, model, says="is a file, not a folder")
    result = tmp_path / "paper" / "digits" / "capsnet" / "0-seed0.npz"
    result.parent.mkdir(parents=True)
    result.write_bytes(b"a result")
    words = ("study", "report", "paper", "--folder", tmp_path / "paper", "--out")
    refused(*words, tmp_path / "paper", says="holds the input")
    refused(*words, result, says="is also an input")
