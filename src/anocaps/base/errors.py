"""Errors that a user can fix: one sentence that names the cause and says what to do.

The command line prints the sentence and exits with 2. Every other error is a bug and keeps its
stack trace.
"""


class AnocapsError(Exception):
    """Base of every error that anocaps raises on purpose."""


class InputError(AnocapsError, ValueError):
    """Images, labels or options given to a function cannot be used."""


class DataError(AnocapsError, ValueError):
    """A dataset file or a folder of images is missing, damaged or of another kind."""


class ModelFileError(AnocapsError, ValueError):
    """A model file or checkpoint is missing, damaged, altered, too new or of another kind."""
