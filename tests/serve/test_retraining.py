"""Photos marked normal are trained on, but never calibrated on; a random audit may calibrate."""

import json
from pathlib import Path

import numpy as np
import pytest
from brightness import draw_twelve
from image_files import save, write_digits

from anocaps.base.errors import InputError
from anocaps.detectors import CapsNetDetector, load
from anocaps.images import ImageFolder
from anocaps.serve import worker


@pytest.fixture
def photos(tmp_path, digits):
    return write_digits(tmp_path / "photos", digits, (0, 1), 25)


def marked(folder, digits, count=8):
    """File and class of images that the photos do not hold."""
    chosen = np.flatnonzero(digits.test.labels == 0)[:count]
    files = [save(folder / f"{k}.png", digits.test.images[k]) for k in chosen]
    return [[str(file), "digit 0"] for file in files]


def train(folder, photos, monkeypatch, false_alarms=(), audit=()):
    monkeypatch.setattr(worker, "_say", lambda **news: None)
    monkeypatch.setattr("anocaps.export.writer.export", lambda *_: None)
    spec = {
        "folder": str(photos), "out": str(folder / "model.safetensors"), "size": None,
        "epochs": None, "preset": "quick", "name": "photos", "false_alarms": list(false_alarms),
        "audit": list(audit),
    }  # fmt: skip
    card = worker._train(spec)["card"]
    return card, load(folder / "model.safetensors", device="cpu")


def test_false_alarms_are_trained_on_only(tmp_path, photos, digits, monkeypatch):
    alarms = marked(tmp_path / "marked", digits)
    plain, _ = train(tmp_path, photos, monkeypatch)
    again, detector = train(tmp_path, photos, monkeypatch, false_alarms=alarms)
    assert again["calibration_images"] == plain["calibration_images"]
    assert again["training_images"] == plain["training_images"] + len(alarms)
    folder = ImageFolder(photos)
    scores = detector.score_samples(folder.images)
    nearest = np.abs(detector.calibration_scores()[:, None] - scores).min(axis=1)
    assert nearest.max() < 1e-4  # each is one of the photos


def test_an_audit_replaces_the_calibration_set(tmp_path, photos, digits, monkeypatch):
    audit = marked(tmp_path / "marked", digits, 10)
    card, detector = train(tmp_path, photos, monkeypatch, audit=audit)
    assert card["calibration_images"] == 10 and card["training_images"] == 50
    images = worker.Given(ImageFolder(photos), [], audit).images[50:]
    assert np.allclose(
        np.sort(detector.calibration_scores()), np.sort(detector.score_samples(images))
    )


def test_a_photo_that_is_already_there_is_left_out(tmp_path, photos):
    copy = [[str(photos / "digit 0" / "03.png"), "digit 0"]]
    assert len(worker.Given(ImageFolder(photos), copy, []).labels) == 50


def test_an_audit_keeps_its_false_alarms(tmp_path, photos, digits):
    """A copy of a photo of the audit, marked in another list, is not trained on."""
    audit = marked(tmp_path / "marked", digits, 10)
    copies = [[str(tmp_path / "copy.png"), "digit 0"], *marked(tmp_path / "more", digits, 12)]
    (tmp_path / "copy.png").write_bytes(Path(audit[3][0]).read_bytes())
    given = worker.Given(ImageFolder(photos), copies, audit)
    assert given.trained == 50 + 2 and len(given.labels) == 50 + 2 + 10


def test_a_class_that_is_gone_is_left_out(tmp_path, photos, digits):
    ((file, _),) = marked(tmp_path / "marked", digits, 1)
    assert len(worker.Given(ImageFolder(photos), [[file, "digit 9"]], []).labels) == 50


def test_calibrate_on(two_classes):
    images, labels = two_classes
    chosen = [1, 5, 9, 20]
    detector = CapsNetDetector(epochs=1, device="cpu").fit(images, labels, calibrate_on=chosen)
    found = detector.score_samples(images[chosen])
    assert np.allclose(detector.calibration_scores(), found, rtol=1e-5)
    assert detector.card_["training_images"] == 44
    for wrong in ([], [48], [-1]):
        with pytest.raises(InputError, match="calibrate_on"):
            CapsNetDetector(epochs=1, device="cpu").fit(images, labels, calibrate_on=wrong)


# ── audits ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def scored(server, tmp_path):
    """The number of a scored folder of twelve photos, two of them dark."""
    draw_twelve(tmp_path / "new")
    wanted = {"folder": str(tmp_path / "new")}
    job = server.call("POST", "/api/models/bright/score-folder", wanted)["job"]
    server.wait(job)
    return job


def rows(server, job):
    return {row["id"]: row for row in server.call("GET", f"/api/jobs/{job}/rows")}


def draw_audit(server, job, among):
    wanted = {"alpha": 0.05, "among": among, "count": 50}
    server.call("POST", f"/api/jobs/{job}/audits", wanted)
    return server.call("GET", f"/api/jobs/{job}/audits")[-1]


def test_an_audit_of_unflagged_photos(server, scored):
    audit = draw_audit(server, scored, "unflagged")
    found = rows(server, scored)
    assert len(audit["rows"]) == audit["drawn_from"] == 10
    assert all(found[number]["p_value"] > 0.05 for number in audit["rows"])


def test_an_audit_is_a_random_draw(server, scored):
    wanted = {"alpha": 0.05, "among": "all", "count": 6}
    drawn = set()
    for _ in range(8):
        server.call("POST", f"/api/jobs/{scored}/audits", wanted)
        drawn.add(tuple(server.call("GET", f"/api/jobs/{scored}/audits")[-1]["rows"]))
    assert len(drawn) > 1


def retrain(server, **options):
    status, _, content = server.send("POST", "/api/train", {"mode": "quick"} | options)
    return status, json.loads(content)


def test_only_a_whole_audit_of_all_photos_recalibrates(server, scored):
    from test_photos import fill

    fill(server.project.photos, bolt=5, nut=6)
    server.wait(server.call("POST", "/api/photos", {})["job"])
    some, every = (draw_audit(server, scored, among) for among in ("unflagged", "all"))
    assert retrain(server, audit=some["id"])[0] == 400
    assert retrain(server, audit=every["id"])[0] == 400  # no photo of it is marked
    assert retrain(server, false_alarms=True)[0] == 400
    for number in every["rows"]:
        mark = "anomalous" if rows(server, scored)[number]["p_value"] < 0.05 else "normal"
        server.call("POST", f"/api/rows/{number}/mark", {"mark": mark})
    status, answer = retrain(server, audit=every["id"], false_alarms=True)
    assert status == 202
    spec = server.project.database.job(answer["job"])["spec"]
    assert len(spec["audit"]) == len(spec["false_alarms"]) == 10
    assert server.call("GET", "/api/photos")["marked_normal"] == 10
    assert server.project.database.job(answer["job"])["spec"]["mode"] == "quick"


def test_a_mark_can_be_taken_back(server, scored):
    number = next(iter(rows(server, scored)))
    for mark, seen in (("normal", "normal"), ("none", None), ("unsure", "unsure")):
        server.call("POST", f"/api/rows/{number}/mark", {"mark": mark})
        assert rows(server, scored)[number]["mark"] == seen
    assert len(server.project.database.read("SELECT * FROM marks")) == 3
    assert server.send("POST", f"/api/rows/{number}/mark", {"mark": "=1+1"})[0] == 422


def test_days(server, scored):
    for alpha in (0.05, 0.01):  # 0.01 is the p-value of the dark photos
        (day,) = server.call("GET", f"/api/models/bright/days?alpha={alpha}")
        assert (day["photos"], day["flagged"]) == (12, 2)


def test_a_table_and_a_zip_with_hostile_names(server, tmp_path):
    import csv
    import io
    import zipfile

    from brightness import DARK, draw

    folder = tmp_path / "new"
    for name in ("=cmd|x.png", "a\nb.png", ";.png", "<b>.png", "é.png"):
        draw(folder / name, DARK)
    wanted = {"folder": str(folder)}
    job = server.call("POST", "/api/models/bright/score-folder", wanted)["job"]
    server.wait(job)
    _, headers, content = server.send("GET", f"/api/jobs/{job}/table.csv?alpha=0.05")
    assert headers["content-disposition"] == 'attachment; filename="scores.csv"'
    for row in csv.DictReader(io.StringIO(content.decode())):
        assert not any(str(cell).startswith(("=", "+", "@")) for cell in row.values())
    _, _, content = server.send("GET", f"/api/jobs/{job}/flagged.zip?alpha=0.05")
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert len(set(names)) == 5
    assert all(name.replace("-", "").replace("_", "").replace(".", "").isalnum() for name in names)
