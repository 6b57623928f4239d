"""Any damage to an idx file ends in DataError; what is whole is read exactly."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from data_writers import gzip_bytes, idx_bytes
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from anocaps.base.errors import DataError
from anocaps.data.idx import read_idx, read_split

shapes = array_shapes(min_dims=1, max_dims=1, max_side=30) | array_shapes(min_dims=3, max_dims=3)
idx_arrays = arrays(np.uint8, shapes)
packings = st.sampled_from([lambda content: content, gzip_bytes])


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("idx") / "some-idx-file"


def read(path: Path, content: bytes) -> np.ndarray:
    path.write_bytes(content)
    return read_idx(path)


def refuse(path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="some-idx-file"):
        read(path, content)


@given(array=idx_arrays, pack=packings)
def test_round_trip(path, array, pack):
    found = read(path, pack(idx_bytes(array)))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, array, strict=True)


@given(array=idx_arrays, pack=packings, data=st.data())
def test_truncated_file_is_refused(path, array, pack, data):
    whole = pack(idx_bytes(array))
    refuse(path, whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(array=idx_arrays, pack=packings, data=st.data())
def test_truncated_content_is_refused(path, array, pack, data):
    whole = idx_bytes(array)
    refuse(path, pack(whole[: data.draw(st.integers(0, len(whole) - 1))]))


@given(array=idx_arrays, pack=packings, rest=st.binary(min_size=1, max_size=9))
def test_trailing_bytes_are_refused(path, array, pack, rest):
    refuse(path, pack(idx_bytes(array) + rest))


@given(array=idx_arrays, pack=packings, magic=st.binary(min_size=4, max_size=4))
@example(array=np.zeros((2, 2, 2), np.uint8), pack=gzip_bytes, magic=b"\0\0\x08\x01")
@example(array=np.zeros(20, np.uint8), pack=gzip_bytes, magic=b"\0\0\x08\x03")
@example(array=np.zeros(20, np.uint8), pack=gzip_bytes, magic=b"\0\0\x0d\x01")
def test_wrong_magic_is_refused(path, array, pack, magic):
    whole = idx_bytes(array)
    assume(magic != whole[:4])
    refuse(path, pack(magic + whole[4:]))


@given(array=idx_arrays, pack=packings, wrong=st.integers(0, 2**32 - 1), data=st.data())
def test_wrong_size_is_refused(path, array, pack, wrong, data):
    axis = data.draw(st.integers(0, array.ndim - 1))
    assume(wrong != array.shape[axis])
    whole = bytearray(idx_bytes(array))
    whole[4 + 4 * axis : 8 + 4 * axis] = struct.pack(">I", wrong)
    refuse(path, pack(bytes(whole)))


@given(array=idx_arrays, data=st.data())
def test_gzip_with_any_byte_changed_is_refused_or_read_right(path, array, data):
    packed = bytearray(gzip_bytes(idx_bytes(array)))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = read(path, bytes(packed))
    except DataError:
        return
    np.testing.assert_array_equal(found, array)


@given(
    content=st.binary(max_size=60), start=st.sampled_from([b"", b"\0\0\x08\x03", b"\x1f\x8b\x08"])
)
def test_arbitrary_bytes_never_crash(path, content, start):
    try:
        found = read(path, start + content)
    except DataError:
        return
    assert idx_bytes(found) == start + content


def test_empty_idx_is_refused(path):
    refuse(path, idx_bytes(np.zeros((0, 28, 28), np.uint8)))


@pytest.mark.parametrize("pack", [bytes, gzip_bytes])
def test_a_header_that_promises_too_much_costs_no_memory(path, pack):
    header = struct.pack(">IIII", 0x00000803, 60_000, 2_000, 2_000)
    path.write_bytes(pack(header + bytes(1000)))
    assert _peak_of_refusal(path) < 16 << 20


def test_a_gzip_that_holds_too_much_costs_no_memory(path):
    header = struct.pack(">IIII", 0x00000803, 10, 10, 10)
    path.write_bytes(gzip_bytes(header + bytes(64 << 20)))
    assert _peak_of_refusal(path) < 16 << 20


def _peak_of_refusal(path: Path) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            read_idx(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_missing_file_and_folder_are_named(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        read_idx(tmp_path / "nowhere")
    with pytest.raises(DataError, match=tmp_path.name):
        read_idx(tmp_path)


def test_images_and_labels_must_belong_together(tmp_path):
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(idx_bytes(np.zeros((3, 2, 2), np.uint8)))

    labels.write_bytes(idx_bytes(np.array([0, 1, 9], np.uint8)))
    split = read_split(images, labels, classes=10)
    assert split.labels.dtype == np.int64
    assert split.labels.tolist() == [0, 1, 9]

    labels.write_bytes(idx_bytes(np.array([0, 1], np.uint8)))
    with pytest.raises(DataError, match="3 images but 2 labels"):
        read_split(images, labels, classes=10)
    labels.write_bytes(idx_bytes(np.array([0, 1, 10], np.uint8)))
    with pytest.raises(DataError, match="labels run from 0 to 10"):
        read_split(images, labels, classes=10)
    with pytest.raises(DataError, match="labels does not hold images"):
        read_split(labels, images, classes=10)
