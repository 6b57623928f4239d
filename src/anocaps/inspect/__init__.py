"""A folder of images against a model: tables, heatmap overlays, gallery, card, self-check.

Others use `judge.load_judge`, `listing`, `scoring`, `tables`, `illustrate`, `card` and
`selfcheck`. It imports torch only where a detector is asked for.
"""
