"""Every code of every format against `ml_dtypes`, and rounding against a search for the nearest value."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch

from oracles import formats, kernels

Quantize = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
Dequantize = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

BYTES = np.arange(256, dtype=np.uint8)
CODES = BYTES[:16]
E2M1 = CODES.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
E8M0 = BYTES.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
E4M3 = BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def same(got: torch.Tensor, want: np.ndarray | torch.Tensor) -> bool:
    """Equal value for value, NaN equal to NaN, -0 not equal to 0."""
    wanted = torch.as_tensor(want, dtype=torch.float64)
    nan = wanted.isnan()
    return (
        got.shape == wanted.shape
        and torch.equal(got.isnan(), nan)
        and torch.equal(got[~nan].view(torch.int64), wanted[~nan].view(torch.int64))
    )


def nearest_even(value: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
    """By search: the nearest of `magnitudes` (ascending; their index is the code, so that even is even), with sign.

    A distance between a double and a neighbour in a coarser format is exact. The last magnitude stands for infinity
    or, for a saturating format, is never reached.
    """
    size = np.minimum(np.abs(value), magnitudes[-1])
    above = np.searchsorted(magnitudes, size).clip(1, len(magnitudes) - 1)
    below = above - 1
    low, high = size - magnitudes[below], magnitudes[above] - size
    code = np.where(low < high, below, np.where(high < low, above, np.where(below % 2 == 0, below, above)))
    return np.copysign(magnitudes[code], value)


def hard_cases(magnitudes: np.ndarray) -> np.ndarray:
    """Each value, each midpoint, and the doubles on both sides of these, with both signs."""
    points = np.concatenate((magnitudes, (magnitudes[1:] + magnitudes[:-1]) / 2))
    points = np.concatenate((points, np.nextafter(points, np.inf), np.nextafter(points, 0)))
    return np.concatenate((points, -points))


# --- rounding ------------------------------------------------------------------------------------------------------

HALVES = {
    "bfloat16": np.arange(0x7F81, dtype=np.uint16).view(ml_dtypes.bfloat16),
    "float16": np.arange(0x7C01, dtype=np.uint16).view(np.float16),
}


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_round_to_every_value_and_midpoint(name: str) -> None:
    magnitudes = HALVES[name].astype(np.float64)
    magnitudes[-1] = 2 * magnitudes[-2] - magnitudes[-3]  # infinity stands where the next value would be
    values = np.concatenate((hard_cases(magnitudes), random_doubles(100_000)))
    want = nearest_even(values, magnitudes)
    want = np.where(np.abs(want) == magnitudes[-1], np.copysign(np.inf, values), want)
    assert same(formats.round_to(torch.from_numpy(values), name), want)


def test_round_to_float32_is_numpys_single_rounding() -> None:
    exact = random_floats(100_000).astype(np.float64)
    step = np.abs(np.spacing(exact.astype(np.float32))).astype(np.float64)
    ties = exact + step / 2
    values = np.concatenate(
        (exact, ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf), random_doubles(100_000))
    )
    with np.errstate(over="ignore"):
        want = values.astype(np.float32).astype(np.float64)
    assert same(formats.round_to(torch.from_numpy(values), "float32"), want)


def random_doubles(count: int) -> np.ndarray:
    """Finite doubles, half of any exponent and half where float32 has values."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**64, count, dtype=np.uint64).view(np.float64)
    near = rng.standard_normal(count) * 2.0 ** rng.integers(-155, 130, count)
    values = np.concatenate((values[: count // 2], near[: count // 2]))
    return values[np.isfinite(values)]


def random_floats(count: int) -> np.ndarray:
    """Finite floats below the largest exponent, subnormals among them."""
    bits = np.random.default_rng(1).integers(0, 2**32, count, dtype=np.uint32)
    values = np.concatenate((bits.view(np.float32), (bits[:1000] & 0x807FFFFF).view(np.float32)))
    return values[np.abs(values) < 2.0**127]


def test_round_to_does_not_round_twice() -> None:
    value = torch.tensor([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8], dtype=torch.float64)
    assert formats.round_to(value, "bfloat16").tolist() == [1 + 2.0**-7, 1.0, 1 + 2.0**-6]
    assert value.to(torch.bfloat16)[0].item() == 1.0, "torch goes by way of float32"


@pytest.mark.parametrize(
    ("name", "smallest", "largest"),
    [
        ("float32", 2.0**-149, 3.4028234663852886e38),
        ("bfloat16", 2.0**-133, 3.3895313892515355e38),
        ("float16", 2.0**-24, 65504.0),
    ],
)
def test_round_to_ends_of_the_range(name: str, smallest: float, largest: float) -> None:
    def round_one(value: float) -> float:
        return formats.round_to(torch.tensor(value, dtype=torch.float64), name).item()

    assert formats.MAX_FINITE[name] == largest
    assert round_one(smallest / 2) == 0.0
    assert round_one(np.nextafter(smallest / 2, 1)) == smallest
    assert round_one(1.5 * smallest) == 2 * smallest
    assert round_one(2.0**-1074) == 0.0
    assert round_one(formats.MIN_NORMAL[name]) == formats.MIN_NORMAL[name]
    assert round_one(largest) == largest
    assert round_one(-2 * largest) == -np.inf
    assert round_one(np.inf) == np.inf
    assert np.isnan(round_one(np.nan))
    assert np.signbit(round_one(-0.0))
    assert np.signbit(round_one(-smallest / 4))


def test_bits_of_another_dtype_are_refused() -> None:
    with pytest.raises(TypeError, match=r"value\.dtype = torch\.float32: must be torch\.float64"):
        formats.round_to(torch.zeros(2, dtype=torch.float32), "bfloat16")


def test_exp2_over_its_whole_range() -> None:
    exponents = torch.arange(-1022, 1024)
    assert same(formats.exp2(exponents), np.ldexp(1.0, exponents.numpy()))
    assert same(formats.exp2(exponents.to(torch.int16)), np.ldexp(1.0, exponents.numpy()))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], True),
        ([-2.0, 2.0], True),
        ([-2.0, 0.5], True),
        ([-0.5, 0.5], True),
        ([2.25], False),
        ([-2.25], False),
        ([-np.inf], False),
        ([0.0, np.nan], False),
    ],
)
def test_within_is_up_to_the_largest_and_no_nan(values: list[float], expected: bool) -> None:
    assert formats.within(torch.tensor(values, dtype=torch.float64), 2.0) is expected


def test_what_is_not_looked_at_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    zero, values = torch.zeros(3, dtype=torch.float64), torch.tensor([3.0, -2.0], dtype=torch.float64)
    assert formats.is_zero(zero)
    assert not formats.is_zero(values)
    assert (formats.least(values), formats.least(values[:0])) == (-2.0, np.inf)
    assert np.isnan(formats.least(torch.tensor([1.0, torch.nan])))
    monkeypatch.setattr(kernels, "look_first", lambda _: False)
    assert not formats.is_zero(zero)
    assert (formats.least(values), formats.smallest(values)) == (-np.inf, 0.0)


def test_the_largest_of_each() -> None:
    values = torch.tensor([[-3.0, 2.0], [0.0, torch.nan], [1.0, torch.inf]], dtype=torch.float64)
    found = formats.largest(values[0], values[0, :0], values[2:], values[1])
    assert found[:3] == [2.0, 0.0, torch.inf]
    assert np.isnan(found[3])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], np.inf),
        ([0.0, -0.0], np.inf),
        ([3.0, -2.0], 2.0),
        ([0.0, 3.0, -2.0], 2.0),
        ([-0.0, -0.25, 0.5], 0.25),
        ([0.0, 2.0**-1074, 1.0], 2.0**-1074),
        ([0.0, 3 * 2.0**-1074], 3 * 2.0**-1074),
        ([0.0, 1.7976931348623157e308], 1.7976931348623157e308),
        ([0.0, np.inf], np.inf),
    ],
)
def test_smallest_is_of_the_magnitudes_that_are_not_zero(values: list[float], expected: float) -> None:
    assert formats.smallest(torch.tensor(values, dtype=torch.float64)) == expected


# --- the three MX formats ------------------------------------------------------------------------------------------


def test_low_nibble_is_the_even_column() -> None:
    packed = torch.tensor([[0x21, 0xF3]], dtype=torch.uint8)
    assert formats.unpack(packed).tolist() == [[1, 2, 3, 15]]
    assert torch.equal(formats.pack(formats.unpack(packed)), packed)
    every = torch.from_numpy(BYTES)
    assert torch.equal(formats.pack(formats.unpack(every)), every)


def test_e2m1_every_code() -> None:
    assert same(formats.e2m1_decode(torch.from_numpy(CODES)), E2M1)
    assert formats.e2m1_encode(torch.from_numpy(E2M1)).tolist() == CODES.tolist()


def test_e2m1_rounds_to_nearest_even_and_saturates() -> None:
    values = np.concatenate((hard_cases(E2M1[:8]), np.linspace(-7, 7, 5000)))
    got = formats.e2m1_decode(formats.e2m1_encode(torch.from_numpy(values)))
    assert same(got, nearest_even(values, E2M1[:8]))
    floats = values.astype(np.float32)
    exactly = floats == values  # ml_dtypes goes by way of float32
    assert exactly.sum() > 20
    assert same(got[torch.from_numpy(exactly)], floats[exactly].astype(ml_dtypes.float4_e2m1fn).astype(np.float64))
    extremes = torch.tensor([np.inf, -np.inf, 1e300, np.nan, -np.nan], dtype=torch.float64)
    assert formats.e2m1_encode(extremes).tolist() == [7, 15, 7, 7, 7]


def test_e8m0_every_byte() -> None:
    decoded = formats.e8m0_decode(torch.from_numpy(BYTES))
    assert same(decoded, E8M0)
    finite = decoded[:255]
    assert formats.e8m0_encode_ceil(finite).tolist() == list(range(255))
    up, down = torch.tensor(np.inf, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    assert formats.e8m0_encode_ceil(torch.nextafter(finite, up)).tolist() == [*range(1, 255), 254]
    assert formats.e8m0_encode_ceil(torch.nextafter(finite, down)).tolist() == list(range(255))


def test_e8m0_outside_its_range() -> None:
    values = torch.tensor([0.0, 2.0**-1074, 2.0**-128, 2.0**128, np.inf, np.nan], dtype=torch.float64)
    assert formats.e8m0_encode_ceil(values).tolist() == [0, 0, 0, 254, 254, 255]


def test_e4m3_every_byte() -> None:
    decoded = formats.e4m3_decode(torch.from_numpy(BYTES))
    assert same(decoded, E4M3)
    assert same(decoded, torch.from_numpy(BYTES).view(torch.float8_e4m3fn).double())
    encoded = formats.e4m3_encode(decoded)
    number = ~decoded.isnan()
    assert torch.equal(encoded[number], torch.from_numpy(BYTES)[number])
    assert encoded[~number].tolist() == [0x7F, 0x7F]


@pytest.mark.parametrize("encode", [formats.e2m1_encode, formats.e8m0_encode_ceil, formats.e4m3_encode])
def test_codes_are_bytes(encode: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert encode(torch.ones(3, dtype=torch.float64)).dtype == torch.uint8


def test_e4m3_round_saturates_on_both_sides() -> None:
    values = torch.tensor([1e9, -1e9, 500.0, -500.0], dtype=torch.float64)
    assert formats.e4m3_round(values).tolist() == [448.0, -448.0, 448.0, -448.0]


def test_e4m3_rounds_to_nearest_even_and_saturates() -> None:
    magnitudes = E4M3[:0x7F]
    values = np.concatenate((hard_cases(magnitudes), random_doubles(20_000), np.linspace(-500, 500, 20_001)))
    got = formats.e4m3_decode(formats.e4m3_encode(torch.from_numpy(values)))
    assert same(got, nearest_even(values, magnitudes))
    in_range = np.abs(values) <= 448
    floats = values[in_range].astype(np.float32)
    exactly = floats == values[in_range]  # ml_dtypes goes by way of float32
    want = floats[exactly].astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert exactly.sum() > 500
    assert same(got[torch.from_numpy(in_range)][torch.from_numpy(exactly)], want)
    assert formats.e4m3_encode(torch.tensor([np.inf, -np.inf], dtype=torch.float64)).tolist() == [0x7E, 0xFE]


# --- groups --------------------------------------------------------------------------------------------------------


def test_mxfp4_dequantizes_every_code_under_every_scale() -> None:
    codes = torch.from_numpy(np.tile(CODES, (256, 2)))
    got = formats.mxfp4_dequantize(formats.pack(codes), torch.from_numpy(BYTES)[:, None])
    assert same(got, E2M1[codes.numpy()] * E8M0[:, None])


def test_mxfp8_dequantizes_every_byte_under_every_scale() -> None:
    payload = torch.from_numpy(np.tile(BYTES, (256, 1)))
    got = formats.mxfp8_dequantize(payload, torch.from_numpy(BYTES)[:, None].repeat(1, 8))
    assert same(got, E4M3[payload.numpy()] * E8M0[:, None])


def test_mxfp4_quantize_gives_back_what_is_representable() -> None:
    codes = torch.from_numpy(np.tile(CODES, (255, 2)))
    scale = torch.from_numpy(BYTES[:255])[:, None]
    packed = formats.pack(codes)
    got = formats.mxfp4_quantize(formats.mxfp4_dequantize(packed, scale))
    assert torch.equal(got[0], packed)
    assert torch.equal(got[1], scale)


def test_mxfp8_quantize_gives_back_what_is_representable() -> None:
    numbers = torch.from_numpy(np.delete(BYTES, [0x7F, 0xFF]))  # each group holds 448, and so its own scale
    groups = torch.stack([torch.cat((part, part.new_full((32 - len(part),), 0x7E))) for part in numbers.split(31)])
    payload = groups.flatten().repeat(255, 1)
    scale = torch.from_numpy(BYTES[:255])[:, None].repeat(1, len(groups))
    got = formats.mxfp8_quantize(formats.mxfp8_dequantize(payload, scale))
    assert torch.equal(got[0], payload)
    assert torch.equal(got[1], scale)


@pytest.mark.parametrize(
    ("quantize", "dequantize", "magnitudes"),
    [
        (formats.mxfp4_quantize, formats.mxfp4_dequantize, E2M1[:8]),
        (formats.mxfp8_quantize, formats.mxfp8_dequantize, E4M3[:0x7F]),
    ],
)
def test_quantize_takes_the_smallest_scale_that_holds_the_group(
    quantize: Quantize, dequantize: Dequantize, magnitudes: np.ndarray
) -> None:
    rng = np.random.default_rng(2)
    values = rng.standard_normal((3000, 64)) * 2.0 ** rng.integers(-130, 130, (3000, 1))
    values[0] = 0.0
    values[1, 0] = magnitudes[-1] * 64  # amax is the largest magnitude times a power of two: the scale is not doubled
    values[1, 1:32] = 0.0
    payload, scale = quantize(torch.from_numpy(values))
    groups = np.abs(values).reshape(3000, 2, 32).max(-1)
    exponents = np.clip(np.array([[smallest_exponent(g / magnitudes[-1]) for g in row] for row in groups]), -127, 127)
    assert np.array_equal(scale.numpy(), exponents + 127)
    step = np.repeat(2.0**exponents, 32, axis=1)
    assert same(dequantize(payload, scale), nearest_even(values / step, magnitudes) * step)


def smallest_exponent(value: float) -> int:
    """e with 2**(e-1) < value <= 2**e."""
    if value == 0:
        return -127
    mantissa, exponent = np.frexp(value)
    return int(exponent) - (mantissa == 0.5)


def test_mxfp8_quantize_with_a_lowest_scale() -> None:
    value = torch.full((1, 32), 2.0**-130, dtype=torch.float64)
    payload, scale = formats.mxfp8_quantize(value, lowest=3)
    assert scale.tolist() == [[3]]
    assert torch.equal(formats.mxfp8_dequantize(payload, scale), value)


@pytest.mark.parametrize("quantize", [formats.mxfp4_quantize, formats.mxfp8_quantize])
def test_a_nan_makes_its_group_nan_and_no_other(quantize: Quantize) -> None:
    value = torch.ones(1, 64, dtype=torch.float64)
    value[0, 5] = torch.nan
    assert quantize(value)[1].tolist() == [[255, quantize(value)[1][0, 1].item()]]
    assert quantize(value)[1][0, 1] < 255


def test_no_rows_is_no_special_case() -> None:
    none = torch.zeros(0, 64, dtype=torch.float64)
    payload, scale = formats.mxfp8_quantize(none)
    assert (payload.shape, scale.shape) == ((0, 64), (0, 2))
    assert formats.mxfp8_dequantize(payload, scale).shape == (0, 64)
    assert formats.mxfp4_dequantize(*formats.mxfp4_quantize(none)).shape == (0, 64)
