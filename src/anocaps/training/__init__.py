"""One training loop for every network, and how a trained network meets images.

Others use `loop` (runs, fleets, checkpoints), `validation`, `inference`, `preprocessing`,
`memory` and `progress`.
"""
