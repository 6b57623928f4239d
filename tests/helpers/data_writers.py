"""Writers of the binary formats, made from their descriptions for the tests of the readers."""

import gzip
import io
import struct
import zlib

import numpy as np


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def mat_bytes(array: np.ndarray) -> bytes:
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[str(array.dtype)]
    sizes = [*array.shape, *[1] * (3 - array.ndim)]
    return struct.pack(f"<Ii{len(sizes)}i", magic, array.ndim, *sizes) + array.tobytes()


def cifar_bytes(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Records of N×32×32×3 images."""
    planes = (image[..., channel].tobytes() for image in images for channel in range(3))
    return b"".join(bytes([label]) + b"".join(next(planes) for _ in "rgb") for label in labels)


def gzip_bytes(content: bytes, name: str = "", level: int = 6) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(name, "wb", level, packed, mtime=len(name)) as file:
        file.write(content)
    return packed.getvalue()


def png(width: int, height: int, colour: int = 2, depth: int = 8, packed: bytes = b"x") -> bytes:
    """A PNG of this size and colour type, with any compressed pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", packed), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
