"""Image files to arrays: decode, apply EXIF rotation, fit to one size, walk and check folders.

Other rooms use `ImageFolder`, `folder.find_classes`, `decode.Fit`, `reading.read_images`,
`walk.list_images`, `check.check_folder`, `names` and `sizes`. No torch.
"""

from anocaps.images.folder import ImageFolder

__all__ = ["ImageFolder"]
