"""Files of arrays: exact, checksummed, and refused after any change."""

import json
import os
import stat

import numpy as np
import pytest
from safetensors.numpy import save_file

from anocaps.base import arrayfile
from anocaps.base.errors import ModelFileError
from anocaps.base.files import write_text

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([1, 2], dtype=np.int64)}
HEADER = {"name": "ein Müßiggang", "list": [1, 2.5, None]}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "x.safetensors"
    arrayfile.write(path, "model", ARRAYS, HEADER)
    return path


def test_round_trip(path):
    arrays, header = arrayfile.read(path, "model")
    assert len(header.pop("checksum")) == 64 and header == HEADER
    for name, array in ARRAYS.items():
        assert array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(array, arrays[name])
    assert [p.name for p in path.parent.iterdir()] == ["x.safetensors"]


def test_every_truncation_is_refused(path):
    whole = path.read_bytes()
    for length in [0, 1, 7, 8, 9, 50, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=r"x\.safetensors"):
            arrayfile.read(path, "model")


def test_an_altered_byte_is_refused_anywhere(path):
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        altered = bytearray(whole)
        altered[place] ^= 0x01
        path.write_bytes(altered)
        with pytest.raises(ModelFileError):
            arrayfile.read(path, "model")


def test_a_newer_format_is_refused(tmp_path):
    path = tmp_path / "new.safetensors"
    body = {"format": arrayfile.FORMAT_VERSION + 1, "kind": "model", "header": {}, "checksum": ""}
    save_file(ARRAYS, path, metadata={"anocaps": json.dumps(body)})
    with pytest.raises(ModelFileError, match=r"new\.safetensors"):
        arrayfile.read(path, "model")


def test_other_files_are_refused_by_name(tmp_path, path):
    foreign = tmp_path / "foreign.safetensors"
    save_file(ARRAYS, foreign)
    for file, kind in ((foreign, "model"), (tmp_path / "missing", "model"), (path, "checkpoint")):
        with pytest.raises(ModelFileError, match=str(file)):
            arrayfile.read(file, kind)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_a_new_file_has_the_mode_of_the_umask(umask, tmp_path):
    arrayfile.write(tmp_path / "x.safetensors", "model", ARRAYS, HEADER)
    write_text(tmp_path / "x.txt", "x")
    assert mode(tmp_path / "x.safetensors") == mode(tmp_path / "x.txt") == 0o640


def test_a_replaced_file_keeps_its_mode(umask, path):
    for kept in (0o604, 0o400):
        path.chmod(kept)
        arrayfile.write(path, "model", ARRAYS, {"name": "another"})
        assert mode(path) == kept
    assert arrayfile.read(path, "model")[1]["name"] == "another"
