"""Set-up of the tests with PyTorch: TEST.py PACKAGES, on every rank. Import it before torch.

Exit code 77: this Python has no torch.
"""
import sys

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}; pip install torch")
    sys.exit(77)

PACKAGES = sys.argv[1]
sys.path.insert(0, PACKAGES)
import dptrain_comm  # noqa: E402

torch.set_num_threads(1)
LINK = {"link_bit_per_s": 1e8}


def refused(words: str, call, *arguments, code: int = 2, **named) -> Exception:
    """The call must raise an Error of one sentence, with these words and that code. Returns it."""
    try:
        call(*arguments, **named)
    except dptrain_comm.Error as error:
        assert error.code == code and words in str(error) and "\n" not in str(error), (error.code, str(error))
        return error
    raise AssertionError(f"no error: {words}")


def passed() -> None:
    print(f"rank {dptrain_comm.rank()} of {dptrain_comm.size()}: all passed", flush=True)
