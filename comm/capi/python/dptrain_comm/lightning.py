"""The exchange in Lightning, on any device:

    exchange = dptrain_comm.lightning.Exchange("auto")
    trainer = lightning.Trainer(strategy="ddp", devices=4, callbacks=[exchange])

Start it with `python -m dptrain_comm.run --nproc-per-node 4 train.py`. (Lightning itself registers
hooks only for CUDA devices.) Checkpoints include all ranks' residuals.
"""
from __future__ import annotations

import importlib.util

from . import prepare
from ._library import Error
from ._state import State

if importlib.util.find_spec("lightning") is not None:
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback


class Exchange(Callback):
    """compress, options: as in dptrain_comm.init(). has_steps: exchanges the optimiser's steps
    instead of gradients (optimizer= of init()), for a module with one optimiser; then clip with
    clip_norm=, not with gradient_clip_val=."""

    def __init__(self, compress: str = "auto", *, has_steps: bool = False, **options):
        self.state: State | None = None
        self._compress, self._has_steps, self._options = compress, has_steps, options
        self._saved: dict = {}

    def on_fit_start(self, trainer, pl_module) -> None:
        ddp = trainer.strategy.model
        if not hasattr(ddp, "register_comm_hook"):
            raise Error(2, f"dptrain_comm.lightning.Exchange works with strategy=\"ddp\", and this is {type(trainer.strategy).__name__}: "
                        "start the program by python -m dptrain_comm.run, with devices= as its --nproc-per-node")
        options = dict(self._options)
        if self._has_steps:
            if len(trainer.optimizers) != 1:
                raise Error(2, f"has_steps needs one optimiser, and the module has {len(trainer.optimizers)}")
            options["optimizer"] = trainer.optimizers[0]
        self.state = prepare(ddp, self._compress, **options)
        if self._saved:
            self.state.load_state_dict(self._saved)
            self._saved = {}

    def on_fit_end(self, trainer, pl_module) -> None:
        if self.state is not None:
            self._saved = self.state_dict()  # for Trainer.save_checkpoint() after fit()
            self.state.close()

    def state_dict(self) -> dict:
        """Lightning calls it on all ranks, and writes only rank 0's."""
        if self.state is None or self.state.exchange is None:
            return self._saved
        return self.state.state_dict(all_ranks=True)

    def load_state_dict(self, state_dict: dict) -> None:
        self._saved = state_dict
