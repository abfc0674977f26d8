"""What adapters send: tools, choices, schemas, bounds, and whose key goes where."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from protolink import Agent, create_llm
from protolink.errors import ConfigurationError
from protolink.llms import LLM, ModelCallError, Pricing
from protolink.llms.ollama import OllamaLLM
from tests.providers.asking import COUNT, STORE, Reader, ask
from tests.providers.conftest import Make
from tests.providers.dialects import KEY, Anthropic, Chat, Compatible, Dialect, Gemini, Ollama, Responses, Said
from tests.providers.wire import Answer, WireServer

ANSWER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
IN_ANTHROPIC = {"type": "json_schema", "schema": ANSWER}
STRICT = {"type": "json_schema", "name": "reply", "schema": ANSWER, "strict": True}
IN_CHAT = {"type": "json_schema", "json_schema": {"name": "reply", "schema": ANSWER, "strict": True}}

CHOICES: dict[str, dict[str, Any]] = {
    "openai-chat": {
        "auto": "auto",
        "required": "required",
        "none": "none",
        "store": {"type": "function", "function": {"name": "store"}},
    },
    "openai": {
        "auto": "auto",
        "required": "required",
        "none": "none",
        "store": {"type": "function", "name": "store"},
    },
    "anthropic": {
        "auto": {"type": "auto"},
        "required": {"type": "any"},
        "none": {"type": "none"},
        "store": {"type": "tool", "name": "store"},
    },
    "google": {
        "auto": {"mode": "AUTO"},
        "required": {"mode": "ANY"},
        "none": {"mode": "NONE"},
        "store": {"mode": "ANY", "allowedFunctionNames": ["store"]},
    },
    "ollama": {"auto": None, "required": None, "none": None, "store": None},
}
CHOICES["openai-compatible"] = CHOICES["openai-chat"]


async def sent(server: WireServer, dialect: Dialect, llm: LLM, **more: Any) -> Any:
    """The body of the request of one turn."""
    server.play(dialect.answer(Said(text=["Hello."])))
    await ask(llm, **more)
    return server.requests[-1].body


@pytest.mark.parametrize("choice", ["auto", "required", "none", "store"])
async def test_a_choice_is_said_in_the_providers_words(
    choice: str, dialect: Dialect, server: WireServer, llm: LLM
) -> None:
    """What a turn allows must reach the model that decides."""
    body = await sent(server, dialect, llm, tool_choice=choice)

    assert dialect.choice_of(body) == CHOICES[dialect.name][choice]


@pytest.mark.parametrize(("choice", "offered"), [("auto", ["store", "count"]), ("none", []), ("store", ["store"])])
async def test_ollama_is_offered_what_the_choice_leaves(choice: str, offered: list[str], server: WireServer) -> None:
    """Its protocol knows no choice, so a tool that must not be used is not offered."""
    llm = Ollama().llm(server.url)

    body = await sent(server, Ollama(), llm, tool_choice=choice)
    await llm.aclose()

    assert Ollama().tools_of(body) == offered


async def test_tools_are_offered_natively_only_where_asked_for(
    dialect: Dialect, server: WireServer, make: Make
) -> None:
    """In JSON mode the prompt explains the tools, and a native call could not be understood."""
    assert dialect.tools_of(await sent(server, dialect, make())) == ["store", "count"]
    assert dialect.tools_of(await sent(server, dialect, make(tool_calling="json"))) == []
    assert dialect.tools_of(await sent(server, dialect, make(), tools=[])) == []


@pytest.mark.parametrize(
    ("dialect", "find", "format"),
    [
        (Chat(), lambda body: body.get("response_format"), IN_CHAT),
        (Compatible(), lambda body: body.get("response_format"), IN_CHAT),
        (Responses(), lambda body: body.get("text", {}).get("format"), STRICT),
        (
            Anthropic(),
            lambda body: body.get("output_config", {}).get("format"),
            {"type": "json_schema", "schema": ANSWER},
        ),
        (Gemini(), lambda body: body.get("generationConfig", {}).get("responseJsonSchema"), ANSWER),
        (Ollama(), lambda body: body.get("format"), ANSWER),
    ],
    ids=lambda value: value.name if isinstance(value, Dialect) else "",
)
async def test_a_schema_constrains_what_can_be_said(
    dialect: Dialect, find: Callable[[Any], Any], format: Any, server: WireServer
) -> None:
    """An action in JSON, and an answer without tools, can be enforced; an answer must not take away the tools."""
    native = dialect.llm(server.url, constrained=True)
    actions = dialect.llm(server.url, constrained=True, tool_calling="json")
    free = dialect.llm(server.url, constrained=False)
    together = format if dialect.name in ("openai-chat", "openai", "anthropic") else None

    assert find(await sent(server, dialect, native, output_schema=ANSWER, tools=[])) == format
    assert find(await sent(server, dialect, native, output_schema=ANSWER)) == together
    assert find(await sent(server, dialect, actions, action_schema=ANSWER)) == format
    assert find(await sent(server, dialect, actions, output_schema=ANSWER)) is None
    assert find(await sent(server, dialect, free, output_schema=ANSWER, tools=[])) is None
    for llm in (native, actions, free):
        await llm.aclose()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"n": {"type": "integer"}}},
        {**ANSWER, "required": []},
        {**ANSWER, "properties": {"n": {"type": "integer", "multipleOf": 3}}},
        {**ANSWER, "properties": {"n": {"type": "array", "items": {"type": "object"}}}},
        {"anyOf": [ANSWER, {"type": "null"}]},
        {"type": "integer"},
    ],
)
@pytest.mark.parametrize("dialect", [Chat(), Responses(), Anthropic()], ids=lambda dialect: dialect.name)
async def test_a_schema_that_a_provider_would_refuse_is_not_sent(
    dialect: Dialect, schema: Any, server: WireServer
) -> None:
    """The prompt tells the schema all the same, and the answer is checked; a refused call would be no answer."""
    llm = dialect.llm(server.url, constrained=True)

    body = await sent(server, dialect, llm, output_schema=schema, tools=[])
    await llm.aclose()

    assert not {"response_format", "text", "output_config"} & body.keys()


async def test_what_llama_cpp_has_no_grammar_for_is_left_out(server: WireServer) -> None:
    """It refuses the whole schema otherwise; what is left out is validated when the reply has come."""
    llm = Ollama().llm(server.url, constrained=True)
    schema = {"type": "object", "properties": {"n": {"type": "string", "pattern": "^(a|b)$", "maxLength": 5000}}}

    body = await sent(server, Ollama(), llm, output_schema=schema, tools=[])
    await llm.aclose()

    assert body["format"] == {"type": "object", "properties": {"n": {"type": "string"}}}


@pytest.mark.parametrize("properties", [{}, {"n": {"type": "array", "items": {"enum": ["a", 1]}}}])
async def test_gemini_is_told_a_schema_in_its_own_keywords(properties: Any, server: WireServer) -> None:
    """It refuses or ignores the others; `const` it knows as an enumeration of one."""
    llm = Gemini().llm(server.url)
    schema = {**ANSWER, "properties": {"kind": {"const": "note", "maxLength": 4}, **properties}, "$id": "note"}

    body = await sent(server, Gemini(), llm, output_schema=schema, tools=[])
    await llm.aclose()

    told = body["generationConfig"]["responseJsonSchema"]
    assert told == {**ANSWER, "properties": {"kind": {"enum": ["note"]}, **properties}}


def test_only_grammars_constrain_actions_by_default() -> None:
    """The runtime asks a model whether it does, and tells in words what is not enforced."""
    names = ["openai:m", "openai-chat:m", "anthropic:m", "google:m", "deepseek:m", "ollama:m", "vllm:m", "mistral:m"]

    assert [name for name in names if create_llm(name).constrained] == ["ollama:m", "vllm:m", "mistral:m"]
    assert create_llm("openai:m", constrained=True).constrained
    assert not create_llm("vllm:m", constrained=False).constrained


@pytest.mark.parametrize(
    ("dialect", "find"),
    [
        (Chat(), lambda body: (body.get("max_completion_tokens"), body.get("temperature"))),
        (Compatible(), lambda body: (body.get("max_tokens"), body.get("temperature"))),
        (Responses(), lambda body: (body.get("max_output_tokens"), body.get("temperature"))),
        (Anthropic(), lambda body: (body.get("max_tokens"), body.get("temperature"))),
        (
            Gemini(),
            lambda body: tuple(
                body.get("generationConfig", {}).get(name) for name in ("maxOutputTokens", "temperature")
            ),
        ),
        (Ollama(), lambda body: tuple(body.get("options", {}).get(name) for name in ("num_predict", "temperature"))),
    ],
    ids=lambda value: value.name if isinstance(value, Dialect) else "",
)
async def test_the_smaller_bound_holds(dialect: Dialect, find: Callable[[Any], Any], server: WireServer) -> None:
    """Neither the application's bound nor what is left of a budget may be passed."""
    plain = dialect.llm(server.url)
    bound = dialect.llm(server.url, max_output_tokens=100, temperature=0.5)

    assert find(await sent(server, dialect, plain))[0] == (4096 if dialect.name == "anthropic" else None)
    assert find(await sent(server, dialect, plain, max_output_tokens=30)) == (30, None)
    assert find(await sent(server, dialect, bound, max_output_tokens=300)) == (100, 0.5)
    assert find(await sent(server, dialect, bound, max_output_tokens=30)) == (30, 0.5)
    for llm in (plain, bound):
        await llm.aclose()


@pytest.mark.parametrize(
    ("dialect", "parameters", "find"),
    [
        (Chat(), {"reasoning_effort": "low"}, lambda body: body["reasoning_effort"] == "low"),
        (Compatible(), {"top_k": 5}, lambda body: body["top_k"] == 5),
        (
            Responses(),
            {"reasoning": {"effort": "low"}},
            lambda body: body["reasoning"] == {"effort": "low"} and body["include"] == ["reasoning.encrypted_content"],
        ),
        (Anthropic(), {"thinking": {"type": "adaptive"}}, lambda body: body["thinking"] == {"type": "adaptive"}),
        (Gemini(), {"top_k": 5}, lambda body: body["generationConfig"]["topK"] == 5),
        (
            Ollama(),
            {"num_ctx": 8192, "think": True},
            lambda body: body["options"] == {"num_ctx": 8192} and body["think"] is True,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Dialect) else "",
)
async def test_what_else_a_provider_takes_is_passed_on(
    dialect: Dialect, parameters: Any, find: Callable[[Any], bool], server: WireServer
) -> None:
    """This package need not know every parameter of every service."""
    llm = dialect.llm(server.url, parameters=parameters)

    body = await sent(server, dialect, llm)
    await llm.aclose()

    assert find(body)


@pytest.mark.parametrize("value", [True, False])
async def test_parallel_calls_can_be_allowed_or_not(value: bool, server: WireServer) -> None:
    """Three services take the wish, each in its own words."""
    bodies = []
    for dialect in (Chat(), Responses(), Anthropic()):
        llm = dialect.llm(server.url, parallel_tool_calls=value)
        bodies.append(await sent(server, dialect, llm))
        await llm.aclose()

    chat, responses, anthropic = bodies
    assert chat["parallel_tool_calls"] is responses["parallel_tool_calls"] is value
    assert anthropic["tool_choice"]["disable_parallel_tool_use"] is not value


async def test_earlier_calls_stay_calls_where_no_tool_is_offered(
    dialect: Dialect, server: WireServer, llm: LLM
) -> None:
    """Told as text they would teach the model to answer with text that looks like a call."""
    history = [
        {"role": "user", "content": "Store milk."},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "name": "store", "arguments": {}}]},
        {"role": "tool", "name": "store", "tool_call_id": "call_1", "content": '{"type":"tool_result"}'},
    ]

    body = await sent(server, dialect, llm, messages=history, tools=[])

    # One service refuses calls of tools that it is not told of; they cannot be called again all the same.
    told = (["store"], {"type": "none"}) if dialect.name == "anthropic" else ([], None)
    assert (dialect.tools_of(body), dialect.choice_of(body)) == told
    assert "tool_call\\" not in json.dumps(body)
    assert "store" in json.dumps(body)


async def test_nothing_is_stored_at_openai(server: WireServer) -> None:
    """The whole conversation goes with every turn; a copy at the provider is for the user to ask for."""
    llm = Responses().llm(server.url)

    body = await sent(server, Responses(), llm)
    await llm.aclose()

    assert body["store"] is False


async def test_what_ollamas_sdk_drops_of_a_schema_is_said_in_words(server: WireServer) -> None:
    """Nested objects would otherwise arrive as objects of anything."""
    nested = {"type": "object", "properties": {"shelf": {"type": "integer"}}, "required": ["shelf"]}
    schema = {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/Place"}, "item": {"type": "string", "description": "What."}},
        "required": ["place"],
        "$defs": {"Place": nested},
    }
    tool = type(STORE)(name="put", description="Put it there.", input_schema=schema)
    llm = Ollama().llm(server.url)

    body = await sent(server, Ollama(), llm, tools=[tool])
    await llm.aclose()

    properties = body["tools"][0]["function"]["parameters"]["properties"]
    assert properties["item"] == {"type": "string", "description": "What."}
    assert json.loads(properties["place"]["description"].removeprefix("JSON schema: ")) == nested


async def test_a_key_comes_from_the_environment_at_the_first_turn(
    dialect: Dialect, server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may load its environment after its imports."""
    llm = dialect.llm(server.url, api_key=None)
    monkeypatch.setenv(dialect.key_variable, KEY)

    await sent(server, dialect, llm)
    await llm.aclose()

    assert KEY in str(server.requests[0].headers)


@pytest.mark.parametrize(
    "name", ["openai", "openai-chat", "anthropic", "google", "gemini", "xai", "deepseek", "mistral"]
)
async def test_a_missing_key_says_where_it_is_looked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent, so this is for the application to put right."""
    llm = create_llm(f"{name}:model")
    for variable in llm.key_variables:  # type: ignore[attr-defined]
        monkeypatch.delenv(variable, raising=False)

    with pytest.raises(ConfigurationError, match=f"set .*{llm.key_variables[0]}.*, or pass api_key="):  # type: ignore[attr-defined]
        await ask(llm)


@pytest.mark.parametrize("module", ["openai", "anthropic", "google.genai", "ollama"])
def test_a_missing_sdk_says_what_to_install(module: str, interpreter: Callable[[str], str]) -> None:
    """The base package comes without any; the program itself is the one of whoever reads the message."""
    extra = module.partition(".")[0]
    program = f"""
import asyncio, sys
sys.modules[{module!r}] = None
from protolink import Agent
agent = Agent(name="a", llm="{extra}:model", verbosity=0)
try:
    asyncio.run(agent.invoke("Hello."))
except Exception as error:
    print(error)
"""
    assert f"pip install 'protolink[{extra}]'" in interpreter(program)


@pytest.mark.parametrize("specification", ["openai:m", "anthropic:m", "google:m", "ollama:m", "vllm:m"])
def test_a_model_costs_nothing_until_it_is_used(specification: str, interpreter: Callable[[str], str]) -> None:
    """An SDK takes up to seconds to import, and a program may offer models that nobody chooses."""
    program = f"""
import sys
from protolink import Agent, create_llm
create_llm({specification!r})
print(*sys.modules, sep="\\n")
"""
    heavy = {"openai", "anthropic", "google.genai", "ollama", "httpx", "httpx2"}

    assert heavy.isdisjoint(interpreter(program).split())


async def test_nothing_of_openai_goes_to_a_compatible_server(
    server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK would send the key, organization and project of its own environment to anybody."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "of-openai-alone")
    llm = Compatible().llm(server.url, api_key=None)

    await sent(server, Compatible(), llm)
    await llm.aclose()

    assert "of-openai-alone" not in str(server.requests[0].headers)


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": "ftp://localhost/v1"},
        {"base_url": "http://user:secret@localhost/v1"},
        {"base_url": "localhost:8000"},
        {"base_url": 7},
        {"api_key": " "},
        {"tool_calling": "xml"},
        {"read_timeout": 0},
        {"connect_timeout": float("inf")},
        {"max_output_tokens": 0},
        {"context_window": True},
        {"parameters": "top_k"},
        {"temprature": 1},
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    """Before anything is sent, and without repeating what may be a secret."""
    with pytest.raises(ConfigurationError) as raised:
        create_llm("openai:model", **options)

    assert "secret" not in str(raised.value)


def test_unknown_options_are_answered_with_the_known_ones() -> None:
    """A misspelt option that is ignored changes nothing and says nothing."""
    with pytest.raises(ConfigurationError, match="no option 'temprature'; its options are: api_key, base_url"):
        create_llm("anthropic:model", temprature=1)


@pytest.mark.parametrize("name", ["openai", "anthropic", "google", "ollama", "vllm"])
def test_a_provider_needs_the_name_of_a_model(name: str) -> None:
    """There is no default that would still be there in a year."""
    with pytest.raises(ConfigurationError, match=f"as in '{name}:<model>'"):
        create_llm(name)


def test_an_own_address_is_not_taken_from_stored_data() -> None:
    """Whoever can write a stored configuration could have a key sent to an address of theirs."""
    agent = Agent(name="a", llm=create_llm("openai:model", base_url="http://localhost:9/v1", pricing=Pricing(1, 2)))
    stored = agent.to_dict()

    assert "localhost" not in json.dumps(stored)
    with pytest.raises(ConfigurationError, match="llm="):
        Agent.from_dict(stored)


def shown(*capabilities: str) -> Answer:
    """Ollama's documented answer to `/api/show`."""
    body = {
        "modelfile": "# Modelfile",
        "parameters": "num_keep 24",
        "template": "{{ .Prompt }}",
        "details": {"format": "gguf", "family": "qwen3", "families": ["qwen3"], "parameter_size": "8.0B"},
        "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
        "capabilities": list(capabilities),
    }
    return Answer(chunks=[json.dumps(body).encode()])


@pytest.mark.parametrize(("capabilities", "native"), [(("completion",), False), (("completion", "tools"), True)])
async def test_ollama_is_asked_once_what_a_model_can_do(
    capabilities: tuple[str, ...], native: bool, server: WireServer
) -> None:
    """A model without native tools is given JSON actions instead of an error."""
    llm = Ollama().llm(server.url)
    server.play(shown(*capabilities))

    await llm.prepare(Reader().in_thread)
    await llm.prepare(Reader().in_thread)
    await llm.aclose()

    assert (llm.native_tools, llm.context_window) == (native, 40960)
    assert [request.path for request in server.requests] == ["/api/show"]


async def test_what_was_chosen_is_not_overruled_by_discovery(server: WireServer) -> None:
    """Somebody who says `native` has a reason, a template of their own perhaps."""
    llm = OllamaLLM("m", base_url=server.url, tool_calling="native", context_window=100)
    server.play(shown("completion"))

    await llm.prepare(Reader().in_thread)
    await llm.aclose()

    assert (llm.native_tools, llm.context_window) == (True, 100)


async def test_a_server_that_cannot_tell_is_asked_again(server: WireServer) -> None:
    """It may have been starting; the turn itself says what is wrong with it."""
    llm = Ollama().llm(server.url)
    server.play(Ollama().error(404), Ollama().error(404), shown("completion"))

    await llm.prepare(Reader().in_thread)
    with pytest.raises(ModelCallError):
        await ask(llm)
    await llm.prepare(Reader().in_thread)
    await llm.aclose()

    assert llm.native_tools is False


async def test_a_run_of_ollama_uses_what_the_model_can_do(server: WireServer) -> None:
    """The runtime asks before the first turn, so that the first turn is right already."""
    server.play(shown("completion"), Ollama().answer(Said(text=['{"type": "final", "content": "Yes."}'])))
    llm = Ollama().llm(server.url)

    answer = await Agent(name="a", llm=llm, tools=[_look], verbosity=0).invoke("Is it there?")
    await llm.aclose()

    assert answer == "Yes."
    assert [request.path for request in server.requests] == ["/api/show", "/api/chat"]
    assert not server.requests[1].body["tools"]
    assert "_look" in str(server.requests[1].body["messages"][0])


def _look() -> str:
    """Look."""
    return COUNT.name
