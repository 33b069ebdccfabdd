"""Optimisers whose steps are exchanged instead of gradients (velocity=; dptrain_comm_makes_step).

A codec with few bits delivers a parameter's gradient in rare lumps. Adam would divide a lump by its
own size, and momentum applied after the exchange ignores for how many steps a lump has waited.
Therefore each rank makes the step from its own gradient, and the exchange sums steps. After the
exchange, `.grad` of these parameters holds a step. A hook before optimizer.step() subtracts the
learning rate times the step and sets `.grad` to None, so that the optimiser skips the parameters; a
hook after it restores `.grad`. The optimiser updates all other parameters, such as biases, as
usual.
"""
from __future__ import annotations

from ._gradients import local
from ._library import Error

_FIXED = {"sgd": ("momentum", "nesterov", "dampening", "maximize"), "adam": ("betas", "eps", "amsgrad", "maximize")}
_PROBES = 4
_WITHOUT = "leave optimizer out of init(), and gradients are exchanged"


def _kind_of(optimizer) -> str:
    import torch
    if isinstance(optimizer, torch.optim.SGD):
        return "sgd"
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return "adam"
    raise Error(2, f"optimizer {type(optimizer).__name__}: the exchange knows the steps of torch.optim.SGD, Adam and AdamW; {_WITHOUT}")


def _number(value) -> float:
    return float(value.item() if hasattr(value, "item") else value)


def _words(value) -> str:
    """The same text for a list and a tuple: betas may be either after a checkpoint was loaded."""
    return str(tuple(value) if isinstance(value, list) else value)


class Steps:
    """clip_norm: each rank clips its own gradient to this norm before its step, since there is no
    sum of gradients (if gradients are exchanged, their sum is clipped). None: no clipping."""

    def __init__(self, optimizer, clip_norm: float | None):
        self._optimizer = optimizer
        self.clip_norm = clip_norm
        self._kind = _kind_of(optimizer)
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise Error(2, f"optimizer: PyTorch before 2.0 has no Optimizer.register_step_pre_hook; {_WITHOUT}")
        self._settings = self._fixed_settings()
        self._group_of: dict[int, dict] = {}  # by a parameter's id
        self._made: dict[int, bool] = {}  # by a parameter's id: whether its step is exchanged
        self._probes: list = []  # small parameters and their delivered steps
        self._is_due = False  # steps were delivered and are not applied yet
        self._is_finite = True
        self._taken: list = []  # parameters and gradients, during the optimiser's own step
        self._hooks: list = []

    def _fixed_settings(self) -> dict:
        """The settings that are passed to the exchange once and must not change afterwards."""
        groups = self._optimizer.param_groups
        for key in _FIXED[self._kind]:
            values = {_words(group.get(key)) for group in groups}
            if len(values) > 1:
                raise Error(2, f"optimizer: its groups have the {key} {' and '.join(sorted(values))}; the exchange needs one for all")
        first = groups[0]
        for key in ("dampening", "amsgrad", "maximize"):
            if first.get(key):
                raise Error(2, f"optimizer: the exchange does not know {key}={first[key]}; {_WITHOUT}")
        return {key: first.get(key) for key in _FIXED[self._kind]}

    def options(self) -> dict:
        """The options of the exchange for this optimizer."""
        if self._kind == "sgd":
            return {"optimizer": "sgd", "momentum": _number(self._settings["momentum"]),
                    "has_nesterov": bool(self._settings["nesterov"])}
        beta1, beta2 = self._settings["betas"]
        return {"optimizer": "adam", "beta1": _number(beta1), "beta2": _number(beta2), "epsilon": _number(self._settings["eps"])}

    def attach(self, gradients, is_alone: bool) -> None:
        """Call it when the exchange exists. is_alone: one rank, whose optimiser makes all steps."""
        self._made = {}
        self.begin_step()
        for slot, parameter in enumerate(gradients.parameters):
            makes = not is_alone and gradients.exchange.makes_step(slot)
            if makes and id(parameter) not in self._group_of:
                raise Error(2, f"{gradients.name(slot)} is in no parameter group of the optimizer: add it, or {_WITHOUT}")
            self._made[id(parameter)] = makes
        self.watch()

    def check_group(self, parameter, name: str) -> None:
        if not any(one is parameter for group in self._optimizer.param_groups for one in group["params"]):
            raise Error(2, f"{name} is in no parameter group of the optimizer: add it, or {_WITHOUT}")

    def watch(self) -> None:
        """Registers the hooks, before the first step(): its closure may make the exchange."""
        if not self._hooks:
            self._hooks = [self._optimizer.register_step_pre_hook(self._before),
                           self._optimizer.register_step_post_hook(self._after)]

    def close(self) -> None:
        for one in self._hooks:
            one.remove()
        self._hooks, self._made, self._is_due = [], {}, False

    # ---- before the exchange

    @property
    def is_any(self) -> bool:
        return any(self._made.values())

    def makes(self, parameter) -> bool:
        return self._made.get(id(parameter), False)

    def begin_step(self) -> None:
        """Reads the parameter groups again, since optimizer.load_state_dict() may have changed
        them."""
        self._group_of = {id(p): group for group in self._optimizer.param_groups for p in group["params"]}
        if self.is_any and self._is_due and self._is_finite:
            raise Error(2, "the gradients hold steps of the optimizer, which optimizer.step() has not made yet: call it after each "
                        "exchange, and backward() within no_sync() for all but the last part of a batch")

    def decay_of(self, parameter) -> float:
        """The weight decay that is part of the gradient."""
        group = self._group_of[id(parameter)]
        return 0.0 if self._is_decoupled(group) else _number(group.get("weight_decay") or 0.0)

    def _is_decoupled(self, group: dict) -> bool:
        import torch
        return self._kind == "adam" and bool(group.get("decoupled_weight_decay", isinstance(self._optimizer, torch.optim.AdamW)))

    def clip_factor(self, pairs: list, scale: float) -> float:
        """The factor that clips this rank's whole gradient. scale: the gradient's loss scale."""
        import torch
        norms = [torch.linalg.vector_norm(gradient.detach().float()) for _, gradient in pairs if gradient is not None]
        if self.clip_norm is None or not norms:
            return 1.0
        norm = float(torch.linalg.vector_norm(torch.stack([one.cpu() for one in norms]))) / scale
        return min(1.0, self.clip_norm / max(norm, 1e-12)) if norm < float("inf") else 1.0

    # ---- after it

    def delivered(self, pairs: list, is_finite: bool, scale: float) -> None:
        """Call it after the exchange. pairs: this step's parameters and gradients. If
        makes(parameter), the gradient now is a step, multiplied by `scale`, by which a GradScaler
        will divide it."""
        self._is_due, self._is_finite = True, is_finite
        made = sorted((pair for pair in pairs if self.makes(pair[0]) and pair[1] is not None), key=lambda pair: pair[0].numel())
        self._probes = []
        for parameter, gradient in made if is_finite else []:
            if len(self._probes) < _PROBES and bool(gradient.any()):
                self._probes.append((parameter, gradient.detach() / scale))

    # ---- around the optimiser's step

    def _before(self, optimizer, arguments, named):
        """Hook before step(). It runs before a closure, which may make the exchange; so wraps the
        closure."""
        import torch
        closure = arguments[1] if len(arguments) > 1 else named.get("closure")
        if closure is None:
            self._take_over(optimizer)
            return None

        @torch.enable_grad()
        def closed(*given, **more):
            loss = closure(*given, **more)
            self._take_over(optimizer)
            return loss

        if len(arguments) > 1:
            return (arguments[0], closed, *arguments[2:]), named
        return arguments, {**named, "closure": closed}

    def _take_over(self, optimizer) -> None:
        import torch
        # Set by GradScaler for fused optimisers, which divide by it.
        given = getattr(optimizer, "grad_scale", None)
        scale = 1.0 if given is None else _number(given)
        if not self.is_any:
            if self.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]],
                                               self.clip_norm * scale)
            return
        if not self._is_due:
            raise Error(2, "optimizer.step() without an exchange since the last one: call backward() of the DDP model, or "
                        "state.allreduce_gradients(), before each")
        self._is_due = False
        self._check_settings()
        self._check_unchanged(scale)
        with torch.no_grad():
            for group in optimizer.param_groups:
                self._make_steps(group, scale)

    def _check_settings(self) -> None:
        now = self._fixed_settings()
        for key, value in self._settings.items():
            if _words(now[key]) != _words(value):
                raise Error(2, f"optimizer: {key} has become {now[key]}, but the exchange still uses {value}: keep it constant "
                            f"(cycle_momentum=False of OneCycleLR and CyclicLR), or {_WITHOUT}")

    def _check_unchanged(self, scale: float) -> None:
        import torch
        present = [(local(parameter.grad), step) for parameter, step in self._probes if parameter.grad is not None]
        if not present or any(torch.allclose(gradient.float() / scale, step.float(), rtol=0.02, atol=0.0)
                              for gradient, step in present):
            return
        raise Error(2, "the gradients were changed between the exchange and optimizer.step(), and are steps of the optimizer already: "
                    "init(..., clip_norm=1.0) clips in place of torch.nn.utils.clip_grad_norm_(); for other changes leave "
                    "optimizer out of init()")

    def _make_steps(self, group: dict, scale: float) -> None:
        """Applies the steps of a group. If they are not finite, changes nothing, also for the
        optimiser's own parameters."""
        import torch
        mine = [p for p in group["params"] if p.grad is not None and (self.makes(p) or not self._is_finite)]
        if not mine:
            return
        rate, decay = _number(group["lr"]), _number(group.get("weight_decay") or 0.0)
        if self._is_finite:
            if decay != 0.0 and self._is_decoupled(group):
                torch._foreach_mul_(mine, 1.0 - rate * decay)
            torch._foreach_add_(mine, [p.grad.to(p.dtype) for p in mine], alpha=-rate / scale)
        for parameter in mine:
            self._taken.append((parameter, parameter.grad))
            parameter.grad = None

    def _after(self, _optimizer, _arguments, _named):
        for parameter, gradient in self._taken:
            parameter.grad = gradient
        self._taken = []
