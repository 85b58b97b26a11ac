// What a user of the OpenAI JavaScript SDK sees: prints the same facts as clients/journey.py, as one JSON object.
// Started by tests/e2e/test_sdk.py as `node journey.mjs`, with its settings as JSON on standard input. Asserts nothing.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { text as readAll } from "node:stream/consumers";

// The SDK lies in the user's cache (infra/setup/sdk.py), outside the places where Node looks by itself.
const nodeModules = process.env.WEIR_NODE_MODULES;
const { OpenAI, APIError } = createRequire(join(nodeModules, "client.js"))("openai");
const VERSION = JSON.parse(readFileSync(join(nodeModules, "openai", "package.json"), "utf8")).version;

const settings = JSON.parse(await readAll(process.stdin));
const clientOf = (apiKey) => new OpenAI({ apiKey, baseURL: settings.base_url, timeout: 60_000, maxRetries: 0 });
const client = clientOf(settings.api_key);
const other = clientOf(settings.other_api_key);
const model = settings.model;

const chatRequest = () => ({
  model,
  messages: [{ role: "user", content: `Answer in one line. say: ${settings.said}` }],
  max_tokens: 48,
  temperature: 0,
});
const completionRequest = () => ({ model, prompt: `say: ${settings.said}`, max_tokens: 16, temperature: 0 });
const endless = () => ({ ...chatRequest(), max_tokens: 2000, ignore_eos: true });
const bareId = (id) => id.replace(/^chatcmpl-/, "");
const deltaText = (choice) => choice.delta.content ?? "";
const plainText = (choice) => choice.text ?? "";

const scenarios = {
  async versions() {
    return { sdk: VERSION };
  },

  async models() {
    const listed = [];
    for await (const item of client.models.list()) listed.push(item.id);
    return { listed, retrieved: await client.models.retrieve(model) };
  },

  async chat() {
    const { data, response } = await client.chat.completions.create(chatRequest()).withResponse();
    const choice = data.choices[0];
    return {
      id: data.id,
      object: data.object,
      model: data.model,
      created: data.created,
      role: choice.message.role,
      text: choice.message.content,
      finish_reason: choice.finish_reason,
      usage: data.usage,
      request_id: response.headers.get("x-request-id"),
      rate_headers: [...response.headers.keys()].filter((name) => name.startsWith("x-ratelimit-")).sort(),
    };
  },

  async chat_stream() {
    return streamed(await client.chat.completions.create({ ...chatRequest(), stream: true }), deltaText);
  },

  async chat_stream_usage() {
    const request = { ...chatRequest(), stream: true, stream_options: { include_usage: true } };
    return streamed(await client.chat.completions.create(request), deltaText);
  },

  async completion() {
    const data = await client.completions.create(completionRequest());
    const choice = data.choices[0];
    return { id: data.id, object: data.object, text: choice.text, finish_reason: choice.finish_reason, usage: data.usage };
  },

  async completion_stream() {
    const request = { ...completionRequest(), stream: true, stream_options: { include_usage: true } };
    return streamed(await client.completions.create(request), plainText);
  },

  async choices() {
    const data = await client.chat.completions.create({ ...endless(), temperature: 0.7, max_tokens: 8, n: 2 });
    return {
      indexes: data.choices.map((choice) => choice.index),
      texts: data.choices.map((choice) => choice.message.content),
      usage: data.usage,
    };
  },

  async second_turn() {
    const messages = [
      { role: "system", content: settings.long_text },
      { role: "user", content: "Name one thing." },
    ];
    const first = await turn(client, messages);
    messages.push({ role: "assistant", content: first.text }, { role: "user", content: "And another?" });
    return { first, second: await turn(client, messages), other: await turn(other, messages) };
  },

  async cancel_stream() {
    const stream = await client.chat.completions.create({ ...endless(), stream: true });
    let seen = 0;
    let requestId = "";
    for await (const chunk of stream) {
      requestId = bareId(chunk.id);
      seen += 1;
      if (seen === 3) break; // the SDK aborts the connection when the loop is left
    }
    const closed = performance.now();
    const request = await settled(requestId);
    return { seen, request, seconds: (performance.now() - closed) / 1000 };
  },

  async cancel_route() {
    const stream = await client.chat.completions.create({ ...endless(), stream: true });
    let reply = null;
    let requestId = "";
    let ended = { class: "none" };
    try {
      for await (const chunk of stream) {
        if (reply === null) {
          requestId = bareId(chunk.id);
          reply = await client.post(`/requests/${requestId}/cancel`);
        }
      }
    } catch (error) {
      ended = described(error);
    }
    return { reply, ended, request: await settled(requestId) };
  },

  async errors() {
    const good = chatRequest();
    const create = (changes) => () => client.chat.completions.create({ ...good, ...changes });
    return {
      unknown_key: await raised(() => clientOf("weir_thiskeyhasneverbeenmade0000000000000000").models.list()),
      unknown_model: await raised(create({ model: "no-such-model" })),
      unknown_model_retrieved: await raised(() => client.models.retrieve("no-such-model")),
      bad_temperature: await raised(create({ temperature: 9 })),
      unknown_field: await raised(create({ no_such_field: 1 })),
      too_long: await raised(create({ max_tokens: 10_000_000 })),
      bad_stream: await raised(create({ temperature: 9, stream: true })),
      request_of_another: await raised(async () => {
        const data = await client.chat.completions.create(chatRequest());
        return other.get(`/requests/${bareId(data.id)}`);
      }),
    };
  },

  async usage() {
    const query = { start_time: settings.started_at, bucket_width: "1h", group_by: ["model"] };
    return client.get("/usage", { query });
  },
};

async function turn(who, messages) {
  const data = await who.chat.completions.create({ model, messages, max_tokens: 8, temperature: 0 });
  return { text: data.choices[0].message.content, usage: data.usage };
}

async function streamed(stream, textOf) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  const withChoices = chunks.filter((chunk) => chunk.choices.length > 0);
  const distinct = (values) => [...new Set(values)].sort();
  return {
    ids: distinct(chunks.map((chunk) => chunk.id)),
    objects: distinct(chunks.map((chunk) => chunk.object)),
    models: distinct(chunks.map((chunk) => chunk.model)),
    text: withChoices.map((chunk) => textOf(chunk.choices[0])).join(""),
    finish_reasons: withChoices.map((chunk) => chunk.choices[0].finish_reason).filter((reason) => reason),
    chunks_with_text: withChoices.filter((chunk) => textOf(chunk.choices[0])).length,
    usages: chunks.map((chunk) => chunk.usage).filter((usage) => usage),
    last_has_choices: chunks.at(-1).choices.length > 0,
  };
}

async function settled(requestId) {
  const deadline = performance.now() + 15_000;
  for (;;) {
    const found = await client.get(`/requests/${requestId}`);
    if ((found.status === "ended" && found.usage) || performance.now() > deadline) return found;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function raised(call) {
  try {
    await call();
  } catch (error) {
    return described(error);
  }
  return { class: "none" };
}

function described(error) {
  if (!(error instanceof APIError)) throw error;
  const { status, code, param, type, message } = error;
  return {
    class: error.constructor.name,
    status: status ?? null,
    code: code ?? null,
    param: param ?? null,
    type: type ?? null,
    request_id: error.requestID ?? null,
    message,
  };
}

const facts = {};
for (const [name, scenario] of Object.entries(scenarios)) {
  try {
    facts[name] = await scenario();
  } catch (error) {
    facts[name] = { raised: `${error.constructor.name}: ${error.message}` };
  }
}
process.stdout.write(JSON.stringify(facts));
