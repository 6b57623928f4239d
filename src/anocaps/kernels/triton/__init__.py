"""Triton kernels for a GPU, one file per operation. `…_device.py` has the kernels of a long one.

Only `choose` imports them, and only for a tensor on a GPU: importing triton takes a second.
"""
