"""Reads a run log with h5py, without locks or code of ours, and prints what is in it as JSON.

usage: read_log.py FILE
"""
import json
import sys

import h5py
import numpy as np


def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    return value.item() if isinstance(value, np.generic) else value


with h5py.File(sys.argv[1], "r") as log:
    result = {"attributes": {name: plain(value) for name, value in log.attrs.items()}}
    for group in ("config", "model"):
        result[group] = {name: plain(value) for name, value in log[group].attrs.items()}
    for name, table in log.items():
        if isinstance(table, h5py.Dataset):
            result[name] = {
                "fields": list(table.dtype.names),
                "types": [table.dtype[field].str for field in table.dtype.names],
                "units": plain(table.attrs["units"]),
                "chunks": list(table.chunks),
                "rows": [[None if value != value else value for value in row] for row in table[:].tolist()],
            }
print(json.dumps(result, ensure_ascii=False))
