"""The folder of parts and its manifest: what is listed is whole, and a stopped run goes on."""

import json
from dataclasses import asdict

import pytest

from anocaps.base.errors import DataError, InputError
from anocaps.inspect.parts.folder import MANIFEST, Part, PartsFolder, sha256

RUN = {"model": "m", "alpha": 0.05}


def part(number: int, content: bytes = b"rows", shard: str = "s") -> Part:
    return Part(number, shard, 3, 1, 1, "an error", len(content), sha256(content))


@pytest.fixture
def stopped(tmp_path):
    """A run that ended after its parts 0 and 2."""
    with PartsFolder(tmp_path, RUN, resume=False) as folder:
        for number in (0, 2):
            folder.add(part(number), b"rows")
    return tmp_path


def resumed(folder, run=RUN) -> dict:
    with PartsFolder(folder, run, resume=True) as found:
        return found.parts


def test_a_resumed_run_knows_the_finished_parts(stopped):
    assert resumed(stopped) == {0: part(0), 2: part(2)}
    with PartsFolder(stopped, RUN, resume=True) as folder:
        assert folder.has(2, "s", 4) and not folder.has(1, "s")
        folder.add(part(1), b"rows")
        folder.finish(3)
    lines = [json.loads(line) for line in (stopped / MANIFEST).read_text().splitlines()]
    assert lines[-1] == {"finished": {"parts": 3, "rows": 12}}
    assert len(resumed(stopped)) == 3  # a finished run can be resumed: nothing is left to do


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_that_a_crash_cut_off_is_written_again(stopped, cut):
    path = stopped / MANIFEST
    path.write_bytes(path.read_bytes()[:-cut])
    with PartsFolder(stopped, RUN, resume=True) as folder:
        assert set(folder.parts) == {0}
        folder.add(part(2), b"rows")
    assert resumed(stopped) == {0: part(0), 2: part(2)}


def test_what_follows_the_last_whole_line_is_dropped(stopped):
    with open(stopped / MANIFEST, "ab") as file:
        file.write(b"x" * 2000)
    with PartsFolder(stopped, RUN, resume=True) as folder:
        folder.add(part(1), b"rows")
    assert set(resumed(stopped)) == {0, 1, 2}
    assert b"x" not in (stopped / MANIFEST).read_bytes()


def test_a_part_that_is_gone_or_cut_is_not_finished(stopped):
    (stopped / "part-000000.parquet").unlink()
    (stopped / "part-000002.parquet").write_bytes(b"ro")
    assert resumed(stopped) == {}


def test_a_part_with_another_content_is_not_finished(stopped):
    (stopped / "part-000002.parquet").write_bytes(b"rowz")
    with PartsFolder(stopped, RUN, resume=True) as folder:
        assert (set(folder.parts), folder.changed) == ({0}, ["part-000002.parquet"])
        folder.add(part(2, b"more"), b"more")
    with PartsFolder(stopped, RUN, resume=True) as folder:  # the second line of part 2 counts
        assert (folder.parts, folder.changed) == ({0: part(0), 2: part(2, b"more")}, [])


def test_other_images_are_refused(stopped):
    with PartsFolder(stopped, RUN, resume=True) as folder:
        with pytest.raises(DataError, match="new folder"):
            folder.has(0, "other")
        with pytest.raises(DataError, match="fewer images"):
            folder.finish(1)


def test_what_cannot_be_resumed_is_refused(stopped, tmp_path):
    with pytest.raises(InputError, match="--resume"), PartsFolder(stopped, RUN, resume=False):
        pass
    with pytest.raises(DataError, match="another model"):
        resumed(stopped, {"model": "other"})
    (stopped / MANIFEST).write_text(json.dumps({"run": RUN}) + '\n{"part": 0}\n')
    with pytest.raises(DataError, match="damaged"):
        resumed(stopped)


@pytest.mark.parametrize(
    "values",
    [
        {"part": None},
        {"part": True},
        {"part": 10**300},
        {"part": 2**62},
        {"failed": 2**62},
        {"part": -1},
        {"scored": "5"},
        {"scored": 0.5},
        {"anomalous": 4},
        {"bytes": None},
        {"error": None},
        {"sha256": 1},
    ],
)
def test_a_line_with_other_values_is_damaged(stopped, values):
    line = json.dumps(asdict(part(1)) | values)
    (stopped / MANIFEST).write_text(json.dumps({"run": RUN}) + f"\n{line}\n")
    with pytest.raises(DataError, match="damaged"):
        resumed(stopped)


@pytest.mark.parametrize("line", ["[" * 200_000, "5", "null", "[]", '"text"'])
def test_a_line_that_is_no_object_is_damaged(stopped, line):
    (stopped / MANIFEST).write_text(json.dumps({"run": RUN}) + f"\n{line}\n")
    with pytest.raises(DataError, match="damaged"):
        resumed(stopped)


def test_a_line_with_another_number_of_rows_is_damaged(stopped):
    with (
        PartsFolder(stopped, RUN, resume=True) as folder,
        pytest.raises(DataError, match="damaged"),
    ):
        folder.has(2, "s", 5)


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "photo.png").touch()
    with pytest.raises(InputError, match="other files"), PartsFolder(tmp_path, RUN, resume=False):
        pass


def test_a_run_without_a_part_leaves_nothing(tmp_path):
    with PartsFolder(tmp_path, RUN, resume=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_one_run_at_a_time(stopped):
    with (
        PartsFolder(stopped, RUN, resume=True),
        pytest.raises(InputError, match="another run"),
        PartsFolder(stopped, RUN, resume=True),
    ):
        pass
