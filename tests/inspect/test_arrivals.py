"""New files: each once, when nobody writes it any more."""

import shutil

import pytest
from brightness import DARK, NORMAL, Brightness, draw

from anocaps.inspect import arrivals as watching
from anocaps.inspect.arrivals import Arrivals, score_arrivals


@pytest.fixture
def camera(tmp_path):
    (tmp_path / "camera").mkdir()
    return tmp_path / "camera"


def names(files):
    return [file.name for file in files]


def test_a_file_is_taken_once_after_it_rested(camera):
    arrivals = Arrivals([camera])
    assert arrivals.look() == []
    draw(camera / "a.png", 1)
    assert arrivals.look() == []
    draw(camera / "day 2" / "b.png", 1)
    (camera / "notes.txt").touch()
    assert names(arrivals.look()) == ["a.png"]
    assert names(arrivals.look()) == ["b.png"]
    assert arrivals.look() == []


def test_a_file_that_grows_or_is_empty_waits(camera):
    arrivals, file = Arrivals([camera]), camera / "a.png"
    for content in (b"", b"", b"12", b"123"):
        file.write_bytes(content)
        assert arrivals.look() == []
    assert names(arrivals.look()) == ["a.png"]


def test_known_and_removed_files_are_left_out(camera):
    arrivals = Arrivals([camera])
    arrivals.know([draw(camera / "a.png", 1)])
    draw(camera / "b.png", 1)
    assert arrivals.look() == []
    (camera / "b.png").unlink()
    assert arrivals.look() == arrivals.look() == []


def test_a_folder_may_be_away_for_a_moment(camera):
    arrivals = Arrivals([camera])
    draw(camera / "a.png", 1)
    shutil.move(camera, camera.with_name("away"))
    assert arrivals.look() == []
    shutil.move(camera.with_name("away"), camera)
    arrivals.look()
    assert names(arrivals.look()) == ["a.png"]


def test_arrivals_are_scored_until_the_user_stops(camera, monkeypatch):
    draw(camera / "a.png", NORMAL)
    asked = iter([False] * 4 + [True] * 9)

    def sleep(_):
        draw(camera / "b.png", DARK)

    monkeypatch.setattr(watching.time, "sleep", sleep)
    found = score_arrivals(Brightness(), Arrivals([camera]), 0.05, lambda: next(asked))
    rows = [scored.row for batch in found for scored in batch]
    assert [row["verdict"] for row in rows] == ["normal"]  # b.png was still waiting
