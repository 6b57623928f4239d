"""Both binary formats: whole files are read exactly, damaged ones are refused by name."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from data_writers import gzip_bytes, idx_bytes, mat_bytes
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from anocaps.base.errors import DataError
from anocaps.data.idx import read_idx
from anocaps.data.norb import read_mat


class Format(NamedTuple):
    read: Callable[[Path], np.ndarray]
    write: Callable[[np.ndarray], bytes]
    arrays: Any
    sizes: int  # bytes before the sizes
    size: str  # of one of them
    magics: tuple[int, ...]  # right ones


IDX = Format(
    read_idx, idx_bytes,
    arrays(np.uint8, array_shapes(min_dims=1, max_dims=1) | array_shapes(min_dims=3, max_dims=3)),
    4, ">I", (0x00000801, 0x00000803),
)  # fmt: skip
MAT = Format(
    read_mat, mat_bytes,
    st.sampled_from([np.uint8, np.int32]).flatmap(
        lambda dtype: arrays(dtype, array_shapes(min_dims=1, max_dims=5, max_side=4))
    ),
    8, "<i", (0x1E3D4C54, 0x1E3D4C55),
)  # fmt: skip
packings = st.sampled_from([lambda content: content, gzip_bytes])
both = pytest.mark.parametrize("format", [IDX, MAT], ids=["idx", "mat"])
few = settings(max_examples=60, deadline=None)  # a busy machine is no error


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data") / "some-file"


def read(format: Format, path: Path, content: bytes) -> np.ndarray:
    path.write_bytes(content)
    return np.array(format.read(path))


def refuse(format: Format, path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="some-file"):
        read(format, path, content)


@both
@few
@given(data=st.data(), pack=packings)
def test_round_trip(format, path, data, pack):
    array = data.draw(format.arrays)
    found = read(format, path, pack(format.write(array)))
    np.testing.assert_array_equal(found, array, strict=True)


@both
@few
@given(data=st.data(), pack=packings, inside=st.booleans(), rest=st.binary(max_size=9))
def test_a_file_of_another_length_is_refused(format, path, data, pack, inside, rest):
    """Cut or longer, inside the gzip or outside."""
    whole = format.write(data.draw(format.arrays))
    if rest:
        refuse(format, path, pack(whole + rest))
    else:
        whole = whole if inside else pack(whole)
        cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
        refuse(format, path, pack(cut) if inside else cut)


@both
@few
@given(data=st.data(), pack=packings)
def test_wrong_magic_is_refused(format, path, data, pack):
    whole = format.write(data.draw(format.arrays))
    order = format.size[0]
    near = st.sampled_from([*format.magics, format.magics[0] - 1])
    magic = struct.pack(f"{order}I", data.draw(st.integers(0, 2**32 - 1) | near))
    assume(magic != whole[:4])
    refuse(format, path, pack(magic + whole[4:]))


@both
@few
@given(data=st.data(), pack=packings, wrong=st.binary(min_size=4, max_size=4))
def test_wrong_size_is_refused(format, path, data, pack, wrong):
    array = data.draw(format.arrays)
    whole = bytearray(format.write(array))
    start = format.sizes + 4 * data.draw(st.integers(0, array.ndim - 1))
    assume(wrong != whole[start : start + 4])
    whole[start : start + 4] = wrong
    refuse(format, path, pack(bytes(whole)))


@both
@few
@given(data=st.data())
def test_gzip_with_any_byte_changed_is_refused_or_read_right(format, path, data):
    array = data.draw(format.arrays)
    packed = bytearray(gzip_bytes(format.write(array)))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = read(format, path, bytes(packed))
    except DataError:
        return
    np.testing.assert_array_equal(found, array)


@both
@few
@given(
    content=st.binary(max_size=60), start=st.sampled_from([b"", b"\0\0\x08\x03", b"\x1f\x8b\x08"])
)
def test_arbitrary_bytes_never_crash(format, path, content, start):
    try:
        found = read(format, path, start + content)
    except DataError:
        return
    assert format.write(found) == start + content


@both
def test_missing_file_and_folder_are_named(format, tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        format.read(tmp_path / "nowhere")
    with pytest.raises(DataError, match=tmp_path.name):
        format.read(tmp_path)
