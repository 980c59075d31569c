// Started by check_openai_clients.py, which tells where the servers are: the npm client of OpenAI's API, as it is, a line
// for each check. Exit status: the number of checks that did not hold.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(path.join(process.env.PACKAGES, "package.json"));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const module_ = await load("openai");
const OpenAI = module_.default.default ?? module_.default;
const { zodResponseFormat, zodTextFormat, zodFunction } = await load("openai/helpers/zod");
const { z } = await load("zod");

const client = (url, options = {}) => new OpenAI({ baseURL: url, apiKey: "key-of-romeo", maxRetries: 0, ...options });
const { DEMO, SCRIPTED, ENCODER, NARROW, WHERE } = process.env;
const [demo, scripted, encoder, narrow] = [DEMO, SCRIPTED, ENCODER, NARROW].map((url) => client(url.replace(/\/$/, "")));
const SAY = [{ role: "user", content: "O Romeo, wherefore art thou?" }];
const SAMPLED = { model: "demo", messages: SAY, max_tokens: 24, seed: 5, temperature: 0.8 };
const PROMPT = { model: "demo", prompt: "ROMEO:", max_tokens: 16, seed: 5, temperature: 0.8 };
const TOOLS = [["weather", "city", ["Verona", "Mantua"]], ["clock", "zone", ["CET", "UTC"]]].map(([name, key, values]) => ({
  type: "function",
  function: {
    name,
    parameters: { type: "object", properties: { [key]: { type: "string", enum: values } }, required: [key],
                  additionalProperties: false },
  },
}));
const Person = z.object({ name: z.enum(["Romeo", "Juliet"]), age: z.number().int().min(0).max(99),
                          friends: z.array(z.enum(["Tybalt", "Nurse"])).max(2) });
const said = (more = {}) => demo.chat.completions.create({ ...SAMPLED, ...more });
const scriptedSaid = (word, more = {}) =>
  scripted.chat.completions.create({ model: "scripted", temperature: 0, messages: [{ role: "user", content: word }], ...more });
const collect = async (stream) => {
  const all = [];
  for await (const each of await stream) all.push(each);
  return all;
};
const textOf = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta?.content ?? "").join("");
const refused = async (kind, call, status, words) => {
  try {
    await call();
  } catch (error) {
    assert.equal(error.constructor.name, kind);
    assert.equal(error.status, status);
    assert.ok(error.message.includes(words), error.message);
    return error;
  }
  throw new Error(`nothing was refused, expected ${kind}`);
};

const checks = {
  "models list and retrieve": async () => {
    assert.deepEqual((await collect(demo.models.list())).map((model) => model.id), ["demo"]);
    assert.equal((await demo.models.retrieve("demo")).object, "model");
  },
  "chat whole and streamed are the same": async () => {
    const whole = await said();
    const chunks = await collect(said({ stream: true, stream_options: { include_usage: true } }));
    assert.equal(textOf(chunks), whole.choices[0].message.content);
    assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
    assert.deepEqual(chunks.at(-1).choices, []);
  },
  "chat stream helper": async () => {
    const deltas = [];
    const runner = scripted.chat.completions
      .stream({ model: "scripted", temperature: 0, tools: TOOLS, messages: [{ role: "user", content: "twice" }] })
      .on("content", (delta) => deltas.push(delta));
    const final = await runner.finalChatCompletion();
    assert.equal(deltas.join(""), "I look it up.");
    assert.deepEqual(final.choices[0].message.tool_calls.map((call) => call.function.name), ["weather", "clock"]);
  },
  "tools auto, required, named and their deltas": async () => {
    const auto = (await scriptedSaid("single", { tools: TOOLS })).choices[0];
    assert.equal(auto.finish_reason, "tool_calls");
    assert.deepEqual(JSON.parse(auto.message.tool_calls[0].function.arguments), { city: "Verona", days: 2 });
    for (const tool_choice of ["required", { type: "function", function: { name: "clock" } }]) {
      const whole = (await said({ tools: TOOLS, tool_choice, max_tokens: 120 })).choices[0].message.tool_calls;
      const calls = [];
      for (const chunk of await collect(said({ tools: TOOLS, tool_choice, max_tokens: 120, stream: true }))) {
        for (const part of chunk.choices[0].delta.tool_calls ?? []) {
          const call = (calls[part.index] ??= { id: part.id, name: "", arguments: "" });
          call.name += part.function.name ?? "";
          call.arguments += part.function.arguments ?? "";
        }
      }
      assert.deepEqual(calls.map((call) => [call.name, call.arguments]),
                       whole.map((call) => [call.function.name, call.function.arguments]));
      assert.ok(calls.every((call) => call.id));
    }
  },
  "runTools calls functions of the program": async () => {
    const asked = [];
    const runner = scripted.chat.completions.runTools({
      model: "scripted", temperature: 0, messages: [{ role: "user", content: "single" }],
      tools: [{ type: "function", function: { name: "weather", parse: JSON.parse, parameters: { type: "object", properties: {} },
                function: (given) => { asked.push(given); return "Sunny."; } } }],
    });
    assert.equal(await runner.finalContent(), "Plain words and no more.");
    assert.deepEqual(asked, [{ city: "Verona", days: 2 }]);
  },
  "parse helpers of zod": async () => {
    const found = await demo.chat.completions.parse({ ...SAMPLED, max_tokens: 100, response_format: zodResponseFormat(Person, "person") });
    Person.parse(found.choices[0].message.parsed);
    const tool = zodFunction({ name: "person", parameters: Person });
    const called = await demo.chat.completions.parse({ ...SAMPLED, max_tokens: 150, tools: [tool], tool_choice: "required" });
    Person.parse(called.choices[0].message.tool_calls[0].function.parsed_arguments);
    const response = await demo.responses.parse({ model: "demo", input: "Who?", temperature: 0.8, max_output_tokens: 100,
                                                  text: { format: zodTextFormat(Person, "person") } });
    Person.parse(response.output_parsed);
  },
  "reasoning, then the schema": async () => {
    const found = await scriptedSaid("reason", { max_tokens: 120, response_format: zodResponseFormat(Person, "person") });
    assert.equal(found.choices[0].message.reasoning_content, "First I weigh it all.");
    Person.parse(JSON.parse(found.choices[0].message.content));
  },
  "json_object": async () => {
    const found = await said({ response_format: { type: "json_object" }, max_tokens: 100 });
    assert.equal(typeof JSON.parse(found.choices[0].message.content), "object");
  },
  "logprobs": async () => {
    const whole = (await said({ logprobs: true, top_logprobs: 3 })).choices[0];
    const bytes = whole.logprobs.content.flatMap((token) => token.bytes);
    assert.equal(Buffer.from(bytes).toString(), whole.message.content);
    assert.ok(whole.logprobs.content.every((token) => token.top_logprobs.length === 3));
  },
  "stop, n and seed": async () => {
    const text = (await said()).choices[0].message.content;
    const stop = text.slice(6, 9);
    const stopped = (await said({ stop })).choices[0];
    assert.deepEqual([stopped.message.content, stopped.finish_reason], [text.slice(0, text.indexOf(stop)), "stop"]);
    const many = (await said({ n: 3 })).choices.map((choice) => choice.message.content);
    assert.equal(new Set(many).size, 3);
    assert.equal(many[0], text);
  },
  "errors are the client's own": async () => {
    const bad = await refused("BadRequestError", () => said({ temperature: 9 }), 400, "temperature is 9");
    assert.equal(bad.param, "temperature");
    assert.equal((await refused("NotFoundError", () => said({ model: "other" }), 404, "no model")).code, "model_not_found");
    await refused("AuthenticationError", () => client(DEMO.replace(/\/$/, ""), { apiKey: "wrong" }).models.list(), 401, "Bearer");
    const body = { ...PROMPT, max_tokens: 400, ignore_eos: true };
    const found = await Promise.allSettled(Array.from({ length: 8 }, () => narrow.completions.create(body)));
    const limited = found.filter((each) => each.status === "rejected");
    assert.ok(limited.length > 0 && limited.length < 8, `${limited.length} of 8 refused`);
    for (const each of limited) assert.equal(each.reason.constructor.name, "RateLimitError");
  },
  "a stream that is aborted ends": async () => {
    const stream = await said({ stream: true, max_tokens: 400, ignore_eos: true });
    let count = 0;
    for await (const _ of stream) if (++count === 3) stream.controller.abort();
    assert.ok(count >= 3 && count < 300, `${count} chunks`);
  },
  "embeddings, float and base64": async () => {
    const input = ["hello there", "romeo"];
    const plain = (await encoder.embeddings.create({ model: "encoder", input, encoding_format: "float" })).data;
    const standard = (await encoder.embeddings.create({ model: "encoder", input })).data;
    const coded = (await encoder.embeddings.create({ model: "encoder", input, encoding_format: "base64" })).data;
    plain.forEach((one, i) => {
      assert.equal(one.embedding.length, 32);
      assert.deepEqual(Array.from(new Float32Array(standard[i].embedding)), Array.from(new Float32Array(one.embedding)));
      const bytes = Buffer.from(coded[i].embedding, "base64");
      assert.equal(bytes.readFloatLE(4), Math.fround(one.embedding[1]));
    });
  },
  "responses whole, streamed and called": async () => {
    const body = { model: "demo", input: "O Romeo", max_output_tokens: 16, temperature: 0.8, seed: 5 };
    const whole = await demo.responses.create(body);
    const events = await collect(demo.responses.create({ ...body, stream: true }));
    const deltas = events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta);
    assert.equal(deltas.join(""), whole.output_text);
    const final = await scripted.responses.stream({ model: "scripted", input: "hello", temperature: 0 }).finalResponse();
    assert.equal(final.output_text, "Plain words and no more.");
    const tools = TOOLS.map((tool) => ({ type: "function", strict: true, ...tool.function }));
    const called = await scripted.responses.create({ model: "scripted", input: "twice", temperature: 0, tools });
    assert.deepEqual(called.output.filter((item) => item.type === "function_call").map((item) => item.name), ["weather", "clock"]);
  },
  "legacy completions with ids, echo and logprobs": async () => {
    const whole = await demo.completions.create(PROMPT);
    const chunks = await collect(demo.completions.create({ ...PROMPT, stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), whole.choices[0].text);
    const echoed = (await demo.completions.create({ ...PROMPT, echo: true, logprobs: 2, max_tokens: 1 })).choices[0];
    assert.ok(echoed.text.startsWith("ROMEO:"));
    assert.equal(echoed.logprobs.token_logprobs[0], null);
    const both = await demo.completions.create({ ...PROMPT, prompt: [[5, 6, 7], [5, 6, 7]] });
    assert.equal(both.choices[0].text, both.choices[1].text);
  },
};

let failures = 0;
for (const [name, run] of Object.entries(checks)) {
  try {
    await run();
    console.log(`held   npm, ${WHERE}: ${name}`);
  } catch (error) {
    ++failures;
    console.log(`FAILED npm, ${WHERE}: ${name}: ${error.constructor.name}: ${String(error.message).slice(0, 600)}`);
  }
}
process.exit(failures);
