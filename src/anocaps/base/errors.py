"""Errors a user can mend: one sentence that names the culprit and says what to do.

The command line prints the sentence and exits with 2; everything else is a bug
and keeps its stack trace in the Python API.
"""


class AnocapsError(Exception):
    """Base of every error that anocaps raises on purpose."""


class InputError(AnocapsError, ValueError):
    """Images, labels or options handed to a function are unusable."""


class DataError(AnocapsError, ValueError):
    """A file of a dataset or a folder of images is missing, damaged or not what it should be."""


class ModelFileError(AnocapsError, ValueError):
    """A model file or checkpoint is missing, damaged, altered, newer or of another kind."""
