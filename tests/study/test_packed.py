"""Cells in Parquet: the same as in their result files, and readable by any tool."""

import os
from dataclasses import fields, replace

import numpy as np
import pyarrow.parquet as parquet
import pytest
from study_results import make_result

from anocaps.base.errors import DataError
from anocaps.study import packed
from anocaps.study.packed import SUFFIX, pack, packed_fingerprint, read_packed
from anocaps.study.plan import progress
from anocaps.study.reports import read_results
from anocaps.study.resultfile import write_result


@pytest.fixture
def folder(tmp_path):
    for method in ("capsnet", "vae"):
        for digit in "29":
            kept = 4 * (method == "capsnet" and digit == "2")
            result = make_result((digit,), 0, method, reconstructions=kept)
            path = tmp_path / "mnist" / method / f"{digit}-seed0.npz"
            write_result(path, result, f"{method}-{digit}")
    return tmp_path


def same(one, other):
    for field in fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, dict) and field.name == "scores":
            assert mine.keys() == theirs.keys()
            for name in mine:
                np.testing.assert_array_equal(mine[name], theirs[name])
        elif isinstance(mine, np.ndarray):
            np.testing.assert_array_equal(mine, theirs)
        else:
            assert mine == theirs, field.name


def test_packed_cells_are_the_same_and_stay_known(folder):
    before = read_results(folder)
    written = pack(folder)
    assert [path.name for path in written] == ["capsnet.parquet", "vae.parquet"]
    assert not list(folder.rglob("*.npz")) and not (folder / "mnist").exists()
    for one, other in zip(before, read_results(folder), strict=True):
        same(one, other)
    assert packed_fingerprint(folder, "mnist/vae/9-seed0") == "vae-9"
    new = make_result(("3",), 0, "vae")
    write_result(folder / "mnist" / "vae" / "3-seed0.npz", new, "vae-3")
    pack(folder)  # adds to what is there
    assert [name for name, _, _ in read_packed(folder / "vae.parquet")] == [
        f"mnist/vae/{digit}-seed0" for digit in "239"
    ]


def test_a_table_opens_in_one_line(folder):
    result = next(r for r in read_results(folder) if r.method == "capsnet" and "2" in r.held_out)
    pack(folder)
    table = parquet.read_table(folder / "capsnet.parquet").to_pydict()
    rows = [k for k, held in enumerate(table["held_out"]) if held == "2"]
    assert [table["pp"][k] for k in rows] == result.scores["pp"].tolist()
    assert [table["anomalous"][k] for k in rows] == result.anomalous.tolist()
    assert {table["label"][k] for k in rows if table["anomalous"][k]} == {"2"}


def test_a_file_that_does_not_read_back_replaces_and_removes_nothing(folder, monkeypatch):
    pack(folder)
    before = (folder / "vae.parquet").read_bytes()
    new = folder / "mnist" / "vae" / "3-seed0.npz"
    write_result(new, make_result(("3",), 0, "vae"), "vae-3")
    columns = packed._columns

    def lossy(result, scores):
        return columns(replace(result, index=result.index + 1), scores)

    for wrong in (lossy, lambda *_: {}):
        with monkeypatch.context() as patch:
            patch.setattr(packed, "_columns", wrong)
            with pytest.raises(DataError, match=r"vae\.parquet: not packed"):
                pack(folder)
        assert new.exists() and (folder / "vae.parquet").read_bytes() == before
    pack(folder)
    assert not new.exists() and packed_fingerprint(folder, "mnist/vae/3-seed0") == "vae-3"


@pytest.mark.parametrize("names", [("image",), ("original", "label")])
def test_scores_named_as_another_column_are_not_packed(tmp_path, names):
    path = tmp_path / "mnist" / "own" / "2-seed0.npz"
    write_result(path, make_result(("2",), 0, "own", scores=names), "f")
    with pytest.raises(DataError, match=r"own\.parquet: not packed"):
        pack(tmp_path)
    assert read_results(tmp_path)[0].scores.keys() == set(names)


# ── damage ───────────────────────────────────────────────────────────────────────────────────

VAE = {f"mnist/vae/{digit}-seed0": f"vae-{digit}" for digit in "29"}


def change(path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1 and len(old) == len(new)
    path.write_bytes(content.replace(old, new))


def damage_page(path, row_group: int) -> None:
    """Flip a byte in the last column that has data: the row group is one cell."""
    group = parquet.ParquetFile(path).metadata.row_group(row_group)
    place = group.column(7).data_page_offset + 60  # the first score
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)


def states(folder):
    """How many cells of the VAE are done and left, and the lines about damage."""
    plan = {n: {"dataset": "mnist", "method": "vae", "fingerprint": f} for n, f in VAE.items()}
    (row,) = progress(folder, plan)
    return row.done, row.left, row.damaged


def refusal(path) -> str:
    with pytest.raises(DataError) as caught:
        list(read_packed(path))
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


def test_a_changed_number_of_the_metadata_is_refused(folder):
    auroc = next(r for r in read_results(folder) if r.method == "vae").metrics["re"].auroc
    pack(folder)
    path = folder / "vae.parquet"
    assert states(folder) == (2, 0, ())
    change(
        path, f'"re": {{"auroc": {auroc}'.encode(), f'"re": {{"auroc": 0.1{str(auroc)[3:]}'.encode()
    )
    message = refusal(path)
    assert states(folder) == (1, 1, (message,))
    with pytest.raises(DataError, match=r"vae\.parquet"):
        read_results(folder)


def test_no_flipped_bit_is_read(folder):
    pack(folder)
    path = folder / "vae.parquet"
    content, generator = path.read_bytes(), np.random.default_rng(0)
    for place in generator.integers(0, len(content), 300):
        changed = bytearray(content)
        changed[place] ^= 1 << generator.integers(8)
        path.write_bytes(changed)
        refusal(path)


def test_a_file_without_checksum_is_refused(folder):
    pack(folder)
    path = folder / "vae.parquet"
    parquet.write_table(parquet.read_table(path), path)
    assert "no checksum" in refusal(path)


@pytest.mark.parametrize("digit", "29")
def test_of_a_damaged_file_the_other_cells_stay(folder, digit):
    before = read_results(folder)
    pack(folder)
    path = folder / "vae.parquet"
    damage_page(path, "29".index(digit))
    damaged = path.read_bytes()
    message = refusal(path)
    assert states(folder) == (1, 1, (message,))
    assert packed_fingerprint(folder, f"mnist/vae/{digit}-seed0") is not None
    again = next(r for r in before if r.method == "vae" and r.held_out == (digit,))
    write_result(folder / f"mnist/vae/{digit}-seed0.npz", again, f"vae-{digit}")
    assert states(folder) == (2, 0, ())  # a result file takes precedence
    assert [path.suffix for path in pack(folder)] == [SUFFIX]
    assert (folder / "vae.parquet.damaged").read_bytes() == damaged
    for one, other in zip(before, read_results(folder), strict=True):
        same(one, other)
    assert states(folder) == (2, 0, ())


def test_a_file_without_its_metadata_is_packed_anew(folder, caplog):
    result = next(r for r in read_results(folder) if r.method == "vae")
    pack(folder)
    path = folder / "vae.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    assert states(folder)[:2] == (0, 2) and len(states(folder)[2]) == 1
    write_result(folder / "mnist/vae/2-seed0.npz", result, "vae-2")
    pack(folder)
    assert [name for name, _, _ in read_packed(path)] == ["mnist/vae/2-seed0"]
    assert states(folder) == (1, 1, ())
    assert "0 undamaged cells are kept" in caplog.text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes among files")
@pytest.mark.parametrize("make", [os.mkdir, getattr(os, "mkfifo", None)])
def test_what_is_no_regular_file_is_named(folder, make):
    path = folder / "vae.parquet"
    make(path)
    message = refusal(path)
    for use in (pack, read_results):
        with pytest.raises(DataError) as caught:
            use(folder)
        assert str(caught.value) == message
    for cell in folder.rglob("vae/*.npz"):
        cell.unlink()
    assert states(folder) == (0, 2, (message,))


def test_a_cell_under_the_name_of_another_is_not_packed(folder):
    (folder / "mnist/vae/2-seed0.npz").replace(folder / "mnist/vae/9-seed0.npz")
    with pytest.raises(DataError, match="9-seed0"):
        pack(folder)
    assert not list(folder.glob(f"*{SUFFIX}"))
