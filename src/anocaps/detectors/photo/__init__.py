"""Preset `photo` of CapsNetDetector: capsules and a memory of patches on a pretrained stem.

`model` trains and scores, `features` are the maps of the stem, `patches` is the memory of normal
patches, and `weights` finds the pretrained weights.
"""
