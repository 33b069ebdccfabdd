#!/usr/bin/env python3
"""Writes tests/net/fixtures/optimizers.txt: 20 updates of each optimiser, in double, for optimizer_test.cpp.

    python3 tests/net/make_optimizer_golden.py            (PyTorch 1.13 or later; seconds)

Weights and gradients are derived from names, as in make_golden.py. SGD, Adam and AdamW are torch.optim's. PyTorch has
no LARS, and its Muon is of another form than airbench's, so these two are written down here: LARS from You, Gitman and
Ginsburg 2017, Muon from airbench94_muon.py (Jordan 2024), in double instead of bf16 and with five iterations.

A line is `case step tensor index value`, the value after that step (from 1), its index in torch's order.
"""
import torch

from make_golden import FIXTURES, tensor

STEPS, STORED = 20, (1, 2, 5, 20)
SHAPES = {"wide.weight": (4, 3, 3, 3), "tall.weight": (12, 3, 1, 1), "linear.weight": (3, 8), "bn.weight": (7,),
          "bn.bias": (7,)}


def rate(step: int) -> float:
    return 0.1 / (1 + step)


class Lars:
    def __init__(self, parameters, momentum, decay, trust):
        self.parameters, self.momentum, self.decay, self.trust = parameters, momentum, decay, trust
        self.velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}

    def step(self, lr):
        for name, p in self.parameters.items():
            local = 1.0
            if p.dim() > 1:
                local = self.trust * p.norm() / (p.grad.norm() + self.decay * p.norm())
            v = self.velocity[name]
            v.mul_(self.momentum).add_(local * (p.grad + self.decay * p))
            p.data.sub_(lr * v)


def zeropower(g):
    a, b, c = (3.4445, -4.7750, 2.0315)
    x = g / (g.norm() + 1e-7)
    if g.size(0) > g.size(1):
        x = x.T
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if g.size(0) > g.size(1) else x


class Muon:
    """Kernels as airbench's Muon; the other tensors by SGD with Nesterov's momentum."""

    def __init__(self, parameters, factor, momentum, sgd_momentum, decay, has_linear):
        self.factor, self.momentum = factor, momentum
        self.matrices = {n: p for n, p in parameters.items() if p.dim() == 4 or (has_linear and p.dim() == 2)}
        self.velocity = {name: torch.zeros_like(p) for name, p in self.matrices.items()}
        self.decay = decay
        self.sgd = torch.optim.SGD([p for n, p in parameters.items() if n not in self.matrices], lr=1.0,
                                   momentum=sgd_momentum, weight_decay=decay, nesterov=True)

    def step(self, lr):
        for group in self.sgd.param_groups:
            group["lr"] = lr
        self.sgd.step()
        for name, p in self.matrices.items():
            v = self.velocity[name]
            v.mul_(self.momentum).add_(p.grad)
            g = p.grad + self.momentum * v
            if p.dim() == 4:
                p.data.mul_(len(p) ** 0.5 / p.data.norm())
            else:
                p.data.mul_(1 - lr * self.factor * self.decay)
            p.data.sub_(lr * self.factor * zeropower(g.reshape(len(g), -1)).view(g.shape))


class Torch:
    def __init__(self, parameters, make, clip_norm=None, vectors=None):
        matrices = [p for p in parameters.values() if p.dim() > 1]
        others = [p for p in parameters.values() if p.dim() == 1]
        self.factors = (1.0, (vectors or {}).get("lr_factor", 1.0))
        groups = [{"params": matrices}, {"params": others}]
        if vectors:
            groups[1]["weight_decay"] = vectors["weight_decay"]
        self.parameters, self.optimiser, self.clip_norm = parameters, make(groups), clip_norm

    def step(self, lr):
        if self.clip_norm:
            norm = torch.sqrt(sum((p.grad ** 2).sum() for p in self.parameters.values()))
            for p in self.parameters.values():
                p.grad.mul_(min(1.0, self.clip_norm / norm.item()))
        for group, factor in zip(self.optimiser.param_groups, self.factors):
            group["lr"] = lr * factor
        self.optimiser.step()


CASES = {
    "sgd": lambda p: Torch(p, lambda g: torch.optim.SGD(g, lr=1, momentum=0.9, weight_decay=0.01)),
    "sgd-nesterov-clip": lambda p: Torch(
        p, lambda g: torch.optim.SGD(g, lr=1, momentum=0.9, weight_decay=0.01, nesterov=True), clip_norm=2.0),
    "adam": lambda p: Torch(p, lambda g: torch.optim.Adam(g, weight_decay=0.01)),
    "adam-clip": lambda p: Torch(p, lambda g: torch.optim.Adam(g, betas=(0.8, 0.95), eps=1e-3), clip_norm=2.0),
    "adamw": lambda p: Torch(p, lambda g: torch.optim.AdamW(g, weight_decay=0.1)),
    # No decay for vectors, and four times the learning rate.
    "adamw-groups": lambda p: Torch(p, lambda g: torch.optim.AdamW(g, weight_decay=0.1),
                                    vectors={"weight_decay": 0.0, "lr_factor": 4.0}),
    "lars": lambda p: Lars(p, 0.9, 0.01, 0.02),
    "muon": lambda p: Muon(p, 2.4, 0.6, 0.85, 0.01, False),
    "muon-linear": lambda p: Muon(p, 2.4, 0.6, 0.85, 0.01, True),
}


def main() -> None:
    path = FIXTURES / "optimizers.txt"
    with open(path, "w") as file:
        for case, make in CASES.items():
            parameters = {}
            for name, shape in SHAPES.items():
                parameters[name] = torch.nn.Parameter(tensor(name, shape, 0.0, 0.5))
            optimiser = make(parameters)
            for step in range(STEPS):
                for name, p in parameters.items():
                    p.grad = tensor(f"{name}/{step}", p.shape, 0.1, 1.0)
                optimiser.step(rate(step))
                if step + 1 in STORED:
                    for name, p in parameters.items():
                        flat = p.detach().reshape(-1)
                        for index in sorted({0, flat.numel() // 2, flat.numel() - 1}):
                            file.write(f"{case} {step + 1} {name} {index} {flat[index].item():.12g}\n")
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
