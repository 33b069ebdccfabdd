"""A Python that has the packages of the report.

The first of these that has them in sufficient versions is used: the Python that runs, `python3` of the PATH, and
dpreport's own environment. That one is made when it is first needed, from requirements.txt (exact versions, from
the package index that pip is set to), in ${XDG_CACHE_HOME:-~/.cache}/dptrain/report-<hash of requirements.txt>. It
is made under another name and renamed when it is complete, so an environment of that name can be used.

Other Pythons are started with -I: with -c and -m alone they would import modules from the current folder.
"""
from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

REQUIREMENTS = pathlib.Path(__file__).resolve().parent / "requirements.txt"
LEAST = {"h5py": (3, 5), "pandas": (1, 5), "matplotlib": (3, 6)}
IS_CHOSEN = "DPREPORT_PYTHON_IS_CHOSEN"
# This imports the packages, since Debian registers h5py under another name, and since a package that cannot be
# imported is of no use.
ASK = """
import importlib, json
def version(name):
    try:
        return importlib.import_module(name).__version__
    except Exception:
        return ""
"""


class NoPackages(Exception):
    """There is no Python with the packages, and none can be made. The text says what to do."""


def _parts(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def is_sufficient(versions: list[str], packages: list[str]) -> bool:
    return all(_parts(version) >= LEAST[package] for version, package in zip(versions, packages))


def _versions(python: str, packages: list[str]) -> list[str]:
    """The versions that the other Python has; empty texts if it has none or does not run."""
    try:
        answer = subprocess.run([python, "-I", "-c", f"{ASK}\nprint(json.dumps([version(name) for name in {packages}]))"],
                                capture_output=True, text=True, timeout=60, check=True)
        return list(json.loads(answer.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return [""] * len(packages)


def own_folder() -> pathlib.Path:
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.split()[0].encode()).hexdigest()
    return cache / "dptrain" / f"report-{digest[:12]}"


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _make(folder: pathlib.Path) -> None:
    print(f"dpreport: this machine's python3 lacks h5py, pandas or matplotlib; installing them into {folder}, once",
          file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = pathlib.Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        _run([sys.executable, "-I", "-m", "venv", str(unfinished)])
        _run([
            str(unfinished / "bin/python"), "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--retries", "1", "--timeout", "20", "--only-binary", ":all:", "-r",
            str(REQUIREMENTS)
        ])
        unfinished.rename(folder)
    except OSError:
        if not (folder / "bin/python").exists():  # otherwise another dpreport was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _python_of_its_own() -> str:
    folder = own_folder()
    if not (folder / "bin/python").exists():
        try:
            _make(folder)
        except (OSError, subprocess.SubprocessError) as error:
            output = str(getattr(error, "stderr", "") or getattr(error, "stdout", "") or error).strip()
            why = output.splitlines()[-1] if output else "no reason given"
            raise NoPackages(
                "it needs the Python packages h5py, pandas and matplotlib, and they could not be installed into "
                f"{folder} ({why}); on Debian and Ubuntu: apt-get install python3-h5py python3-pandas "
                "python3-matplotlib"
            ) from error
    return str(folder / "bin/python")


def ensure(with_plots: bool, arguments: list[str]) -> None:
    """Returns if this Python has the packages. Otherwise it starts the program again in one that has them, or
    raises."""
    packages = [package for package in LEAST if with_plots or package != "matplotlib"]
    if IS_CHOSEN in os.environ:
        return
    scope: dict[str, Any] = {}
    exec(ASK, scope)  # asks the same as of another Python
    if is_sufficient([scope["version"](package) for package in packages], packages):
        return
    other = shutil.which("python3")
    python = other if other and is_sufficient(_versions(other, packages), packages) else _python_of_its_own()
    sys.stdout.flush()
    os.execve(python, [python, "-I", *arguments], os.environ | {IS_CHOSEN: "1"})
