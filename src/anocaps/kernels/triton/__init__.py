"""Triton kernels for a GPU, one file per operation; `…_device.py` holds a long operation's kernels.

Only `choose` imports them, and only when a tensor is on a GPU: importing triton takes a second.
"""
