"""What the guest server refuses, and why. The message is one sentence and goes to the client."""


class RefusedError(Exception):
    """A request that cannot be served; `status` is the HTTP status it is answered with."""

    status = 400

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status or type(self).status


class ActionRefusedError(RefusedError):
    """An action that is well formed but cannot be executed here, e.g. a point outside the screen."""

    status = 422


class DesktopGoneError(RefusedError):
    """The X server, or another part of the desktop, does not answer."""

    status = 503
