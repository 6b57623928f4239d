"""Files become rows: in order, in bounded memory, with an error for each bad file."""

import itertools
import os
import threading

import numpy as np
import pytest
from brightness import DARK, NORMAL, Brightness, draw

from anocaps.base.errors import DataError, InputError
from anocaps.inspect import scoring
from anocaps.inspect.listing import Listing
from anocaps.inspect.scoring import columns_of, score_batches
from anocaps.judging.judgement import Judgement


def rows_of(judge, paths, alpha=0.05):
    return [scored.row for batch in score_batches(judge, paths, alpha) for scored in batch]


def test_a_row_has_all_values(tmp_path):
    bright, dark = draw(tmp_path / "a.png", 220), draw(tmp_path / "b.png", DARK)
    judge = Brightness()
    first, second = rows_of(judge, [bright, dark])
    assert columns_of(judge) == tuple(first) == tuple(second)
    assert first == {
        "file": str(bright), "score": 220.0, "p_value": 1.0, "verdict": "normal",
        "class": "white", "error": None, "largest": 220.0, "p_value_class": 0.5,
    }  # fmt: skip
    assert second["p_value"] == 0.01 and second["verdict"] == "anomalous"
    assert second["class"] == "grey" and second["p_value_class"] is None


def test_a_p_value_of_alpha_is_anomalous(tmp_path):
    file = draw(tmp_path / "a.png", 103)  # 4 of 99 calibration images are not brighter: p = 0.05
    assert rows_of(Brightness(), [file], 0.05)[0]["verdict"] == "anomalous"
    assert rows_of(Brightness(), [file], 0.049)[0]["verdict"] == "normal"


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("alpha", [0, 2, float("nan")])
def test_an_impossible_alpha_is_refused_at_once(tmp_path, alpha, calibrated):
    with pytest.raises(InputError):
        score_batches(Brightness(calibrated), [draw(tmp_path / "a.png", NORMAL)], alpha)


def test_an_alpha_too_small_for_the_calibration_set_is_refused_at_once(tmp_path):
    with pytest.raises(InputError, match=r"0\.009"):
        score_batches(Brightness(), [draw(tmp_path / "a.png", NORMAL)], 0.009)


def test_class_names_are_escaped_for_a_terminal(tmp_path):
    class Named(Brightness):
        def judge(self, images, reconstructions=False):
            found = super().judge(images)
            return Judgement(found.scores, found.p_value, found.p_value_class, ["a\x1b[2J\n"])

    ((scored,),) = score_batches(Named(), [draw(tmp_path / "a.png", NORMAL)], 0.05)
    assert r"a\x1b[2J\n" in scored.sentence
    assert scored.row["class"] == "a\x1b[2J\n"


def test_a_nan_score_is_anomalous_and_has_no_value(tmp_path):
    class Nan(Brightness):
        def judge(self, images, reconstructions=False):
            found = super().judge(images)
            found.scores["mean"][:] = np.nan
            found.p_value[:] = 0.01
            return found

    row = rows_of(Nan(), [draw(tmp_path / "a.png", NORMAL)])[0]
    assert row["score"] is None and row["verdict"] == "anomalous"


def test_a_bad_file_has_a_row_with_its_error(tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "_BATCH", 3)
    files = [draw(tmp_path / f"{k:02}.png", NORMAL + k) for k in range(10)]
    files[2].write_bytes(b"")
    files[4].unlink()
    files[5].write_bytes(files[5].read_bytes()[:45])
    for k in (6, 7, 8):  # a whole batch
        files[k].write_bytes(b"no image")
    rows = rows_of(Brightness(), files)
    assert [row["file"] for row in rows] == [str(file) for file in files]
    bad = {k: row["error"] for k, row in enumerate(rows) if row["error"]}
    assert list(bad) == [2, 4, 5, 6, 7, 8]
    assert all(files[k].name in error for k, error in bad.items())
    for k in bad:
        assert {v for name, v in rows[k].items() if name not in ("file", "error")} == {None}
    assert [row["score"] for row in rows if not row["error"]] == [180, 181, 183, 189]


def test_only_a_bounded_number_of_images_is_read_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "_BATCH", 8)
    file = draw(tmp_path / "a.png", NORMAL)
    taken = itertools.count()
    batches = score_batches(Brightness(), (file for _ in taken), 0.05)  # endless
    for done in range(1, 40):
        assert len(next(batches)) == 8
        ahead = int(repr(taken)[6:-1]) - 8 * done
        assert ahead <= 8 + 8 * min(8, os.cpu_count() or 1)  # one batch, and what threads hold
    batches.close()


def test_files_are_read_while_the_network_works(tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "_BATCH", 100)
    file = draw(tmp_path / "a.png", NORMAL)
    second_batch_is_read = threading.Event()

    def listed():
        yield from itertools.repeat(file, 199)
        second_batch_is_read.set()
        yield file

    class Slow(Brightness):
        def judge(self, images, reconstructions=False):
            assert second_batch_is_read.wait(timeout=60)
            return super().judge(images)

    assert len(rows_of(Slow(), listed())) == 200


def test_unusual_names_are_kept(tmp_path):
    names = ["größe 螺丝.png", "two\nlines.png", 'quote",comma.png', os.fsdecode(b"b\xe9.png")]
    try:
        files = [draw(tmp_path / name, NORMAL) for name in names]
    except OSError:
        pytest.skip("this file system refuses names that are not text")
    rows = rows_of(Brightness(), files)
    assert [row["file"] for row in rows][:3] == [str(file) for file in files][:3]
    assert rows[3]["file"] == f"{tmp_path}/b\\xe9.png"
    assert not any(row["error"] for row in rows)


def test_files_are_counted_and_no_file_is_an_error(tmp_path):
    draw(tmp_path / "new" / "deep" / "a.png", NORMAL)
    file = draw(tmp_path / "b.png", NORMAL)
    assert len(Listing([tmp_path / "new", file])) == 2
    (tmp_path / "hollow").mkdir()
    with pytest.raises(DataError, match="hollow"):
        Listing([tmp_path / "hollow"])
    with pytest.raises(InputError, match="nowhere"):
        Listing([tmp_path / "nowhere"])


def test_a_file_named_twice_is_listed_once(tmp_path, monkeypatch):
    new = tmp_path / "new"
    a, b = draw(new / "a.png", NORMAL), draw(new / "b.png", NORMAL)
    (tmp_path / "link.png").symlink_to(a)
    monkeypatch.chdir(tmp_path)
    relative = new.relative_to(tmp_path) / "a.png"
    for paths, files, again in (
        ([a, a, relative, a.parent / ".." / "new" / "a.png"], [a], 3),
        ([tmp_path / "link.png", a], [tmp_path / "link.png"], 1),
        ([new, a], [a, b], 1),
        ([b, new, b], [b, a], 2),
        ([new, new], [a, b], 0),  # a folder is entered once
        ([a, b], [a, b], 0),
    ):
        found = Listing(paths)
        assert list(found) == files and (len(found), found.repeated) == (len(files), again)


def test_a_long_listing_moves_from_memory_to_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("anocaps.inspect.listing._IN_MEMORY", 20)
    monkeypatch.setattr("anocaps.inspect.listing._READ", 7)  # names are cut in parts
    names = ["a\nb.png", *(f"{k:02}.png" for k in range(30))]
    for name in names:
        draw(tmp_path / name, NORMAL)
    found = Listing([tmp_path])
    first, second = iter(found), iter(found)
    expected = [tmp_path / name for name in sorted(names)]
    assert [next(first), next(second), *first] == [expected[0], *expected]
    assert list(second) == expected[1:]
