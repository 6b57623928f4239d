"""Fast forms of the operations in `capsules`: Triton on a GPU, spectral and patch convolutions.

Others use `choose` alone: it decides which form of an operation runs, where and why.
"""
