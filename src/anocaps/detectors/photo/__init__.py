"""Parts of a detector for photos that sees small defects: a memory of normal patches.

`patches` works on the maps of the pretrained stem, `anocaps.networks.pretrained`. The scores are
joined by `anocaps.judging.combining`. No detector uses them yet.
"""
