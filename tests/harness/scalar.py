"""Exact scalar arithmetic on fractions: slow, and independent of the array oracle it is held against."""

from __future__ import annotations

import math
from fractions import Fraction


class Scalar:
    """Python floats that hold float32 (or 16-bit) values; every operation is rounded exactly once."""

    float32 = (23, -126, 127)
    float16 = (10, -14, 15)
    bfloat16 = (7, -126, 127)
    """Fraction bits, exponents of the smallest and of the largest normal."""

    def round(self, value: Fraction, fmt: tuple[int, int, int] = float32) -> float:
        """To nearest, ties to even, of a nonzero fraction or +0."""
        fraction_bits, lowest, highest = fmt
        if value == 0:
            return 0.0
        size = abs(value)
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        if Fraction(2) ** exponent > size:
            exponent -= 1
        unit = Fraction(2) ** (max(exponent, lowest) - fraction_bits)
        rounded = round(size / unit) * unit  # Python rounds a Fraction half to even
        infinite = rounded >= Fraction(2) ** (highest + 1)
        return math.copysign(math.inf if infinite else float(rounded), value)

    def fma(self, a: float, b: float, c: float) -> float:
        if not all(map(math.isfinite, (a, b, c))):
            return a * b + c  # finite products of float32 don't overflow a double
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        return a * b + c if exact == 0 else self.round(exact)  # a double has the right sign of zero

    def add(self, a: float, b: float) -> float:
        return self.fma(1.0, a, b)

    def divide(self, a: float, b: float) -> float:
        return self.round(Fraction(a) / Fraction(b)) if a else a

    def store(self, value: float, dtype: str) -> float:
        if value == 0 or not math.isfinite(value):
            return value
        return self.round(Fraction(value), getattr(self, dtype))

    def tree(self, a: list[float], b: list[float], tree: tuple[int, int, int]) -> float:
        """docs/numerics.md#reduction-trees, word by word: every lane takes part in the butterfly."""
        segments, lanes, chunk = tree
        length = len(a) // segments
        parts = []
        for segment in range(segments):
            acc = [0.0] * lanes
            for k in range(length):
                lane = (k // chunk) % lanes
                acc[lane] = self.fma(a[segment * length + k], b[segment * length + k], acc[lane])
            width = min(lanes, 32)
            groups = [acc[start : start + width] for start in range(0, lanes, width)]
            distance = width // 2
            while distance:
                groups = [[self.add(g[i], g[i ^ distance]) for i in range(width)] for g in groups]
                distance //= 2
            parts.append(self.chain([group[0] for group in groups]))
        return self.chain(parts)

    def chain(self, values: list[float]) -> float:
        total = values[0]
        for value in values[1:]:
            total = self.add(total, value)
        return total

    def exp(self, x: float) -> float:
        """For |x| < 87: the order of operations and constants written out once more."""
        high, low = float.fromhex("0x1.62e4p-1"), float.fromhex("0x1.7f7d1cp-20")
        n = self.add(self.fma(x, float.fromhex("0x1.715476p+0"), 12582912.0), -12582912.0)
        r = self.fma(n, -low, self.fma(n, -high, x))
        p = float.fromhex("0x1.6b692p-10")
        for c in ("0x1.122f8ap-7", "0x1.5556a6p-5", "0x1.5554a2p-3", "0x1p-1", "0x1p0", "0x1p0"):
            p = self.fma(p, r, float.fromhex(c))
        return math.ldexp(p, int(n))

    def sigmoid(self, x: float) -> float:
        return self.divide(1.0, self.add(1.0, self.exp(-x)))
