"""Everything that can be refused or fail, as one tree.

    UpdraftError                  500  internal
    ├── NotFound                  404  not-found
    ├── Conflict                  409  conflict
    │   ├── IllegalTransition     409  illegal-transition
    │   ├── LeaseLost             409  lease-lost             a worker that is no longer the owner
    │   └── Claimed               409                         another relay copies it to MLflow
    ├── Invalid                   422  invalid
    │   ├── InvalidSpec           422  invalid-spec           has `errors`: a path and a detail each
    │   ├── RegistryRefused       422                         MLflow refuses the credentials
    │   └── IdempotencyMismatch   422  idempotency-mismatch
    ├── Unauthorized              401  unauthorized
    ├── Forbidden                 403  forbidden
    ├── IdempotencyKeyMissing     400  idempotency-key-missing
    ├── PreconditionFailed        412  precondition-failed    If-Match names another version
    ├── QuotaExceeded             429  quota-exceeded
    ├── RateLimited               429  rate-limited           has `retry_after_s`
    ├── ChecksumMismatch          500  checksum-mismatch
    ├── StoreRefused              500  store-refused          asking again does not help
    └── Unavailable               503  unavailable            the next attempt may work
        ├── StoreUnavailable      503  store-unavailable
        └── RegistryUnavailable   503  registry-unavailable

`slug` is the `type` of the problem document, `title` its title, the message its detail. Errors of
other libraries are translated where they enter (store, registry), nowhere else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, TypedDict


class FailureReason(StrEnum):
    """Why a stage or a job failed. Closed: a client may switch on it."""

    BAD_INPUT = "bad_input"
    TARGET_UNAVAILABLE = "target_unavailable"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    ENGINE_FAILED = "engine_failed"
    WORKER_LOST = "worker_lost"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    QUALITY_GATE = "quality_gate"
    INTERNAL = "internal"

    @property
    def retryable(self) -> bool:
        """Whether the same stage may succeed when tried again."""
        return self in _RETRYABLE


_RETRYABLE = frozenset(
    {
        FailureReason.TARGET_UNAVAILABLE,
        FailureReason.OUT_OF_MEMORY,
        FailureReason.ENGINE_FAILED,
        FailureReason.WORKER_LOST,
        FailureReason.TIMEOUT,
        FailureReason.INTERNAL,
    }
)


class FieldError(TypedDict):
    """One thing wrong with a spec: the field's full path and what was expected of it."""

    pointer: str
    detail: str


class UpdraftError(Exception):
    """Base of what this service raises on purpose."""

    status: ClassVar[int] = 500
    slug: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"


class NotFound(UpdraftError):
    status = 404
    slug = "not-found"
    title = "Not found"


class Conflict(UpdraftError):
    status = 409
    slug = "conflict"
    title = "Conflict"


class IllegalTransition(Conflict):
    slug = "illegal-transition"
    title = "Not possible in this state"


class LeaseLost(Conflict):
    slug = "lease-lost"
    title = "The lease belongs to another worker"


class Claimed(Conflict):
    """Another relay copies this to the model registry; it is tried again when that one is done."""


class Invalid(UpdraftError):
    status = 422
    slug = "invalid"
    title = "Invalid request"


class InvalidSpec(Invalid):
    """A job spec that cannot run.

    Args:
        errors: what is wrong, one entry a field.
    """

    slug = "invalid-spec"
    title = "Invalid job"

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("\n".join(f"{e['pointer']}: {e['detail']}" for e in errors))
        self.errors = errors


class RegistryRefused(Invalid):
    """MLflow refuses the credentials that it was given; asking again does not help."""


class IdempotencyMismatch(Invalid):
    slug = "idempotency-mismatch"
    title = "Idempotency key reused with another body"


class Unauthorized(UpdraftError):
    status = 401
    slug = "unauthorized"
    title = "Unauthorized"


class Forbidden(UpdraftError):
    status = 403
    slug = "forbidden"
    title = "Forbidden"


class IdempotencyKeyMissing(UpdraftError):
    status = 400
    slug = "idempotency-key-missing"
    title = "Idempotency-Key missing"


class PreconditionFailed(UpdraftError):
    status = 412
    slug = "precondition-failed"
    title = "Changed since it was read"


class QuotaExceeded(UpdraftError):
    status = 429
    slug = "quota-exceeded"
    title = "Quota exceeded"


class RateLimited(UpdraftError):
    status = 429
    slug = "rate-limited"
    title = "Too many requests"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ChecksumMismatch(UpdraftError):
    slug = "checksum-mismatch"
    title = "Stored bytes are not the recorded ones"


class StoreRefused(UpdraftError):
    slug = "store-refused"
    title = "Object store refuses"


class Unavailable(UpdraftError):
    status = 503
    slug = "unavailable"
    title = "Temporarily unavailable"


class StoreUnavailable(Unavailable):
    slug = "store-unavailable"
    title = "Object store unavailable"


class RegistryUnavailable(Unavailable):
    slug = "registry-unavailable"
    title = "Model registry unavailable"
