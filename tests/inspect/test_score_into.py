"""A scoring run becomes one table, however often it stops and whatever files change meanwhile."""

import csv
import os
from contextlib import suppress

import pytest
from brightness import DARK, NORMAL, Brightness, draw

from anocaps.base.errors import DataError
from anocaps.inspect import scoring
from anocaps.inspect.listing import Listing
from anocaps.inspect.scoring import columns_of, run_of, score_into
from anocaps.inspect.tables import UnfinishedTable


@pytest.fixture
def new(tmp_path, monkeypatch):
    """20 files, some anomalous and one bad, to be scored three at a time."""
    monkeypatch.setattr(scoring, "_BATCH", 3)
    for k in range(20):
        draw(tmp_path / "new" / f"{k:02}.png", DARK if k % 6 == 0 else NORMAL + k)
    (tmp_path / "new" / "07.png").write_bytes(b"no image")
    return tmp_path / "new"


class Stop(Exception):
    pass


def run(out, new, resume=False, stop_after=None, judge=None, alpha=0.05, **options):
    """One run; with `stop_after`, stopped in the batch after this many."""
    judge = judge or Brightness()
    batches = 0

    def also(batch):
        nonlocal batches
        if batch[0].image is not None or batch[0].row["error"]:  # not a row of the run before
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
    before = judge.judged
    tally = run(out, new, True, judge=judge, progress=lambda *numbers: told.append(numbers))
    assert judge.judged - before == 11  # 9 of 20 rows were in the file
    assert out.read_text() == whole.read_text()
    assert (tally.scored, tally.anomalous, tally.failed) == (19, 4, 1)
    assert told == [(12, 3), (15, 6), (18, 9), (20, 11)]
    assert not (tmp_path / "s.csv.partial").exists()


def files_in(table):
    with open(table, newline="", encoding="utf-8") as file:
        return [os.path.basename(row["file"]) for row in csv.DictReader(file)]


def test_files_can_come_and_go_while_a_run_is_stopped(new, tmp_path):
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


def test_names_that_are_not_text_are_found_again(new, tmp_path):
    try:
        draw(new / os.fsdecode(b"00\xe9.png"), NORMAL)
    except OSError:
        pytest.skip("this file system refuses names that are not text")
    draw(new / "00\\xe9.png", NORMAL)  # the same text in a table
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
    with pytest.raises(DataError, match=r"s\.csv\.partial"):
        run(out, other, resume=True)
    assert (tmp_path / "s.csv.partial").read_bytes() == kept


def test_sentences_are_kept_when_a_run_resumes(new, tmp_path):
    batches = []
    run(tmp_path / "whole.csv", new, also=batches.extend)
    with pytest.raises(Stop):
        run(tmp_path / "s.csv", new, stop_after=4)
    again = []
    run(tmp_path / "s.csv", new, resume=True, also=again.extend)
    assert [scored.sentence for scored in again] == [scored.sentence for scored in batches]
    assert sum(scored.image is None for scored in again) == 12  # the bad one among them
    assert len({scored.sentence for scored in batches}) > 3
    assert "sentence" not in (tmp_path / "s.csv").read_text().splitlines()[0]


def test_a_run_is_identified_by_its_model_and_alpha():
    one, other = Brightness(), Brightness()
    other.checksum = "other"
    runs = [run_of(judge, alpha) for judge in (one, other) for alpha in (0.1, 0.2)]
    assert len({str(run) for run in runs}) == 4
    assert run_of(Brightness(), 0.1) == runs[0]
