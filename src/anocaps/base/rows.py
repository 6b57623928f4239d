"""Arrays with many rows: in memory, or in a temporary file if they are large.

The file has no name, so that nothing is left behind, however the process ends. It is read and
written row by row, so that the memory of the process does not grow with the file.
"""

import tempfile
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

MOST_IN_MEMORY = 2**30  # bytes


def room_for(shape: tuple[int, ...], dtype: DTypeLike, most: int | None = None) -> "Rows":
    """An empty array of this shape, in memory if it has at most `most` bytes."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return np.empty(shape, dtype) if size <= (most or MOST_IN_MEMORY) else RowsOnDisk(shape, dtype)


def first_rows(rows: "Rows", count: int) -> "Rows":
    """The first rows, without a copy; the others are dropped."""
    if isinstance(rows, np.ndarray):
        return rows[:count]
    rows.shape = (count, *rows.shape[1:])
    return rows


class RowsOnDisk:
    """An array [N, …] in a temporary file; reading gives copies."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._bytes = int(np.prod(shape[1:], dtype=np.int64)) * self.dtype.itemsize  # of a row
        self._file = tempfile.TemporaryFile(prefix="anocaps-")  # noqa: SIM115
        self._file.truncate(self._bytes * shape[0])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: "slice | NDArray[Any]") -> NDArray[Any]:
        wanted = self._numbers(rows)
        found = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        for place, row in zip(found, wanted):
            self._file.seek(int(row) * self._bytes)
            self._file.readinto(place.reshape(-1).view(np.uint8))
        return found

    def __setitem__(self, rows: slice, values: NDArray[Any]) -> None:
        filled = np.ascontiguousarray(values, self.dtype)
        for row, value in zip(self._numbers(rows), filled):
            self._file.seek(int(row) * self._bytes)
            self._file.write(value.reshape(-1).view(np.uint8))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)

    def _numbers(self, rows: "slice | NDArray[Any]") -> NDArray[np.int64]:
        return np.arange(len(self))[rows]


Rows: TypeAlias = NDArray[Any] | RowsOnDisk
