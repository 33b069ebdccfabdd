"""A training that goes on with another number of ranks: torch_ranks_test.py PACKAGES.

The same file is the program, under dptrain_comm.run: torch_ranks_test.py PACKAGES program WHAT FILE FIRST.
"""
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from torch_support import LINK, PACKAGES, dptrain_comm, refused  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

STEPS, SHAPE = 6, (120, 90)


def save(state, path: str, more: dict) -> None:
    saved = state.state_dict(all_ranks=True)
    if dptrain_comm.rank() == 0:
        torch.save({"exchange": saved, **more}, path)


def load(state, path: str) -> dict:
    loaded = torch.load(path, weights_only=True)
    state.load_state_dict(loaded["exchange"])
    return loaded


def nothing_is_lost(codec: str, path: str, is_first: bool) -> None:
    """All that went in comes out, although the ranks that it waited on are not there any more: of a gradient; of one that no rank
    has for some steps; and of a tensor that is no gradient."""
    net, rank, size = nn.ModuleList(nn.Linear(SHAPE[1], SHAPE[0], bias=False) for _ in range(2)), dptrain_comm.rank(), dptrain_comm.size()
    state = dptrain_comm.init(codec, model=net, **LINK)
    went_in, came_out = torch.zeros(3, *SHAPE), torch.zeros(3, *SHAPE)
    if not is_first:
        loaded = load(state, path)
        went_in, came_out = loaded["went_in"], loaded["came_out"]
        refused("state_dict(): ", state.state_dict)
        assert all((went_in - came_out).flatten(1).norm(dim=1) > 0.01 * went_in.flatten(1).norm(dim=1)), "there is nothing to lose"
    for step in range(STEPS if is_first else 60):
        parts = torch.randn((size, 3, *SHAPE), generator=torch.Generator().manual_seed(step)) * is_first
        net[0].weight.grad = parts[rank, 0].clone()
        # Deliveries of earlier steps wait for the second one's next gradient.
        has_second = step < 2 if is_first else step >= 30
        net[1].weight.grad = parts[rank, 1].clone() if has_second else None
        state.allreduce_gradients(net)
        came_out[0] += net[0].weight.grad
        if has_second:
            came_out[1] += net[1].weight.grad
        came_out[2] += state.all_mean(parts[rank, 2].clone(), "a tensor", codec)
        went_in += parts.mean(0) * torch.tensor([1.0, float(has_second), 1.0])[:, None, None]
    if is_first:
        save(state, path, {"went_in": went_in, "came_out": came_out})
        assert len(state.state_dict()["late"]) == 1
    else:
        difference = (went_in - came_out).abs().max().item()
        # The steps of ecq's quantiser fall with what there is to send; 3 and more would be lost.
        assert difference < (0.5 if codec.startswith("ecq") else 1e-5), (codec, (went_in - came_out).abs().amax((1, 2)))
        assert state.step == STEPS + 60
    state.close()


def steps_keep_their_size(kind: str, path: str, is_first: bool) -> None:
    """Of gradients that are noise: momentum and Adam's moments are carried over in proportion to a rank's part."""
    net, rank, size = nn.Linear(SHAPE[1], SHAPE[0], bias=False), dptrain_comm.rank(), dptrain_comm.size()
    optimizer = (torch.optim.AdamW(net.parameters(), 1e-3, betas=(0.9, 0.95)) if kind == "adam" else
                 torch.optim.SGD(net.parameters(), 0.1, momentum=0.9))
    state = dptrain_comm.init("ecq:bits=6,velocity=on", model=net, optimizer=optimizer, **LINK)
    loaded = {} if is_first else load(state, path)
    sizes = []
    for step in range(40 if is_first else 4):
        # The mean over ranks is as large with any number of them.
        draw = torch.Generator().manual_seed(1000 * rank + step + 100 * is_first)
        net.weight.grad = torch.randn(SHAPE, generator=draw) * size ** 0.5
        state.allreduce_gradients(net)
        sizes.append(net.weight.grad.square().mean().sqrt().item())
        optimizer.step()
    if is_first:
        save(state, path, {"size": sum(sizes[-4:]) / 4})
    else:
        now = sum(sizes) / len(sizes)
        assert abs(now / loaded["size"] - 1) < 0.12, (kind, size, loaded["size"], sizes)
    state.close()


def program(what: str, path: str, is_first: bool) -> None:
    dptrain_comm.start()
    if what in ("sgd", "adam"):
        steps_keep_their_size(what, path, is_first)
    else:
        nothing_is_lost(what, path, is_first)


def run(ranks: int, *words: str) -> None:
    words = [sys.executable, "-m", "dptrain_comm.run", "--nproc-per-node", str(ranks), __file__, PACKAGES, "program", *words]
    environment = {**os.environ, "PYTHONPATH": PACKAGES, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, (words[6:], done.stdout[-2000:], done.stderr[-4000:])


def main() -> None:
    knows_steps = hasattr(torch.optim.SGD, "register_step_pre_hook")
    if not knows_steps:
        print("this PyTorch's optimizers have no hooks: steps are not tried")
    for what in ("topk:ratio=0.05", "q4", "ecq:bits=0.5", *(("sgd", "adam") if knows_steps else ())):
        for before, after in ((4, 2), (2, 3)):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "state.pt")
                run(before, what, path, "first")
                run(after, what, path, "then")
            print(f"{what}: {before} ranks, then {after}: passed", flush=True)


if len(sys.argv) > 2:
    _, _, _, WHAT, FILE, WHEN = sys.argv
    program(WHAT, FILE, WHEN == "first")
else:
    main()
