#!/usr/bin/env python3
"""The official clients of OpenAI's API, as they are, against `butterfly serve`: a line for each check.

    python3 -m venv VENV && VENV/bin/pip install openai pydantic
    mkdir NODE && cd NODE && npm install openai zod
    VENV/bin/python tools/check_openai_clients.py --node NODE          # without --node: the Python client alone

The servers are started here: models/demo.gguf, a model made here whose answers are known (calls of tools, reasoning),
and a small encoder; each in one process and over two workers. Exit status 0: every check held; 1: one did not.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import typing
from pathlib import Path

import openai
import pydantic

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/distributed"))
from program import Worker  # noqa: E402
from scripted_model import WEATHER, write_encoder, write_scripted  # noqa: E402
from serve_kit import Server, write_template  # noqa: E402

CHECKS = []
SAY = [{"role": "user", "content": "O Romeo, wherefore art thou?"}]
SAMPLED = {"model": "demo", "max_tokens": 24, "seed": 5, "temperature": 0.8}
PROMPT = {"model": "demo", "prompt": "ROMEO:", "max_tokens": 16, "seed": 5, "temperature": 0.8}
TOOLS = [{"type": "function", "function": {"name": name, "description": f"The {name}.", "parameters": {
    "type": "object", "properties": {key: {"type": "string", "enum": values}}, "required": [key],
    "additionalProperties": False}}}
         for name, key, values in (("weather", "city", ["Verona", "Mantua"]), ("clock", "zone", ["CET", "UTC"]))]


class Person(pydantic.BaseModel):
    name: typing.Literal["Romeo", "Juliet"]
    age: typing.Annotated[int, pydantic.Field(ge=0, le=99)]
    friends: list[typing.Literal["Tybalt", "Nurse"]] = pydantic.Field(max_length=2)


class weather(pydantic.BaseModel):  # noqa: N801 - the name is that of the tool
    """The weather of a city."""
    city: typing.Literal["Verona", "Mantua"]


def check(function):
    CHECKS.append(function)
    return function


def equal(found, expected):
    assert found == expected, f"{found!r}, expected {expected!r}"


class Context:
    """The servers, and a client of each."""

    def __init__(self, demo, scripted, encoder, narrow):
        self.demo, self.scripted, self.encoder, self.narrow = (self.client(server) for server in
                                                               (demo, scripted, encoder, narrow))
        self.address = demo.address

    @staticmethod
    def client(server, key="key-of-romeo", **options):
        return openai.OpenAI(base_url=f"http://{server.address}/v1", api_key=key, max_retries=0, timeout=60, **options)

    def said(self, **more):
        return self.demo.chat.completions.create(**{"messages": SAY, **SAMPLED, **more})

    def scripted_said(self, word, **more):
        return self.scripted.chat.completions.create(model="scripted", temperature=0,
                                                     messages=[{"role": "user", "content": word}], **more)

    def refused(self, kind, call, status, words):
        try:
            call()
        except openai.APIStatusError as error:
            assert type(error) is kind, f"{type(error).__name__}, expected {kind.__name__}"
            equal(error.status_code, status)
            assert words in error.message, error.message
            return error
        raise AssertionError(f"nothing was refused, expected {kind.__name__}")


def joined_calls(chunks):
    """Tool calls of a stream as clients put them together, and how many deltas brought arguments."""
    calls, deltas = {}, 0
    for chunk in chunks:
        for choice in chunk.choices:
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": None, "name": "", "arguments": ""})
                call["id"] = part.id or call["id"]
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
                deltas += bool(part.function.arguments)
    return [calls[index] for index in sorted(calls)], deltas


@check
def models_list_and_retrieve(c):
    models = c.demo.models.list()
    equal([model.id for model in models.data], ["demo"])
    equal(c.demo.models.retrieve("demo").object, "model")


@check
def chat_whole_and_streamed_are_the_same(c):
    whole = c.said()
    chunks = list(c.said(stream=True))
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), whole.choices[0].message.content)
    equal(chunks[0].choices[0].delta.role, "assistant")
    equal(chunks[-1].choices[0].finish_reason, whole.choices[0].finish_reason)
    assert whole.choices[0].message.content and whole.usage.total_tokens == whole.usage.prompt_tokens + 24


@check
def stream_options_include_usage(c):
    whole = c.said().usage
    chunks = list(c.said(stream=True, stream_options={"include_usage": True}))
    equal([chunk.usage for chunk in chunks[:-1]], [None] * (len(chunks) - 1))
    equal((chunks[-1].choices, chunks[-1].usage.completion_tokens, chunks[-1].usage.prompt_tokens),
          ([], whole.completion_tokens, whole.prompt_tokens))


@check
def asynchronous_streams_at_once(c):
    async def all_of_them():
        client = openai.AsyncOpenAI(base_url=c.demo.base_url, api_key="key-of-romeo", max_retries=0)

        async def one(seed):
            stream = await client.chat.completions.create(messages=SAY, stream=True, **{**SAMPLED, "seed": seed})
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        return await asyncio.gather(*(one(seed) for seed in range(8)))
    texts = asyncio.run(all_of_them())
    equal(texts, [c.said(seed=seed).choices[0].message.content for seed in range(8)])
    assert len(set(texts)) > 4


@check
def chat_stream_helper(c):
    with c.scripted.chat.completions.stream(model="scripted", messages=[{"role": "user", "content": "twice"}],
                                            temperature=0, tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert {"content.delta", "content.done", "tool_calls.function.arguments.done"} <= set(kinds), kinds
    equal((final.message.content, final.finish_reason, len(final.message.tool_calls)), ("I look it up.", "tool_calls", 2))


@check
def tool_choice_auto(c):
    message = c.scripted_said("single", tools=TOOLS, tool_choice="auto").choices[0]
    equal(message.finish_reason, "tool_calls")
    equal(message.message.tool_calls[0].function.name, "weather")
    equal(json.loads(message.message.tool_calls[0].function.arguments), json.loads(WEATHER))
    plain = c.scripted_said("hello", tools=TOOLS).choices[0]
    equal((plain.finish_reason, plain.message.tool_calls), ("stop", None))
    none = c.scripted_said("single", tools=TOOLS, tool_choice="none").choices[0]
    equal(none.message.tool_calls, None)


@check
def parallel_tool_calls(c):
    whole = c.scripted_said("twice", tools=TOOLS).choices[0].message
    equal([call.function.name for call in whole.tool_calls], ["weather", "clock"])
    equal(whole.content, "I look it up.")
    assert whole.tool_calls[0].id != whole.tool_calls[1].id
    calls, _ = joined_calls(c.scripted_said("twice", tools=TOOLS, stream=True))
    equal([(call["name"], call["arguments"]) for call in calls],
          [(call.function.name, call.function.arguments) for call in whole.tool_calls])
    equal(len(c.scripted_said("twice", tools=TOOLS, parallel_tool_calls=False).choices[0].message.tool_calls), 1)


@check
def tool_results_go_back_in(c):
    first = c.scripted_said("single", tools=TOOLS).choices[0].message
    call = first.tool_calls[0]
    after = c.scripted.chat.completions.create(model="scripted", temperature=0, tools=TOOLS, messages=[
        {"role": "user", "content": "single"}, first, {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}])
    equal(after.choices[0].message.content, "Plain words and no more.")


@check
def tool_choice_required_and_named(c):
    for choice in ("required", {"type": "function", "function": {"name": "clock"}}):
        whole = c.said(tools=TOOLS, tool_choice=choice, max_tokens=120).choices[0]
        equal(whole.finish_reason, "tool_calls")
        call = whole.message.tool_calls[0].function
        arguments = json.loads(call.arguments)
        assert arguments.get("city") in ("Verona", "Mantua") or arguments.get("zone") in ("CET", "UTC"), arguments
        calls, deltas = joined_calls(c.said(tools=TOOLS, tool_choice=choice, max_tokens=120, stream=True))
        equal([(each["name"], each["arguments"]) for each in calls],
              [(each.function.name, each.function.arguments) for each in whole.message.tool_calls])
        assert all(each["id"] for each in calls)
        assert deltas > len(calls), f"{deltas} deltas brought the arguments of {len(calls)} calls: they did not stream"
    equal(call.name, "clock")


@check
def parse_helper_of_a_tool(c):
    answer = c.demo.chat.completions.parse(messages=SAY, tools=[openai.pydantic_function_tool(weather)],
                                           tool_choice="required", **{**SAMPLED, "max_tokens": 200})
    parsed = answer.choices[0].message.tool_calls[0].function.parsed_arguments
    assert isinstance(parsed, weather), parsed


@check
def response_format_json_schema_and_object(c):
    schema = Person.model_json_schema()
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}}
    Person.model_validate_json(c.said(response_format=form, max_tokens=100).choices[0].message.content)
    value = json.loads(c.said(response_format={"type": "json_object"}, max_tokens=100).choices[0].message.content)
    assert isinstance(value, dict), value


@check
def parse_helper_of_a_schema(c):
    answer = c.demo.chat.completions.parse(messages=SAY, response_format=Person, **{**SAMPLED, "max_tokens": 100})
    assert isinstance(answer.choices[0].message.parsed, Person)
    try:
        c.demo.chat.completions.parse(messages=SAY, response_format={"type": "json_schema"}, **SAMPLED)
    except (openai.BadRequestError, TypeError):
        return
    raise AssertionError("a format without a schema was taken")


@check
def a_cut_answer_is_the_clients_length_error(c):
    class Long(pydantic.BaseModel):
        text: str
    try:
        answer = c.demo.chat.completions.parse(messages=SAY, response_format=Long, **{**SAMPLED, "max_tokens": 12})
    except openai.LengthFinishReasonError:
        return
    assert isinstance(answer.choices[0].message.parsed, Long), answer  # whole within 12 tokens, as it has to be


@check
def reasoning_is_apart_and_the_schema_is_kept_after_it(c):
    plain = c.scripted_said("reason")
    message = plain.choices[0].message
    equal(plain.usage.completion_tokens_details.reasoning_tokens, 4)
    equal((message.reasoning_content, message.content), ("First I weigh it all.", "Then I speak."))
    schema = Person.model_json_schema()
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}}
    found = c.scripted_said("reason", response_format=form, max_tokens=120)
    equal(found.choices[0].message.reasoning_content, "First I weigh it all.")
    Person.model_validate_json(found.choices[0].message.content)
    called = c.scripted_said("reason", tools=TOOLS, tool_choice="required", max_tokens=200).choices[0].message
    assert called.reasoning_content and called.tool_calls[0].function.name in ("weather", "clock"), called
    endless = c.scripted_said("muse", response_format=form, max_tokens=120).choices[0]
    Person.model_validate_json(endless.message.content)
    assert "Round and round" in endless.message.reasoning_content


@check
def chat_logprobs(c):
    whole = c.said(logprobs=True, top_logprobs=4).choices[0]
    tokens = whole.logprobs.content
    equal(b"".join(bytes(token.bytes) for token in tokens).decode(), whole.message.content)
    for token in tokens:
        values = [top.logprob for top in token.top_logprobs]
        assert len(values) == 4 and values == sorted(values, reverse=True) and token.logprob <= values[0] + 1e-9
    streamed = [token for chunk in c.said(logprobs=True, top_logprobs=4, stream=True)
                if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    equal(streamed, tokens)


@check
def stop_n_and_seed(c):
    text = c.said().choices[0].message.content
    stop = text[6:9]
    stopped = c.said(stop=[stop, "never"]).choices[0]
    equal((stopped.message.content, stopped.finish_reason), (text[:text.index(stop)], "stop"))
    many = c.said(n=3)
    equal([choice.index for choice in many.choices], [0, 1, 2])
    equal(len({choice.message.content for choice in many.choices}), 3)
    equal(many.choices[0].message.content, text)
    assert c.said(seed=6).choices[0].message.content != text
    streamed = ["", "", ""]
    for chunk in c.said(n=3, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    equal(streamed, [choice.message.content for choice in many.choices])


@check
def errors_are_the_clients_own(c):
    error = c.refused(openai.BadRequestError, lambda: c.said(temperature=9), 400, "temperature is 9")
    equal((error.param, error.type), ("temperature", "invalid_request_error"))
    c.refused(openai.BadRequestError, lambda: c.said(extra_body={"temprature": 1}), 400, "did you mean temperature?")
    error = c.refused(openai.NotFoundError, lambda: c.said(model="other"), 404, 'no model "other"')
    equal(error.code, "model_not_found")
    c.refused(openai.NotFoundError, lambda: c.demo.models.retrieve("other"), 404, "other")
    stranger = c.demo.with_options(api_key="wrong")
    c.refused(openai.AuthenticationError, lambda: stranger.models.list(), 401, "Bearer")
    error = c.refused(openai.BadRequestError, lambda: c.said(
        messages=[{"role": "user", "content": "word " * 2000}]), 400, "the context of 512")
    equal(error.code, "context_length_exceeded")
    try:
        c.demo.with_options(base_url="http://127.0.0.1:9/v1").models.list()
    except openai.APIConnectionError:
        return
    raise AssertionError("nobody was there, and the client got an answer")


@check
def a_full_queue_is_the_clients_rate_limit_error(c):
    body = {**PROMPT, "max_tokens": 400, "extra_body": {"ignore_eos": True}}
    found = []

    def one():
        try:
            found.append(c.narrow.completions.create(**body).choices[0].text)
        except openai.RateLimitError as error:
            found.append(error)
            assert error.response.headers["retry-after"]
    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [each for each in found if isinstance(each, openai.RateLimitError)]
    equal(len(found), 8)
    assert 0 < len(refused) < 8, found
    patient = c.narrow.with_options(max_retries=20)
    threads = [threading.Thread(target=lambda: found.append(patient.completions.create(**body))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(len(found), 14)  # the client waits and asks again


@check
def embeddings_float_and_base64(c):
    texts = ["hello there", "romeo"]
    plain = c.encoder.embeddings.create(model="encoder", input=texts, encoding_format="float").data
    standard = c.encoder.embeddings.create(model="encoder", input=texts).data  # the client asks for base64
    equal([len(one.embedding) for one in plain], [32, 32])
    for one, other in zip(plain, standard):
        equal([struct.pack("<f", x) for x in one.embedding], [struct.pack("<f", x) for x in other.embedding])
    raw = c.encoder.post("/embeddings", cast_to=object, body={"input": texts[0], "encoding_format": "base64"})
    equal(len(base64.b64decode(raw["data"][0]["embedding"])), 4 * 32)
    c.refused(openai.BadRequestError, lambda: c.encoder.completions.create(model="encoder", prompt="a"), 400, "vectors")


@check
def responses_whole_streamed_and_called(c):
    body = {"model": "demo", "input": "O Romeo", "instructions": "Verona.", "max_output_tokens": 16, "temperature": 0.8,
            "extra_body": {"seed": 5}}
    whole = c.demo.responses.create(**body)
    assert whole.output_text and whole.usage.output_tokens == 16, whole
    equal((whole.status, whole.incomplete_details.reason), ("incomplete", "max_output_tokens"))
    events = list(c.demo.responses.create(**body, stream=True))
    equal("".join(event.delta for event in events if event.type == "response.output_text.delta"), whole.output_text)
    equal(events[0].type, "response.created")
    equal(events[-1].response.output_text, whole.output_text)
    with c.scripted.responses.stream(model="scripted", input="hello", temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    equal(final.output_text, "Plain words and no more.")
    assert "response.output_text.done" in kinds and final.status == "completed", kinds
    tools = [{"type": "function", "strict": True, **tool["function"]} for tool in TOOLS]
    called = c.scripted.responses.create(model="scripted", input="twice", temperature=0, tools=tools)
    calls = [item for item in called.output if item.type == "function_call"]
    equal([call.name for call in calls], ["weather", "clock"])
    again = c.scripted.responses.create(model="scripted", temperature=0, tools=tools, input=[
        {"role": "user", "content": "twice"}, *called.output,
        *({"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."} for call in calls)])
    equal(again.output_text, "Plain words and no more.")
    streamed = "".join(event.delta for event in c.demo.responses.create(
        **{**body, "max_output_tokens": 120}, tools=tools, tool_choice={"type": "function", "name": "clock"},
        stream=True) if event.type == "response.function_call_arguments.delta")
    assert json.loads(streamed)["zone"] in ("CET", "UTC"), streamed


@check
def responses_parse_helper(c):
    found = c.demo.responses.parse(model="demo", input="Who?", text_format=Person, max_output_tokens=100,
                                   temperature=0.8)
    assert isinstance(found.output_parsed, Person), found
    reasoned = c.scripted.responses.create(model="scripted", input="reason", temperature=0)
    equal([item.type for item in reasoned.output], ["reasoning", "message"])
    equal(reasoned.output_text, "Then I speak.")


@check
def legacy_completions_with_echo_and_logprobs(c):
    whole = c.demo.completions.create(**PROMPT)
    equal("".join(chunk.choices[0].text for chunk in c.demo.completions.create(**PROMPT, stream=True)),
          whole.choices[0].text)
    ids = c.demo.with_options(base_url=str(c.demo.base_url).replace("/v1", "")).post(
        "/tokenize", cast_to=object, body={"prompt": "ROMEO:"})["tokens"]
    for prompt in (ids, [ids], ["ROMEO:"]):
        equal(c.demo.completions.create(**{**PROMPT, "prompt": prompt}).choices[0].text, whole.choices[0].text)
    both = c.demo.completions.create(**{**PROMPT, "prompt": [ids, ids], "n": 2})
    equal([choice.index for choice in both.choices], [0, 1, 2, 3])
    echoed = c.demo.completions.create(**{**PROMPT, "prompt": "ROMEO: I am", "max_tokens": 1}, echo=True, logprobs=3)
    choice = echoed.choices[0]
    assert choice.text.startswith("ROMEO: I am"), choice.text
    logprobs = choice.logprobs
    equal(logprobs.token_logprobs[0], None)
    equal("".join(logprobs.tokens[1:]), choice.text)
    equal({len(logprobs.tokens)}, {len(logprobs.token_logprobs), len(logprobs.top_logprobs), len(logprobs.text_offset)})
    only = c.demo.completions.create(model="demo", prompt="ROMEO: I am", max_tokens=0, echo=True, logprobs=3).choices[0]
    equal(only.logprobs.token_logprobs, logprobs.token_logprobs[:-1])


@check
def parameters_of_other_servers(c):
    c.said(extra_body={"priority": -3, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "ignore_eos": True})
    c.said(user="romeo", store=False, metadata={"a": "b"}, service_tier="auto", logit_bias={"5": -100})
    regex = c.said(extra_body={"guided_regex": "[a-f]{4}"}).choices[0].message.content
    assert len(regex) == 4 and set(regex) <= set("abcdef"), regex


@contextlib.contextmanager
def running(folder, workers):
    """The servers, over this number of worker processes each."""
    with contextlib.ExitStack() as stack:
        def server(model, *flags, **more):
            if workers:
                nodes = [stack.enter_context(Worker()).address for _ in range(workers)]
                flags = (*flags, "--workers", ",".join(nodes), "--split", "uniform")
            return stack.enter_context(Server(*flags, "--api-keys", keys, **({"model": model} if model else {}), **more))
        keys = os.path.join(folder, "keys")
        with open(os.open(keys, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write("romeo:key-of-romeo\n")
        template = write_template(folder)
        yield Context(server(None, "--chat-template", template, "--alias", "demo"),
                      server(write_scripted(os.path.join(folder, "scripted")), "--alias", "scripted"),
                      server(write_encoder(os.path.join(folder, "encoder")), "--alias", "encoder"),
                      server(None, "--alias", "demo", "--parallel", "1", "--queue", "2"))


def run_python(context, where):
    failures = 0
    for function in CHECKS:
        name = function.__name__.replace("_", " ")
        try:
            function(context)
            print(f"held   python, {where}: {name}", flush=True)
        except Exception as error:  # each check is to be told of, whatever it raised
            failures += 1
            print(f"FAILED python, {where}: {name}: {type(error).__name__}: {str(error)[:600]}", flush=True)
    return failures


def run_node(context, where, folder):
    env = dict(os.environ, DEMO=str(context.demo.base_url), SCRIPTED=str(context.scripted.base_url),
               ENCODER=str(context.encoder.base_url), NARROW=str(context.narrow.base_url), WHERE=where,
               PACKAGES=os.path.abspath(folder))
    return subprocess.run(["node", ROOT / "tools/check_openai_clients.mjs"], env=env, check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", help="folder in which `npm install openai zod` was run")
    parser.add_argument("--only", default="", help="checks whose names have this")
    arguments = parser.parse_args()
    CHECKS[:] = [each for each in CHECKS if arguments.only in each.__name__.replace("_", " ")]
    print(f"openai {openai.__version__} of Python")
    failures = 0
    for where, workers in (("one process", 0), ("two workers", 2)):
        with tempfile.TemporaryDirectory() as folder, running(folder, workers) as context:
            failures += run_python(context, where)
            if arguments.node:
                failures += run_node(context, where, arguments.node)
    print(f"{failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
