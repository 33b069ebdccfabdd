"""Optimisers whose step the exchange makes before it sums (velocity=; dptrain_comm_makes_step).

A codec with few bits delivers a parameter's gradient in rare lumps. Adam divides a lump by its own size, and momentum that comes
after it does not know for how many steps it has waited. So each rank makes the step of its own gradient, and the exchange sums
steps. After it `.grad` of such parameters holds a step. A hook before optimizer.step() subtracts the steps, times the learning
rate, and sets `.grad` to None, so that the optimiser skips these parameters; a hook after it brings `.grad` back. Other
parameters, such as biases, are the optimiser's as always.
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
    """The same for a list and a tuple: a checkpoint may have made either of betas."""
    return str(tuple(value) if isinstance(value, list) else value)


class Steps:
    """clip_norm: each rank clips its own gradient to this norm before its step, since there is no sum of gradients to clip (the sum
    where the codec exchanges gradients); None: no clipping."""

    def __init__(self, optimizer, clip_norm: float | None):
        self._optimizer = optimizer
        self.clip_norm = clip_norm
        self._kind = _kind_of(optimizer)
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise Error(2, f"optimizer: PyTorch before 2.0 has no Optimizer.register_step_pre_hook; {_WITHOUT}")
        self._settings = self._fixed_settings()
        self._group_of: dict[int, dict] = {}  # by a parameter's id
        self._made: dict[int, bool] = {}  # by a parameter's id, whether the exchange makes its step
        self._probes: list = []  # small parameters and what was delivered for them
        self._is_due = False  # steps were delivered and are not made yet
        self._is_finite = True
        self._taken: list = []  # parameters and gradients, during the optimiser's own step
        self._hooks: list = []

    def _fixed_settings(self) -> dict:
        """The settings that the exchange gets at its start, and that must not change afterwards."""
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
        """When the exchange is there. is_alone: one rank, on which the optimiser makes all steps."""
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
        """Before the first step(), whose closure may make the exchange."""
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
        """Groups may have changed, for example by optimizer.load_state_dict()."""
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
        """The factor that clips this rank's whole gradient. scale: the loss scale that is in it."""
        import torch
        norms = [torch.linalg.vector_norm(gradient.detach().float()) for _, gradient in pairs if gradient is not None]
        if self.clip_norm is None or not norms:
            return 1.0
        norm = float(torch.linalg.vector_norm(torch.stack([one.cpu() for one in norms]))) / scale
        return min(1.0, self.clip_norm / max(norm, 1e-12)) if norm < float("inf") else 1.0

    # ---- after it

    def delivered(self, pairs: list, is_finite: bool, scale: float) -> None:
        """pairs: parameters of this step and their gradients, which are steps now where makes() says so, multiplied by `scale`, by
        which a GradScaler will divide them."""
        self._is_due, self._is_finite = True, is_finite
        made = sorted((pair for pair in pairs if self.makes(pair[0]) and pair[1] is not None), key=lambda pair: pair[0].numel())
        self._probes = []
        for parameter, gradient in made if is_finite else []:
            if len(self._probes) < _PROBES and bool(gradient.any()):
                self._probes.append((parameter, gradient.detach() / scale))

    # ---- around the optimiser's step

    def _before(self, optimizer, arguments, named):
        """Hooks of step() come before a closure is called, which may make the exchange."""
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
        given = getattr(optimizer, "grad_scale", None)  # a GradScaler leaves it to fused optimisers to divide
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
                raise Error(2, f"optimizer: {key} has become {now[key]}, and the exchange goes on with {value}: keep it constant "
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
        """A step that is not finite changes nothing, the optimiser's own parameters included."""
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
