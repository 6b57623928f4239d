"""One training loop for every network, preprocessing, and batched inference.

Others use `loop` (runs, fleets, checkpoints), `validation`, `inference`, `preprocessing`,
`device`, `memory` and `progress`.
"""
