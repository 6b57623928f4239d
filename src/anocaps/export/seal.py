"""What the writer and the reader of an exported model agree on: its seal, and where its JSON is.

An ONNX file is a row of fields, and fields may be added at its end. The last one here is a line of
metadata with the SHA-256 of all bytes before it. Every ONNX program reads the file as it is; ours
first compares, so that a file that was cut short or edited never reaches the engine.
"""

import hashlib

from anocaps.base.errors import ModelFileError

KEY = "anocaps"  # of the metadata: JSON on all that is not arithmetic
FORMAT_VERSION = 3

SEAL_KEY = b"anocaps.checksum"


def sealed(content: bytes) -> bytes:
    """A serialised ONNX model with its seal."""
    return content + _seal(content)


def check_seal(content: bytes, name: str) -> None:
    """Refuse what was not exported by anocaps or is no longer what was."""
    length = len(_seal(b""))
    seal = _seal(content[:-length])
    if content[-length:] == seal:
        return
    if SEAL_KEY in content[-length:]:
        raise ModelFileError(
            f"{name}: the checksum does not match, the file was edited or cut short; export the "
            "model again"
        )
    raise ModelFileError(
        f"{name}: not an ONNX file that anocaps exported, or one that was cut short or edited; "
        "make it with 'anocaps export MODEL.safetensors'"
    )


def _seal(content: bytes) -> bytes:
    """Field 14 of an ONNX model, metadata: an entry of a key (field 1) and a value (field 2)."""
    checksum = hashlib.sha256(content).hexdigest().encode()
    return _field(14, _field(1, SEAL_KEY) + _field(2, checksum))


def _field(number: int, content: bytes) -> bytes:
    """A protobuf field of bytes, fewer than 128 of them."""
    return bytes([number << 3 | 2, len(content)]) + content
