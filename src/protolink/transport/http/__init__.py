"""Agents and registries over HTTP. Needs the extra `http`."""

from protolink.errors import ConfigurationError
from protolink.transport.http.auth import APIKeyAuthenticator, Authenticator, JWTAuthenticator
from protolink.transport.http.limits import HTTPLimits

try:
    from protolink.transport.http.transport import HTTPTransport
except ModuleNotFoundError as _error:
    if _error.name is None or _error.name.partition(".")[0] not in ("h11", "httpx2", "starlette", "uvicorn"):
        raise
    raise ConfigurationError(f"HTTP needs {_error.name}, which is not there: pip install 'protolink[http]'") from _error

__all__ = ["APIKeyAuthenticator", "Authenticator", "HTTPLimits", "HTTPTransport", "JWTAuthenticator"]
