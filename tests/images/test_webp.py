"""The groups of Huffman codes of a WebP file are counted before libwebp makes them."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from anocaps.images.decode import Fit, ImageError, read_image
from anocaps.images.webp import huffman_groups

FIT = Fit(128, 128, 3, "letterbox", bars="border")
RANDOM = np.random.default_rng(0)
LOSSLESS = {"lossless": True}


def noise(width: int, height: int, channels: int = 3) -> Image.Image:
    return Image.fromarray(RANDOM.integers(0, 256, (height, width, channels), dtype=np.uint8))


def photo(width: int, height: int, channels: int = 3) -> Image.Image:
    """Smooth, with a flat part and a noisy part, which get groups of their own."""
    y, x = np.mgrid[:height, :width]
    bands = [128 + 100 * np.sin(x / 37 + band) * np.cos(y / 23) for band in range(channels)]
    values = np.stack(bands, -1) + RANDOM.normal(0, 3, (height, width, channels))
    values[: height // 4] = 90
    values[-height // 4 :] = RANDOM.integers(0, 256, values[-height // 4 :].shape)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def few_colours(width: int, height: int, colours: int) -> Image.Image:
    palette = RANDOM.integers(0, 256, (colours, 3), dtype=np.uint8)
    return Image.fromarray(palette[RANDOM.integers(0, colours, (height, width))])


def webp(image: Image.Image, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, "WEBP", **options)
    return file.getvalue()


ORDINARY = {
    "pixel": lambda: webp(noise(1, 1), **LOSSLESS),
    "noise": lambda: webp(noise(300, 200), method=0, quality=0, **LOSSLESS),
    "noise slowly": lambda: webp(noise(300, 200), method=6, quality=100, **LOSSLESS),
    "photo": lambda: webp(photo(1000, 1000), method=0, quality=0, **LOSSLESS),
    "photo slowly": lambda: webp(photo(500, 333), method=6, quality=100, **LOSSLESS),
    "RGBA": lambda: webp(photo(257, 130, 4), method=6, quality=0, **LOSSLESS),
    "2 colours": lambda: webp(few_colours(200, 100, 2), **LOSSLESS),
    "16 colours": lambda: webp(few_colours(333, 100, 16), method=6, **LOSSLESS),
    "200 colours": lambda: webp(few_colours(500, 500, 200), **LOSSLESS),
    "lossy": lambda: webp(photo(300, 200)),
    "lossy, alpha": lambda: webp(photo(300, 200, 4), quality=50),
    "animated": lambda: webp(
        photo(300, 200), save_all=True, append_images=[photo(300, 200)], **LOSSLESS
    ),
    "animated, lossy": lambda: webp(
        photo(300, 200, 4), save_all=True, append_images=[photo(300, 200, 4)]
    ),
    "metadata": lambda: webp(photo(300, 200), icc_profile=bytes(999), xmp=b"x", **LOSSLESS),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_files_have_few_groups_and_are_read(tmp_path, name):
    content = ORDINARY[name]()
    assert 1 <= huffman_groups(io.BytesIO(content)) < 100
    (tmp_path / "a.webp").write_bytes(content)
    assert read_image(tmp_path / "a.webp", FIT).shape == (128, 128, 3)


def test_a_photo_has_several_groups():
    assert huffman_groups(io.BytesIO(webp(photo(1000, 1000), **LOSSLESS))) > 1


# ── Crafted files ────────────────────────────────────────────────────────────────────────────


def number(value: int, bits: int) -> str:
    return f"{value:0{bits}b}"[::-1]  # the lowest bit comes first


def one(symbol: int) -> str:
    """A code of one symbol, which takes no bits."""
    return "101" + number(symbol, 8)


def flat(bits: int, size: int) -> str:
    """A code of 2**bits symbols (8 or 9 bits) in an alphabet of so many."""
    lengths = [17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9]
    code = "".join(number(length in (0, bits), 3) for length in lengths)
    return "0" + number(len(lengths) - 4, 4) + code + "0" + "1" * 2**bits + "0" * (size - 2**bits)


def literal(group: int) -> str:
    return f"{group & 255:09b}{group >> 8:08b}"


def cached(group: int) -> str:
    return f"{280 + ((0x1E35A7BD * (group << 8) & 0xFFFFFFFF) >> 24):09b}"


COPY = f"{256 + 4:09b}" + "1"  # of the last pixel, 6 times: symbols from 4 on have extra bits


def bitstream(blocks: list[str], groups: int, before: str = "0") -> bytes:
    """An image whose blocks of 4 × 4 pixels name their groups.

    Each group has codes of one symbol, so that the pixels take no bits.
    """
    bits = [before, "0", "1", number(0, 3)]  # no colour cache
    bits += ["1", number(8, 4), flat(9, 280 + 256), flat(8, 256), one(0), one(0), one(1)]
    bits += [*blocks, groups * 5 * one(7)]
    values = np.frombuffer("".join(bits).encode(), np.uint8) - ord("0")
    return np.packbits(values, bitorder="little").tobytes() + bytes(8)


def chunk(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def file_of(*chunks: bytes) -> bytes:
    return chunk(b"RIFF", b"WEBP" + b"".join(chunks))


def lossless(side: int, stream: bytes) -> bytes:
    header = number(0x2F, 8) + 2 * number(side - 1, 14) + number(0, 4)
    values = np.array([int(bit) for bit in header], np.uint8)
    return chunk(b"VP8L", np.packbits(values, bitorder="little").tobytes() + stream)


def extended(side: int, flags: int) -> bytes:
    side_bytes = struct.pack("<I", side - 1)[:3]
    return chunk(b"VP8X", bytes([flags, 0, 0, 0]) + 2 * side_bytes)


def simple_file(side: int, stream: bytes) -> bytes:
    return file_of(lossless(side, stream))


def animated_file(side: int, stream: bytes) -> bytes:
    side_bytes = struct.pack("<I", side - 1)[:3]
    frame = bytes(6) + 2 * side_bytes + bytes(4) + lossless(side, stream)
    return file_of(extended(side, 2), chunk(b"ANIM", bytes(6)), chunk(b"ANMF", frame))


def alpha_file(side: int, stream: bytes) -> bytes:
    lossy = webp(Image.new("RGB", (side, side)))[12:]
    return file_of(extended(side, 16), chunk(b"ALPH", b"\1" + stream), lossy)


FILES = {"simple": simple_file, "animated": animated_file, "alpha": alpha_file}


@pytest.mark.parametrize("kind", FILES)
def test_files_with_many_groups_are_refused(tmp_path, kind):
    groups = 20_000
    stream = bitstream([literal(block % groups) for block in range(160 * 160)], groups)
    content = FILES[kind](640, stream)
    assert huffman_groups(io.BytesIO(content)) == groups
    (tmp_path / "many.webp").write_bytes(content)
    with pytest.raises(ImageError, match=r"many\.webp takes more than 400 MB"):
        read_image(tmp_path / "many.webp", FIT)


SOLID = "0" + 5 * one(0)  # no colour cache
TRANSFORMS = {
    "none": ("0", 64),  # blocks of 32 × 32 pixels
    "predictor": ("1" + number(0, 2) + number(7, 3) + SOLID + "1" + number(2, 2) + "0", 64),
    "3 colours": ("1" + number(3, 2) + number(2, 8) + SOLID + "0", 16),  # 4 pixels are packed
}
MIXED = [literal(3), COPY, literal(300), cached(3), literal(298), cached(300), literal(301)]


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("transforms", TRANSFORMS)
def test_all_kinds_of_pixels_are_understood(tmp_path, kind, transforms):
    before, count = TRANSFORMS[transforms]
    blocks = [cached(0)] * (count - 12) + MIXED
    content = FILES[kind](32, bitstream(blocks, 302, before))
    assert huffman_groups(io.BytesIO(content)) == 302
    (tmp_path / "few.webp").write_bytes(content)
    assert read_image(tmp_path / "few.webp", FIT).shape == (128, 128, 3)
    (tmp_path / "short.webp").write_bytes(FILES[kind](32, bitstream(blocks, 301, before)))
    with pytest.raises(ImageError, match=r"short\.webp"):  # libwebp counts 302, too
        read_image(tmp_path / "short.webp", FIT)


def test_images_that_take_long_to_read_count_as_many_groups():
    stream = bitstream([literal(0)] * (513 * 512), 1)
    assert huffman_groups(io.BytesIO(simple_file(4 * 513, stream))) == 65_536


@pytest.mark.parametrize("length", [0, 12, 20, 22, 30, 60, 200])
def test_damaged_files_have_no_groups(length):
    whole = webp(photo(300, 200), **LOSSLESS)
    assert huffman_groups(io.BytesIO(whole[:length])) is None
    assert huffman_groups(io.BytesIO(whole[:length] + b"\xff" * 100)) is None


def test_a_transform_comes_once():
    green = "1" + number(2, 2)
    for times, groups in ((1, 5), (2, None)):
        stream = bitstream([literal(4)] * 64, 5, times * green + "0")
        assert huffman_groups(io.BytesIO(simple_file(32, stream))) == groups
