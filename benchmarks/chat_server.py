"""A server of Chat Completions in a process of its own: prints its port, and ends with its standard input.

The model `pieces-20` replies with twenty pieces of text, all at once, as a service that is never the slow one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any


def reply(pieces: int) -> bytes:
    """The whole response, as the service would stream it."""

    def event(choices: Any, usage: Any = None) -> bytes:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return b"data: " + json.dumps({**chunk, "choices": choices, "usage": usage}).encode() + b"\n\n"

    def said(delta: Any, reason: str | None = None) -> bytes:
        return event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}])

    usage = {"prompt_tokens": 19, "completion_tokens": pieces, "total_tokens": 19 + pieces}
    events = [said({"role": "assistant", "content": ""}), *(said({"content": "word "}) for _ in range(pieces))]
    body = b"".join([*events, said({}, "stop"), event([], usage), b"data: [DONE]\n\n"])
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request after the other."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = json.loads(await reader.readexactly(int(length.split(b":")[1])))
            writer.write(reply(int(body["model"].removeprefix("pieces-"))))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    """Serve until nobody holds the other end of the standard input."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
