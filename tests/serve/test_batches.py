"""Images of requests: how they are received, how requests share batches, and broken models."""

import asyncio
import json
import os
import threading

import pytest
from brightness import NORMAL, draw
from fastapi import HTTPException
from running_server import post_images, running

from anocaps.base.errors import ModelFileError
from anocaps.serve import receiving, scoring
from anocaps.serve.receiving import Parts, Room


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


def test_a_full_batch_does_not_wait_for_others(server, tmp_path, monkeypatch):
    assert scoring._LONGEST_WAIT <= 0.01
    monkeypatch.setattr(scoring, "_LONGEST_WAIT", 600)
    monkeypatch.setattr(scoring, "_ENOUGH", 1)
    _, batcher = server.project.models.batcher("bright")
    image = draw(tmp_path / "a.png", NORMAL)
    (found,) = asyncio.run(asyncio.wait_for(batcher.score([(image, None)]), 60))
    assert found.row["score"] == NORMAL


@pytest.mark.parametrize("fails", [False, True])
def test_every_request_of_a_batch_is_answered(server, tmp_path, monkeypatch, fails):
    """One client has gone away; the others get their rows, or the error."""
    monkeypatch.setattr(scoring, "_LONGEST_WAIT", 600)
    monkeypatch.setattr(scoring, "_ENOUGH", 3)
    _, batcher = server.project.models.batcher("bright")
    if fails:
        batcher.judge.judge = lambda images, heat=False: 1 / 0
    files = [draw(tmp_path / f"{k}.png", k) for k in (80, 90, 100)]

    async def three():
        tasks = [asyncio.ensure_future(batcher.score([(file, None)])) for file in files[:2]]
        await asyncio.sleep(0)  # both wait in the queue
        tasks[0].cancel()
        tasks.append(asyncio.ensure_future(batcher.score([(files[2], None)])))
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)

    gone, *answers = asyncio.run(three())
    assert isinstance(gone, asyncio.CancelledError) and batcher.waiting == 0
    if fails:
        assert all(isinstance(each, ZeroDivisionError) for each in answers)
    else:
        assert [found.row["score"] for (found,) in answers] == [90, 100]


def parts_of(folder, room, sent, end=b"--x--\r\n"):
    """What is received of a form with these files, in pieces of 50 bytes."""
    head = b'--x\r\nContent-Disposition: form-data; filename="%d"\r\n\r\n%b\r\n'
    body = b"".join(head % (k, content) for k, content in enumerate(sent)) + end

    async def stream():
        for start in range(0, len(body), 50):
            yield body[start : start + 50]

    parts = Parts("multipart/form-data; boundary=x", folder / "in", 10_000, room)
    try:
        asyncio.run(parts.receive(stream()))
    except BaseException:
        parts.discard()
        raise
    return parts


@pytest.mark.parametrize("bound", ["_IN_MEMORY", "_ALL_IN_MEMORY"])
def test_small_images_stay_in_memory_and_large_ones_go_to_disk(tmp_path, monkeypatch, bound):
    monkeypatch.setattr(receiving, bound, 1050)
    sent = [b"a" * 600, b"b" * 900, b"c" * 400, b""]
    room = Room()
    left = room.left
    parts = parts_of(tmp_path, room, sent)
    assert [content for _, content in parts.files] == [sent[0], None, sent[2], b""]
    assert room.left == left - 1000
    (path,) = tmp_path.iterdir()
    assert path == parts.files[1][0] and path.read_bytes() == sent[1]
    parts.discard()
    assert not any(tmp_path.iterdir()) and room.left == left


@pytest.mark.parametrize("size", [100, 2000])
def test_a_form_that_ends_too_early_is_refused(tmp_path, monkeypatch, size):
    monkeypatch.setattr(receiving, "_IN_MEMORY", 1000)
    room = Room()
    left = room.left
    with pytest.raises(HTTPException, match="400"):
        parts_of(tmp_path, room, [b"a" * size], end=b"")
    assert not any(tmp_path.iterdir()) and room.left == left


def test_a_request_to_a_model_that_was_replaced_is_sent_again(server, tmp_path):
    models, image = server.project.models, draw(tmp_path / "a.png", NORMAL)
    _, old = models.batcher()
    os.utime(models.paths()["bright"], (1, 1))
    models.batcher("bright")
    with pytest.raises(scoring.Busy):
        asyncio.run(asyncio.wait_for(old.score([(image, None)]), 60))
    assert models.recent(None) is None  # by any name


@pytest.mark.parametrize("query", ["", "?model=bright"])
def test_a_damaged_model_is_the_fault_of_the_server(bright, tmp_path, monkeypatch, query):
    def refuse(path, device):
        raise ModelFileError(f"{path}: damaged")

    monkeypatch.setattr(scoring, "load_judge", refuse)
    with running(tmp_path) as server:
        status, _, content = post_images(server, ("a.png", b"x"), query=query)
        assert status == 500 and b"bright" in content and str(tmp_path).encode() not in content
        folder = {"folder": str(tmp_path)}
        assert server.send("POST", "/api/models/bright/score-folder", folder)[0] == 500
        assert server.call("GET", "/api/models") == [{"name": "bright", "error": "bright: damaged"}]
        assert post_images(server, ("a.png", b"x"), query="?model=other")[0] == 404


def test_a_removed_model(server, tmp_path):
    draw(tmp_path / "new" / "a.png", NORMAL)
    job = server.call("POST", "/api/models/bright/score-folder", {"folder": f"{tmp_path}/new"})
    server.wait(job["job"])
    (row,) = server.call("GET", f"/api/jobs/{job['job']}/rows")
    models = server.project.models
    models.paths()["bright"].unlink()
    assert post_images(server, ("a.png", b"x"))[0] == 404
    assert server.send("GET", f"/api/rows/{row['id']}/heat")[0] == 404
    models.given["given"] = tmp_path / "given.onnx"  # was there when the server started
    status, _, content = post_images(server, ("a.png", b"x"))
    assert status == 500 and str(tmp_path).encode() not in content
    assert server.call("GET", "/api/models")[0]["error"] == "given: No such file or directory"
