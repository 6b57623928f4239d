"""Shared parts of all pages: templates, style, small charts, embedded images. No torch.

Other rooms use `rendering`, `charts` and `embed`.
"""
