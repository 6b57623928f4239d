"""Check the numbers of an ONNX file without the package onnx: they are finite and in the file.

An ONNX file is a sequence of protobuf fields, which nest. Only the fields that can hold real
numbers are read. Their numbers are those of onnx.proto.
"""

from collections.abc import Iterator

import numpy as np

from anocaps.base.errors import InputError

Content = memoryview
Fields = Iterator[tuple[int, int | Content]]  # number, value

# fields that hold others, by message
_MODEL_GRAPH = 7
_MODEL_FORBIDDEN = {20, 25}  # training information, functions
_GRAPH_NODE, _GRAPH_TENSOR, _GRAPH_SPARSE = 1, 5, 15
_NODE_ATTRIBUTE = 5
_ATTRIBUTE_FLOAT, _ATTRIBUTE_FLOATS = 2, 7
_ATTRIBUTE_FORBIDDEN = {5, 6, 10, 11, 22, 23}  # tensors, graphs and sparse tensors
_TENSOR_TYPE, _TENSOR_BYTES = 2, 9
_TENSOR_FORBIDDEN = {4, 10, 13}  # numbers one by one, numbers in another file

_REAL = {1: "<f4", 10: "<f2", 11: "<f8"}  # data types
_NO_REAL = {2, 3, 4, 5, 6, 7, 8, 9, 12, 13}  # integers, text, bool


def check_tensors(model: bytes) -> None:
    """Raise an error if a real number is not finite or not in the file."""
    for number, value in _fields(memoryview(model)):
        if number in _MODEL_FORBIDDEN:
            raise InputError("it has parts that anocaps does not write")
        if number == _MODEL_GRAPH:
            _check_graph(_nested(value))


def _check_graph(graph: Content) -> None:
    for number, value in _fields(graph):
        if number == _GRAPH_TENSOR:
            _check_tensor(_nested(value))
        elif number == _GRAPH_SPARSE:
            raise InputError("it has sparse numbers")
        elif number == _GRAPH_NODE:
            for part, attribute in _fields(_nested(value)):
                if part == _NODE_ATTRIBUTE:
                    _check_attribute(_nested(attribute))


def _check_attribute(attribute: Content) -> None:
    for number, value in _fields(attribute):
        if number in (_ATTRIBUTE_FLOAT, _ATTRIBUTE_FLOATS):
            _check_finite(_nested(value), "<f4")
        elif number in _ATTRIBUTE_FORBIDDEN:
            raise InputError("it has parts that anocaps does not write")


def _check_tensor(tensor: Content) -> None:
    kinds, contents = [], []
    for number, value in _fields(tensor):
        if number in _TENSOR_FORBIDDEN:
            raise InputError("its numbers are in another file, or not stored as bytes")
        if number == _TENSOR_TYPE and isinstance(value, int):
            kinds.append(value)
        elif number == _TENSOR_BYTES:
            contents.append(_nested(value))
    if len(kinds) != 1 or len(contents) != 1:  # readers differ in which one they take
        raise InputError("its fields are damaged")
    if kinds[0] in _REAL:
        _check_finite(contents[0], _REAL[kinds[0]])
    elif kinds[0] not in _NO_REAL:
        raise InputError("it has numbers of an unknown kind")


def _check_finite(content: Content, kind: str) -> None:
    if len(content) % np.dtype(kind).itemsize:
        raise InputError("its fields are damaged")
    if not np.isfinite(np.frombuffer(content, kind)).all():
        raise InputError("one of its numbers is not finite")


# ── protobuf ─────────────────────────────────────────────────────────────────────────────────


def _nested(value: int | Content) -> Content:
    if isinstance(value, int):
        raise InputError("its fields are damaged")
    return value


def _fields(content: Content) -> Fields:
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, kind = key >> 3, key & 7
        if key >> 32:  # onnxruntime ignores the bits above
            raise InputError("its fields are damaged")
        if kind == 0:
            value, at = _varint(content, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(content, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise InputError("its fields are damaged")
        if at + size > len(content):
            raise InputError("its fields are damaged")
        yield number, content[at : at + size]
        at += size


def _varint(content: Content, at: int) -> tuple[int, int]:
    """A number in groups of 7 bits, and where it ends."""
    value = shift = 0
    while at < len(content) and shift < 70:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
    raise InputError("its fields are damaged")
