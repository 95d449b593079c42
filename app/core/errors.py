"""The one small tree of errors that a user may read.

Every message is a sentence that names the file or option, says what was expected and what came. The command line prints
it on stderr without a traceback, the page shows it in place of a result, a failed run keeps it in its `status.json`.
Probes raise none of these: what goes wrong there is a sentence in `problems`.
"""


class AppError(Exception):
    """A failure whose message is meant for the user. Exit status 1."""

    exit_status = 1


class OptionError(AppError):
    """An option or a configuration value is not usable. Exit status 2."""

    exit_status = 2


class DataError(AppError):
    """Pictures, masks or a folder layout cannot be used."""


class DeviceError(AppError):
    """TensorFlow cannot be brought up on this machine."""


class TrainingError(AppError):
    """Training cannot go on; what was computed before is kept."""


class RunError(AppError):
    """A run folder cannot be read, written, started or stopped."""
