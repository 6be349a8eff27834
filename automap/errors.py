"""Every error that automap raises on purpose: one tree, each error with the place as a field.

A message is one line that says what is wrong, where, and what to do. The command line prints it and exits with
``exit_code``; nothing else in the library prints or exits.
"""

from __future__ import annotations

from collections.abc import Sequence


class AutomapError(Exception):
    """The root of automap's errors: bad usage or input (exit status 2) unless a subclass says otherwise."""

    exit_code = 2


class SourceError(AutomapError):
    """A model, checkpoint or listing that cannot be read.

    Attributes:
        path: the file, module or attribute as the user wrote it.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class ListingError(SourceError):
    """A listing that is read but makes no sense: no name column, duplicate names, nothing in it."""


class MappingError(AutomapError):
    """A mapping (or its file) that is not what it should be.

    Attributes:
        path: the mapping's file, or ``""``.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class TransformError(AutomapError):
    """A transform that is not one, or that does not fit the arrays it is given."""


class PinError(AutomapError):
    """A pin that names nothing, or that no mapping can satisfy.

    Attributes:
        pin: the pin as the user wrote it, ``T=M``.
    """

    def __init__(self, message: str, pin: str = "") -> None:
        super().__init__(message)
        self.pin = pin


class ConversionError(AutomapError):
    """A state dict that the mapping cannot convert.

    Attributes:
        offenders: one line for every parameter that is absent, misshapen or not a number.
    """

    def __init__(self, message: str, offenders: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.offenders = tuple(offenders)


class InputError(AutomapError):
    """An input that the networks do not take, or a description of one that is not understood.

    Attributes:
        text: the input as the user wrote it.
    """

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class NotRunnableError(AutomapError):
    """A network that cannot run on this machine (exit status 4).

    Attributes:
        operation: the operation without a kernel here, or ``""`` where the framework does not say.
    """

    exit_code = 4

    def __init__(self, message: str, operation: str = "") -> None:
        super().__init__(message)
        self.operation = operation


class LockError(AutomapError):
    """A lock file of the regression check that cannot be read or written.

    Attributes:
        path: the lock file.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path
