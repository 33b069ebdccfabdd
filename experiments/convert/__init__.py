"""What weights.py is made of.

    model_tensors  names and shapes of the tensors of dptrain's models
    state_dicts    state dicts in files of other programs, whose code is not executed
"""
