"""Damage to bytes and to JSON, drawn from a seeded generator."""

import copy
import json
import struct
from random import Random
from typing import Any

_EDGES = (0, 1, 2, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 255, 2**31, 2**63, -(2**63), 10**40, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), "", "\0", "é", "\ud800", "../../x", "=1+1", "x" * 5000,
    [], {}, [[]], [1, 2, 3], {"a": 1}, "0", "model", "combined",
)  # fmt: skip
_DEEP = 2000  # brackets around a value: more than Python's recursion limit


def damaged(random: Random, content: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """One to three changes of bytes: flips, numbers at the edge, cuts, copies, parts of others."""
    found = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 3))):
        _damage(random, found, others)
    return bytes(found)


def _damage(random: Random, found: bytearray, others: tuple[bytes, ...]) -> None:
    # headers are at the start, and checksums and directories at the end
    size = len(found)
    place = min(size, int(random.choice((1, size, size, 64, 512)) * random.random()))
    place = size - place if random.random() < 0.2 else place
    length = min(random.choice((1, 2, 4, 8, 16, 256)), size)
    match random.randrange(8):
        case 0 if place < size:
            found[place] ^= 1 << random.randrange(8)
        case 1 if place < size:
            found[place] = random.randrange(256)
        case 2:
            kind = random.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
            width = struct.calcsize(kind)
            number = random.choice(_EDGES) % 256**width
            found[place : place + width] = struct.pack(kind, number)
        case 3:
            del found[place : place + length]
        case 4:
            found[place:place] = found[place : place + length] * random.randint(1, 3)
        case 5:
            found[place:place] = random.randbytes(length)
        case 6:
            del found[place:]
        case _ if others:
            other = random.choice(others)
            start = random.randrange(len(other) + 1)
            found[place : place + length] = other[start : start + random.randint(0, 256)]


def damaged_json(random: Random, value: Any) -> Any:
    """One to three parts of a JSON value replaced, removed, renamed or copied."""
    found = [copy.deepcopy(value)]  # so that the whole value has a place, too
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(found))
        holder, key = random.choice(places)
        match random.randrange(6):
            case 0:
                del holder[key]
                if not found:
                    found.append(None)
            case 1:
                other, other_key = random.choice(places)
                holder[key] = copy.deepcopy(other[other_key]) if _has(other, other_key) else None
            case 2 if isinstance(holder, dict):
                holder[str(random.choice(_VALUES))] = holder.pop(key)
            case 3 if isinstance(holder[key], int | float):
                holder[key] = holder[key] * random.choice((-1, 2, 1000, 0.5)) + random.choice(
                    (0, 1)
                )
            case 4 if isinstance(holder[key], list):
                holder[key] = holder[key] * random.choice((0, 2, 3))
            case _:
                holder[key] = random.choice(_VALUES)
    return found[0]


def as_text(random: Random, value: Any) -> str:
    """JSON, now and then with a value that is nested too deeply."""
    text = json.dumps(value)
    if random.random() < 0.02:
        return text.replace("1", "[" * _DEEP + "]" * _DEEP, 1)
    return text


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _places(value: Any) -> Any:
    """Every (container, key) inside."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)
