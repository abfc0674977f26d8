"""Errors as `application/problem+json`, with nothing of the inside."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from protolink._json import JSON, dumps

__all__ = ["PROBLEM_JSON", "Problem", "not_found", "stopped"]

PROBLEM_JSON: Final = "application/problem+json"


class Problem(Exception):  # noqa: N818 - the name of the thing that is sent, which is no error of this process
    """Answers a request with an error document."""

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, close: bool = False, **more: JSON
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers: dict[str, str] = dict(headers or {})
        if close:
            self.headers["Connection"] = "close"
        self.document: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
            **more,
        }

    def response(self) -> Response:
        """The answer."""
        return Response(dumps(self.document), self.status, headers=self.headers, media_type=PROBLEM_JSON)


def not_found() -> Problem:
    """The one answer for what is not there and for what belongs to somebody else."""
    return Problem(404, "there is nothing here for you")


def stopped() -> Problem:
    """The answer to whatever was being done when the server was stopped."""
    return Problem(503, "the server was stopped while it answered", delivered=True)
