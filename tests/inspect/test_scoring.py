"""Files become rows: in order, in bounded memory, whatever is wrong with some of them."""

import itertools
import os
import threading

import numpy as np
import pytest
from brightness import DARK, NORMAL, Brightness, draw
from PIL import Image

from anocaps.base.errors import DataError, InputError
from anocaps.images.walk import list_images
from anocaps.inspect import scoring as scorefiles
from anocaps.inspect.listing import Listing
from anocaps.inspect.scoring import columns_of, score_batches
from anocaps.judging.judgement import Judgement


def rows_of(judge, paths, alpha=0.05):
    return [scored.row for batch in score_batches(judge, paths, alpha) for scored in batch]


def test_a_row_has_everything_that_is_known(tmp_path):
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


def test_alpha_decides_and_may_be_equal_to_the_p_value(tmp_path):
    file = draw(tmp_path / "a.png", 103)  # 4 of 99 calibration images are not brighter: p = 0.05
    assert rows_of(Brightness(), [file], 0.05)[0]["verdict"] == "anomalous"
    assert rows_of(Brightness(), [file], 0.049)[0]["verdict"] == "normal"


@pytest.mark.parametrize(
    ("alpha", "says"), [(0.009, "99"), (0, "between"), (2, "between"), (float("nan"), "between")]
)
def test_an_alpha_that_cannot_be_is_said_at_once(tmp_path, alpha, says):
    with pytest.raises(InputError, match=says):
        score_batches(Brightness(), [draw(tmp_path / "a.png", NORMAL)], alpha)


@pytest.mark.parametrize("alpha", [0, 7, -0.1, float("nan")])
def test_also_where_there_are_no_calibration_images(tmp_path, alpha):
    with pytest.raises(InputError, match="between 0 and 1"):
        score_batches(Brightness(calibrated=False), [draw(tmp_path / "a.png", NORMAL)], alpha)


def test_the_smallest_p_value_is_told_as_what_it_is(tmp_path):
    files = [draw(tmp_path / f"{k}.png", k) for k in (99, 100)]
    (batch,) = score_batches(Brightness(), files, 0.05)
    assert [scored.row["p_value"] for scored in batch] == [0.01, 0.02]
    assert [scored.sentence for scored in batch] == [
        "closest is grey: more anomalous than every one of the 99 calibration images",
        "closest is grey: more anomalous than 99.0 % of normal images",
    ]


@pytest.mark.parametrize(
    ("pp", "says"),
    [
        (0.5, "lies far from all normal images, closest is grey: more anomalous than every one"),
        (0.02, "does not look like any known class, closest is grey, though reconstructed as"),
    ],
)
def test_an_image_odd_by_knn_has_a_reason(tmp_path, pp, says):
    class Near(Brightness):
        score_function, score_names = "knn", ("knn",)

        def judge(self, images, reconstructions=False):
            found = super().judge(images)
            odd = {"knn": found.p_value, "pp": np.array([pp]), "re": np.array([0.4])}
            knn = {"knn": found.scores["mean"]}
            return Judgement(knn, found.p_value, found.p_value_class, found.predicted, odd)

    ((scored,),) = score_batches(Near(), [draw(tmp_path / "a.png", DARK)], 0.05)
    assert scored.sentence.startswith(says)


def test_a_class_name_cannot_steer_a_terminal(tmp_path):
    class Named(Brightness):
        def judge(self, images, reconstructions=False):
            found = super().judge(images)
            return Judgement(found.scores, found.p_value, found.p_value_class, ["a\x1b[2J\n"])

    ((scored,),) = score_batches(Named(), [draw(tmp_path / "a.png", NORMAL)], 0.05)
    assert scored.sentence.startswith("closest is a\\x1b[2J\\n: ")
    assert scored.row["class"] == "a\x1b[2J\n"


def test_without_calibration_there_are_scores_but_no_verdicts(tmp_path):
    row = rows_of(Brightness(calibrated=False), [draw(tmp_path / "a.png", DARK)])[0]
    assert row["score"] == DARK and row["p_value"] is row["verdict"] is None


def test_a_score_that_is_no_number_is_anomalous_and_has_no_value(tmp_path):
    class Lost(Brightness):
        def judge(self, images, reconstructions=False):
            found = super().judge(images)
            found.scores["mean"][:] = np.nan
            found.p_value[:] = 0.01
            return found

    row = rows_of(Lost(), [draw(tmp_path / "a.png", NORMAL)])[0]
    assert row["score"] is None and row["verdict"] == "anomalous"


def test_bad_files_have_their_errors_in_their_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(scorefiles, "_BATCH", 3)
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
    assert "empty" in bad[2] and "cannot be opened" in bad[4] and "cut short" in bad[5]
    for k in bad:
        assert {v for name, v in rows[k].items() if name not in ("file", "error")} == {None}
    assert [row["score"] for row in rows if not row["error"]] == [180, 181, 183, 189]


def test_a_bomb_and_a_truncated_jpeg_have_rows(tmp_path):
    Image.new("1", (9000, 9000)).save(tmp_path / "bomb.png")  # 81 million pixels in 10 KB
    Image.effect_noise((99, 99), 50).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:-900])
    bomb, cut = rows_of(Brightness(), [tmp_path / "bomb.png", tmp_path / "cut.jpg"])
    assert "bomb.png has more than 64 million pixels" in bomb["error"]
    assert "cut.jpg is damaged or cut short" in cut["error"] and cut["score"] is None


def test_colour_size_and_format_do_not_matter_to_a_grey_model(tmp_path):
    grey = draw(tmp_path / "grey.png", NORMAL)
    Image.open(grey).convert("RGBA").resize((50, 30)).save(tmp_path / "colour.tiff")
    rows = rows_of(Brightness(), [grey, tmp_path / "colour.tiff"])
    assert [row["score"] for row in rows] == [NORMAL, NORMAL]


def test_a_file_may_vanish_while_others_are_scored(tmp_path):
    files = [draw(tmp_path / f"{k}.png", NORMAL) for k in range(3)]

    def listed():
        yield files[0]
        files[1].unlink()
        yield files[1]
        yield files[2]

    assert [row["error"] is None for row in rows_of(Brightness(), listed())] == [True, False, True]


def test_any_number_of_files_takes_a_bounded_number_of_images(tmp_path, monkeypatch):
    monkeypatch.setattr(scorefiles, "_BATCH", 8)
    file = draw(tmp_path / "a.png", NORMAL)
    taken = itertools.count()
    batches = score_batches(Brightness(), (file for _ in taken), 0.05)  # without end
    for done in range(1, 40):
        assert len(next(batches)) == 8
        ahead = int(repr(taken)[6:-1]) - 8 * done
        assert ahead <= 8 + 8 * min(8, os.cpu_count() or 1)  # one batch, and what threads hold
    batches.close()


def test_files_are_read_while_the_network_works(tmp_path, monkeypatch):
    monkeypatch.setattr(scorefiles, "_BATCH", 100)
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


def test_names_of_every_kind(tmp_path):
    names = ["größe 螺丝.png", "two\nlines.png", 'quote",comma.png', os.fsdecode(b"b\xe9.png")]
    try:
        files = [draw(tmp_path / name, NORMAL) for name in names]
    except OSError:
        pytest.skip("this file system refuses names that are no text")
    rows = rows_of(Brightness(), files)
    assert [row["file"] for row in rows][:3] == [str(file) for file in files][:3]
    assert rows[3]["file"] == f"{tmp_path}/b\\xe9.png"
    assert not any(row["error"] for row in rows)


def test_a_loop_of_links_ends(tmp_path):
    draw(tmp_path / "new" / "a.png", NORMAL)
    (tmp_path / "new" / "again").symlink_to(tmp_path / "new")
    (tmp_path / "new" / "itself.png").symlink_to(tmp_path / "new" / "itself.png")
    rows = rows_of(Brightness(), list_images([tmp_path / "new"]))
    assert [row["file"] for row in rows] == [f"{tmp_path}/new/{n}.png" for n in ("a", "itself")]
    assert [row["error"] is None for row in rows] == [True, False]


def test_files_are_counted_and_none_is_an_error(tmp_path):
    draw(tmp_path / "new" / "deep" / "a.png", NORMAL)
    file = draw(tmp_path / "b.png", NORMAL)
    assert len(Listing([tmp_path / "new", file])) == 2
    (tmp_path / "hollow").mkdir()
    with pytest.raises(DataError, match="hollow: there is no image here"):
        Listing([tmp_path / "hollow"])
    with pytest.raises(InputError, match="nowhere does not exist"):
        Listing([tmp_path / "nowhere"])


def test_a_file_named_again_is_one_file(tmp_path, monkeypatch):
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


def test_a_listing_of_many_names_leaves_memory(tmp_path, monkeypatch):
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
