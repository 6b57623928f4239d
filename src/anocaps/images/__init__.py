"""Image files as arrays: decode, turn upright, fit to one size, walk folders, check a folder.

Others use `ImageFolder`, `decode.Fit`, `decode.read_images`, `walk` and `check`. No torch.
"""

from anocaps.images.folder import ImageFolder

__all__ = ["ImageFolder"]
