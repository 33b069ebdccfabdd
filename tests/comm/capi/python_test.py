"""The Python package without PyTorch, on every rank: python_test.py PACKAGES CASE; or from outside: ... uncaught MPIRUN."""
import ctypes
import subprocess
import sys
import time

sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
CASE = sys.argv[2]


def refused(code: int, words: str, call, *arguments, **named) -> None:
    try:
        call(*arguments, **named)
    except dptrain_comm.Error as error:
        assert error.code == code and words in str(error), (error.code, str(error))
    else:
        raise AssertionError(f"no error: {words}")


def sums() -> None:
    slots = [dptrain_comm.Slot("bias", 1, 10, True), dptrain_comm.Slot("weights", 100, 60)]
    exchange = dptrain_comm.Exchange(slots, "q8", link_bit_per_s=1e9)
    refused(2, "there is an exchange already", dptrain_comm.Exchange, slots)
    values = [(ctypes.c_float * (slot.rows * slot.columns)).from_address(exchange.address(k)) for k, slot in enumerate(slots)]
    rank, size = dptrain_comm.rank(), dptrain_comm.size()
    for _ in range(3):
        exchange.begin_step()
        for k, floats in enumerate(values):
            floats[:] = [rank + i % 7 for i in range(len(floats))]
            exchange.ready(k)
        assert exchange.finish_step()
        for floats in values:
            for i, found in enumerate(floats):
                assert abs(found - sum(r + i % 7 for r in range(size))) < 0.2 * size, (i, found)
        exchange.compare(ctypes.addressof(values[1]), len(values[1]))
    taken = exchange.statistics()
    assert (taken["sent_bytes"] > 0) == (size > 1) and taken["bits"] != taken["bits"], taken
    saved = exchange.save()
    exchange.load(saved)
    refused(3, "no saved state", exchange.load, b"nothing")
    refused(2, "slot 2: there are 2", exchange.address, 2)
    assert "weights to weights, 6000 values, q8" in exchange.describe(), exchange.describe()
    exchange.close()
    refused(2, "q9: unknown codec", dptrain_comm.Exchange, slots, "q9", link_bit_per_s=1e9)
    dptrain_comm.Exchange(slots, link_bit_per_s=1e9)  # stays open: the end of the program closes it


def throws() -> None:
    exchange = dptrain_comm.Exchange([dptrain_comm.Slot("weights", 100, 60)], "none", link_bit_per_s=1e9)
    exchange.begin_step()
    if dptrain_comm.rank() == 1:
        raise dptrain_comm.Error(3, "this rank has had enough")
    exchange.ready(0)
    exchange.finish_step()
    raise AssertionError("the sum came without the other rank")


def uncaught() -> None:
    """An error that one rank does not handle ends all of them, with its code."""
    begin = time.monotonic()
    done = subprocess.run([sys.argv[3], "-np", "2", sys.executable, __file__, sys.argv[1], "throws"], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 3 and "this rank has had enough" in done.stderr, (done.returncode, done.stderr)
    assert "without the other rank" not in done.stderr, done.stderr
    assert time.monotonic() - begin < 30, "it ended by a time-out"


if CASE != "uncaught":
    import dptrain_comm
globals()[CASE]()
