#!/usr/bin/env python3
"""Prints the lines of kGolden in encoded_image_test.cpp: hashes of what Pillow makes of drawn pixels.

    pip install pillow numpy; python3 tests/io/make_resample_golden.py
"""
import numpy as np
from PIL import Image


def pixels(width, height):
    """As noisy_image() of the test draws them."""
    i = np.arange(width * height * 3, dtype=np.uint64)
    return ((i * np.uint64(2654435761) >> np.uint64(7)) % np.uint64(256)).astype(np.uint8).reshape(height, width, 3)


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def main():
    for (width, height), box, size in (((40, 30), (0, 0, 40, 30), (8, 8)),
                                       ((40, 30), (5, 7, 28, 30), (32, 32)),
                                       ((7, 5), (0, 0, 7, 5), (50, 20)),
                                       ((200, 90), (3, 1, 190, 64), (33, 47)),
                                       ((64, 64), (0, 0, 64, 64), (64, 64)),
                                       ((1, 1), (0, 0, 1, 1), (5, 3)),
                                       ((300, 2), (0, 0, 300, 2), (3, 9))):
        scaled = Image.fromarray(pixels(width, height)).crop(box).resize(size, Image.Resampling.BILINEAR)
        planar = np.asarray(scaled).transpose(2, 0, 1)
        x, y, right, bottom = box
        print(f"    {{{width}, {height}, {{{x}, {y}, {right - x}, {bottom - y}}}, {size[0]}, {size[1]}, "
              f"0x{fnv1a(planar.tobytes()):016X}u}},")


if __name__ == "__main__":
    main()
