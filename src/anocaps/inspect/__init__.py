"""A folder of images against a model: tables, heatmap overlays, gallery, card, self-check, test.

Others use `judge.load_judge`, `listing`, `arrivals`, `scoring`, `tables`, `illustrate`, `card`,
`selfcheck`, `forecast`, `acceptance` and `parts/`. Only a detector needs torch, an exported model
does not.
"""
