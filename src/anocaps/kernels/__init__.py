"""Fast forms of the operations in `capsules`: Triton on a GPU, spectral and patch convolutions.

Other rooms use `choose` alone. It decides which form of an operation runs where.
"""
