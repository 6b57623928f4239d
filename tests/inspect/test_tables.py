"""Tables of rows: three formats, written whole, resumed after a cut at any byte."""

import csv
import errno
import json
import sys

import pytest
from image_files import no_file_above
from processes import holding

from anocaps.base.errors import DataError, InputError
from anocaps.inspect import tables
from anocaps.inspect.tables import UnfinishedTable, check_format, partial_path

COLUMNS = ("file", "score", "p_value", "verdict", "class", "error", "re", "p_value_class")
RUN = {"model": "0123", "alpha": 0.05}


def row(k: int) -> dict[str, object]:
    values = (f"new/größe {k}.png", 0.1 + k, 1 / 3, "normal", 'a "b", c', None, -1e-7, None)
    return dict(zip(COLUMNS, values))


BAD = dict.fromkeys(COLUMNS) | {"file": "two\nlines", "error": "is empty"}
ROWS = [row(0), BAD, row(2), row(3)]
NOTED = [(row, {"sentence": f"line {k}"}) for k, row in enumerate(ROWS)]


def table(out, resume=False, run=RUN, columns=COLUMNS):
    return UnfinishedTable(out, columns, run, resume)


def write(out):
    with table(out) as rows:
        rows.append(NOTED[:2])
        rows.append(NOTED[2:])
        rows.finish()


def test_csv_leaves_unknown_values_empty(tmp_path):
    write(tmp_path / "deep" / "s.csv")
    with open(tmp_path / "deep" / "s.csv", newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == list(COLUMNS)
    expected = [{k: "" if v is None else str(v) for k, v in row.items()} for row in ROWS]
    expected[1]["file"] = r"two\nlines"
    assert found == expected
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["s.csv"]


def finished(out, rows):
    with table(out) as unfinished:
        unfinished.append([(row, {}) for row in rows])
        unfinished.finish()
    with open(out, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file)) if out.suffix == ".csv" else list(map(json.loads, file))


def test_no_file_name_is_a_formula_in_a_spreadsheet(tmp_path):
    names = ["=1+1.png", "+a/b.png", "-1.png", "@x.png", "＝1.png", "./=1.png", "a=1.png"]
    rows = [dict.fromkeys(COLUMNS) | {"file": name, "score": -1.5} for name in names]
    rows[0]["error"] = "=1+1.png is empty"
    found = finished(tmp_path / "s.csv", rows)
    assert [row["file"] for row in found] == [*(f"./{name}" for name in names[:-2]), *names[-2:]]
    assert found[0]["error"] == "./=1+1.png is empty"
    assert {row["score"] for row in found} == {"-1.5"}
    assert finished(tmp_path / "s.jsonl", rows) == rows


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("a\n=1+1.png", r"a\n=1+1.png"),
        ("a\r\x1b[31m\x85\u2028.png", r"a\r\x1b[31m\x85\u2028.png"),
        ("\n=1.png", r"./\n=1.png"),
        ("\t=1.png", r"./\t=1.png"),
        ("1.00\u202fPM\u3000\u200d.png", "1.00\u202fPM\u3000\u200d.png"),
    ],
)
def test_a_row_of_csv_is_one_line_whatever_the_file_name(tmp_path, name, cell):
    rows = [dict.fromkeys(COLUMNS) | {"file": name, "error": f"{name} is empty"}]
    assert [(row["file"], row["error"]) for row in finished(tmp_path / "s.csv", rows)] == [
        (cell, f"{cell} is empty")
    ]
    assert len((tmp_path / "s.csv").read_text("utf-8").splitlines()) == 2
    assert finished(tmp_path / "s.jsonl", rows) == rows


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        *(
            (name, f"'{name}")
            for name in ("=1+1", " =1", "@SUM(A1)", "-a", "＝1+1", "＋1", "－1", "＠x")
        ),
        ("\t=1", r"'\t=1"),
        ("\ufeff=1", r"'\ufeff=1"),
        ("\u200b +1", r"'\u200b +1"),
        ("red\x1b[31m\n", r"red\x1b[31m\n"),
        ("größe a=1", "größe a=1"),
    ],
)
def test_no_class_name_is_a_formula_or_controls_a_terminal(tmp_path, name, cell):
    rows = [row(0) | {"class": name}]
    assert finished(tmp_path / "s.csv", rows)[0]["class"] == cell
    assert finished(tmp_path / "s.jsonl", rows) == rows


@pytest.mark.parametrize("name", ["s.jsonl", "s.ndjson", "S.JSONL"])
def test_json_lines_keep_every_value(tmp_path, name):
    write(tmp_path / name)
    lines = (tmp_path / name).read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == ROWS


def test_parquet_keeps_every_value_in_groups_of_rows(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    monkeypatch.setattr(tables, "_ROW_GROUP", 3)
    write(tmp_path / "s.parquet")
    file = parquet.ParquetFile(tmp_path / "s.parquet")
    assert file.read().to_pylist() == ROWS
    assert file.num_row_groups == 2
    kinds = [str(field.type) for field in file.schema_arrow]
    assert kinds == ["string", "double", "double", "string", "string", "string", "double", "double"]


def test_formats_are_known_by_their_names(tmp_path, monkeypatch):
    for name in ("s.csv", "s.JSONL", "s.ndjson"):
        check_format(tmp_path / name)
    with pytest.raises(InputError, match=r"s\.txt"):
        check_format(tmp_path / "s.txt")
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    with pytest.raises(InputError, match=r"s\.parquet.*anocaps\[parquet\]"):
        check_format(tmp_path / "s.parquet")


def test_a_table_cut_anywhere_resumes_after_its_last_whole_row(tmp_path):
    write(tmp_path / "whole.csv")
    out = tmp_path / "s.csv"
    with table(out) as rows:
        rows.append(NOTED)
    whole = partial_path(out).read_bytes()
    kept = set()
    ends = [k for k, byte in enumerate(whole) if byte == ord("\n")]
    for cut in sorted({*range(0, len(whole), 25), *(end + k for end in ends for k in (-1, 0, 1))}):
        partial_path(out).write_bytes(whole[:cut])
        with table(out, resume=True) as rows:
            finished = list(rows.finished())
            assert finished == NOTED[: len(finished)]
            assert len(finished) == max(whole[:cut].count(b"\n") - 1, 0)
            kept.add(len(finished))
            rows.append(NOTED[len(finished) :])
        assert partial_path(out).read_bytes() == whole
    assert kept == {0, 1, 2, 3, 4}
    with table(out, resume=True) as rows:
        rows.finish()
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not partial_path(out).exists()


def test_a_stopped_run_keeps_its_rows_if_it_has_any(tmp_path):
    with table(tmp_path / "s.csv"):
        assert partial_path(tmp_path / "s.csv").exists()
    assert list(tmp_path.iterdir()) == []
    with table(tmp_path / "s.csv") as rows:
        rows.append(NOTED[:1])
    assert list(tmp_path.iterdir()) == [tmp_path / "s.csv.partial"]


def test_rows_of_a_stopped_run_are_not_overwritten(tmp_path):
    out = tmp_path / "s.csv"
    with table(out) as rows:
        rows.append(NOTED[:1])
    before = partial_path(out).read_bytes()
    for content in (before, before[:5], b"something else"):
        partial_path(out).write_bytes(content)
        with pytest.raises(InputError, match=r"s\.csv\.partial"), table(out):
            pass
        assert partial_path(out).read_bytes() == content
    partial_path(out).write_bytes(b"")  # killed before its first row
    with table(out) as rows:
        rows.append(NOTED)
        rows.finish()
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    "other", [{"run": RUN | {"alpha": 0.1}}, {"run": RUN | {"model": "4"}}, {"columns": ("file",)}]
)
def test_another_run_is_not_resumed(tmp_path, other):
    partial = tmp_path / "s.csv.partial"
    with table(tmp_path / "s.csv") as rows:
        rows.append(NOTED)
    for before in (partial.read_bytes(), b"no table, no line"):
        partial.write_bytes(before)
        with (
            pytest.raises(DataError, match=r"s\.csv\.partial"),
            table(tmp_path / "s.csv", resume=True, **other),
        ):
            pass
        assert partial.read_bytes() == before
    assert list(tmp_path.iterdir()) == [partial]


FORGED = [
    [row(0) | {"score": "x"}, {}],
    [row(0) | {"score": True}, {}],
    [row(0) | {"score": 1}, {}],
    [row(0) | {"score": float("nan")}, {}],
    [row(0) | {"re": [1.0]}, {}],
    [row(0) | {"re": 10**400}, {}],
    [row(0) | {"class": [1]}, {}],
    [row(0) | {"class": "\ud800"}, {}],
    [row(0) | {"file": None}, {}],
    [row(0) | {"file": "\ud800"}, {}],
    [row(0) | {"file": "a\0b"}, {}],
    [row(0), {"path": "\ud800"}],
    [row(0), {"path": 5}],
    [row(0), {"sentence": None}],
]


@pytest.mark.parametrize(
    "damage",
    [
        *(b"\0\0", b"[1]", b'{"file": "a"}', b"[{}, {}]", b"[[], 1]", b"[" * 100_000),
        *(json.dumps(forged).encode() for forged in FORGED),
    ],
)
def test_damage_in_the_middle_is_an_error(tmp_path, damage):
    with table(tmp_path / "s.csv") as rows:
        rows.append(NOTED)
    lines = partial_path(tmp_path / "s.csv").read_bytes().splitlines()
    lines[2] = damage
    partial_path(tmp_path / "s.csv").write_bytes(b"\n".join(lines) + b"\n")
    with (
        pytest.raises(DataError, match=r"s\.csv\.partial"),
        table(tmp_path / "s.csv", True) as rows,
    ):
        list(rows.finished())


def test_a_full_disk_keeps_whole_batches(tmp_path):
    out = tmp_path / "s.csv"
    with table(out) as rows:
        rows.append(NOTED[:3])
    size = partial_path(out).stat().st_size
    full = pytest.raises(OSError, match="3 rows are kept")
    with table(out, resume=True) as rows, no_file_above(size + 5), full as e:
        rows.append(NOTED[3:])
    assert e.value.filename == str(partial_path(out))
    assert partial_path(out).stat().st_size == size  # no half row
    with table(out, resume=True) as rows:
        rows.append(NOTED[3:])
        rows.finish()
    assert len(out.read_text().splitlines()) == 5


def test_a_disk_that_is_full_from_the_start_leaves_nothing(tmp_path):
    full = pytest.raises(OSError, match="cannot be written")
    with no_file_above(10), full, table(tmp_path / "s.csv") as rows:
        rows.append(NOTED)
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_cannot_be_written_leaves_the_old_one_and_the_rows(tmp_path, monkeypatch):
    def fail(path, *_):
        path.write_text("half a ta")
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "s.csv"
    out.write_text("old")
    monkeypatch.setitem(tables._WRITERS, ".csv", fail)
    with table(out) as rows:
        rows.append(NOTED)
        with pytest.raises(OSError, match="4 rows are kept") as caught:
            rows.finish()
    assert caught.value.filename == str(out)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.csv", "s.csv.partial"]
    monkeypatch.undo()
    with table(out, resume=True) as rows:
        rows.finish()
    assert out.read_text().startswith("file,")


HOLD = """
import sys
from pathlib import Path
from anocaps.inspect.tables import UnfinishedTable
with UnfinishedTable(Path(sys.argv[1]), ("file",), {}, False) as table:
    table.append([({"file": "a"}, {})])
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that is writing s.csv until it is told to end."""
    with holding(HOLD, tmp_path / "s.csv") as running:
        yield running


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_is_refused_and_disturbs_nothing(holder, tmp_path, resume):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with (
        pytest.raises(InputError, match=r"s\.csv"),
        table(tmp_path / "s.csv", resume, {}, ("file",)),
    ):
        pass
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    if resume:
        holder.communicate("end\n", timeout=60)
    else:  # killed
        holder.kill()
        holder.wait()
    with table(tmp_path / "s.csv", True, {}, ("file",)) as rows:
        assert rows.rows == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s.csv.partial"]


@pytest.mark.parametrize("name", ["s.csv", "s.jsonl"])
def test_a_live_table_has_every_row_at_once(tmp_path, name):
    whole, out = tmp_path / f"whole-{name}", tmp_path / name
    write(whole)
    for resume in (False, True):
        with UnfinishedTable(out, COLUMNS, RUN, resume, live=True) as rows:
            for noted in NOTED[2:] if resume else NOTED[:2]:
                rows.append([noted])
                assert out.read_text().splitlines()[-1]
        if not resume:
            out.write_text(out.read_text() + "half a r")  # the process was killed
    assert out.read_text() == whole.read_text() and partial_path(out).exists()


def test_parquet_cannot_be_live(tmp_path):
    check_format(tmp_path / "s.csv", live=True)
    with pytest.raises(InputError, match=r"s\.parquet"):
        check_format(tmp_path / "s.parquet", live=True)
