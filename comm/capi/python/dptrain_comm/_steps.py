"""Optimisers whose step the exchange makes before it sums (velocity=; dptrain_comm_makes_step).

A codec with few bits delivers a parameter's gradient in rare lumps. Adam divides a lump by its own size, and momentum that comes
after it does not know for how many steps it has waited. So each rank makes the step of its own gradient, and the exchange sums
steps. The gradients of such parameters then are steps, and the optimiser's step() only subtracts them, multiplied by the learning
rate: hooks take them away before it and give them back after it, so that the optimiser itself finds none. For the other
parameters, such as biases, it works as always.
"""
from __future__ import annotations

from ._library import Error

_KEYS = {"sgd": ("momentum", "nesterov", "dampening", "maximize"), "adam": ("betas", "eps", "amsgrad", "maximize")}


def _kind_of(optimizer) -> str:
    import torch
    if isinstance(optimizer, torch.optim.SGD):
        return "sgd"
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return "adam"
    raise Error(2, f"optimizer {type(optimizer).__name__}: the exchange knows the steps of torch.optim.SGD, Adam and AdamW; leave "
                "optimizer out, and gradients are exchanged")


def _number(value) -> float:
    return float(value.item() if hasattr(value, "item") else value)


class Steps:
    """clip_norm: each rank clips its own gradient to this norm before its step, since there is no sum of gradients to clip (the sum
    where the codec exchanges gradients); None: no clipping."""

    def __init__(self, optimizer, clip_norm: float | None):
        self._optimizer = optimizer
        self.clip_norm = clip_norm
        self._kind = _kind_of(optimizer)
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise Error(2, "optimizer: this version of PyTorch has no Optimizer.register_step_pre_hook, which came with 2.0; leave "
                        "optimizer out, and gradients are exchanged")
        self._settings = self._common_settings()
        self._group_of: dict[int, dict] = {}  # by a parameter's id
        self._made: dict[int, bool] = {}  # by a parameter's id, whether the exchange makes its step
        self._probe = None  # a small parameter and what was delivered for it
        self._is_due = False  # steps were delivered and are not made yet
        self._is_finite = True
        self._taken: list = []  # parameters and gradients, during the optimiser's own step
        self._hooks = [optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after)]

    def _common_settings(self) -> dict:
        groups = self._optimizer.param_groups
        for key in _KEYS[self._kind]:
            values = {str(group.get(key)) for group in groups}
            if len(values) > 1:
                raise Error(2, f"optimizer: its groups have the {key} {' and '.join(sorted(values))}; the exchange needs one for all")
        first = groups[0]
        for key in ("dampening", "amsgrad", "maximize"):
            if first.get(key):
                raise Error(2, f"optimizer: {key}={first[key]} is not known to the exchange; leave optimizer out, and gradients are "
                            "exchanged")
        return {key: first.get(key) for key in _KEYS[self._kind]}

    def options(self) -> dict:
        """Those of the exchange."""
        if self._kind == "sgd":
            return {"optimizer": "sgd", "momentum": _number(self._settings["momentum"]),
                    "has_nesterov": bool(self._settings["nesterov"])}
        beta1, beta2 = self._settings["betas"]
        return {"optimizer": "adam", "beta1": _number(beta1), "beta2": _number(beta2), "epsilon": _number(self._settings["eps"])}

    def attach(self, gradients) -> None:
        """When the exchange is there."""
        self._group_of = {id(p): group for group in self._optimizer.param_groups for p in group["params"]}
        for slot, parameter in enumerate(gradients.parameters):
            makes = gradients.exchange.makes_step(slot)
            if makes and id(parameter) not in self._group_of:
                raise Error(2, f"{gradients.name(slot)} is none of the optimizer's, which must have all parameters that are exchanged; "
                            "leave optimizer out, and gradients are exchanged")
            self._made[id(parameter)] = makes

    def makes(self, parameter) -> bool:
        return self._made.get(id(parameter), False)

    @property
    def is_any(self) -> bool:
        return any(self._made.values())

    def decay_of(self, parameter) -> float:
        """The weight decay that is part of the gradient."""
        group = self._group_of[id(parameter)]
        return 0.0 if self._is_decoupled(group) else _number(group.get("weight_decay") or 0.0)

    def _is_decoupled(self, group: dict) -> bool:
        import torch
        return self._kind == "adam" and bool(group.get("decoupled_weight_decay", isinstance(self._optimizer, torch.optim.AdamW)))

    def clip_factor(self, pairs: list, scale: float) -> float:
        """Of this rank's whole gradient. scale: of the loss."""
        import torch
        norms = [torch.linalg.vector_norm(gradient.detach().float()) for _, gradient in pairs if gradient is not None]
        if self.clip_norm is None or not norms:
            return 1.0
        norm = float(torch.linalg.vector_norm(torch.stack([one.cpu() for one in norms]))) / scale
        return min(1.0, self.clip_norm / max(norm, 1e-12)) if norm < float("inf") else 1.0

    def delivered(self, pairs: list, is_finite: bool, scale: float) -> None:
        """pairs: parameters of this step and their gradients, which are steps now where makes() says so, multiplied by `scale`, by
        which a GradScaler will divide them."""
        self._is_due, self._is_finite = True, is_finite
        self._probe = None
        for parameter, gradient in sorted((pair for pair in pairs if self.makes(pair[0])), key=lambda pair: pair[0].numel()):
            if gradient is not None and bool(gradient.any()):
                self._probe = (parameter, gradient.detach() / scale)
                break

    # ---- around the optimiser's step

    def _before(self, optimizer, _arguments, _named):
        import torch
        if not self.is_any:
            if self.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], self.clip_norm)
            return
        if not self._is_due:
            raise Error(2, "optimizer.step() without an exchange before it: the exchange makes this optimizer's steps")
        self._is_due = False
        self._check_unchanged()
        with torch.no_grad():
            for group in optimizer.param_groups:
                self._make_steps(group)

    def _check_unchanged(self) -> None:
        import torch
        if self._probe is None or not self._is_finite:
            return
        parameter, delivered = self._probe
        if parameter.grad is not None and torch.allclose(parameter.grad.float(), delivered.float(), rtol=0.02, atol=0.0):
            return
        raise Error(2, "the gradients were changed between the exchange and optimizer.step(), and are steps of the optimizer already: "
                    "init(..., clip_norm=1.0) clips in place of torch.nn.utils.clip_grad_norm_(); for other changes leave "
                    "optimizer out of init()")

    def _make_steps(self, group: dict) -> None:
        import torch
        mine = [p for p in group["params"] if p.grad is not None and self.makes(p)]
        if not mine:
            return
        rate, decay = _number(group["lr"]), _number(group.get("weight_decay") or 0.0)
        if self._is_finite:
            if decay != 0.0 and self._is_decoupled(group):
                torch._foreach_mul_(mine, 1.0 - rate * decay)
            torch._foreach_add_(mine, [p.grad.to(p.dtype) for p in mine], alpha=-rate)
        for parameter in mine:
            self._taken.append((parameter, parameter.grad))
            parameter.grad = None

    def _after(self, _optimizer, _arguments, _named):
        for parameter, gradient in self._taken:
            parameter.grad = gradient
        self._taken = []

    def close(self) -> None:
        for one in self._hooks:
            one.remove()
