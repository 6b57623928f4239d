"""Fast forms of the same operations: Triton on a GPU, spectral and blocked forms on a CPU.

Others use `choose` alone: it decides which form of an operation runs.
"""
