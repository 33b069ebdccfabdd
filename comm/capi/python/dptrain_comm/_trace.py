"""Decides when to write the library's trace of some steps."""
from __future__ import annotations

import sys

from ._library import Error, Exchange, rank


class Trace:
    def __init__(self, options: dict):
        self.is_due = bool(options.get("trace"))
        self._steps = options.get("trace_first", 5) + options.get("trace_steps", 20)  # left

    def step_ends(self) -> bool:
        """Counts a step. Returns whether it was the last traced one."""
        self._steps -= 1
        return self.is_due and self._steps == 0

    def write(self, exchange: Exchange) -> None:
        """Collective. If the trace cannot be written, training continues, and a later call tries
        again."""
        try:
            exchange.write_trace()
            self.is_due = False
        except Error as error:
            if error.code != 3:
                raise
            if rank() == 0:
                print(f"dptrain_comm: {error}; training continues", file=sys.stderr, flush=True)
