"""Normal photos: uploads in parts, the check, and the classes that training sees."""

import io
import json
from urllib.parse import urlencode

import pytest
from brightness import draw
from PIL import Image
from running_server import TOKEN, running

from anocaps.serve import photos, training


def put(server, path, content, offset=0, size=None, target="photos"):
    query = urlencode(
        {"target": target, "path": path, "offset": offset, "size": size or len(content)}
    )
    status, _, answer = server.send("PUT", f"/api/uploads?{query}", content)
    return status, json.loads(answer)


def announce(server, *files, target="photos"):
    return server.call("POST", "/api/uploads", {"target": target, "files": files})


def fill(folder, **classes):
    """Images by class: so many of each, no two alike."""
    number = 0
    for name, count in classes.items():
        for k in range(count):
            number += 1
            draw(folder / name / f"{k:02}.png", number)
    return folder


# ── uploads ──────────────────────────────────────────────────────────────────────────────────


def test_a_file_comes_in_parts_and_goes_on_after_a_break(bright, tmp_path):
    content = bytes(range(256)) * 40
    with running(tmp_path) as server:
        assert announce(server, ["cup/1.png", len(content)]) == [{"received": 0}]
        assert put(server, "cup/1.png", content[:4000], 0, len(content))[0] == 200
        assert not (tmp_path / "photos/cup/1.png").exists()
    with running(tmp_path) as server:  # a restarted server
        assert announce(server, ["cup/1.png", len(content)]) == [{"received": 4000}]
        assert put(server, "cup/1.png", content[5000:], 5000, len(content))[0] == 409  # a gap
        put(server, "cup/1.png", content[4000:], 4000, len(content))
        assert (tmp_path / "photos/cup/1.png").read_bytes() == content
        assert announce(server, ["cup/1.png", len(content)]) == [{"received": len(content)}]


@pytest.mark.parametrize(
    "path",
    ["../1.png", "/etc/1.png", "cup/../../1.png", "cup/.1.png", "cup/1.sh", ".ssh/1.png", "",
     "cup/\x00.png", "c:/1.png", "a\\..\\1.png", "x" * 300 + ".png", "a/b/c/d/e/f/g/h/i.png"],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_refused(server, path):
    assert "error" in announce(server, [path, 10])[0]
    assert put(server, path, b"0123456789")[0] == 400
    assert not [each for each in server.project.photos.rglob("*") if each.is_file()]


def test_a_link_in_the_folder_does_not_lead_out(server, tmp_path):
    (tmp_path / "outside").mkdir()
    (server.project.photos / "cup").symlink_to(tmp_path / "outside")
    assert put(server, "cup/1.png", b"x")[0] == 400
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize(
    "target", ["", "models", "new", "new/", "new/..", "new/a/b", "../x", "new/.x"]
)
def test_a_target_is_photos_or_a_list(server, target):
    assert put(server, "a.png", b"x", target=target)[0] == 400


def test_a_file_does_not_grow_beyond_its_size(server):
    assert put(server, "cup/1.png", b"x" * 100, size=50)[0] == 413
    assert announce(server, ["cup/1.png", 10**12])[0].keys() == {"error"}


# ── classes ──────────────────────────────────────────────────────────────────────────────────


def test_the_check_finds_classes_and_problems(server):
    fill(server.project.photos, bolt=25, nut=3)
    (server.project.photos / "nut" / "bad.png").write_bytes(b"no image")
    server.wait(server.call("POST", "/api/photos", {})["job"])
    found = server.call("GET", "/api/photos")
    bolt, nut = found["classes"]
    assert (bolt["name"], bolt["count"], bolt["samples"]) == ("bolt", 25, 6)
    assert not bolt["problems"] and len(nut["problems"]) == 2
    assert found["images"] == 28
    for query in ("", "?seen=true"):
        status, headers, content = server.send("GET", f"/api/photos/{found['job']}/0/5{query}")
        assert status == 200 and headers["content-type"] == "image/png" and content
    assert server.send("GET", f"/api/photos/{found['job']}/0/6")[0] == 404
    assert server.send("GET", f"/api/photos/{found['job']}/-1/0")[0] == 404


def test_a_sample_that_became_a_link_is_not_shown(server, tmp_path):
    secret = draw(tmp_path.parent / f"{tmp_path.name}-secret.png", 20)
    fill(server.project.photos, bolt=5)
    found = server.wait(server.call("POST", "/api/photos", {})["job"])
    for file in (server.project.photos / "bolt").iterdir():
        file.unlink()
        file.symlink_to(secret)
    for query in ("", "?seen=true"):
        assert server.send("GET", f"/api/photos/{found['id']}/0/0{query}")[0] == 400


def test_the_time_of_training_is_measured(server, monkeypatch):
    monkeypatch.setattr(training, "available", lambda: True)
    fill(server.project.photos, bolt=25, nut=30)
    check = server.call("POST", "/api/photos", {})["job"]
    server.wait(check)
    (forecast,) = server.call("GET", "/api/jobs?kind=forecast")
    assert server.call("GET", "/api/photos")["seconds"] == {"quick": None, "full": None}
    server.wait(forecast["id"], seconds=120)
    both = server.call("GET", "/api/photos")["seconds"]
    assert both["quick"] > 0 and both["full"] > 0
    change = {"source": "nut", "name": "nut", "excluded": True}
    server.call("PATCH", "/api/photos/classes", change)
    fewer = server.call("GET", "/api/photos")["seconds"]
    assert fewer["quick"] == pytest.approx(both["quick"] * 25 / 55)
    monkeypatch.setattr(training, "available", lambda: False)
    server.wait(server.call("POST", "/api/photos", {})["job"])  # other photos, perhaps
    assert server.call("GET", "/api/photos")["seconds"]["quick"] is None


@pytest.fixture
def clock(monkeypatch):
    """Sets the time."""
    now = [1000.0]
    monkeypatch.setattr("anocaps.serve.training.time.monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, 1000.0 + seconds)


def step(number, steps=100, phase="training"):
    return {"phase": phase, "step": number, "steps": steps, "loss": 0.5}


def test_the_time_that_is_left(clock):
    found = training.Clock(None)
    assert found.add({"phase": "starting"})["left"] is None
    found.add(step(10))
    clock(5)
    told = found.add(step(20))
    assert (told["left"], told["share"], told["loss"]) == (40.0, 0.2, 0.5)
    clock(10)
    found.add(step(1))  # the next network of the same phase
    clock(12)
    assert found.add(step(3))["left"] == 97.0


def test_the_time_that_is_left_of_all_phases(clock):
    found = training.Clock(200.0)
    clock(50)
    told = found.add({"phase": "training"})  # a stage without steps
    assert (told["share"], told["left"]) == (0.25, 150.0)
    clock(60)
    assert found.add({})["left"] == 140.0  # still at work
    found.add(step(1))
    clock(70)
    told = found.add(step(2))  # slower than expected
    assert told["left"] == 980.0 and told["step"] == 2
    assert found.add({})["loss"] == 0.5
    clock(300)
    told = found.add({"phase": "saving"})
    assert told["left"] is None and told["share"] is None
    resumed = training.Clock(200.0, share=0.75)
    assert resumed.add({"phase": "starting"})["left"] == 50.0


def test_rename_merge_and_exclude(server, tmp_path):
    fill(server.project.photos, bolt=5, nut=6, dirt=7)
    server.wait(server.call("POST", "/api/photos", {})["job"])
    for source, name, excluded in (("nut", "bolt", False), ("dirt", "dirt", True)):
        change = {"source": source, "name": name, "excluded": excluded}
        server.call("PATCH", "/api/photos/classes", change)
    assert server.call("GET", "/api/photos")["images"] == 11
    number = photos.gather(server.project.database, server.project.photos, tmp_path / "made")
    assert number == 11
    assert [each.name for each in (tmp_path / "made").iterdir()] == ["bolt"]
    assert len(list((tmp_path / "made" / "bolt").iterdir())) == 11
    for name in ("../x", ".x", "a/b", ""):
        change = {"source": "nut", "name": name, "excluded": False}
        assert server.send("PATCH", "/api/photos/classes", change)[0] in (400, 422)


def test_dropped_photos_join_the_list_that_is_shown(server):
    draw(server.project.folder / "a.png", 20)
    image = (server.project.folder / "a.png").read_bytes()
    jobs = []
    for name in ("one.png", "two.png"):
        assert put(server, f"some/{name}", image, target="new/today")[0] == 200
        jobs.append(server.call("POST", "/api/uploads/new/today/score?model=bright", {})["job"])
        server.wait(jobs[-1])
    assert jobs[0] == jobs[1]
    assert len(server.call("GET", f"/api/jobs/{jobs[0]}/rows")) == 2


def test_a_photo_is_never_sent_as_it_is(server, tmp_path):
    """A file that is also a page would run in the browser."""
    file = tmp_path / "new" / "a.png"
    file.parent.mkdir()
    Image.new("L", (300, 200), 20).save(file)
    file.write_bytes(file.read_bytes() + b"<script>alert(1)</script>")
    job = server.call("POST", "/api/models/bright/score-folder", {"folder": str(file.parent)})[
        "job"
    ]
    server.wait(job)
    (row,) = server.call("GET", f"/api/jobs/{job}/rows")
    status, headers, content = server.send("GET", f"/api/rows/{row['id']}/photo")
    assert status == 200 and headers["content-type"] == "image/jpeg"
    assert b"<script>" not in content and headers["x-content-type-options"] == "nosniff"
    assert server.send("GET", f"/api/rows/{row['id']}/heat")[1]["content-type"] == "image/png"
    assert TOKEN.encode() not in content


@pytest.mark.parametrize(("large", "width"), [(False, 320), (True, 1600)])
def test_a_large_photo_becomes_smaller(tmp_path, large, width):
    Image.new("L", (2000, 1000), 20).save(tmp_path / "a.png")
    with Image.open(io.BytesIO(photos.photo(tmp_path / "a.png", large))) as found:
        assert found.size == (width, width // 2)


def test_the_most_similar_photo(tmp_path):
    from anocaps.images.decode import Fit

    files = [draw(tmp_path / f"{k}.png", k) for k in (10, 100, 200)]
    photos.remember(files, Fit(32, 32, 1, "resize"), tmp_path / "kept.npz")
    assert photos.most_similar(draw(tmp_path / "new.png", 120), tmp_path / "kept.npz") == files[1]
