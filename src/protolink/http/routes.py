"""Which operation lives where. The application answers by this table, and its description is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.types import Scope

from protolink.transport.http.problems import Problem, not_found
from protolink.transport.http.routes import Route

__all__ = ["ROUTES", "found", "run_path"]

ROUTES: Final[tuple[Route, ...]] = (
    Route("start", "POST", "/runs"),
    Route("status", "GET", "/runs/{run_id}"),
    Route("cancel", "DELETE", "/runs/{run_id}"),
    Route("events", "GET", "/runs/{run_id}/events"),
    Route("evidence", "GET", "/runs/{run_id}/evidence"),
    Route("resume", "POST", "/runs/{run_id}/resume"),
    Route("decide", "POST", "/runs/{run_id}/decisions"),
    Route("describe", "GET", "/openapi.json"),
)


def _by_path() -> Mapping[tuple[str, ...], dict[str, Route]]:
    table: dict[tuple[str, ...], dict[str, Route]] = {}
    for route in ROUTES:
        table.setdefault(tuple(route.path.split("/")), {})[route.method] = route
    return table


_TABLE: Final = _by_path()
_ID_AT: Final = 2


def found(scope: Scope) -> tuple[Route, str]:
    """The route of a request, and the run that it names or an empty text.

    Raises a `Problem` for a path that is none, and for a method that the path does not have.
    """
    path, root = scope["path"], scope.get("root_path", "")
    # Mounted, the path begins with that of the mount.
    parts = (path[len(root) :] if root and path.startswith(root) else path).split("/")
    run_id = ""
    if len(parts) > _ID_AT:
        run_id, parts[_ID_AT] = parts[_ID_AT], "{run_id}"
    methods = _TABLE.get(tuple(parts))
    if methods is None or (len(parts) > _ID_AT and not run_id):
        raise not_found()
    route = methods.get(scope["method"])
    if route is None:
        allowed = ", ".join(sorted(methods))
        raise Problem(405, f"this is asked for by {allowed}", headers={"Allow": allowed})
    return route, run_id


def run_path(scope: Scope, run_id: str) -> str:
    """The path of a run, below whatever the application is mounted under."""
    return f"{scope.get('root_path', '')}/runs/{run_id}"
