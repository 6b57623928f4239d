"""The API for programs."""

import http.client
import json
import threading

import numpy as np
import pytest
from brightness import DARK, NORMAL, Brightness, draw, draw_twelve
from image_files import save
from running_server import TOKEN, post_images, running

from anocaps.inspect.scoring import score_files
from anocaps.serve.client import Client


@pytest.fixture
def client(server):
    return Client(f"http://127.0.0.1:{server.port}", TOKEN)


def test_scores_and_verdicts_are_those_of_the_command_line(client, tmp_path):
    folder = draw_twelve(tmp_path / "new")
    files = sorted(folder.iterdir())
    expected = score_files(Brightness(), folder, alpha=0.03)
    answer = client.score(files, alpha=0.03)
    assert (answer["model"], answer["checksum"], answer["alpha"]) == ("bright", "bright", 0.03)
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


def test_what_cannot_be(client, server, tmp_path):
    dark = draw(tmp_path / "dark.png", DARK)
    with pytest.raises(RuntimeError, match="404"):
        client.score([dark], model="missing")
    for alpha in (0, 1, 0.001, "nan"):  # 0.001 needs more calibration images
        with pytest.raises(RuntimeError, match="40"):
            client.score([dark], alpha=alpha)
    assert server.send("GET", "/api/jobs/99")[0] == 404


def test_concurrent_requests_share_batches(server, tmp_path):
    """Each request gets its own rows, and fewer batches than requests are scored."""
    _, batcher = server.project.models.batcher("bright")
    sizes = []
    judge = batcher.judge.judge
    batcher.judge.judge = lambda images, heat=False: sizes.append(len(images)) or judge(images)
    image = {k: draw(tmp_path / f"{k}.png", k).read_bytes() for k in range(0, 240, 8)}
    found = {}

    def send(k):
        answer = json.loads(post_images(server, (f"{k}.png", image[k]))[2])
        found[k] = answer["images"][0]["score"]

    threads = [threading.Thread(target=send, args=(k,)) for k in image]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: float(k) for k in image}
    assert sum(sizes) == len(image) and len(sizes) < len(image)


def test_models(client):
    (model,) = client.call("/api/models")
    assert model["name"] == "bright" and model["classes"] == ["grey", "white"]
    assert model["calibration_images"] == 99 and model["alpha"] == 0.05


def test_a_folder_as_a_job(client, tmp_path):
    draw_twelve(tmp_path / "new")
    (tmp_path / "new" / "bad.png").write_bytes(b"no image")
    rows = client.score_folder("bright", str(tmp_path / "new"))
    assert len(rows) == 13
    assert sum(row["p_value"] is not None and row["p_value"] <= 0.05 for row in rows) == 2
    assert [row["file"].rpartition("/")[2] for row in rows if row["error"]] == ["bad.png"]


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


def test_metrics(client, server, tmp_path):
    client.score([draw(tmp_path / "dark.png", DARK), draw(tmp_path / "light.png", NORMAL)])
    status, headers, content = server.send("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain")
    lines = dict(line.rsplit(" ", 1) for line in content.decode().splitlines() if line[0] != "#")
    assert lines['anocaps_requests_total{route="/api/score",method="POST",status="200"}'] == "1"
    assert lines['anocaps_images_total{model="bright",verdict="anomalous"}'] == "1"
    assert lines['anocaps_flagged_share{model="bright"}'] == "0.500000"
    assert lines["anocaps_queue_images"] == "0"
    assert float(lines['anocaps_request_seconds_sum{route="/api/score"}']) > 0


def test_the_api_describes_itself(server):
    found = server.call("GET", "/openapi.json")
    assert "multipart/form-data" in str(found["paths"]["/api/score"]["post"]["requestBody"])
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
