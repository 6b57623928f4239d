"""The kernels of `primary.py`, which explains their products and their letters.

forward  K is split into ranges. Each range has a partial sum.
dmaps    With stride 2, only taps of the same parity reach a pixel of the input, and fewer near the
         edge. A program takes pixels of one input row and one parity of the columns, ordered by
         column, then image. A tile thus has few columns, and the program visits only the taps that
         reach them. Programs for middle rows are the longest and start first.
dweight  A program takes a tap and a tile [O, C] and sums over all places. If the last round of
         tiles does not fill all multiprocessors, its tiles are split into ranges of places.
"""

from anocaps.kernels.triton.support import INTERPRETED, bf16_product, jit, tl

# HEIGHT and WIDTH are the input's, ROWS and COLUMNS the output's, SIDE is k.


@jit
def _count(x):
    """Let `range` take a number that the kernel computed."""
    if INTERPRETED:  # the interpreter needs a Python number
        return x.handle.data.item()
    else:
        return x


@jit
def _corner(p, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
            STRIDE: tl.constexpr):  # fmt: skip
    """The row of the matrix of maps where the patch of place p begins."""
    row = p % (ROWS * COLUMNS) // COLUMNS
    return (p // (ROWS * COLUMNS) * HEIGHT + row * STRIDE) * WIDTH + p % COLUMNS * STRIDE


@jit
def forward(maps, weight, parts, N, C: tl.constexpr, MAPS: tl.constexpr, HEIGHT: tl.constexpr,
            WIDTH: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr,
            COLUMNS: tl.constexpr, STEPS: tl.constexpr, BP: tl.constexpr, BO: tl.constexpr,
            BK: tl.constexpr):  # fmt: skip
    """parts[range] [places, O] = patches · weightᵀ over STEPS·BK of the k·k·C numbers."""
    places = N * (ROWS * COLUMNS)
    p0 = tl.program_id(0) * BP
    p = p0 + tl.arange(0, BP)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    k = tl.arange(0, BK)
    corner = _corner(tl.minimum(p, places - 1), HEIGHT, WIDTH, ROWS, COLUMNS, STRIDE)
    a_at = corner[:, None] * C + k[None, :]
    b_at = o[None, :] * (SIDE * SIDE * C) + k[:, None]
    first = tl.program_id(2) * STEPS
    acc = tl.zeros([BP, BO], tl.float32)
    for step in range(STEPS):
        block = first + step
        tap = block // (C // BK)
        shift = (tap // SIDE * WIDTH + tap % SIDE) * C + block % (C // BK) * BK
        a = tl.load(maps + shift + a_at)
        b = tl.load(weight + block * BK + b_at)
        acc = bf16_product(a, b, acc)
    parts += (tl.program_id(2) * places + p0).to(tl.int64) * MAPS
    at = tl.arange(0, BP)[:, None] * MAPS + o[None, :]
    tl.store(parts + at, acc.to(parts.dtype.element_ty), mask=(p < places)[:, None])


@jit
def dmaps(grad, weight, dmaps, N, C: tl.constexpr, MAPS: tl.constexpr, HEIGHT: tl.constexpr,
          WIDTH: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr,
          COLUMNS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
          BK: tl.constexpr):  # fmt: skip
    """dmaps of the pixels (y, STRIDE·x + parity), numbered x·N + image."""
    LAST: tl.constexpr = STRIDE * (ROWS - 1) + SIDE  # rows of the input that are used
    rank = tl.program_id(2) // STRIDE
    y = (LAST - 1) // 2 + tl.where(rank % 2 == 1, (rank + 1) // 2, -(rank // 2))
    y = tl.where(rank < LAST, y, rank)  # from the middle row outwards
    parity = tl.program_id(2) % STRIDE
    width = (WIDTH - parity + STRIDE - 1) // STRIDE
    r0 = tl.program_id(1) * BR
    r = r0 + tl.arange(0, BR)
    x = tl.minimum(r // N, width - 1)
    n = r % N
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    k = tl.arange(0, BK)
    up = y // STRIDE
    # Tap (STRIDE·ty + y % STRIDE, STRIDE·tx + parity) adds the gradient of place (up - ty, x - tx).
    ty0 = tl.maximum(up - (ROWS - 1), 0)
    ty1 = tl.minimum(up, (SIDE - 1 - y % STRIDE + STRIDE) // STRIDE - 1)
    tx0 = tl.maximum(r0 // N - (COLUMNS - 1), 0)
    tx1 = tl.minimum((r0 + BR - 1) // N, (SIDE - 1 - parity + STRIDE) // STRIDE - 1)
    steps = tl.maximum(ty1 - ty0 + 1, 0) * tl.maximum(tx1 - tx0 + 1, 0) * (MAPS // BK)
    steps = tl.where(r0 < width * N, steps, 0)
    across = tl.maximum(tx1 - tx0 + 1, 1)  # not 0: the compiler may divide by it before the loop
    a_at = (n * (ROWS * COLUMNS) + x)[:, None] * MAPS + k[None, :]
    acc = tl.zeros([BR, BC], tl.float32)
    for step in range(_count(steps)):
        t = step // (MAPS // BK)
        o = step % (MAPS // BK) * BK
        ty = ty0 + t // across
        tx = tx0 + t % across
        tap = (ty * STRIDE + y % STRIDE) * SIDE + tx * STRIDE + parity
        inside = (x >= tx) & (x < tx + COLUMNS)
        a = tl.load(
            grad + ((up - ty) * COLUMNS - tx) * MAPS + o + a_at, mask=inside[:, None], other=0.0
        )
        b = weight.load([o, tap * C + tl.program_id(0) * BC])
        acc = bf16_product(a, b, acc)
    at = ((n * HEIGHT + y) * WIDTH + x * STRIDE + parity)[:, None] * C + c[None, :]
    tl.store(dmaps + at, acc.to(tl.bfloat16), mask=(r < width * N)[:, None])


@jit
def dweight(maps, grad, dweight, parts, N, C: tl.constexpr, MAPS: tl.constexpr,
            HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr,
            ROWS: tl.constexpr, COLUMNS: tl.constexpr, W_MAP: tl.constexpr,
            W_CHANNEL: tl.constexpr, W_ROW: tl.constexpr, W_COLUMN: tl.constexpr,
            WHOLE: tl.constexpr, RANGES: tl.constexpr, BO: tl.constexpr, BC: tl.constexpr,
            BK: tl.constexpr):  # fmt: skip
    """The first WHOLE tiles of dweight, and for every other tile its partial sums over RANGES
    ranges of places: parts [RANGES, tiles, BO, BC]. W_… are the strides of dweight."""
    places = N * (ROWS * COLUMNS)
    i = tl.program_id(0)
    late = tl.maximum(i - WHOLE, 0)
    tile = tl.where(i < WHOLE, i, WHOLE + late // RANGES)
    part = tl.where(i < WHOLE, 0, late % RANGES)
    most = tl.cdiv(places, BK)
    each = tl.where(i < WHOLE, most, tl.cdiv(most, RANGES))
    first = part * each
    steps = tl.maximum(tl.minimum(each, most - first), 0)
    tap = tile // ((MAPS // BO) * (C // BC))
    o = tile // (C // BC) % (MAPS // BO) * BO + tl.arange(0, BO)
    c = tile % (C // BC) * BC + tl.arange(0, BC)
    shift = (tap // SIDE * WIDTH + tap % SIDE) * C
    acc = tl.zeros([BO, BC], tl.float32)
    for step in range(_count(steps)):
        p0 = (first + step) * BK
        p = p0 + tl.arange(0, BK)
        a_at = tl.arange(0, BK)[:, None] * MAPS + o[None, :]
        a = tl.load(grad + p0 * MAPS + a_at, mask=(p < places)[:, None], other=0.0)
        corner = _corner(tl.minimum(p, places - 1), HEIGHT, WIDTH, ROWS, COLUMNS, STRIDE)
        b = tl.load(maps + shift + corner[:, None] * C + c[None, :])
        acc = bf16_product(tl.trans(a), b, acc)
    if i < WHOLE:
        at = tap // SIDE * W_ROW + tap % SIDE * W_COLUMN
        at += o[:, None] * W_MAP + c[None, :] * W_CHANNEL
        tl.store(dweight + at, acc)
    else:
        at = tl.arange(0, BO)[:, None] * BC + tl.arange(0, BC)[None, :]
        tiles = SIDE * SIDE * (MAPS // BO) * (C // BC) - WHOLE
        tl.store(parts + (part * tiles + tile - WHOLE).to(tl.int64) * (BO * BC) + at, acc)


@jit
def fold(parts, out, size, RANGES: tl.constexpr, B: tl.constexpr):
    """out [size] = Σ of parts [RANGES, size]."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    acc = tl.zeros([B], tl.float32)
    for part in tl.static_range(RANGES):
        acc += tl.load(parts + part * size + i, mask=i < size, other=0.0)
    tl.store(out + i, acc.to(out.dtype.element_ty), mask=i < size)


@jit
def fold_dweight(parts, dweight, C: tl.constexpr, MAPS: tl.constexpr, SIDE: tl.constexpr,
                 W_MAP: tl.constexpr, W_CHANNEL: tl.constexpr, W_ROW: tl.constexpr,
                 W_COLUMN: tl.constexpr, WHOLE: tl.constexpr, RANGES: tl.constexpr,
                 BO: tl.constexpr, BC: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """The tiles from WHOLE on = Σ of parts [RANGES, tiles, BO, BC]. A program takes B numbers."""
    tiles: tl.constexpr = SIDE * SIDE * (MAPS // BO) * (C // BC) - WHOLE
    i = tl.program_id(0) * B + tl.arange(0, B)
    acc = tl.zeros([B], tl.float32)
    for part in tl.static_range(RANGES):
        acc += tl.load(parts + part * (tiles * BO * BC) + i)
    tile = WHOLE + tl.program_id(0) * B // (BO * BC)
    tap = tile // ((MAPS // BO) * (C // BC))
    o = tile // (C // BC) % (MAPS // BO) * BO + i // BC % BO
    c = tile % (C // BC) * BC + i % BC
    at = tap // SIDE * W_ROW + tap % SIDE * W_COLUMN + o * W_MAP + c * W_CHANNEL
    tl.store(dweight + at, acc)
