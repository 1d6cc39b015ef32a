"""What the way to a provider and back can do: break. It is raised and caught within this room, as its fault."""

from __future__ import annotations

from dragoman.exchange import ErrorClass, Fault


class NetworkError(Exception):
    """The way there or back failed."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.code)
        self.fault = fault


def network_fault(code: str, message: str, *, retryable: bool = True) -> Fault:
    """A failure of the way there or back."""
    return Fault(code=code, message=message, error_class=ErrorClass.NETWORK, retryable=retryable)
