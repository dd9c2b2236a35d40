"""Errors: one class for each error code of the core.

The class says what a caller may do, the message names the thing, what was expected and what was
found. ``except weightcast.errors.Error`` catches all; ``error.code`` is the code's name as
``--json`` prints it, ``error.exit_code`` what the command line ends with.
"""

__all__ = [
    "Aborted", "AlreadyExists", "Conflict", "DataLoss", "DeadlineExceeded", "Error", "InternalFault",
    "InvalidArgument", "InvalidData", "NotFound", "ResourceExhausted", "Unavailable", "BY_CODE",
]


class Error(Exception):
    """Any error of Weightcast."""

    code = "internal"
    exit_code = 1


class InternalFault(Error):
    """A fault of ours."""


class InvalidArgument(Error, ValueError):
    """The call is wrong: fix the call."""

    code = "invalid-argument"
    exit_code = 2


class DataLoss(Error):
    """Data does not verify: fence, never retry in place."""

    code = "data-loss"
    exit_code = 3


class InvalidData(Error, ValueError):
    """Data that does not fit: malformed, unknown, missing, doubly covered, wrong shape or dtype."""

    code = "invalid-data"
    exit_code = 3


class Conflict(Error):
    """Illegal state: wrong base, run or epoch; a number not above the latest; something is held."""

    code = "conflict"
    exit_code = 4


class AlreadyExists(Error):
    """A create-only call found something there."""

    code = "already-exists"
    exit_code = 4


class NotFound(Error, LookupError):
    """No such object, version or run."""

    code = "not-found"
    exit_code = 4


class Aborted(Error):
    """Lost a race: read again, then decide."""

    code = "aborted"
    exit_code = 4


class Unavailable(Error):
    """The same call may work later."""

    code = "unavailable"
    exit_code = 5


class DeadlineExceeded(Error, TimeoutError):
    """The same call may work later, with more time."""

    code = "deadline-exceeded"
    exit_code = 5


class ResourceExhausted(Error):
    """Disk full or over a budget: the same call may work with more."""

    code = "resource-exhausted"
    exit_code = 5


# The core looks its exceptions up here.
BY_CODE = {
    kind.code: kind
    for kind in (InternalFault, InvalidArgument, DataLoss, InvalidData, Conflict, AlreadyExists,
                 NotFound, Aborted, Unavailable, DeadlineExceeded, ResourceExhausted)
}
