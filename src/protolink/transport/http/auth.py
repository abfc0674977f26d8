"""Who asks: API keys and signed tokens."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from protolink.errors import ConfigurationError

__all__ = ["ANONYMOUS", "APIKeyAuthenticator", "Authenticator", "JWTAuthenticator", "bearer_token", "is_principal"]

ANONYMOUS: Final = "anonymous"
"""Whoever asks where nobody is asked who they are."""

_RESERVED: Final = frozenset({ANONYMOUS, "local"})
_LEAST_KEY_CHARACTERS: Final = 16
_MOST_PRINCIPAL_CHARACTERS: Final = 256


@runtime_checkable
class Authenticator(Protocol):
    """Says who sent a request."""

    async def authenticate(self, headers: Mapping[str, str]) -> str | None:
        """The principal that the header fields (names in lower case) prove, or None for nobody."""
        ...


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """What stands behind `Authorization: Bearer`."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def is_principal(name: object) -> bool:
    """Whether a name can stand for somebody: no blank one, and none that the runtime uses for itself."""
    return (
        isinstance(name, str)
        and bool(name.strip())
        and name.isprintable()
        and len(name) <= _MOST_PRINCIPAL_CHARACTERS
        and name not in _RESERVED
    )


class APIKeyAuthenticator:
    """Knows principals by their keys, sent as `Authorization: Bearer KEY` or `X-API-Key: KEY`.

    Only digests are kept. Raises `ConfigurationError` for a key of fewer than 16 characters and for a
    principal that is reserved.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        if not keys:
            raise ConfigurationError("an API key authenticator needs keys: {key: principal}")
        for key, principal in keys.items():
            if not isinstance(key, str) or len(key) < _LEAST_KEY_CHARACTERS:
                raise ConfigurationError(f"an API key has at least {_LEAST_KEY_CHARACTERS} characters")
            if not is_principal(principal):
                raise ConfigurationError(f"{principal!r} cannot be a principal")
        self._known = [(_digest(key), principal) for key, principal in keys.items()]

    async def authenticate(self, headers: Mapping[str, str]) -> str | None:
        """The principal of the key that was sent."""
        key = headers.get("x-api-key") or bearer_token(headers)
        if key is None:
            return None
        sent, found = _digest(key), None
        # Every key is compared, whichever fits: the time tells nothing.
        for digest, principal in self._known:
            if hmac.compare_digest(digest, sent):
                found = principal
        return found

    def __repr__(self) -> str:
        return f"<APIKeyAuthenticator of {len(self._known)} keys>"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class JWTAuthenticator:
    """Knows principals by signed tokens, sent as `Authorization: Bearer TOKEN`; the subject is the principal.

    A token without an expiry, for another audience or by another issuer is none. Needs the extra `jwt`.

    Parameters
    ----------
    key
        The shared secret, or the public key.
    algorithms
        Those that are accepted, by their JWS names.
    audience
        Whom a token has to be for.
    issuer
        Who has to have made it.
    leeway_seconds
        How far the clocks may differ.
    """

    def __init__(
        self,
        key: Any,
        *,
        algorithms: Sequence[str],
        audience: str | Collection[str],
        issuer: str | None = None,
        leeway_seconds: float = 0.0,
    ) -> None:
        try:
            import jwt
        except ModuleNotFoundError as error:
            raise ConfigurationError("signed tokens need PyJWT: pip install 'protolink[jwt]'") from error
        if isinstance(algorithms, str) or not algorithms or any(name.lower() == "none" for name in algorithms):
            raise ConfigurationError("algorithms= lists the signatures that are accepted, such as ['RS256']")
        if not audience:
            raise ConfigurationError("audience= says whom a token has to be for")
        self._decode: Callable[..., dict[str, Any]] = jwt.decode  # pyright: ignore[reportUnknownMemberType]
        self._invalid = jwt.PyJWTError
        self._key = key
        self._algorithms = list(algorithms)
        self._audience = audience if isinstance(audience, str) else list(audience)
        self._issuer = issuer
        self._leeway = leeway_seconds

    async def authenticate(self, headers: Mapping[str, str]) -> str | None:
        """The subject of a token that holds."""
        token = bearer_token(headers)
        if token is None:
            return None
        try:
            claims = self._decode(
                token,
                self._key,
                algorithms=self._algorithms,
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp", "sub", "aud"]},
            )
        except (self._invalid, ValueError):
            return None
        subject = claims.get("sub")
        return subject if is_principal(subject) else None

    def __repr__(self) -> str:
        return f"<JWTAuthenticator for {self._audience!r}>"
