"""Numbers as text: three significant digits, or a dash if nothing was measured."""
from __future__ import annotations

import math

DASH = "-"


def is_number(value: object) -> bool:
    """Whether there is something to print: not None, not NaN."""
    return isinstance(value, (int, float)) and not math.isnan(value)


def digits(value: float | None) -> str:
    """Three significant digits: 1,234, 123, 12.3, 0.123, 0.00123, 1.2e-05."""
    if not is_number(value):
        return DASH
    assert value is not None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.0001:
        return f"{value:.1e}"
    places = max(0, 2 - math.floor(math.log10(size)))
    text = f"{value:,.{places}f}"
    if places > 0 and len(text.strip("-0.").replace(".", "").replace(",", "")) > 3:  # 9.996 -> 10.00
        text = f"{value:,.{places - 1}f}"
    return text


def fixed(places: int):
    """A format with that many decimals."""
    def text(value: float | None) -> str:
        return f"{value:,.{places}f}" if is_number(value) else DASH

    return text


def whole(value: float | None) -> str:
    return f"{int(value):,}" if is_number(value) else DASH  # type: ignore[arg-type]


def size(value: float | None) -> str:
    """A number of things, which is usually whole: 32, 1,024, 42.7."""
    return digits(value) if value is None or value != int(value) else whole(value)


def percent(value: float | None) -> str:
    """A fraction as percent with one decimal."""
    return f"{100 * value:.1f}" if is_number(value) else DASH  # type: ignore[operator]


def plain(value: object) -> str:
    return DASH if value is None or value == "" else str(value)


def bit_rate(bits_per_s: float | None) -> str:
    """1 Mbit/s is 10^6 bit/s."""
    if not is_number(bits_per_s):
        return DASH
    assert bits_per_s is not None
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits_per_s >= 0.9995 * size:
            return f"{bits_per_s / size:.3g} {unit}"
    return f"{bits_per_s:.3g} bit/s"


def parse_bit_rate(text: str) -> float | None:
    """A rate in the form of dptrain's --throttle, such as 100mbit. None for "off" and for any other text."""
    for unit, size in (("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)):
        if text.endswith(unit):
            try:
                return float(text[:-len(unit)]) * size
            except ValueError:
                return None
    return None
