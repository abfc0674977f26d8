"""The description of the application, as OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from protolink.http.requests import BUDGET_FIELDS, MAX_NUMBER
from protolink.transport.http.encoding import NDJSON, SSE
from protolink.transport.http.problems import PROBLEM_JSON

__all__ = ["description"]

Described = dict[str, Any]

_JSON: Final = "application/json"


def description(root_path: str, agents: Sequence[str]) -> Described:
    """The document for an application that is mounted under `root_path` and serves `agents`."""
    run = {"parameters": [_RUN_ID]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Agent runs",
            "version": "1",
            "description": "Start runs of agents, follow their events, answer what they ask, cancel them.",
        },
        "servers": [{"url": root_path or "/"}],
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": {
            "/runs": {"post": _start()},
            "/runs/{run_id}": {**run, "get": _status(), "delete": _cancel()},
            "/runs/{run_id}/events": {**run, "get": _events()},
            "/runs/{run_id}/evidence": {**run, "get": _evidence()},
            "/runs/{run_id}/resume": {**run, "post": _resume()},
            "/runs/{run_id}/decisions": {**run, "post": _decide()},
            "/openapi.json": {"get": _describe()},
        },
        "components": {"schemas": {**_SCHEMAS, "NewRun": _new_run(agents)}, "securitySchemes": _SECURITY},
    }


def _start() -> Described:
    return {
        "operationId": "start",
        "summary": "Start a run: its id at once, or its events by Accept",
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "Sent again with the same body, the request starts no second run.",
                "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
            },
            {
                "name": "cancel_on_disconnect",
                "in": "query",
                "description": "Whether the run is canceled when the client leaves the stream of its events.",
                "schema": {"type": "string", "enum": ["true", "false"], "default": "false"},
            },
        ],
        "requestBody": _body("NewRun"),
        "responses": _begun("The run has started", "The Idempotency-Key was used for another request"),
    }


def _status() -> Described:
    return {
        "operationId": "status",
        "summary": "How a run stands",
        "responses": _responses({"200": _answer("The run", "Run")}),
    }


def _cancel() -> Described:
    return {
        "operationId": "cancel",
        "summary": "Cancel a run, and await that it has ended",
        "responses": _responses({"200": _answer("The canceled run", "Run"), "409": _problem("The run has ended")}),
    }


def _events() -> Described:
    number = {"type": "string", "pattern": "^[0-9]{1,15}$"}
    return {
        "operationId": "events",
        "summary": "The events of a run, from a place on, until its attempt has ended",
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "The number of the last event that was seen.",
                "schema": number,
            },
            {"name": "after", "in": "query", "description": "The same, without the header.", "schema": number},
        ],
        "responses": _responses(
            {"200": _stream(), "204": _NOTHING_MORE, "409": _problem("There is no event of that number yet")}
        ),
    }


def _evidence() -> Described:
    return {
        "operationId": "evidence",
        "summary": "What became of every tool call of a run",
        "responses": _responses({"200": _answer("The evidence so far", "Evidence")}),
    }


def _resume() -> Described:
    return {
        "operationId": "resume",
        "summary": "Take up a stored run that yielded, or whose attempt ended for a reason outside it",
        "requestBody": {
            "required": False,
            "content": {_JSON: {"schema": {"type": "object", "additionalProperties": False}}},
        },
        "responses": _begun("The run goes on", "The run cannot be taken up so"),
    }


def _decide() -> Described:
    return {
        "operationId": "decide",
        "summary": "Answer an approval or a question that a stored run waits for, and let it go on",
        "requestBody": _body("Decision"),
        "responses": _begun("The answer is recorded", "The run waits for no such answer"),
    }


def _describe() -> Described:
    answer = {"description": "This document", "content": {_JSON: {"schema": {"type": "object"}}}}
    return {"operationId": "describe", "summary": "This description", "responses": _responses({"200": answer})}


def _body(schema: str) -> Described:
    return {"required": True, "content": {_JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


def _answer(words: str, schema: str) -> Described:
    return {"description": words, "content": {_JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


def _stream() -> Described:
    return {
        "description": "Events as they come: server-sent events named `event` with their numbers as ids, or a line of "
        "JSON each; `error` where the store fails meanwhile",
        "content": {SSE: {"schema": _MESSAGE}, NDJSON: {"schema": {"type": "string"}}},
    }


def _begun(words: str, conflict: str) -> Described:
    headers = {
        "X-Run-ID": {"description": "The run", "schema": {"type": "string"}},
        "Location": {"description": "Its path", "schema": {"type": "string"}},
    }
    return _responses(
        {
            "200": {**_stream(), "headers": headers},
            "202": {**_answer(words, "Accepted"), "headers": headers},
            "409": _problem(conflict),
            "410": _problem("The run of the Idempotency-Key has ended and is no longer kept"),
            "422": _problem("The body does not fit"),
        }
    )


def _problem(words: str) -> Described:
    return {"description": words, "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


def _responses(own: Mapping[str, Described]) -> Described:
    return {**own, "404": _problem("Not there, or not yours"), "default": _problem("Any other refusal")}


_RUN_ID: Final[Described] = {
    "name": "run_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}

_NOTHING_MORE: Final[Described] = {"description": "All events were seen, and no attempt is at work"}

_MESSAGE: Final[Described] = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"type": "string", "enum": ["event", "error"]},
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "data": {"type": "string", "description": "A RunEvent, or a problem, as JSON"},
    },
}

_SECURITY: Final[Described] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def _or_null(kind: str) -> Described:
    return {"type": [kind, "null"]}


_OBJECT: Final[Described] = {"type": "object"}
_OBJECTS: Final[Described] = {"type": "array", "items": _OBJECT}
_STATUS: Final[Described] = {
    "type": "string",
    "enum": ["working", "input-required", "completed", "canceled", "failed"],
}

_SCHEMAS: Final[Described] = {
    "Budget": {
        "type": "object",
        "additionalProperties": False,
        "description": "Limits that narrow those of the application.",
        "properties": {
            **{
                name: {"type": ["integer" if whole else "number", "null"], "minimum": 0, "maximum": MAX_NUMBER}
                for name, whole in BUDGET_FIELDS.items()
            },
            "max_calls": {
                "type": ["object", "null"],
                "maxProperties": 100,
                "additionalProperties": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
            },
        },
    },
    "Decision": {
        "type": "object",
        "additionalProperties": False,
        "required": ["request_id"],
        "properties": {
            "request_id": {"type": "string", "minLength": 1, "maxLength": 200},
            "approved": {"type": "boolean"},
            "answer": {},
            "fingerprint": {"type": ["string", "null"], "minLength": 1, "maxLength": 200},
        },
        "oneOf": [{"required": ["approved"]}, {"required": ["answer"]}],
    },
    "Accepted": {
        "type": "object",
        "required": ["run_id", "status"],
        "properties": {"run_id": {"type": "string"}, "status": _STATUS},
    },
    "Run": {
        "type": "object",
        "required": ["run_id", "agent", "status", "output", "error", "usage", "interruptions", "last_event"],
        "properties": {
            "run_id": {"type": "string"},
            "agent": {"type": "string"},
            "session_id": _or_null("string"),
            "created_at": _or_null("string"),
            "status": _STATUS,
            "output": {"description": "The answer of a completed run"},
            "error": {
                "type": ["object", "null"],
                "required": ["code", "message"],
                "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            },
            "usage": _OBJECT,
            "interruption": _or_null("object"),
            "interruptions": {**_OBJECTS, "description": "What a paused run waits for"},
            "uncertain_actions": {**_OBJECTS, "description": "Operations whose effect nobody knows"},
            "resumable": {"type": "boolean", "description": "Whether it goes on without an answer once it is resumed"},
            "last_event": {"type": "integer", "description": "The number of the latest event"},
        },
    },
    "Evidence": {
        "type": "object",
        "required": ["run_id", "evidence"],
        "properties": {"run_id": {"type": "string"}, "evidence": _OBJECTS},
    },
    "Problem": {
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
        },
    },
}


def _new_run(agents: Sequence[str]) -> Described:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["agent", "prompt"],
        "properties": {
            "agent": {"type": "string", "enum": list(agents)},
            "prompt": {"type": "string", "pattern": r"\S"},
            "session_id": {"type": ["string", "null"], "pattern": "^[ -~]{1,200}$"},
            "budget": {"anyOf": [{"$ref": "#/components/schemas/Budget"}, {"type": "null"}]},
        },
    }
