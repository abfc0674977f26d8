"""A team of agents as an ASGI application. Needs the extra `http`."""

from protolink._runtime.principal import session_of
from protolink.errors import ConfigurationError
from protolink.transport.http.auth import APIKeyAuthenticator, Authenticator, JWTAuthenticator

try:
    from protolink.http.application import Application, create_app
    from protolink.http.limits import ApplicationLimits
except ModuleNotFoundError as _error:
    if _error.name is None or _error.name.partition(".")[0] not in ("h11", "httpx2", "starlette", "uvicorn"):
        raise
    raise ConfigurationError(f"HTTP needs {_error.name}, which is not there: pip install 'protolink[http]'") from _error

__all__ = [
    "APIKeyAuthenticator",
    "Application",
    "ApplicationLimits",
    "Authenticator",
    "JWTAuthenticator",
    "create_app",
    "session_of",
]
