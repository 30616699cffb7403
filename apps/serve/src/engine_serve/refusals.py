"""Errors in both protocols: a status of gRPC, and one of HTTP."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

from grpc import StatusCode
from grpc_interceptor.exceptions import GrpcException

from engine.errors import (
    Busy,
    Cancelled,
    DeadlineExceeded,
    EngineError,
    InputError,
    NotAllowedError,
    NotReadyError,
    NotServedError,
    OutOfMemoryError,
    RepositoryError,
    ServingError,
    StateError,
    TooLargeError,
    UnsupportedError,
)

_log = logging.getLogger("engine.serving")

# The first class that an error is an instance of decides.
_STATUSES: Final = (
    (TooLargeError, StatusCode.INVALID_ARGUMENT, 413),
    (InputError, StatusCode.INVALID_ARGUMENT, 400),
    (StateError, StatusCode.INVALID_ARGUMENT, 400),
    (Busy, StatusCode.RESOURCE_EXHAUSTED, 503),
    (OutOfMemoryError, StatusCode.RESOURCE_EXHAUSTED, 503),
    (DeadlineExceeded, StatusCode.DEADLINE_EXCEEDED, 504),
    (Cancelled, StatusCode.CANCELLED, 499),
    (NotServedError, StatusCode.NOT_FOUND, 404),
    (NotAllowedError, StatusCode.PERMISSION_DENIED, 403),
    (NotReadyError, StatusCode.UNAVAILABLE, 503),
    (RepositoryError, StatusCode.FAILED_PRECONDITION, 400),
    (UnsupportedError, StatusCode.INVALID_ARGUMENT, 400),  # not 501: clients would send the same request again
)


class Refused(GrpcException):  # type: ignore[misc]
    """An error of the SDK on its way to a client.

    Attributes:
        error: the error; `kind`: the name of its class.
        http_status: of the response, if the client speaks HTTP.
    """

    def __init__(self, error: EngineError, *, is_loading: bool = False, is_logged: bool = False) -> None:
        status, self.http_status = _status(error)
        if is_loading and (
            self.http_status == 500 or isinstance(error, UnsupportedError)
        ):  # the error is in the files, not in the server
            status, self.http_status = StatusCode.FAILED_PRECONDITION, 400
        self.error, self.kind = error, type(error).__name__
        self._is_logged = is_logged
        super().__init__(f"{self.kind}: {error}", status)

    def log(self, model: str) -> None:
        """Log the error once: failures of the server at WARNING, errors of the client at INFO, overload at DEBUG.

        There may be thousands of the last kind per second; the metrics count them.
        """
        if self._is_logged:
            return
        self._is_logged = True
        level = logging.WARNING if self.http_status == 500 else logging.INFO
        level = logging.DEBUG if isinstance(self.error, Busy) else level
        _log.log(level, "refused: %s", self.details, extra={"model": model, "status": self.http_status})


@contextlib.contextmanager
def refusing(model: str) -> Iterator[None]:
    """Turns errors of the SDK into `Refused`, and logs them."""
    try:
        yield
    except EngineError as e:
        refused = Refused(e)
        refused.log(model)
        raise refused from e


def unexpected(error: Exception, where: str) -> Refused:
    """An error that is not the SDK's, such as a plugin's: logged with its traceback, and answered with its class."""
    _log.error("%s failed: %s: %s", where, type(error).__name__, error, exc_info=error)
    return Refused(ServingError(f"{where} failed: {type(error).__name__}: {error}"), is_logged=True)


def _status(error: EngineError) -> tuple[StatusCode, int]:
    for kind, status, http_status in _STATUSES:
        if isinstance(error, kind):
            return status, http_status
    return StatusCode.INTERNAL, 500
