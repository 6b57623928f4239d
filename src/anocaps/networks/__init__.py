"""Plain torch modules that know nothing of anomalies, one file each.

Others use `capsnet`, `deep`, `cnn`, `vae` and `dbn`; `convolution` serves `capsnet`.
"""
