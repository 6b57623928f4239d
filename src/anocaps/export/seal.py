"""The checksum and the metadata keys of an exported model. Writer and reader use them.

An ONNX file is a sequence of protobuf fields. The last field is the seal: a metadata entry with the
SHA-256 of all bytes before it. Every ONNX program can read the file. anocaps compares the checksum
first, so it never loads a file that was cut short or edited.
"""

import hashlib

from anocaps.base.errors import ModelFileError

KEY = "anocaps"  # metadata entry: JSON that describes the model
FORMAT_VERSION = 5

SEAL_KEY = b"anocaps.checksum"


def sealed(content: bytes) -> bytes:
    """A serialised ONNX model with its seal."""
    return content + _seal(content)


def check_seal(content: bytes, name: str) -> None:
    """Raise ModelFileError if anocaps did not write the file or if it has changed."""
    length = len(_seal(b""))
    seal = _seal(content[:-length])
    if content[-length:] == seal:
        return
    if SEAL_KEY in content[-length:]:
        raise ModelFileError(
            f"{name}: the file was edited or cut short, its checksum is wrong; export the model "
            "again"
        )
    raise ModelFileError(
        f"{name}: anocaps did not write this ONNX file, or it is cut short; write one with "
        "'anocaps export MODEL.safetensors'"
    )


def _seal(content: bytes) -> bytes:
    """A metadata entry, field 14 of an ONNX model: key (field 1) and value (field 2)."""
    checksum = hashlib.sha256(content).hexdigest().encode()
    return _field(14, _field(1, SEAL_KEY) + _field(2, checksum))


def _field(number: int, content: bytes) -> bytes:
    """A protobuf field of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content
