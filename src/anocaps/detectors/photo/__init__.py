"""Preset `photo` of CapsNetDetector: capsules and a memory of patches on a pretrained stem.

`model` trains and scores. `features` computes the stem's maps. `patches` is the memory of normal
patches. `copies` finds near-copies, for other presets too. `weights` finds the pretrained weights.
"""
