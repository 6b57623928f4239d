"""A page and an HTTP API for one project folder: photos, training, review, results.

The command uses `run.serve`; programs use `client.Client`. Needs `anocaps[serve]`; scoring needs no
torch, training needs `anocaps[all]`.
"""
