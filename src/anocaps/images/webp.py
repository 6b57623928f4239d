"""How many groups of Huffman codes the first frame of a WebP file has.

libwebp takes up to 21 kB for each group of a lossless image, and a small file can have 65,536 of
them. The beginning of the bitstream tells their number (RFC 9649, section 3): after the transforms
comes an image whose pixels name the group of each block of the picture.
"""

import os
from typing import IO, NamedTuple

_MOST_GROUPS = 65_536
_MOST_BLOCKS = 262_144  # of all images read in Python; libwebp writes fewer
_MOST_READ = 3_000_000  # bytes; _MOST_BLOCKS take at most 2 million

_PREDICTOR, _CROSS_COLOUR, _SUBTRACT_GREEN, _COLOUR_INDEXING = range(4)
_LITERALS, _PREFIXES, _DISTANCES = 256, 24, 40
_LONGEST = 15  # bits of a code
_ORDER = (17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
_REPEATS = {16: (2, 3), 17: (3, 3), 18: (7, 11)}  # extra bits, smallest number
# Extra bits and smallest value of a prefix for a length or distance.
_VALUES = [(0, i + 1) if i < 4 else (i // 2 - 1, (2 + i % 2 << i // 2 - 1) + 1) for i in range(40)]


class _MalformedError(Exception):
    """libwebp refuses such a file, too, before it makes the groups."""


class _TooLargeError(Exception):
    """The images take too long to read in Python."""


class _Bits:
    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0
        self.blocks = 0  # of the images read so far

    def take(self, count: int) -> int:
        found = self.peek(count)
        self.move(self.position + count)
        return found

    def peek(self, count: int) -> int:
        """The next bits as a number, at most 25. Behind the end are zeros."""
        begin = self.position // 8
        found = int.from_bytes(self.data[begin : begin + 4], "little") >> self.position % 8
        return found & (1 << count) - 1

    def move(self, position: int) -> None:
        if position > 8 * len(self.data):
            raise _MalformedError
        self.position = position


class _Code(NamedTuple):
    entries: list[tuple[int, int]]  # bits and symbol of a code, by the bits that come next
    mask: int


def huffman_groups(file: IO[bytes]) -> int | None:
    """Groups of the first frame of a WebP file; None if libwebp refuses it before it makes them."""
    back = file.tell()
    try:
        return _groups_of_frame(file)
    except _MalformedError:
        return None
    except _TooLargeError:
        return _MOST_GROUPS
    finally:
        file.seek(back)


def _groups_of_frame(file: IO[bytes]) -> int:
    """As libwebp, read the chunks of an animated frame like those of the file."""
    alpha = b""
    file.seek(12)
    while len(head := file.read(8)) == 8:
        kind, length = head[:4], int.from_bytes(head[4:], "little")
        following = file.tell() + length + length % 2
        if kind == b"VP8L":
            bits = _Bits(file.read(_MOST_READ))
            if bits.take(8) != 0x2F:
                raise _MalformedError
            width, height = bits.take(14) + 1, bits.take(14) + 1
            bits.take(1)  # whether there is alpha
            if bits.take(3) != 0:
                raise _MalformedError
            return _groups(bits, width, height)
        if kind == b"VP8 ":
            if not alpha or alpha[0] % 4 != 1:  # alpha is not compressed
                return 1
            size = _Bits(file.read(10)[6:])
            width, _, height, _ = (size.take(count) for count in (14, 2, 14, 2))
            return _groups(_Bits(alpha[1:]), width, height)
        if kind == b"ALPH":
            alpha = file.read(_MOST_READ)
        if kind == b"ANMF":
            following = file.tell() + 16  # the chunks of the frame
        file.seek(following, os.SEEK_SET)
    raise _MalformedError


def _groups(bits: _Bits, width: int, height: int) -> int:
    left = {_PREDICTOR, _CROSS_COLOUR, _SUBTRACT_GREEN, _COLOUR_INDEXING}
    while bits.take(1):
        if (transform := bits.take(2)) not in left:
            raise _MalformedError
        left.remove(transform)
        if transform == _COLOUR_INDEXING:
            colours = bits.take(8) + 1
            _image(bits, colours, 1)
            packed = sum(colours <= most for most in (2, 4, 16))
            width = _blocks(width, packed)
        elif transform != _SUBTRACT_GREEN:
            side = bits.take(3) + 2
            _image(bits, _blocks(width, side), _blocks(height, side))
    _cache_bits(bits)
    if not bits.take(1):
        return 1
    side = bits.take(3) + 2
    return 1 + _image(bits, _blocks(width, side), _blocks(height, side))


def _blocks(length: int, side: int) -> int:
    """Blocks of 2**side pixels that cover a length."""
    return (length + (1 << side) - 1) >> side


def _cache_bits(bits: _Bits) -> int:
    if not bits.take(1):
        return 0
    if not 1 <= (count := bits.take(4)) <= 11:
        raise _MalformedError
    return count


def _image(bits: _Bits, width: int, height: int) -> int:
    """Read an image that has one group; its largest group that a pixel names.

    Copied and cached pixels repeat others, so only their number counts.
    """
    count = width * height
    bits.blocks += count
    if bits.blocks > _MOST_BLOCKS:
        raise _TooLargeError
    cached = 1 << cache_bits if (cache_bits := _cache_bits(bits)) else 0
    sizes = (_LITERALS + _PREFIXES + cached, _LITERALS, _LITERALS, _LITERALS, _DISTANCES)
    greens, reds, blues, alphas, distances = [_code(bits, size) for size in sizes]
    data, position = bits.data, bits.position
    done = largest = 0
    while done < count:
        begin = position // 8
        window = int.from_bytes(data[begin : begin + 9], "little") >> position % 8
        used, green = greens.entries[window & greens.mask]
        position += used
        window >>= used
        if green < _LITERALS:
            used, red = reds.entries[window & reds.mask]
            position += used
            window >>= used
            used, _ = blues.entries[window & blues.mask]
            position += used
            window >>= used
            used, _ = alphas.entries[window & alphas.mask]
            position += used
            largest = max(largest, red << 8 | green)
            done += 1
        elif green < _LITERALS + _PREFIXES:
            extra, length = _VALUES[green - _LITERALS]
            done += length + (window & (1 << extra) - 1)
            window >>= extra
            used, symbol = distances.entries[window & distances.mask]
            position += extra + used + _VALUES[symbol][0]
        else:
            done += 1
    bits.move(position)
    return largest


def _code(bits: _Bits, size: int) -> _Code:
    """Read a Huffman code for so many symbols."""
    lengths = [0] * max(size, _LITERALS)
    if bits.take(1):
        two = bits.take(1)
        lengths[bits.take(8 if bits.take(1) else 1)] = 1
        if two:
            lengths[bits.take(8)] = 1
        return _canonical(lengths[:size])
    of_lengths = [0] * len(_ORDER)
    for symbol in _ORDER[: bits.take(4) + 4]:
        of_lengths[symbol] = bits.take(3)
    code = _canonical(of_lengths)
    most = bits.take(2 * bits.take(3) + 2) + 2 if bits.take(1) else size
    if most > size:
        raise _MalformedError
    at, before = 0, 8
    while at < size and most > 0:
        most -= 1
        used, symbol = code.entries[bits.peek(7) & code.mask]
        bits.move(bits.position + used)
        times = 1
        if symbol >= 16:
            extra, times = _REPEATS[symbol]
            times += bits.take(extra)
        elif symbol:
            before = symbol
        if at + times > size:
            raise _MalformedError
        lengths[at : at + times] = [symbol if symbol < 16 else before * (symbol == 16)] * times
        at += times
    return _canonical(lengths[:size])


def _canonical(lengths: list[int]) -> _Code:
    used = sorted((length, symbol) for symbol, length in enumerate(lengths) if length)
    if len(used) == 1:
        return _Code([(0, used[0][1])], 0)
    if sum(1 << _LONGEST - length for length, _ in used) != 1 << _LONGEST:
        raise _MalformedError
    longest = used[-1][0]
    entries = [(0, 0)] * (1 << longest)
    code = 0  # as if it were `longest` bits long
    for length, symbol in used:
        first = int(f"{code:0{longest}b}"[::-1], 2)
        entries[first :: 1 << length] = [(length, symbol)] * (1 << longest - length)
        code += 1 << longest - length
    return _Code(entries, (1 << longest) - 1)
