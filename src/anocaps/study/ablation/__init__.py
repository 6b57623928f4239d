"""An ablation: pairs of cells, the rule that takes a choice, and the summary.

Others use `rule` and `summary`.
"""
