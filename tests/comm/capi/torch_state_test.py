"""Saved states, on every rank: torch_state_test.py PACKAGES."""
import os
import sys
import tempfile

sys.dont_write_bytecode = True
from torch_support import LINK, dptrain_comm, passed, refused  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

RANK, SIZE = 0, 1  # of this process, below


class Program:
    """Steps of two layers, of which the second one has a gradient in the first two steps only."""

    def __init__(self, codec: str = "q4", **options):
        torch.manual_seed(0)
        self.net = nn.ModuleList([nn.Linear(64, 300), nn.Linear(300, 100)])
        self.codec, self.options = codec, {**LINK, **options}
        self.state = dptrain_comm.init(codec, **self.options)
        self.made = 0

    def step(self) -> list:
        """Returns the gradients."""
        draw = torch.Generator().manual_seed(100 * RANK + self.made)
        self.net.zero_grad(set_to_none=True)
        y = self.net[0](torch.randn(16, 64, generator=draw))
        (self.net[1](y) if self.made < 2 else y).square().mean().backward()
        self.state.allreduce_gradients(self.net)
        self.made += 1
        return [None if p.grad is None else p.grad.clone() for p in self.net.parameters()]

    def begin_anew(self) -> None:
        self.state.close()
        self.state = dptrain_comm.init(self.codec, **self.options)


def same(a: list, b: list) -> bool:
    return all((x is None and y is None) or torch.equal(x, y) for x, y in zip(a, b))


def cannot_load(words: str, state, saved) -> None:
    error = refused(f"load_state_dict(): {words}", state.load_state_dict, saved, code=3)
    assert isinstance(error, ValueError)


def a_state_is_that_of_its_rank() -> None:
    program = Program()
    program.step()
    saved = program.state.state_dict()
    for is_there in (True, False):
        if not is_there:
            program.begin_anew()
        load = program.state
        cannot_load("it needs the dict of this rank's state_dict(), with step and exchange; this is empty", load, {})
        cannot_load("it needs the dict of this rank's state_dict(), with step and exchange; this has step", load, {"step": 3})
        cannot_load("it needs the dict of this rank's state_dict(), with step and exchange; this is []", load, [])
        cannot_load(f"the state belongs to rank {RANK + 1} of {SIZE}, but this is rank {RANK} of {SIZE}", load,
                    {**saved, "rank": RANK + 1})
        cannot_load(f"the state belongs to rank {RANK} of {SIZE + 2}, but", load, {**saved, "size": SIZE + 2})
    program.state.load_state_dict({name: saved[name] for name in ("step", "exchange")})  # as earlier versions had it
    program.state.load_state_dict(saved)
    program.step()
    assert program.state.step == 2
    cannot_load("the state is from before the first step", program.state, dptrain_comm.State("q4").state_dict())
    program.state.close()


def damaged(saved: dict) -> list:
    """(what is damaged, the state, words of the refusal; None: it may be refused or go on)."""
    bytes_of_exchange = saved["exchange"]
    slot, values = next(iter(saved["late"].items()), (0, torch.zeros(100, 300)))
    others = [None, 0, -1, 1.5, True, "", "x", b"", b"bytes", [], {}, {"a": 1}, object(), torch.tensor(1), torch.tensor([]),
              torch.ones(2), torch.ones(3, dtype=torch.uint8), torch.ones(2, 2, dtype=torch.uint8), torch.tensor(2 + 3j),
              torch.zeros(2, 2).to_sparse(), torch.zeros(3, device="meta"), float("nan"), float("inf"), 10 ** 30]
    cases = [(name, {**saved, name: other}, None) for name in saved for other in others]
    cases += [(f"without {name}", {key: value for key, value in saved.items() if key != name}, None) for name in saved]
    cases += [("another key", {**saved, "epoch": 4}, "")]
    for words, exchange in (("is damaged or cut off", bytes_of_exchange[:-1]), ("is damaged or cut off", bytes_of_exchange[:30]),
                            ("that are not a saved state", bytes_of_exchange[:7]), ("that are not a saved state", bytes_of_exchange[1:]),
                            ("is damaged or cut off", torch.cat([bytes_of_exchange, bytes_of_exchange[:1]])),
                            ("allowed: None, or a tensor of torch.uint8", bytes_of_exchange.float())):
        cases.append(("exchange", {**saved, "exchange": exchange}, words))
    number, whole = "None, or a finite number above 0", "a whole number, 0 or more"
    for name, allowed, others in (("loss_scale", number, (0, -1.0, float("nan"), float("inf"), "", True, b"", {})),
                                  ("step", whole, (None, -1, 1.5, True, "", torch.ones(2))), ("rank", whole, (None, -1, "0")),
                                  ("size", whole, ([],))):
        cases += [(name, {**saved, name: other}, f"; allowed: {allowed}") for other in others]
    for words, late in (("has the key 'a'", {"a": values}), ("has the key -1", {-1: values}),
                        ("late has values for slot 99; the exchange has the slots 0 to 3", {99: values}),
                        ("late has values of the shape [2]", {slot: values.reshape(-1)[:2]}),
                        ("late has None for slot", {slot: None}), ("late has a Tensor of torch.float64", {slot: values.double()}),
                        ("with finite values", {slot: values * float("nan")})):
        cases.append(("late", {**saved, "late": late}, words))
    cases += [("slots", {**saved, "slots": other}, "slots is ") for other in (None, 3, {}, "ab", [1])]
    cases += [("tensors", {**saved, "tensors": other}, words) for other, words in
              ((3, "tensors is "), ({1: None}, "tensors is "), ({"x": 5}, "exchange is "))]
    return cases


def a_damaged_state_is_one_sentence() -> None:
    """At load_state_dict(), or in the first step, where the exchange is made; and nothing was changed then."""
    program = Program()
    for _ in range(6):
        program.step()
    saved = program.state.state_dict()
    assert (len(saved["late"]) > 0) == (SIZE > 1)
    made = program.made
    wanted = program.step()

    program.state.load_state_dict(saved)
    if SIZE > 1:
        for what, state, words in damaged(saved):
            program.made = made
            try:
                program.state.load_state_dict(state)
                assert words in (None, ""), (what, state[what], words)
                # Some rank may have another step now, as a damaged one that no rank can know.
                program.state.load_state_dict(saved)
            except dptrain_comm.StateError as error:
                assert str(error).startswith("load_state_dict(): ") and "\n" not in str(error) and len(str(error)) < 350, str(error)
                assert words is None or words and words in str(error), (words, str(error))
                assert program.state.step == made, what
        assert same(program.step(), wanted)

        for what, state, words in damaged(saved):
            program.begin_anew()
            program.made = made
            try:
                program.state.load_state_dict(state)
                if what in ("exchange", "late") and words:
                    program.step()
                    raise AssertionError(f"no error: {what}, {words}")
            except dptrain_comm.StateError as error:
                assert words is None or words and words in str(error), (words, str(error))
                if program.state.step == made:  # found in the first step, which does not go on without the state
                    refused(words, program.step, code=3)
        program.begin_anew()
        program.state.load_state_dict(saved)
        program.made = made
        assert same(program.step(), wanted)
    program.state.close()


def a_state_of_all_ranks_is_in_one_file() -> None:
    """As frameworks write checkpoints: rank 0 alone, and every rank reads the file."""
    program = Program()
    refused("no step was made yet", program.state.state_dict, all_ranks=True)
    for _ in range(3):
        program.step()
    saved = program.state.state_dict(all_ranks=True)
    wanted = [program.step() for _ in range(2)]
    assert (saved != {}) == (RANK == 0)
    with tempfile.TemporaryDirectory() as folder:
        shared = [os.path.join(folder, "checkpoint.pt")]
        torch.distributed.broadcast_object_list(shared)
        if RANK == 0:
            assert saved["step"] == 3 and saved["size"] == SIZE and len(saved["ranks"]) == SIZE
            torch.save({"model": program.net.state_dict(), "exchange": saved}, shared[0])
        torch.distributed.barrier()
        saved = torch.load(shared[0], weights_only=True)["exchange"]
        torch.distributed.barrier()
    program.begin_anew()
    program.state.load_state_dict(saved)
    program.made = 3
    assert all(same(program.step(), one) for one in wanted)
    cannot_load(f"the state belongs to rank 0 of {SIZE}, but this is rank 0 of {SIZE + 1}", program.state,
                {**saved, "ranks": [*saved["ranks"], saved["ranks"][0]]})
    if SIZE > 1:
        cannot_load(f"the state belongs to rank {(RANK + 1) % SIZE} of {SIZE}", program.state,
                    {**saved, "ranks": [*saved["ranks"][1:], saved["ranks"][0]]})
    for other in ([], {}, None, 3, "x"):
        cannot_load("ranks is ", program.state, {**saved, "ranks": other})
    for other in (None, torch.ones(3), torch.ones(2, 2, dtype=torch.uint8)):
        cannot_load("ranks has ", program.state, {**saved, "ranks": [other] * SIZE})
    for length in (0, 10, len(saved["ranks"][RANK]) // 2, len(saved["ranks"][RANK]) - 1):
        cannot_load(f"the state of rank {RANK} is damaged", program.state, {**saved, "ranks": [one[:length] for one in saved["ranks"]]})
    program.state.close()


def ranks_go_on_from_the_same_step() -> None:
    """One rank alone loads a state before the first step (later: torch_launch_test.py); and an exchange that ends in a step."""
    if SIZE == 1:
        return
    program = Program()
    for _ in range(3):
        program.step()
    saved = program.state.state_dict()
    program.begin_anew()
    if RANK == 0:
        program.state.load_state_dict(saved)
    refused("rank 0 continues from step 3, but rank 1 begins at step 0: every rank must load", program.step, code=3)
    program.begin_anew()
    program.made = 0
    program.step()
    program.state.exchange.begin_step()
    program.begin_anew()
    refused("an exchange was destroyed in the middle of a step", program.step)


dptrain_comm.init_process_group()
RANK, SIZE = dptrain_comm.rank(), dptrain_comm.size()
a_state_is_that_of_its_rank()
a_damaged_state_is_one_sentence()
a_state_of_all_ranks_is_in_one_file()
ranks_go_on_from_the_same_step()
torch.distributed.destroy_process_group()
passed()
