r"""Matrix products of float32 directions from float16 parts, which tensor cores multiply fastest.

Each coordinate is SCALE x = h + l. h is a whole number of at most 11 bits (12 from 0.5 on, where it is even), and l, at
most 1, is a float16.

Tensor cores round towards zero when they add, which over many additions does not average out. But sums of h h' are
whole numbers up to 2^24, so they are exact. The sums with l are small, and are added up apart.

The sum of l l' is not negligible for nearly equal directions: all its terms are positive there, D/12 together. Up to
128 dimensions it is computed. Beyond, it would take a quarter of the time, and is made negligible instead: the columns
of a table are rounded up or down at random, up the more likely the nearer that is. Then the mean of l' is 0, and the
sum of l l' is noise of about sqrt(D)/8 for all pairs alike: 1e-7 of the cosine for D = 256.
"""

import torch
from torch import Tensor

from aleator.fused.triton_helpers import tl, triton

SCALE = 4096.0  # its square is 2^24, up to where float32 holds all whole numbers
UNIT = 32768.0  # above the weights of a row in `add_pull`; half of the largest float16
LARGEST_PART = 256  # dimensions that one program holds
LARGEST_WITH_LOW = 128  # dimensions up to which l l' is computed


def split_directions(mu: Tensor) -> tuple[Tensor, Tensor]:
    """h and l of directions (N, D) float32, with zeros behind them: (2, N, E) float16, as rows and as columns.

    E is the next power of two from 16 to 256, or a multiple of 64 beyond. Both are the same up to 128 dimensions.
    """
    rows = _split(mu, False)
    return rows, rows if mu.shape[1] <= LARGEST_WITH_LOW else _split(mu, True)


def _split(mu: Tensor, at_random: bool) -> Tensor:
    count, dim = mu.shape
    out = mu.new_empty(2, count, padded(dim), dtype=torch.float16)
    size = out[0].numel()
    _halves_kernel[(triton.cdiv(size, 1024),)](
        mu.contiguous(), out, size, dim, out.shape[2], SCALE, at_random, BLOCK=1024
    )
    return out


def padded(dim: int) -> int:
    """E for D dimensions."""
    if dim <= LARGEST_PART:
        return max(16, triton.next_power_of_2(dim))
    return -(-dim // 64) * 64


def shape_of_halves(dim: int) -> dict[str, int | bool | float]:
    """PART, how many of the E dimensions a product takes at once, whether these are all, and whether l l' counts."""
    whole = dim <= LARGEST_PART
    return {"PART": padded(dim) if whole else 64, "WHOLE": whole, "WITH_LOW": dim <= LARGEST_WITH_LOW, "SCALE": SCALE}


if triton is not None:

    @triton.jit
    def halved(x):
        """h and l of float32 numbers, h + l = x."""
        high = x.to(tl.float16)
        return high, (x - high.to(tl.float32)).to(tl.float16)

    @triton.jit
    def _random(i):
        """A number in [0, 1) for each whole number, always the same: its bits, mixed by two multiplications."""
        bits = i.to(tl.uint32) * 0x9E3779B1
        bits = (bits ^ (bits >> 15)) * 0x85EBCA77
        return ((bits ^ (bits >> 13)) >> 8).to(tl.float32) * 2.0**-24

    @triton.jit
    def _halves_kernel(mu_ptr, out_ptr, size, dim, padded, SCALE: tl.constexpr, AT_RANDOM: tl.constexpr,
                       BLOCK: tl.constexpr):  # fmt: skip
        """One thread for some numbers of the result."""
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        row, d = i // padded, i % padded
        x = tl.load(mu_ptr + row * dim + d, mask=(i < size) & (d < dim), other=0.0)
        x = x * SCALE
        threshold = _random(i) if AT_RANDOM else 0.5
        high = tl.where(tl.abs(x) < 2047.0, tl.floor(x + threshold), x).to(tl.float16)  # above, every float16 is whole
        low = (x - high.to(tl.float32)).to(tl.float16)
        tl.store(out_ptr + i, high, mask=i < size)
        tl.store(out_ptr + size + i, low, mask=i < size)

    @triton.jit
    def load_halves(halves_ptr, at, live, start, count, padded, PART: tl.constexpr):
        """h and l of some directions, PART of their dimensions."""
        d = start + tl.arange(0, PART)
        at = at.to(tl.int64)
        live = live[:, None] & (d < padded)[None, :]
        high = tl.load(halves_ptr + at[:, None] * padded + d[None, :], mask=live, other=0.0)
        low = tl.load(halves_ptr + (at + count)[:, None] * padded + d[None, :], mask=live, other=0.0)
        return high, low

    @triton.jit
    def cosines_of_halves(high1, low1, high2, low2, halves1_ptr, halves2_ptr, row, row_live, column, column_live, count,
                          others, padded, PART: tl.constexpr, WHOLE: tl.constexpr, WITH_LOW: tl.constexpr,
                          SCALE: tl.constexpr):  # fmt: skip
        """mu.mu' of a tile in float32, from the first PART dimensions of both; with more, the others are loaded."""
        exact, rest = _products(high1, low1, high2, low2, WITH_LOW)
        if not WHOLE:
            for start in range(PART, padded, PART):
                a_high, a_low = load_halves(halves1_ptr, row, row_live, start, count, padded, PART)
                b_high, b_low = load_halves(halves2_ptr, column, column_live, start, others, padded, PART)
                more, more_rest = _products(a_high, a_low, b_high, b_low, WITH_LOW)
                exact += more
                rest += more_rest
        c = (exact + rest) * (1.0 / (SCALE * SCALE))
        return tl.where(c > 1.0, 1.0, tl.where(c < -1.0, -1.0, c))

    @triton.jit
    def _products(high1, low1, high2, low2, WITH_LOW: tl.constexpr):
        """h h'^T, and the rest of x x'^T: h l'^T + l h'^T, and l l'^T if it counts."""
        rest = tl.dot(high1, tl.trans(low2))
        if WITH_LOW:
            rest = tl.dot(low1, tl.trans(low2), rest)
        rest = tl.dot(low1, tl.trans(high2), rest)
        return tl.dot(high1, tl.trans(high2)), rest

    @triton.jit
    def power_above(x):
        """The power of two above each x > 0, and its inverse, both exact."""
        exponent = (x.to(tl.int32, bitcast=True) & 0x7F800000) + 0x00800000
        return exponent.to(tl.float32, bitcast=True), (0x7F000000 - exponent).to(tl.float32, bitcast=True)

    @triton.jit
    def add_pull(pull, top, weight, high, low, UNIT: tl.constexpr):
        """`pull` (ROWS, HELD) and `top` (ROWS,), after one more tile of weights (ROWS, COLUMNS).

        The sum is UNIT/top times the weighted sum of scaled directions. `top` is a power of two above all weights of a
        row, so that none is too large for float16, and that scaling is exact. It starts as one. Each tile is added in
        float32: tensor cores round towards zero when they add, and over thousands of tiles this would not average out.
        """
        larger, inverse = power_above(tl.maximum(0.5 * top, tl.max(tl.abs(weight), 1)))
        weight_high, weight_low = halved(weight * (UNIT * inverse)[:, None])
        tile = tl.dot(weight_low, high)
        tile = tl.dot(weight_high, low, tile)
        tile = tl.dot(weight_high, high, tile)
        return pull * (top * inverse)[:, None] + tile, larger

else:
    halved = power_above = load_halves = cosines_of_halves = add_pull = None
