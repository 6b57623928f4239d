"""Plain torch modules that know nothing of anomalies, one file each.

Detectors use all of them. `convolution` is a part of `capsnet`, and `pretrained` of `photo`.
"""
