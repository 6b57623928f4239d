"""What every page shares: templates, style, small charts, embedded images. No torch.

Others use `charts` and `embed`, and the files in `templates/`.
"""
