"""The exchange in Hugging Face's Trainer:

    trainer = transformers.Trainer(model=model, args=args, train_dataset=data)
    trainer.add_callback(dptrain_comm.transformers.Exchange(trainer, "auto"))

Start it with `python -m dptrain_comm.run --nproc-per-node 4 train.py`. Checkpoints include all
ranks' residuals, in a separate file.
"""
from __future__ import annotations

import os
import sys

from transformers import TrainerCallback

from . import prepare, rank
from ._library import Error
from ._state import State

FILE = "dptrain_comm.pt"


class Exchange(TrainerCallback):
    """compress, options: as in dptrain_comm.init()."""

    def __init__(self, trainer, compress: str = "auto", **options):
        self.state: State | None = None
        self._trainer, self._compress, self._options = trainer, compress, options

    def on_train_begin(self, args, state, control, **named) -> None:
        import torch
        ddp = self._trainer.model_wrapped
        if not hasattr(ddp, "register_comm_hook"):
            raise Error(2, f"the Trainer's model is a {type(ddp).__name__} and no DistributedDataParallel: start the program by "
                        "python -m dptrain_comm.run --nproc-per-node N")
        self.state = prepare(ddp, self._compress, **self._options)
        saved = os.path.join(args.output_dir, f"checkpoint-{state.global_step}", FILE)
        if state.global_step > 0 and os.path.exists(saved):
            self.state.load_state_dict(torch.load(saved, weights_only=True))
        elif state.global_step > 0 and rank() == 0:
            print(f"dptrain_comm: {saved} does not exist: the residuals from before step {state.global_step} are lost", file=sys.stderr)

    def on_save(self, args, state, control, **named) -> None:
        import torch
        saved = self.state.state_dict(all_ranks=True)
        if rank() == 0:
            torch.save(saved, os.path.join(args.output_dir, f"checkpoint-{state.global_step}", FILE))

    def on_train_end(self, args, state, control, **named) -> None:
        self.state.close()
