"""Errors: one base class, one subclass per canonical code.

`code` is the canonical name ("NOT_FOUND"), `reason` the stable machine-readable
one ("SOURCE_NOT_FOUND"), `message` one sentence that ends with what to try,
`facts` a dict such as {"file": ..., "tensor": ...}.
"""

from typing import Dict, Optional


class Error(Exception):
    """Base of everything this package raises on purpose."""

    code = "UNKNOWN"

    def __init__(
        self, message: str, reason: str = "", facts: Optional[Dict[str, str]] = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.code
        self.facts = dict(facts or {})

    def __str__(self) -> str:
        return f"{self.message} [{self.reason}]"

    def __reduce__(self) -> tuple:
        return type(self), (self.message, self.reason, self.facts)


class Cancelled(Error):
    code = "CANCELLED"


class Unknown(Error):
    code = "UNKNOWN"


class InvalidArgument(Error):
    code = "INVALID_ARGUMENT"


class DeadlineExceeded(Error, TimeoutError):
    code = "DEADLINE_EXCEEDED"


class NotFound(Error):
    code = "NOT_FOUND"


class AlreadyExists(Error):
    code = "ALREADY_EXISTS"


class PermissionDenied(Error):
    code = "PERMISSION_DENIED"


class ResourceExhausted(Error):
    code = "RESOURCE_EXHAUSTED"


class FailedPrecondition(Error):
    code = "FAILED_PRECONDITION"


class Aborted(Error):
    code = "ABORTED"


class OutOfRange(Error):
    code = "OUT_OF_RANGE"


class Unimplemented(Error):
    code = "UNIMPLEMENTED"


class Internal(Error):
    code = "INTERNAL"


class Unavailable(Error):
    code = "UNAVAILABLE"


class DataLoss(Error):
    code = "DATA_LOSS"


class Unauthenticated(Error):
    code = "UNAUTHENTICATED"


# Numbers of google.rpc.Code.
BY_NUMBER = {
    1: Cancelled,
    2: Unknown,
    3: InvalidArgument,
    4: DeadlineExceeded,
    5: NotFound,
    6: AlreadyExists,
    7: PermissionDenied,
    8: ResourceExhausted,
    9: FailedPrecondition,
    10: Aborted,
    11: OutOfRange,
    12: Unimplemented,
    13: Internal,
    14: Unavailable,
    15: DataLoss,
    16: Unauthenticated,
}


# Tracebacks and pickles name the classes as users do: ckptd.NotFound.
for _kind in (Error, *BY_NUMBER.values()):
    _kind.__module__ = __package__


def make(number: int, message: str, reason: str = "", facts=None) -> Error:
    return BY_NUMBER.get(number, Unknown)(message, reason, facts)


def source_changed(path: str, when: str, then: str) -> Aborted:
    return Aborted(
        f"reading {path}: its files, or their links, owner or mode, have changed {when}; {then}",
        "SOURCE_CHANGED",
    )


def from_details(data: bytes) -> Optional[Error]:
    """The error in a `grpc-status-details-bin` trailer; None when it is not ours."""
    from . import _proto

    try:
        status = _proto.message("ErrorStatus").FromString(data)
        for detail in status.details:
            if detail.type_url.endswith("/google.rpc.ErrorInfo"):
                info = _proto.message("ErrorInfo").FromString(detail.value)
                return make(status.code, status.message, info.reason, dict(info.metadata))
    except Exception:  # runtimes raise various errors for bytes that they cannot decode
        return None
    return make(status.code, status.message) if status.code else None
