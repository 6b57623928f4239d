"""The API for programs."""

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import quote, urlencode

import numpy as np
import pytest
from brightness import DARK, NORMAL, Brightness, draw, draw_twelve
from image_files import save
from running_server import TOKEN, post_images, running

from anocaps.base.errors import ModelFileError
from anocaps.inspect.scoring import score_files
from anocaps.serve import api, page_api, scoring
from anocaps.serve.client import Client
from anocaps.serve.scoring import Models


@pytest.fixture
def client(server):
    return Client(f"http://127.0.0.1:{server.port}", TOKEN)


@pytest.mark.parametrize("alpha", [0.01, 0.03])  # 0.01 is the p-value of two images
def test_scores_and_verdicts_are_those_of_the_command_line(client, tmp_path, alpha):
    folder = draw_twelve(tmp_path / "new")
    files = sorted(folder.iterdir())
    expected = score_files(Brightness(), folder, alpha=alpha)
    answer = client.score(files, alpha=alpha)
    assert (answer["model"], answer["checksum"], answer["alpha"]) == ("bright", "bright", alpha)
    for image, row in zip(answer["images"], expected, strict=True):
        assert image["file"] == row.file.name
        assert image["verdict"] == row.verdict and image["class"] == row.predicted
        assert (image["score"], image["p_value"]) == (row.score, row.p_value)
        assert image["scores"] == row.scores and image["p_value_class"] == row.p_value_class
    assert sum(image["verdict"] == "anomalous" for image in answer["images"]) == 2


def test_an_exported_model_gives_the_verdicts_of_its_detector(tmp_path, digits):
    """The server scores the ONNX file, the command line the model file."""
    from anocaps.detectors import CapsNetDetector
    from anocaps.export.writer import TOLERANCE, export

    normal = digits.train.labels < 3
    detector = CapsNetDetector("quick", epochs=3, device="cpu")
    detector.fit(digits.train.images[normal], digits.train.labels[normal])
    detector.save(tmp_path / "digits.safetensors")
    (tmp_path / "project" / "models").mkdir(parents=True)
    export(detector, tmp_path / "project" / "models" / "digits.onnx")
    files = [save(tmp_path / "new" / f"{k:02}.png", digits.test.images[k]) for k in range(40)]
    expected = score_files(tmp_path / "digits.safetensors", files, alpha=0.1, device="cpu")
    with running(tmp_path / "project") as server:  # its other model cannot be loaded
        client = Client(f"http://127.0.0.1:{server.port}", TOKEN)
        found = client.score(files, model="digits", alpha=0.1)["images"]
        names = {each["name"]: each.get("error") for each in client.call("/api/models")}
    assert names["digits"] is None and names["bright"]
    assert [image["verdict"] for image in found] == [row.verdict for row in expected]
    assert [image["class"] for image in found] == [row.predicted for row in expected]
    scores = np.array([row.score for row in expected])
    wide = max(1.0, float(np.abs(scores).max()))
    assert np.abs(scores - [image["score"] for image in found]).max() < TOLERANCE * wide


SERVE_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from pathlib import Path
from brightness import draw
from running_server import TOKEN, running
from anocaps.serve.client import Client

with running(Path("project")) as server:
    client = Client(f"http://127.0.0.1:{server.port}", TOKEN)
    (image,) = client.score([draw(Path("a.png"), 90)], model="digits", heatmap=True)["images"]
    assert image["verdict"] and image["heatmap"]
    rows = client.score_folder("digits", str(Path("project").resolve()))
    assert rows[0]["p_value"] == image["p_value"]
"""


def test_a_serving_machine_needs_no_torch(tmp_path, digits):
    from anocaps.detectors import CapsNetDetector
    from anocaps.export.writer import export

    normal = digits.train.labels < 2
    detector = CapsNetDetector("quick", epochs=1, device="cpu")
    detector.fit(digits.train.images[normal], digits.train.labels[normal])
    (tmp_path / "project" / "models").mkdir(parents=True)
    export(detector, tmp_path / "project" / "models" / "digits.onnx")
    draw(tmp_path / "project" / "new" / "a.png", 90)
    helpers = {"PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    code = [sys.executable, "-c", SERVE_WITHOUT_TORCH]
    subprocess.run(code, check=True, cwd=tmp_path, env=os.environ | helpers)


def test_a_file_that_is_no_image_has_an_error(client, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    good = draw(tmp_path / "good.png", NORMAL)
    bad_row, good_row = client.score([bad, good])["images"]
    assert bad_row["error"].startswith("bad.png") and bad_row["verdict"] is None
    assert good_row["error"] is None and good_row["verdict"] == "normal"


def test_a_heatmap_on_request(client, tmp_path):
    dark = draw(tmp_path / "dark.png", DARK)
    assert client.score([dark])["images"][0]["heatmap"] is None
    assert client.score([dark], heatmap=True)["images"][0]["heatmap"].startswith("iVBOR")


def test_names_are_data(server):
    name = "<img src=x onerror=alert(1)>=1+1;%00.png"
    status, headers, content = post_images(server, (name, b"x"))
    assert status == 200 and headers["content-type"] == "application/json"
    assert json.loads(content)["images"][0]["file"] == name


def test_names_come_back_to_the_client(client, tmp_path):
    names = ["é ü.png", 'a"b.png', "100%.png"]
    files = [draw(tmp_path / "new" / name, NORMAL) for name in names]
    found = [image["file"] for image in client.score(files)["images"]]
    assert found == ["é ü.png", "a%22b.png", "100%.png"]


def test_the_name_of_a_model_is_data(bright, tmp_path):
    folder = tmp_path / "project" / "models"
    folder.mkdir(parents=True)
    (folder / 'a"\r\nX-Evil: 1é.onnx').write_bytes(b"model")
    with running(tmp_path / "project") as server:
        name = next(
            each["name"] for each in server.call("GET", "/api/models") if "X" in each["name"]
        )
        status, headers, content = server.send("GET", f"/api/models/{quote(name)}/file")
        assert (status, content) == (200, b"model") and "x-evil" not in headers
        assert headers["content-disposition"].startswith("attachment; filename*=utf-8''a%22")
        server.call("POST", f"/api/models/{quote(name)}/score-folder", {"folder": str(folder)})
        post_images(server, ("a.png", b"x"), query=f"?{urlencode({'model': name})}")
        lines = server.send("GET", "/metrics")[2].decode().splitlines()
        assert all(line.startswith(("#", "anocaps_")) for line in lines)


def test_a_busy_server_is_asked_again(client, monkeypatch, tmp_path):
    image = draw(tmp_path / "a.png", NORMAL)
    monkeypatch.setattr("anocaps.serve.scoring.MOST_WAITING", 0)
    client.patience = 0.5
    with pytest.raises(RuntimeError, match="503"):
        client.score([image])
    client.patience = 30
    waits = []
    monkeypatch.setattr(
        "anocaps.serve.client.time.sleep",
        lambda seconds: (
            waits.append(seconds) or monkeypatch.setattr("anocaps.serve.scoring.MOST_WAITING", 1)
        ),
    )
    assert client.score([image])["images"][0]["verdict"] == "normal"
    assert waits == [1.0]


def test_what_cannot_be(client, server, tmp_path):
    dark = draw(tmp_path / "dark.png", DARK)
    with pytest.raises(RuntimeError, match="404"):
        client.score([dark], model="missing")
    for alpha in (0, 1, 0.001, "nan"):  # 0.001 needs more calibration images
        with pytest.raises(RuntimeError, match="40"):
            client.score([dark], alpha=alpha)
    assert server.send("GET", "/api/jobs/99")[0] == 404


def test_a_wrong_option_is_named(server):
    status, _, content = post_images(server, ("a.png", b"x"), query="?alpha=much&heatmap=1")
    assert status == 422
    assert [each["loc"] for each in json.loads(content)["detail"]] == [["query", "alpha"]]


def test_the_exported_and_the_given_model_are_preferred(bright, tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    for name in ("one.onnx", "one.safetensors", "two.safetensors", "cup.onnx"):
        (models / name).touch()
    given = tmp_path / "cup.onnx"
    given.touch()
    found = Models(models, [given])
    assert {name: path.suffix for name, path in found.paths().items()} == {
        "cup": ".onnx", "one": ".onnx", "two": ".safetensors",
    }  # fmt: skip
    assert next(iter(found.paths().items())) == ("cup", given)  # not another one of this name


def test_a_model_file_that_changes_is_loaded_again(server):
    models = server.project.models
    before = models.batcher("bright")[1]
    assert models.batcher("bright")[1] is before
    os.utime(models.paths()["bright"], (1, 1))
    assert models.batcher("bright")[1] is not before


def test_a_model_that_is_back_after_a_damaged_one_scores_again(server, tmp_path, monkeypatch):
    def refuse(path, device):
        raise ModelFileError("damaged")

    models, image = server.project.models, draw(tmp_path / "a.png", NORMAL)
    file = models.paths()["bright"]
    models.batcher("bright")
    time = file.stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "load_judge", refuse)
        os.utime(file, (1, 1))
        with pytest.raises(ModelFileError, match="damaged"):
            models.batcher("bright")
    os.utime(file, ns=(time, time))
    (found,) = asyncio.run(asyncio.wait_for(models.batcher("bright")[1].score([(image, None)]), 60))
    assert found.row["score"] == NORMAL


def test_models(client):
    (model,) = client.call("/api/models")
    assert model["name"] == "bright" and model["classes"] == ["grey", "white"]
    assert model["calibration_images"] == 99 and model["alpha"] == 0.05


def test_a_folder_as_a_job(client, server, tmp_path):
    draw_twelve(tmp_path / "new")
    (tmp_path / "new" / "bad.png").write_bytes(b"no image")
    rows = client.score_folder("bright", str(tmp_path / "new"))
    assert len(rows) == 13
    assert sum(row["p_value"] is not None and row["p_value"] <= 0.05 for row in rows) == 2
    assert [row["file"].rpartition("/")[2] for row in rows if row["error"]] == ["bad.png"]
    counted = 'anocaps_images_total{model="bright",verdict="anomalous"} 2'
    assert counted in server.send("GET", "/metrics")[2].decode()


def test_more_rows_than_one_answer_has(bright, tmp_path, monkeypatch):
    monkeypatch.setattr(page_api, "_MOST_ROWS", 5)
    draw_twelve(tmp_path / "new")
    with running(tmp_path / "project", [tmp_path]) as server:
        client = Client(f"http://127.0.0.1:{server.port}", TOKEN)
        rows = client.score_folder("bright", str(tmp_path / "new"))
    assert len({row["id"] for row in rows}) == len(rows) == 12


def test_a_folder_without_images(client, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match="no image"):
        client.score_folder("bright", str(tmp_path / "empty"))


def test_a_watched_folder(server, tmp_path):
    draw_twelve(tmp_path / "new")
    wanted = {"folder": str(tmp_path / "new"), "watch": True}
    job = server.call("POST", "/api/models/bright/score-folder", wanted)["job"]
    rows = f"/api/jobs/{job}/rows"
    wait_for(lambda: len(server.call("GET", rows)) == 12)
    draw(tmp_path / "new" / "later.png", DARK)
    wait_for(lambda: len(server.call("GET", rows)) == 13)
    server.call("POST", f"/api/jobs/{job}/stop")
    server.wait(job, "stopped")


def wait_for(happens):
    for _ in range(300):
        if happens():
            return
        threading.Event().wait(0.03)
    raise AssertionError("it did not happen")


def test_a_job_tells_its_events(server, tmp_path):
    draw_twelve(tmp_path / "new")
    wanted = {"folder": str(tmp_path / "new")}
    job = server.call("POST", "/api/models/bright/score-folder", wanted)["job"]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(
        "GET", f"/api/jobs/{job}/events", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    answer = connection.getresponse()
    assert answer.getheader("content-type").startswith("text/event-stream")
    lines = answer.read().decode().splitlines()  # ends with the job
    last = json.loads([line for line in lines if line.startswith("data: ")][-1][6:])
    assert (last["state"], last["progress"]["done"]) == ("done", 12)


def events_of(server, path):
    """The jobs that the first event tells of."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
    lines = connection.getresponse().read1(100_000).decode().splitlines()
    connection.close()
    return [json.loads(line[6:])["id"] for line in lines if line.startswith("data: ")]


def test_only_the_newest_jobs_are_listed_and_those_that_are_not_over(client, server, monkeypatch):
    monkeypatch.setattr(api, "_MOST_JOBS", 3)
    database = server.project.database
    jobs = [database.add_job("other", {}) for _ in range(6)]
    for job in jobs:
        database.change_job(job, state="running" if job == jobs[1] else "done")
    listed = [jobs[5], jobs[4], jobs[1]]
    assert [job["id"] for job in client.call("/api/jobs?limit=3")] == listed
    assert events_of(server, "/api/events") == listed[::-1]
    assert events_of(server, f"/api/jobs/{jobs[0]}/events") == [jobs[0]]
    assert len(client.call("/api/jobs")) == 6


def test_metrics(client, server, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    files = [draw(tmp_path / "dark.png", DARK), draw(tmp_path / "light.png", NORMAL)]
    client.score([*files, tmp_path / "broken.png"])
    status, headers, content = server.send("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain")
    lines = dict(line.rsplit(" ", 1) for line in content.decode().splitlines() if line[0] != "#")
    assert lines['anocaps_requests_total{route="/api/score",method="POST",status="200"}'] == "1"
    assert lines['anocaps_images_total{model="bright",verdict="anomalous"}'] == "1"
    assert lines['anocaps_flagged_share{model="bright"}'] == "0.500000"
    assert lines["anocaps_queue_images"] == "0"
    assert float(lines['anocaps_request_seconds_sum{route="/api/score"}']) > 0
    for method in ("PURGE", "LOCK"):  # clients cannot add labels
        server.send(method, "/health")
    text = server.send("GET", "/metrics")[2].decode()
    assert "LOCK" not in text and text.count('method="other"') == 1


def test_the_api_describes_itself(server):
    found = server.call("GET", "/openapi.json")
    assert "multipart/form-data" in str(found["paths"]["/api/score"]["post"]["requestBody"])
    assert {each["name"] for each in found["paths"]["/api/score"]["post"]["parameters"]} == {
        "model", "alpha", "heatmap",
    }  # fmt: skip
    assert server.send("GET", "/docs")[0] == 200


def test_a_server_killed_in_the_middle_of_scoring(bright, tmp_path, monkeypatch):
    """The next server scores what is left, and nothing twice."""
    monkeypatch.setattr("anocaps.serve.review._PART", 2)
    draw_twelve(tmp_path / "new")
    with running(tmp_path / "project", [tmp_path]) as server:
        judge = server.project.models.batcher("bright")[1].judge
        reached, go_on = threading.Event(), threading.Event()
        scored = judge.judge

        def stuck(images, heat=False):
            if judge.judged >= 6:
                reached.set()
                go_on.wait(20)
            return scored(images, heat)

        judge.judge = stuck
        wanted = {"folder": str(tmp_path / "new")}
        job = server.call("POST", "/api/models/bright/score-folder", wanted)["job"]
        assert reached.wait(10)
        server.project.jobs.closing = True  # as if it died now
        go_on.set()
    with running(tmp_path / "project", [tmp_path]) as server:
        assert len(server.project.database.rows(job)) >= 6  # it may be at work already
        server.wait(job)
        assert len(server.call("GET", f"/api/jobs/{job}/rows")) == 12
        assert server.project.models.batcher("bright")[1].judge.judged <= 6


def test_the_client_is_short():
    import inspect

    from anocaps.serve import client as module

    assert len(inspect.getsource(module).splitlines()) <= 60
