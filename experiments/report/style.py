"""Colours of the pages, light or dark as the reader's screen is."""
from __future__ import annotations

COLORS = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1f24; --muted: #6a737d; --grid: #d8dde3; --box: #f4f6f8;
  --c1: #0072b2; --c2: #d55e00; --c3: #00855f; --c4: #b8559a; --c5: #7cc4ee; --c6: #e0a000; --c7: #8a8f98; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #14171c; --ink: #e6e9ed; --muted: #98a1ab; --grid: #363c45; --box: #1d2128;
    --c1: #3f9be0; --c2: #f47b3a; --c3: #2cc295; --c4: #e08fc4; --c5: #a5dbfb; --c6: #f2be4a; --c7: #7f8792; } }
"""
