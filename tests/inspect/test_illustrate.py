"""The gallery and the heatmaps of a scoring run, stopped or not."""

from dataclasses import replace

import numpy as np
import pytest
from brightness import Brightness, draw
from gallery_rows import content
from image_files import no_file_above

from anocaps.base.errors import InputError
from anocaps.inspect import illustrate, scoring
from anocaps.inspect.illustrate import Illustrations, check_places
from anocaps.inspect.listing import Listing
from anocaps.inspect.scoring import columns_of, score_batches, score_into
from anocaps.inspect.tables import UnfinishedTable


@pytest.fixture
def new(tmp_path, monkeypatch):
    """12 files in two folders, to be scored five at a time; the fourth is the most anomalous."""
    monkeypatch.setattr(scoring, "_BATCH", 5)
    for k in range(12):
        draw(tmp_path / "new" / f"{k % 2}" / f"{k:02}.png", {6: 20, 11: 250}.get(k, 180 - k))
    (tmp_path / "new" / "0" / "08.png").write_bytes(b"no image")
    return tmp_path / "new"


class Stop(Exception):
    pass


def run(new, judge=None, resume=False, stop=0, paths=None, **places):
    """One run; with `stop`, stopped in the batch after this many rows."""
    paths = paths or [new]
    judge = judge or Brightness()
    out = new.parent / "s.csv"
    places = {"gallery": None, "heatmaps": None} | places
    illustrations = Illustrations(judge, paths, 0.05, **places)
    with UnfinishedTable(out, columns_of(judge), {}, resume) as table:

        def also(batch):
            if stop and table.rows >= stop:
                raise Stop
            illustrations.add(batch)

        score_into(table, judge, Listing(paths), 0.05, also, with_heat=illustrations.wanted)
        illustrations.close()
        table.finish()
    return judge


def test_a_heatmap_for_every_image(new, tmp_path):
    judge = run(new, heatmaps=tmp_path / "maps")
    maps = tmp_path / "maps"
    readable = [path for path in sorted(new.rglob("*.png")) if path.name != "08.png"]
    for kind in ("png", "npz"):
        found = sorted(path.relative_to(maps) for path in maps.rglob(f"*.{kind}"))
        assert [str(path) for path in found] == [f"{p.relative_to(new)}.{kind}" for p in readable]
    assert judge.judged == judge.reconstructed == 11  # in one pass


def test_a_method_without_reconstructions_has_a_gallery_but_no_heatmaps(new, tmp_path):
    judge = Brightness()
    judge.heat_scale, judge._white = None, lambda images: None
    with pytest.raises(InputError, match="no heatmaps"):
        run(new, judge, heatmaps=tmp_path / "maps")
    run(new, judge, gallery=tmp_path / "page.html")
    assert len(content(tmp_path / "page.html")["rows"]) == 12


def test_heatmaps_inside_the_scored_folder_are_refused_also_through_links(new, tmp_path):
    (tmp_path / "link").symlink_to(new)
    for scored, maps in ((new, tmp_path / "link" / "maps"), (tmp_path / "link", new / "maps")):
        with pytest.raises(InputError, match="maps"):
            check_places([scored], None, maps)
    (new / "out").symlink_to(tmp_path / "elsewhere")  # inside by its name only
    (tmp_path / "elsewhere").mkdir()
    check_places([new / "0"], None, new / "out")


def test_rows_of_folders_that_are_no_longer_scored_need_no_heatmap(new, tmp_path):
    with pytest.raises(Stop):  # after all rows of one folder and some of the other
        run(new, paths=[new / "1", new / "0"], stop=10, heatmaps=tmp_path / "maps")
    run(new, paths=[new / "0"], resume=True, heatmaps=tmp_path / "maps")
    assert len((tmp_path / "s.csv").read_text().splitlines()) == 13


def test_the_gallery_has_the_images_that_it_shows(new, tmp_path, monkeypatch):
    monkeypatch.setattr(illustrate, "SHOWN", 2)
    monkeypatch.setattr(illustrate, "MOST_NORMAL", 1)
    judge = run(new, gallery=tmp_path / "page.html")
    assert judge.judged == judge.reconstructed == 11  # in one pass
    found = content(tmp_path / "page.html")
    names = [line[0][-6:] for line in found["rows"]]
    assert len(names) == 12 and names[:2] == ["06.png", "10.png"]
    assert {"0", "1", str(names.index("11.png"))} <= found["images"].keys()


class Telling(Brightness):
    """As a network: its sentences say more than a row."""

    score_function = "re"
    score_names = ("re", "mean", "largest")

    def judge(self, images, with_heat=False):
        found = super().judge(images, with_heat)
        scores = found.scores | {"re": found.scores["mean"]}
        p_values = {"re": found.p_value, "pp": np.full(len(images), 0.5)}
        return replace(found, scores=scores, p_values=p_values)


def files_in(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.png")}


@pytest.mark.parametrize("before", [{"gallery", "heatmaps"}, {"heatmaps"}, set()])
def test_a_stopped_run_leaves_no_gallery_and_resumes_to_the_same_one(new, tmp_path, before):
    judge = Telling()
    run(new, judge, gallery=tmp_path / "whole.html", heatmaps=tmp_path / "whole")
    places = {"gallery": tmp_path / "page.html", "heatmaps": tmp_path / "maps"}
    with pytest.raises(Stop):
        run(new, judge, stop=1, **{what: places[what] for what in before})
    assert not (tmp_path / "page.html").exists()
    run(new, judge, resume=True, **places)
    assert (tmp_path / "page.html").read_text() == (tmp_path / "whole.html").read_text()
    assert all(line[5] for line in content(tmp_path / "page.html")["rows"][:11])
    assert files_in(tmp_path / "maps") == files_in(tmp_path / "whole")
    assert len(files_in(tmp_path / "maps")) == 11


def test_existing_heatmaps_are_not_drawn_again(new, tmp_path):
    with pytest.raises(Stop):
        run(new, stop=1, heatmaps=tmp_path / "maps")
    drawn = files_in(tmp_path / "maps")
    assert len(drawn) == 4  # of the first five files one is bad
    gone = tmp_path / "maps" / min(drawn)
    gone.unlink()
    judge = run(new, resume=True, heatmaps=tmp_path / "maps")
    assert judge.reconstructed == 11 - 3
    assert files_in(tmp_path / "maps").items() >= drawn.items()


def test_heatmaps_of_another_run_are_replaced(new, tmp_path):
    run(new, heatmaps=tmp_path / "whole")
    for name in files_in(tmp_path / "whole"):
        (tmp_path / "maps" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "maps" / name).write_bytes(b"of another model")
    with pytest.raises(Stop):
        run(new, stop=1, heatmaps=tmp_path / "elsewhere")
    run(new, resume=True, heatmaps=tmp_path / "maps")
    assert files_in(tmp_path / "maps") == files_in(tmp_path / "whole")


def test_a_file_that_breaks_before_a_run_resumes_has_no_image(new, tmp_path):
    with pytest.raises(Stop):
        run(new, stop=1)
    (new / "0" / "06.png").write_bytes(b"")
    run(new, resume=True, gallery=tmp_path / "page.html", heatmaps=tmp_path / "maps")
    assert not (tmp_path / "maps" / "0" / "06.png.png").exists()
    found = content(tmp_path / "page.html")
    assert "06.png" in found["rows"][0][0] and "0" not in found["images"]
    assert "1" in found["images"]


@pytest.mark.parametrize(("what", "name"), [("heatmaps", "maps/0/00.png.png"), ("gallery", "page")])
def test_a_full_disk_names_the_file_and_leaves_no_part_of_it(new, tmp_path, what, name):
    place = tmp_path / name.partition("/")[0]
    room = 6000 if what == "gallery" else 10
    with no_file_above(room), pytest.raises(OSError, match="cannot be written") as caught:
        run(new, **{what: place})
    assert caught.value.filename == str(tmp_path / name)
    assert not place.is_file() and [p for p in place.rglob("*") if p.is_file()] == []
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_during_a_watch_the_gallery_is_rewritten_now_and_then(new, tmp_path, monkeypatch):
    """If files came, it is rewritten after 3 seconds, or ten times as long as its writing took."""
    now, takes = [100.0], [2.0, 0.1, 0.1]
    monkeypatch.setattr(illustrate.time, "monotonic", lambda: now[0])
    page = tmp_path / "page.html"
    illustrations = Illustrations(Brightness(), [new], 0.05, page, None)
    close = illustrations.close

    def slow():
        close()
        now[0] += takes.pop(0)

    monkeypatch.setattr(illustrations, "close", slow)
    batches = score_batches(Brightness(), list(Listing([new])), 0.05, with_heat=True)
    illustrations.refresh()
    assert not page.exists()  # there is nothing to show
    shown = []
    for later, came in ((0, True), (5, True), (16, False), (2, True), (2, False)):
        now[0] += later
        illustrations.add(next(batches) if came else [])
        illustrations.refresh()
        shown.append(len(content(page)["rows"]))
    assert shown == [5, 5, 10, 10, 12]
    page.unlink()
    now[0] += 100
    illustrations.refresh()
    assert not page.exists()  # nothing is new
