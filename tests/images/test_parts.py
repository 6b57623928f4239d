"""Files with too many parts, or of a rare kind, are refused early; ordinary ones are read."""

import io
import re
import struct
import zlib
from collections.abc import Callable

import pytest
from PIL import Image

from anocaps.images import decode, limits, slowcode
from anocaps.images import tiff as tiff_limits
from anocaps.images.decode import Fit, ImageError, read_header, read_image
from anocaps.images.parts import parts_problem
from anocaps.images.slowcode import MOST_BLOCKS, has_many_blocks

FIT = Fit(16, 16, 3, "resize")
Tag = tuple[int, int, int, int | bytes]  # number, type, count, and the value or its bytes
SHORT, LONG, FRACTION = 3, 4, 5


def saved(kind: str, mode: str = "RGB", size: tuple[int, int] = (24, 20), **options) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return file.getvalue()


def in_png(*chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG with further chunks before its pixels."""
    made = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    content = saved("PNG")
    return content[:33] + b"".join(made) + content[33:]


def in_jpeg(data: bytes) -> bytes:
    content = saved("JPEG")
    return content[:2] + data + content[2:]


def segment(marker: int, data: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data


def between_scans(data: bytes) -> bytes:
    content = saved("JPEG", progressive=True)
    second = content.index(b"\xff\xda", content.index(b"\xff\xda") + 2)
    return content[:second] + data + content[second:]


def in_webp(data: bytes) -> bytes:
    exif = Image.Exif()
    exif[274] = 1
    body = saved("WEBP", exif=exif)[12:] + data
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def tiff(data: bytes, *tags: Tag, width: int = 24, height: int = 20, packing: int = 1) -> bytes:
    """A grey TIFF whose pixels are `data`; the offset 0 of a tag is replaced by theirs."""
    usual: list[Tag] = [
        (256, LONG, 1, width),
        (257, LONG, 1, height),
        (258, SHORT, 1, 8),
        (259, SHORT, 1, packing),
        (262, SHORT, 1, 1),
        (277, SHORT, 1, 1),
    ]
    known = sorted({tag[0]: tag for tag in (*usual, *tags)}.values())
    end = 14 + 12 * len(known)
    pixels = end + sum(len(value) for *_, value in known if isinstance(value, bytes))
    entries = further = b""
    for number, kind, count, value in known:
        if isinstance(value, bytes):
            if number in (273, 324):
                value = struct.pack("<I", pixels) * count
            value, further = end + len(further), further + value
        elif number in (273, 324):
            value = pixels
        entries += struct.pack("<HHII", number, kind, count, value)
    return b"II*\0" + struct.pack("<IH", 8, len(known)) + entries + bytes(4) + further + data


def strips(count: int, rows: int, length: int) -> tuple[Tag, ...]:
    lengths = struct.pack("<I", length) * count if count > 1 else length
    offsets = bytes(4 * count) if count > 1 else 0
    return (273, LONG, count, offsets), (278, LONG, 1, rows), (279, LONG, count, lengths)


def tiles(width: int, height: int, count: int, length: int) -> tuple[Tag, ...]:
    (_, *offsets), _, (_, *lengths) = strips(count, 1, length)
    return (322, LONG, 1, width), (323, LONG, 1, height), (324, *offsets), (325, *lengths)  # type: ignore[return-value]


def many_tags(count: int) -> bytes:
    return tiff(bytes(480), *strips(1, 20, 480), *((1000 + n, SHORT, 1, 0) for n in range(count)))


def fractions(count: int) -> Tag:
    return 282, FRACTION, count, struct.pack("<II", 72, 1) * count


def with_exif(directory: Callable[[int], bytes]) -> bytes:
    """A TIFF with an EXIF directory, which is told its offset."""
    plain = tiff(bytes(480), *strips(1, 20, 480), (34665, LONG, 1, 0))
    whole = tiff(bytes(480), *strips(1, 20, 480), (34665, LONG, 1, len(plain)))
    return whole + directory(len(whole))


def exif_directory(count: int) -> bytes:
    """A TIFF with an EXIF directory of `count` tags."""
    entries = b"".join(struct.pack("<HHII", n, SHORT, 1, 0) for n in range(count))
    return with_exif(lambda _: struct.pack("<H", count) + entries + bytes(4))


def nested_directories(count: int) -> bytes:
    """A TIFF with EXIF directories, each of which names the next, 18 bytes behind it."""
    return with_exif(
        lambda begin: b"".join(
            struct.pack("<HHHIII", 1, 34665, LONG, 1, begin + 18 * ((n + 1) % count), 0)
            for n in range(count)
        )
    )


def pages() -> bytes:
    """A TIFF of 40 pages with EXIF and GPS directories."""
    exif = Image.Exif()
    exif.get_ifd(0x8769)[36867] = "2026:01:01 00:00:00"
    exif.get_ifd(0x8825)[1] = "N"
    further = [Image.new("RGB", (24, 20))] * 39
    return saved("TIFF", exif=exif, save_all=True, append_images=further)


def framed(content: bytes, marker: int, side: int | None = None) -> bytes:
    """JPEG data whose frames have another marker and perhaps another size."""

    def changed(found: re.Match[bytes]) -> bytes:
        size = struct.pack(">HH", side, side) if side else found[2]
        return bytes([0xFF, marker]) + found[1] + size

    return re.sub(rb"\xff[\xc0\xc2](\0.\x08)(....)", changed, content, flags=re.DOTALL)


def in_strip(data: bytes, side: int, length: int, bands: int = 3, packing: int = 7) -> bytes:
    """A TIFF of one strip, by default a JPEG; `length` is what its tag says."""
    bits = struct.pack(f"<{bands}H", *bands * [8]) if bands > 1 else 8
    tags = (258, SHORT, bands, bits), (262, SHORT, 1, 2 if bands > 1 else 1), (277, SHORT, 1, bands)
    return tiff(data, *tags, *strips(1, side, length), width=side, height=side, packing=packing)


def many_scans(times: int) -> bytes:
    """A JPEG of 16 million pixels, whose last scan is repeated."""
    content = framed(saved("JPEG", "L", progressive=True), 0xC2, 4000)
    return content[:-2] + times * content[content.rindex(b"\xff\xda") : -2] + content[-2:]


TEXT = b"\0\0" + zlib.compress(bytes(100))
EXIF = segment(0xE1, b"Exif\0\0" + bytes(20))
MANY_PARTS = {
    "chunks.png": lambda: in_png(*[(b"teSt", b"")] * 100_001),
    "texts.png": lambda: in_png(*[(b"zTXt", TEXT)] * 65),
    "profiles.png": lambda: in_png(*[(b"iCCP", b"a" + TEXT)] * 65),
    "exif.png": lambda: in_png((b"eXIf", bytes(4_000_001))),
    "segments.jpg": lambda: in_jpeg(segment(0xE1, b"ab") * 10_001),
    "restarts.jpg": lambda: in_jpeg(b"\xff\xd0" * 10_001),
    "padding.jpg": lambda: in_jpeg(b"\xff" * 66_000),
    "junk.jpg": lambda: in_jpeg(b"\xff\xd0" + bytes(66_000)),
    "pieces.jpg": lambda: in_jpeg((b"\xff\xd0" + bytes(60)) * 2_000),
    "exif.jpg": lambda: in_jpeg(EXIF * 101),
    "tables.jpg": lambda: in_jpeg(segment(0xDB, bytes(65 * 1000)) * 16),
    "arithmetic.jpg": lambda: framed(saved("JPEG"), 0xC9),
    "large arithmetic.jpg": lambda: framed(saved("JPEG", progressive=True), 0xCA, 8_000),
    "settings.jpg": lambda: in_jpeg(segment(0xCC, b"\0\x10")),
    "lossless.jpg": lambda: framed(saved("JPEG"), 0xC3),
    "hierarchical.jpg": lambda: framed(saved("JPEG"), 0xC5),
    "chunks.webp": lambda: in_webp(b"abcd\0\0\0\0" * 10_001),
    "exif.webp": lambda: in_webp(b"EXIF" + struct.pack("<I", 4_000_001) + bytes(4_000_002)),
    "header.bmp": lambda: saved("BMP")[:14] + struct.pack("<I", 10**9) + saved("BMP")[18:],
    "tags.tif": lambda: many_tags(1_000),
    "exif.tif": lambda: exif_directory(1_001),
    "directories.tif": lambda: nested_directories(16),
    "big.tif": lambda: b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, 10**6) + bytes(100),
    "fractions.tif": lambda: tiff(bytes(480), *strips(1, 20, 480), fractions(10_001)),
    "values.tif": lambda: tiff(
        bytes(480), *strips(1, 20, 480), (320, SHORT, 1_000_001, bytes(2_000_002))
    ),
    "tiles.tif": lambda: tiff(
        bytes(64), *tiles(8, 8, 262_145, 64), width=8000, height=2200
    ),
}  # fmt: skip
SLOW_PARTS = {
    "padding.jpg": lambda: between_scans(b"\xff" * (1 << 20)),
    "arithmetic.tif": lambda: framed(saved("TIFF", compression="jpeg"), 0xC9),
    "scans.tif": lambda: in_strip(many_scans(100), 4_000, 10_000, bands=1),
    "no length.tif": lambda: in_strip(many_scans(90), 4_000, 0, bands=1),
    "shared scans.tif": lambda: tiff(
        many_scans(90), *strips(50, 80, 10_000), width=4_000, height=4_000, packing=7
    ),
    "coefficients.tif": lambda: in_strip(
        framed(saved("JPEG", progressive=True), 0xC2, 7_000), 7_000, 1_000
    ),
    "again.tif": lambda: tiff(bytes(480), *strips(100, 19, 480)),
    "shared.tif": lambda: tiff(
        zlib.compress(bytes(24)), *strips(2_000, 1, 10**6), height=2_000, packing=8
    ),
    "shared strip.tif": lambda: tiff(
        zlib.compress(bytes(24)), *strips(50, 40, 500_000), height=2_000, packing=8
    ),
    "window.tif": lambda: in_strip(b"", 7_000, 100, packing=50_000),
    "huge tile.tif": lambda: tiff(
        zlib.compress(bytes(24)), *tiles(40_000, 40_000, 1, 24), packing=8
    ),
    "high tiles.tif": lambda: tiff(
        zlib.compress(bytes(24)), *tiles(16, 60_000, 3_000, 24), width=48_000, packing=8
    ),
}
ORDINARY = {
    "chunks.png": lambda: in_png(*[(b"teSt", b"")] * 1_000, *[(b"zTXt", b"a" + TEXT)] * 50),
    "segments.jpg": lambda: in_jpeg(b"\xff" * 1_000 + segment(0xE1, b"ab") * 1_000 + EXIF),
    "progressive.jpg": lambda: saved("JPEG", progressive=True),
    "tail.jpg": lambda: saved("JPEG") + bytes(100_000),
    "padded.jpg": lambda: between_scans(b"\xff" * 1_000),
    "tail.webp": lambda: in_webp(b"abcd\0\0\0\0" * 100) + bytes(100_000),
    "tags.tif": lambda: many_tags(900),
    "exif.tif": lambda: exif_directory(900),
    "directories.tif": lambda: nested_directories(15),
    "pages.tif": pages,
    "fractions.tif": lambda: tiff(
        bytes(480), *strips(1, 20, 480), (282, FRACTION, 1, struct.pack("<II", 72, 1))
    ),
    "rows.tif": lambda: tiff(bytes(24), *strips(8_000, 1, 24), height=8_000),
    "packed rows.tif": lambda: tiff(
        zlib.compress(bytes(24)), *strips(8_000, 1, 11), height=8_000, packing=8
    ),
    "tiles.tif": lambda: tiff(bytes(256), *tiles(16, 16, 10_000, 256), width=1600, height=1600),
    "no length.tif": lambda: in_strip(saved("JPEG", "L", (24, 24)), 24, 0, bands=1),
    "progressive.tif": lambda: in_strip(
        saved("JPEG", progressive=True, subsampling=0) + bytes(5_000), 24, 5_000
    ),
    "jpeg.tif": lambda: saved("TIFF", size=(400, 300), compression="jpeg", strip_size=10_000),
}


@pytest.mark.parametrize("name", MANY_PARTS)
def test_files_with_too_many_parts_are_refused_before_they_are_opened(name, monkeypatch):
    content = MANY_PARTS[name]()
    assert parts_problem(io.BytesIO(content))
    monkeypatch.setattr(decode.Image, "open", None)
    with pytest.raises(ImageError, match=name) as refused:
        read_image(name, FIT, content)
    assert "save it again" in str(refused.value) and len(str(refused.value).split()) < 25


@pytest.mark.parametrize("name", SLOW_PARTS)
def test_parts_that_are_slow_to_decode_are_refused(name, monkeypatch):
    monkeypatch.setattr(decode, "_fitted", None)
    with pytest.raises(ImageError, match=f"{name}'? takes more than 400 MB or too much time"):
        read_image(name, FIT, SLOW_PARTS[name]())


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_numbers_of_parts_are_read(name, tmp_path):
    content = ORDINARY[name]()
    (tmp_path / name).write_bytes(content)
    assert read_header(tmp_path / name).width >= 24
    assert read_image(tmp_path / name, FIT).shape == read_image(name, FIT, content).shape


def test_deflate_and_lzma_are_refused_where_they_would_be_slow(monkeypatch):
    """Blocks of deflate may have no content."""
    packed = (saved("TIFF", compression=kind) for kind in ("tiff_deflate", "lzma"))
    plain, deflated = saved("TIFF"), (saved("PNG"), *packed)
    for module in limits, tiff_limits:
        monkeypatch.setattr(module, "MOST_SECONDS", 1e-7)
    assert read_image("a", FIT, plain).shape == (16, 16, 3)
    for content in deflated:
        with pytest.raises(ImageError, match="too much time"):
            read_image("a", FIT, content)


@pytest.mark.parametrize(("least", "size"), [(100, "taken"), (10**7, "read")])
def test_lzw_of_before_tiff_5_is_refused_in_large_files(monkeypatch, least, size):
    """Its codes begin at the low bit: clear, then a black pixel, again and again."""
    bits = "".join(f"{code:09b}"[::-1] for code in (256, 0) * 480)
    code = bytes(int(bits[k : k + 8][::-1], 2) for k in range(0, len(bits) - 7, 8))
    content = tiff(code, *strips(1, 20, len(code)), packing=5)
    monkeypatch.setattr(tiff_limits, "_MOST_LZW", least)
    if size == "read":
        assert read_image("a.tif", FIT, content).shape == (16, 16, 3)
    else:
        with pytest.raises(ImageError, match="too much time"):
            read_image("a.tif", FIT, content)


def test_many_blocks_of_zstandard_are_refused():
    def frames(blocks: int) -> bytes:
        """Half of them end a frame."""
        start = b"\x28\xb5\x2f\xfd\x20\x00"  # a single segment without content
        return blocks // 2 * (start + b"\0\0\0" + b"\1\0\0")

    ordinary = saved("TIFF", compression="zstd")
    assert read_image("a.tif", FIT, ordinary).shape == (16, 16, 3)
    assert not has_many_blocks(io.BytesIO(frames(MOST_BLOCKS)), [(0, 12 * MOST_BLOCKS)])
    slow = frames(MOST_BLOCKS + 2)
    with pytest.raises(ImageError, match="too much time"):
        read_image("a.tif", FIT, tiff(slow, *strips(1, 20, len(slow)), packing=50000))


@pytest.mark.parametrize(
    ("header", "checksum"),
    [
        ("20 00", 0), ("24 00", 4), ("00 50", 0), ("23 0000 0000 00", 0), ("61 07 0000", 0),
        ("a0 0000 0000", 0), ("c0 50 0000 0000 0000 0000", 0),
    ],
)  # fmt: skip
def test_every_header_of_a_zstandard_frame_is_known(monkeypatch, header, checksum):
    """With and without window, dictionary, size of the content and checksum."""
    monkeypatch.setattr(slowcode, "MOST_BLOCKS", 9)
    frame = b"\x28\xb5\x2f\xfd" + bytes.fromhex(header) + b"\1\0\0" + bytes(checksum)
    skipped = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + bytes(5)
    for frames, many in ((8 * frame, False), (9 * frame, True)):
        content = frames[: len(frame)] + skipped + frames[len(frame) :]
        assert has_many_blocks(io.BytesIO(content), [(0, len(content))]) == many
