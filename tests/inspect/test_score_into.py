"""Scored files become a table, however often the run is stopped, whatever files come and go."""

import csv
import os
from contextlib import suppress

import pytest
from brightness import DARK, NORMAL, Brightness, draw

from anocaps.base.errors import DataError, InputError
from anocaps.inspect import scoring as scorefiles
from anocaps.inspect.listing import Listing
from anocaps.inspect.scoring import columns_of, run_of, score_into
from anocaps.inspect.tables import UnfinishedTable


@pytest.fixture
def new(tmp_path, monkeypatch):
    """20 files, a few of them odd and one of them bad, to be scored three at a time."""
    monkeypatch.setattr(scorefiles, "_BATCH", 3)
    for k in range(20):
        draw(tmp_path / "new" / f"{k:02}.png", DARK if k % 6 == 0 else NORMAL + k)
    (tmp_path / "new" / "07.png").write_bytes(b"no image")
    return tmp_path / "new"


class Stop(Exception):
    pass


def run(out, new, resume=False, stop_after=None, judge=None, alpha=0.05, **options):
    """One run; stopped when so many batches are in the file and another one is under way."""
    judge = judge or Brightness()
    batches = 0

    def also(batch):
        nonlocal batches
        if batch[0].image is not None or batch[0].row["error"]:  # not of the run before
            batches += 1
            if stop_after is not None and batches > stop_after:
                raise Stop

    with UnfinishedTable(out, columns_of(judge), {"alpha": alpha}, resume) as table:
        tally = score_into(table, judge, Listing([new]), alpha, **({"also": also} | options))
        table.finish()
        return tally


def test_a_whole_run(new, tmp_path):
    told = []
    tally = run(tmp_path / "s.csv", new, progress=lambda *numbers: told.append(numbers))
    assert (tally.scored, tally.anomalous, tally.failed, tally.files) == (19, 4, 1, 20)
    assert "07.png" in tally.error
    assert told == [(k, k) for k in (3, 6, 9, 12, 15, 18, 20)]
    assert len((tmp_path / "s.csv").read_text().splitlines()) == 21
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "s.csv"]


def test_a_stopped_run_continues_with_no_row_lost_or_doubled(new, tmp_path):
    whole, out = tmp_path / "whole.csv", tmp_path / "s.csv"
    run(whole, new)
    judge = Brightness()
    for stop_after in (0, 1, 2):  # 0, then 3, then 9 rows are finished
        with pytest.raises(Stop):
            run(out, new, resume=True, stop_after=stop_after, judge=judge)
        assert not out.exists()
    told = []
    tally = run(out, new, True, judge=judge, progress=lambda *numbers: told.append(numbers))
    assert out.read_text() == whole.read_text()
    assert (tally.scored, tally.anomalous, tally.failed) == (19, 4, 1)
    assert told == [(12, 3), (15, 6), (18, 9), (20, 11)]
    assert not (tmp_path / "s.csv.partial").exists()


def test_rows_of_a_stopped_run_are_not_judged_again(new, tmp_path):
    with pytest.raises(Stop):
        run(tmp_path / "s.csv", new, stop_after=5)
    judge = Brightness()
    run(tmp_path / "s.csv", new, resume=True, judge=judge)
    assert judge.judged == 5  # of 20, 15 were in the file


def test_an_old_table_is_replaced_only_at_the_end(new, tmp_path):
    out = tmp_path / "s.csv"
    out.write_text("old")
    with pytest.raises(Stop):
        run(out, new, stop_after=5)
    assert out.read_text() == "old"
    with pytest.raises(InputError, match="--resume"):
        run(out, new)
    run(out, new, resume=True)
    assert len(out.read_text().splitlines()) == 21


def files_in(table):
    with open(table, newline="", encoding="utf-8") as file:
        return [os.path.basename(row["file"]) for row in csv.DictReader(file)]


def test_files_may_come_and_go_while_a_run_is_stopped(new, tmp_path):
    out = tmp_path / "s.csv"
    with pytest.raises(Stop):
        run(out, new, stop_after=3)
    (new / "00.png").unlink()  # with a row
    (new / "03.png").rename(new / "035.png")  # with a row
    (new / "12.png").unlink()  # without
    draw(new / "01" / "01.png", NORMAL)
    judge, told = Brightness(), []
    with pytest.raises(Stop):
        run(out, new, resume=True, stop_after=2, judge=judge)
    (new / "000.png").symlink_to(new / "02.png")
    tally = run(out, new, True, judge=judge, progress=lambda *numbers: told.append(numbers))
    kept = [f"{k:02}.png" for k in range(9)]
    added = ["01.png", "035.png", *(f"{k:02}.png" for k in (9, 10, 11, 13))]
    rest = ["000.png", *(f"{k:02}.png" for k in range(14, 20))]
    assert files_in(out) == [*kept, *added, *rest]
    assert tally.files == 22 and told == [(16, 3), (19, 6), (20, 7)]
    assert judge.judged == len(added) + 3 + len(rest)  # three were judged when it was stopped


def test_names_that_are_no_text_are_known_again(new, tmp_path):
    try:
        draw(new / os.fsdecode(b"00\xe9.png"), NORMAL)
    except OSError:
        pytest.skip("this file system refuses names that are no text")
    draw(new / "00\\xe9.png", NORMAL)  # written alike in a table
    out, again = tmp_path / "s.csv", []
    with pytest.raises(Stop):
        run(out, new, stop_after=2)
    for _ in range(2):
        assert len(list(new.iterdir())) == 22
        (new / "001.png").symlink_to(new / "02.png")
        with suppress(Stop):
            run(out, new, resume=True, stop_after=0)
        (new / "001.png").unlink()
    run(out, new, resume=True, also=again.extend)
    assert sorted(scored.file for scored in again) == sorted(new.iterdir())
    assert files_in(out).count("00\\xe9.png") == 2


def test_a_table_of_other_files_is_not_continued(new, tmp_path):
    out, other = tmp_path / "s.csv", tmp_path / "other"
    with pytest.raises(Stop):
        run(out, new, stop_after=2)
    kept = (tmp_path / "s.csv.partial").read_bytes()
    new.rename(other)
    with pytest.raises(DataError, match=r"s\.csv\.partial has no row of these files.*delete"):
        run(out, other, resume=True)
    assert (tmp_path / "s.csv.partial").read_bytes() == kept


def test_files_after_the_finished_ones_may_be_new(new, tmp_path):
    with pytest.raises(Stop):
        run(tmp_path / "s.csv", new, stop_after=2)
    draw(new / "99.png", NORMAL)
    assert run(tmp_path / "s.csv", new, resume=True).files == 21


def test_if_no_image_can_be_scored_the_table_says_why(tmp_path):
    (tmp_path / "new").mkdir()
    for k in range(3):
        (tmp_path / "new" / f"{k}.png").touch()
    tally = run(tmp_path / "s.csv", tmp_path / "new")
    assert (tally.scored, tally.failed) == (0, 3) and "0.png is empty" in tally.error
    lines = (tmp_path / "s.csv").read_text().splitlines()
    assert len(lines) == 4 and all("is empty" in line for line in lines[1:])


def test_what_is_known_beside_a_row_is_known_again(new, tmp_path):
    batches = []
    run(tmp_path / "whole.csv", new, also=batches.extend)
    with pytest.raises(Stop):
        run(tmp_path / "s.csv", new, stop_after=4)
    again = []
    run(tmp_path / "s.csv", new, resume=True, also=again.extend)
    assert [scored.sentence for scored in again] == [scored.sentence for scored in batches]
    assert sum(scored.image is None for scored in again) == 12  # the bad one among them
    assert len({scored.sentence for scored in batches}) > 3
    assert "sentence" not in (tmp_path / "s.csv").read_text()


def test_a_run_is_told_by_its_model_and_alpha():
    one, other = Brightness(), Brightness()
    other.checksum = "other"
    runs = [run_of(judge, alpha) for judge in (one, other) for alpha in (0.1, 0.2)]
    assert len({str(run) for run in runs}) == 4
    assert run_of(Brightness(), 0.1) == runs[0]
