"""Cells in Parquet: the same as in their result files, and readable by any tool."""

from dataclasses import fields

import numpy as np
import pyarrow.parquet as parquet
import pytest
from study_results import make_result

from anocaps.base.errors import DataError
from anocaps.study.packed import pack, packed_fingerprints, read_packed
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
    assert packed_fingerprints(folder)["mnist/vae/9-seed0"] == "vae-9"
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


def test_a_damaged_table_is_named(folder):
    pack(folder)
    path = folder / "vae.parquet"
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"vae\.parquet"):
        list(read_packed(path))
