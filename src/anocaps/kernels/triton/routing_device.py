"""The kernels of `routing.py`, which explains their order and their letters.

Votes are never stored. For a class j, a program multiplies matrices on the tensor cores:

    pulled back  P_j = V_j · W_jᵀ      [images, E] · [E, D·capsules],  b_j = Σ_d u P_j
    weighted     s_j = (c_j u) · W_j   [images, D·capsules] · [D·capsules, E]
    leaves       dW_j = Σ_r (cʳ u)ᵀ · dsʳ + (dbʳ u)ᵀ · Vʳ   [D·capsules, images] · [images, E]

In the columns of a tile, the capsule is the fastest axis. A thread then holds all D numbers of a
capsule in the result of a product. So threads exchange nothing when they sum over d and pass the
sum to the next product (`_weigh`). A product is three TF32 products, which are as exact as fp32, or
one TF32 product on request. Everything else is fp32.
"""

from anocaps.kernels.triton.support import jit, squash, squash_backward, tl

# Small tensors (s, V, ds) are [J, N, E]; couplings and gradients of logits are [J, N, I]. E is
# padded to EP and I to TILES·BI. W and u are 0 there, so all results are 0.
# A program's images are n0 + rows [BM, 1]; `inside` is true where such an image exists.


@jit
def _rounded(x):
    """Round to TF32: 10 bits of mantissa."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@jit
def _product(a, b, PRECISE: tl.constexpr):
    """a · b as one TF32 product, or three where PRECISE (relative error 2⁻²²)."""
    if PRECISE:
        a_high, b_high = _rounded(a), _rounded(b)
        acc = tl.dot(a - a_high, b_high, input_precision="tf32")
        acc = tl.dot(a_high, b - b_high, acc, input_precision="tf32")
        return tl.dot(a_high, b_high, acc, input_precision="tf32")
    else:
        return tl.dot(a, b, input_precision="tf32")


@jit
def turn(w, w1, w2, CAPSULES: tl.constexpr, J: tl.constexpr, E: tl.constexpr, EP: tl.constexpr,
         D: tl.constexpr, BI: tl.constexpr, PRECISE: tl.constexpr):  # fmt: skip
    """W [I, J, E, D] → w1 [J, TILES, D·BI, E], w2 [J, TILES, E, D·BI]. The last axis is the one
    that a product sums over; in w2 it has the order that `_weigh` needs."""
    tile, j = tl.program_id(0), tl.program_id(1)
    i = tile * BI + tl.arange(0, BI)[:, None]
    x = tl.arange(0, EP * D)[None, :]
    inside = (i < CAPSULES) & (x < E * D)
    block = tl.load(w + (i * J + j) * (E * D) + x, mask=inside, other=0.0).to(tl.float32)
    if not PRECISE:
        block = _rounded(block)
    block = tl.reshape(block, [BI, EP, D])
    at = (j * tl.num_programs(0) + tile) * (EP * D * BI) + tl.arange(0, EP * D * BI)
    tl.store(w1 + at, tl.reshape(tl.permute(block, [2, 0, 1]), [EP * D * BI]))
    block = tl.reshape(tl.permute(block, [1, 2, 0]), [EP, D * BI // 8, 4, 2])
    tl.store(w2 + at, tl.reshape(tl.permute(block, [0, 1, 3, 2]), [EP * D * BI]))


@jit
def _capsules(u, tile, n0, inside, CAPSULES: tl.constexpr, D: tl.constexpr, BI: tl.constexpr):
    """A tile of u, fp32 [BM, D, BI]."""
    BM: tl.constexpr = inside.shape[0]
    x = tile * (BI * D) + tl.arange(0, BI * D)[None, :]
    at = tl.arange(0, BM)[:, None] * (CAPSULES * D) + x
    block = tl.load(
        u + n0.to(tl.int64) * (CAPSULES * D) + at, mask=inside & (x < CAPSULES * D), other=0.0
    )
    return tl.permute(tl.reshape(block.to(tl.float32), [BM, BI, D]), [0, 2, 1])


@jit
def _pulled(small, w1, like, inside, EP: tl.constexpr, PRECISE: tl.constexpr):
    """small · W_jᵀ: [BM, E] at `small`, a tile at w1 → the shape of `like`, [BM, D, BI]."""
    e = tl.arange(0, EP)
    rows = tl.arange(0, like.shape[0])
    columns = tl.arange(0, like.shape[1] * like.shape[2])
    a = tl.load(small + rows[:, None] * EP + e[None, :], mask=inside, other=0.0)
    w = tl.load(w1 + e[:, None] + columns[None, :] * EP)
    return tl.reshape(_product(a, w, PRECISE), like.shape)


@jit
def _weigh(x, w2, part, inside, again, EP: tl.constexpr, PRECISE: tl.constexpr):
    """`part` [BM, E] = Σ over a tile's capsules of W_ij x_i; x [BM, D, BI], a tile at w2. With
    `again`, add to `part`."""
    BM: tl.constexpr = x.shape[0]
    COLUMNS: tl.constexpr = x.shape[1] * x.shape[2]
    e = tl.arange(0, EP)[None, :]
    w = tl.load(w2 + tl.arange(0, COLUMNS)[:, None] + e * COLUMNS)
    # In every 8 columns, a thread holds 2q and 2q + 1 of a result, but needs q and q + 4 of a first
    # factor. So column 2q + h becomes column 4h + q.
    x = tl.permute(tl.reshape(x, [BM, COLUMNS // 8, 4, 2]), [0, 1, 3, 2])
    s = _product(tl.reshape(x, [BM, COLUMNS]), w, PRECISE)
    at = tl.arange(0, BM)[:, None] * EP + e
    if again:
        s += tl.load(part + at, mask=inside, other=0.0)
    tl.store(part + at, s, mask=inside)


@jit
def sweep(u, w1, w2, total, c, parts, N, CAPSULES: tl.constexpr, J: tl.constexpr, EP: tl.constexpr,
          D: tl.constexpr, TILES: tl.constexpr, BM: tl.constexpr, BI: tl.constexpr,
          PRECISE: tl.constexpr, STEPS: tl.constexpr, FIRST: tl.constexpr,
          KEEP: tl.constexpr):  # fmt: skip
    """parts[split] [J, N, E] = Σ over a range of i of c_ij û_ij. FIRST: the couplings are 1/J,
    otherwise they follow from `total` = V. KEEP: write them to c."""
    split, n0 = tl.program_id(0), tl.program_id(1) * BM
    rows = tl.arange(0, BM)[:, None]
    inside = rows < N - n0
    parts += split.to(tl.int64) * (J * EP) * N
    for step in range(STEPS):
        tile = split * STEPS + step
        if tile < TILES:
            capsules = _capsules(u, tile, n0, inside, CAPSULES, D, BI)
            pair = rows * (TILES * BI) + tile * BI + tl.arange(0, BI)[None, :]
            top = tl.full([BM, BI], -float("inf"), tl.float32)
            mass = tl.zeros([BM, BI], tl.float32)
            if FIRST:
                capsules *= 1.0 / J
            else:
                for j in range(J):
                    w_at, row = (j * TILES + tile) * (EP * D * BI), j * N + n0
                    p = _pulled(total + row * EP, w1 + w_at, capsules, inside, EP, PRECISE)
                    b = tl.sum(p * capsules, axis=1)
                    higher = tl.maximum(top, b)
                    mass = mass * tl.exp(top - higher) + tl.exp(b - higher)
                    top = higher
                mass = 1 / mass
            for j in range(J):
                w_at, row = (j * TILES + tile) * (EP * D * BI), j * N + n0
                x = capsules
                if not FIRST:  # computed again: cheaper than storing J logits
                    p = _pulled(total + row * EP, w1 + w_at, capsules, inside, EP, PRECISE)
                    b = tl.exp(tl.sum(p * capsules, axis=1) - top) * mass
                    if KEEP:
                        tl.store(c + row.to(tl.int64) * (TILES * BI) + pair, b, mask=inside)
                    x = b[:, None, :] * capsules
                _weigh(x, w2 + w_at, parts + row * EP, inside, step > 0, EP, PRECISE)
        if STEPS > 1:
            tl.debug_barrier()  # a thread may read what another wrote


@jit
def back(u, w1, w2, total, ds, c, db, du_in, du, parts, N, CAPSULES: tl.constexpr, J: tl.constexpr,
         EP: tl.constexpr, D: tl.constexpr, TILES: tl.constexpr, BM: tl.constexpr,
         BI: tl.constexpr, PRECISE: tl.constexpr, STEPS: tl.constexpr, LAST: tl.constexpr,
         EARLIEST: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """One backward iteration: its part of du [N, I, D], added to du_in unless it is the LAST; db;
    and parts[split] [J, N, E] = Σ over a range of i of db_ij û_ij. EARLIEST: no earlier iteration
    has a gradient, so compute du alone. EVEN: the couplings are 1/J."""
    split, n0 = tl.program_id(0), tl.program_id(1) * BM
    rows = tl.arange(0, BM)[:, None]
    inside = rows < N - n0
    parts += split.to(tl.int64) * (J * EP) * N
    for step in range(STEPS):
        tile = split * STEPS + step
        if tile < TILES:
            capsules = _capsules(u, tile, n0, inside, CAPSULES, D, BI)
            pair = rows * (TILES * BI) + tile * BI + tl.arange(0, BI)[None, :]
            grown = tl.zeros([BM, D, BI], tl.float32)
            mean = tl.zeros([BM, BI], tl.float32)  # Σ_j c dc
            for j in range(J):
                w_at, row = (j * TILES + tile) * (EP * D * BI), j * N + n0
                at = row.to(tl.int64) * (TILES * BI) + pair
                g = _pulled(ds + row * EP, w1 + w_at, capsules, inside, EP, PRECISE)
                if EVEN:
                    grown += g * (1.0 / J)
                else:
                    x = tl.load(c + at, mask=inside, other=0.0)
                    grown += x[:, None, :] * g
                    if not EARLIEST:
                        dc = tl.sum(g * capsules, axis=1)
                        tl.store(db + at, dc, mask=inside)  # until the second loop
                        mean += x * dc
            if not EARLIEST:
                tl.debug_barrier()  # a thread may read what another wrote
                for j in range(J):
                    w_at, row = (j * TILES + tile) * (EP * D * BI), j * N + n0
                    at = row.to(tl.int64) * (TILES * BI) + pair
                    x = tl.load(db + at, mask=inside, other=0.0) - mean
                    x *= tl.load(c + at, mask=inside, other=0.0)
                    tl.store(db + at, x, mask=inside)
                    p = _pulled(total + row * EP, w1 + w_at, capsules, inside, EP, PRECISE)
                    grown += x[:, None, :] * p
                    x = x[:, None, :] * capsules
                    _weigh(x, w2 + w_at, parts + row * EP, inside, step > 0, EP, PRECISE)
            grown = tl.reshape(tl.permute(grown, [0, 2, 1]), [BM, BI * D])
            x = tile * (BI * D) + tl.arange(0, BI * D)[None, :]
            there = inside & (x < CAPSULES * D)
            at = n0.to(tl.int64) * (CAPSULES * D) + rows * (CAPSULES * D) + x
            if not LAST:
                grown += tl.load(du_in + at, mask=there, other=0.0)
            tl.store(du + at, grown, mask=there)
        if STEPS > 1:
            tl.debug_barrier()


@jit
def leaves(u, totals, dss, c, db, dw, dbias, N, CAPSULES: tl.constexpr, J: tl.constexpr,
           E: tl.constexpr, EP: tl.constexpr, D: tl.constexpr, SLOTS: tl.constexpr,
           BN: tl.constexpr, BI: tl.constexpr, PRECISE: tl.constexpr, FIRST: tl.constexpr,
           R: tl.constexpr, BIAS: tl.constexpr, BLOCKS: tl.constexpr):  # fmt: skip
    """dW [I, J, E, D] = Σ_n Σ_r (cʳ dsʳ + dbʳ Vʳ) uᵀ and dbias [J, E] = Σ_n Σ_r dsʳ over
    r = FIRST … R−1. FIRST > 0: the couplings are constants (gradient "last"). I is padded to SLOTS
    in c and db."""
    tile, j = tl.program_id(0), tl.program_id(1)
    rows, columns = tl.arange(0, BN)[:, None], tl.arange(0, BN)[None, :]
    small = rows * EP + tl.arange(0, EP)[None, :]
    pair = columns * SLOTS + tile * BI + tl.arange(0, BI)[:, None]
    acc = tl.zeros([D * BI, EP], tl.float32)
    slope = tl.zeros([BN, EP], tl.float32)
    for block in range(BLOCKS):
        n0 = tl.cast(block * BN, tl.int32)
        inside, across = rows < N - n0, columns < N - n0
        capsules = tl.permute(_capsules(u, tile, n0, inside, CAPSULES, D, BI), [1, 2, 0])
        for r in tl.static_range(FIRST, R):
            row = (r * J + j) * N + n0
            ds = tl.load(dss + row * EP + small, mask=inside, other=0.0)
            if BIAS:
                slope += ds
            if r == 0:
                even = tl.reshape(capsules * (1.0 / J), [D * BI, BN])
                acc += _product(even, ds, PRECISE)
            else:
                at = (row - max(FIRST, 1) * J * N).to(tl.int64) * SLOTS + pair
                y = tl.load(c + at, mask=across, other=0.0)[None, :, :] * capsules
                acc += _product(tl.reshape(y, [D * BI, BN]), ds, PRECISE)
                if FIRST == 0:
                    v = tl.load(totals + row * EP + small, mask=inside, other=0.0)
                    y = tl.load(db + at, mask=across, other=0.0)[None, :, :] * capsules
                    acc += _product(tl.reshape(y, [D * BI, BN]), v, PRECISE)
    acc = tl.reshape(tl.permute(tl.reshape(acc, [D, BI, EP]), [1, 2, 0]), [BI, EP * D])
    x = tl.arange(0, EP * D)[None, :]
    i = tile * BI + tl.arange(0, BI)[:, None]
    tl.store(dw + (i * J + j) * (E * D) + x, acc, mask=(i < CAPSULES) & (x < E * D))
    if BIAS:
        e = tl.arange(0, EP)
        tl.store(dbias + j * E + e, tl.sum(slope, axis=0), mask=(e < E) & (tile == 0))


@jit
def _add_parts(parts, at, inside, size, SPLITS: tl.constexpr, BS: tl.constexpr):
    """Σ over splits of parts[split], at [BN, E]."""
    k = tl.arange(0, BS)[:, None, None]
    acc = tl.zeros([BS, at.shape[0], at.shape[1]], tl.float32)
    for k0 in range(0, SPLITS, BS):
        there = (k0 + k).to(tl.int64) * size + at[None, :, :]
        acc += tl.load(parts + there, mask=(k0 + k < SPLITS) & inside[None, :, :], other=0.0)
    return tl.sum(acc, axis=0)


@jit
def close(parts, bias, total, s_out, next_total, v_out, N, J, SPLITS: tl.constexpr,
          BIAS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, E: tl.constexpr,
          EP: tl.constexpr, BS: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """The end of a forward iteration: s, then V + squash(s), or v [N, J, E] in the LAST."""
    j = tl.program_id(0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)[:, None]
    e = tl.arange(0, EP)[None, :]
    at = (j * N + n) * EP + e
    inside = (n < N) & (e < E)
    s = _add_parts(parts, at, inside, J * N * EP, SPLITS, BS)
    if BIAS:
        s += tl.load(bias + j * E + e, mask=e < E, other=0.0).to(tl.float32)
    tl.store(s_out + at, s, mask=n < N)
    v = squash(s, 1)
    if LAST:
        tl.store(v_out + (n * J + j) * E + e, v, mask=inside)
    else:
        if not FIRST:
            v += tl.load(total + at, mask=inside, other=0.0)
        tl.store(next_total + at, v, mask=n < N)


@jit
def bend(parts, grad, carried, s_in, ds_out, N, J, SPLITS: tl.constexpr,
         LAST: tl.constexpr, SECOND_LAST: tl.constexpr, E: tl.constexpr, EP: tl.constexpr,
         BS: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """The start of a backward iteration: ds from dv. In the LAST iteration dv is the given gradient
    [N, J, E], otherwise the sum of dV of all later iterations, in `carried`."""
    j = tl.program_id(0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)[:, None]
    e = tl.arange(0, EP)[None, :]
    at = (j * N + n) * EP + e
    inside = (n < N) & (e < E)
    if LAST:
        there = (n * J + j) * E + e
        g = tl.load(grad + there, mask=inside, other=0.0).to(tl.float32)
    else:
        g = _add_parts(parts, at, inside, J * N * EP, SPLITS, BS)
        if not SECOND_LAST:
            g += tl.load(carried + at, mask=inside, other=0.0)
        tl.store(carried + at, g, mask=n < N)
    s = tl.load(s_in + at, mask=inside, other=0.0)
    tl.store(ds_out + at, squash_backward(s, g, 1), mask=n < N)
