"""Where dptrain's programs are: built beside the sources, or installed beside the tools."""
from __future__ import annotations

import pathlib


def programs_folder() -> pathlib.Path:
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    is_source = (root / "CMakeLists.txt").exists()
    return root / "build/bin" if is_source else root.parent.parent / "bin"  # installed: PREFIX/share/dptrain
