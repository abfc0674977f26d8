"""Who asks is proven by a key or by a signed token."""

from __future__ import annotations

from typing import Any

import jwt
import pytest

from protolink import ConfigurationError
from protolink.transport.http import APIKeyAuthenticator, Authenticator, JWTAuthenticator
from tests.conftest import Interpreter
from tests.http.servers import post, served

SECRET = "a-secret-that-is-long-enough-for-each-of-the-sha2-hashes-of-hmac-signatures"
FAR, PAST = 4_000_000_000, 1_000_000_000
CLAIMS = {"sub": "alice", "aud": "agents", "iss": "issuer", "exp": FAR}


def token(secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    """A signed token; a claim of None is left out."""
    held = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(held, secret, algorithm)


def authenticator(**options: Any) -> JWTAuthenticator:
    settings: dict[str, Any] = {"algorithms": ["HS256"], "audience": "agents", "issuer": "issuer", **options}
    return JWTAuthenticator(SECRET, **settings)


async def principal(scheme: Authenticator, text: str, word: str = "Bearer") -> str | None:
    return await scheme.authenticate({"authorization": f"{word} {text}"})


async def test_c01_a_key_names_its_principal() -> None:
    """However it is sent; a part of a key, or another one, names nobody."""
    keys = APIKeyAuthenticator({"first-key-01234567": "one", "second-key-0123456": "two"})
    assert await principal(keys, "first-key-01234567") == "one"
    assert await principal(keys, "second-key-0123456", "bearer") == "two"
    assert await keys.authenticate({"x-api-key": "first-key-01234567"}) == "one"
    for wrong in ("first-key-0123456", "first-key-012345678", "", "é", "one"):
        assert await principal(keys, wrong) is None
    assert await principal(keys, "first-key-01234567", "Basic") is None
    assert await keys.authenticate({}) is None
    assert "first-key" not in repr(vars(keys))


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"short": "one"},
        {"long-enough-0123456": ""},
        {"long-enough-0123456": "local"},
        {"long-enough-0123456": "anonymous"},
        {"long-enough-0123456": "a\nb"},
        {7: "one"},
    ],
)
def test_c01_keys_that_prove_nothing_are_refused(keys: Any) -> None:
    """Nobody becomes the application itself by a key."""
    with pytest.raises(ConfigurationError):
        APIKeyAuthenticator(keys)


async def test_c12_a_token_names_its_subject() -> None:
    """For one of the audiences, by the issuer, before it expires."""
    assert await principal(authenticator(), token()) == "alice"
    assert await principal(authenticator(), token(aud=["others", "agents"])) == "alice"
    assert await principal(authenticator(audience=["us", "agents"]), token()) == "alice"


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "others"},
        {"aud": None},
        {"iss": "somebody"},
        {"iss": None},
        {"exp": PAST},
        {"exp": None},
        {"nbf": FAR},
        {"sub": None},
        {"sub": ""},
        {"sub": "local"},
        {"sub": "anonymous"},
        {"sub": "x" * 300},
        {"secret": "another-secret-that-is-long-enough-too"},
        {"algorithm": "HS384"},
    ],
)
async def test_c12_a_token_for_somebody_else_is_none(claims: Any) -> None:
    """Or one that is too old, unsigned by us, or without the claims that make it one."""
    assert await principal(authenticator(), token(**claims)) is None


@pytest.mark.parametrize("text", ["", "x", "a.b.c", "e30.e30.", "é.é.é", jwt.encode(CLAIMS, "", "none")])
async def test_c12_what_is_no_token_names_nobody(text: str) -> None:
    """An unsigned one least of all."""
    assert await principal(authenticator(), text) is None


@pytest.mark.parametrize(
    "options", [{"algorithms": []}, {"algorithms": ["none"]}, {"algorithms": "HS256"}, {"audience": ""}]
)
def test_c12_tokens_that_prove_nothing_are_refused(options: Any) -> None:
    """Where the authenticator is built."""
    with pytest.raises(ConfigurationError):
        authenticator(**options)


async def test_c01_a_token_opens_the_door() -> None:
    """From end to end."""

    async def echo(operation: str, payload: Any) -> Any:
        return payload

    async with served(echo, authenticator=authenticator()) as transport:
        for text, status in ((token(), 200), (token(aud="others"), 401)):
            assert (await post(str(transport.url), "/tasks", Authorization=f"Bearer {text}")).status == status


@pytest.mark.parametrize("answer", ["", "local", "anonymous", 7, "a\nb"])
async def test_c01_an_authenticator_cannot_name_the_application_itself(answer: Any) -> None:
    """Whatever an application's own authenticator answers, it is somebody from outside."""

    class Careless:
        async def authenticate(self, headers: Any) -> Any:
            return answer

    async def echo(operation: str, payload: Any) -> Any:
        return payload

    async with served(echo, authenticator=Careless()) as transport:
        assert (await post(str(transport.url), "/tasks")).status == 401


def test_tokens_need_their_extra(interpreter: Interpreter) -> None:
    """And the message says which."""
    program = """
import sys
sys.modules["jwt"] = None
from protolink import ConfigurationError
from protolink.transport.http import JWTAuthenticator
try:
    JWTAuthenticator("s", algorithms=["HS256"], audience="a")
except ConfigurationError as error:
    print(error)
"""
    assert "pip install 'protolink[jwt]'" in interpreter(program)
