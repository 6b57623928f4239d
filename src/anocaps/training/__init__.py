"""One training loop for every network, preprocessing, and batched inference.

Other rooms use `loop` (runs, fleets, checkpoints), `validation`, `inference`, `preprocessing`,
`device`, `memory` and `progress`.
"""
