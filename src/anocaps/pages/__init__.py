"""What every page shares: templates, style, small charts, embedded images. No torch.

Others use `rendering.render`, `charts` and `embed`.
"""
