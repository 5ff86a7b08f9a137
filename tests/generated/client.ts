// Talks to a server through the types that openapi-typescript makes of its page. Compiled under --strict, then run.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

const [baseUrl, slug, key] = process.argv.slice(2) as [string, string, string];
const api = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });

function must<T>(answer: { data?: T; error?: components["schemas"]["Error"] }): NonNullable<T> {
  if (answer.data == null) throw new Error(`refused: ${answer.error?.code} ${answer.error?.message}`);
  return answer.data;
}

function check(holds: boolean, what: string): void {
  if (!holds) throw new Error(what);
}

async function finished(runId: string): Promise<components["schemas"]["Run"]> {
  // The stream ends with the run.
  const stream = await api.GET("/api/v1/workspaces/{slug}/agent-runs/{runId}/stream", {
    params: { path: { slug, runId } },
    parseAs: "text",
  });
  check(must(stream).includes("event: result"), "the stream has no result");
  return must(await api.GET("/api/v1/workspaces/{slug}/agent-runs/{runId}", { params: { path: { slug, runId } } }));
}

// Every optional field is left out.
const created = must(
  await api.POST("/api/v1/workspaces/{slug}/agent-runs", {
    params: { path: { slug }, header: { "Idempotency-Key": "once" } },
    body: { modelId: "scripted:hello", prompt: "hi" },
  }),
);
const run = await finished(created.runId);
check(run.status === "succeeded", `the run is ${run.status}`);

const agent = must(
  await api.POST("/api/v1/workspaces/{slug}/agents", {
    params: { path: { slug } },
    body: { name: "Greeter", spec: { modelId: "scripted:hello", reasoningLevel: "xhigh" } },
  }),
);
const session = must(
  await api.POST("/api/v1/workspaces/{slug}/agent-sessions", { params: { path: { slug } }, body: { agentId: agent.id } }),
);
const path = { slug, sessionId: session.sessionId };
const said = must(
  await api.POST("/api/v1/workspaces/{slug}/agent-sessions/{sessionId}/messages", {
    params: { path },
    body: { prompt: "hi" },
  }),
);
await finished(said.runId);
const history = must(await api.GET("/api/v1/workspaces/{slug}/agent-sessions/{sessionId}", { params: { path } }));
check(history.messages.length === 2, `the session has ${history.messages.length} messages`);
check(must(await api.DELETE("/api/v1/workspaces/{slug}/agent-sessions/{sessionId}", { params: { path } })).ok, "not ok");

const models = must(await api.GET("/api/v1/workspaces/{slug}/models", { params: { path: { slug } } }));
check(models.models.some((model) => model.id === "scripted:hello"), "the model is not listed");
const tool = must(
  await api.POST("/api/v1/workspaces/{slug}/tools", {
    params: { path: { slug } },
    body: { name: "look_up", url: "https://example.org/" },
  }),
);
must(
  await api.PATCH("/api/v1/workspaces/{slug}/tools/{toolId}", {
    params: { path: { slug, toolId: tool.id } },
    body: { description: "Looks a word up." },
  }),
);

const missing = await api.GET("/api/v1/workspaces/{slug}/agent-runs/{runId}", {
  params: { path: { slug, runId: "run_none" } },
});
check(missing.error?.code === "not_found", `an unknown run is ${missing.error?.code}`);
console.log("all is well");
