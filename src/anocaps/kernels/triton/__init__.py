"""Triton kernels for a GPU, one file per operation; kernels of long ones are in `…_device.py`.

Only `choose` imports them, and only for a tensor on a GPU: importing triton takes a second.
"""
