// The official TypeScript client's own OAuth flow: given a URL and nothing else, it finds out where to register, has a
// person allow it, connects, lists the tools and calls one.
//
//     node oauth.mjs FOLDER sdk|client URL PASSWORD
//
// `sdk` is the first generation of the package, `client` the second.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [folder, generation, address, password] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/package.json`));
const load = (name) => import(pathToFileURL(require.resolve(name)));

const modules =
  generation === 'sdk'
    ? [
        '@modelcontextprotocol/sdk/client/index.js',
        '@modelcontextprotocol/sdk/client/streamableHttp.js',
        '@modelcontextprotocol/sdk/client/auth.js'
      ]
    : ['@modelcontextprotocol/client'];
const { Client, StreamableHTTPClientTransport, UnauthorizedError } = Object.assign(
  {},
  ...(await Promise.all(modules.map(load)))
);

const REDIRECT = 'http://127.0.0.1:33418/callback';

class Provider {
  get redirectUrl() {
    return REDIRECT;
  }
  get clientMetadata() {
    return {
      client_name: `TypeScript ${generation}`,
      redirect_uris: [REDIRECT],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none'
    };
  }
  clientInformation() {
    return this.client;
  }
  saveClientInformation(client) {
    this.client = client;
  }
  tokens() {
    return this.given;
  }
  saveTokens(tokens) {
    this.given = tokens;
  }
  redirectToAuthorization(url) {
    this.page = url;
  }
  saveCodeVerifier(verifier) {
    this.verifier = verifier;
  }
  codeVerifier() {
    return this.verifier;
  }
}

// A browser that keeps cookies, and a person who signs in and says yes.
const cookies = new Map();
async function visit(url, form) {
  const reply = await fetch(url, {
    method: form ? 'POST' : 'GET',
    redirect: 'manual',
    headers: {
      cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; '),
      ...(form ? { origin: new URL(url).origin } : {})
    },
    body: form && new URLSearchParams(form)
  });
  for (const cookie of reply.headers.getSetCookie()) {
    const [name, value] = cookie.split(';')[0].split('=');
    cookies.set(name, value);
  }
  return { status: reply.status, location: reply.headers.get('location'), text: await reply.text() };
}
const hidden = (page) => page.text.match(/name="token" value="([^"]+)"/)[1];

async function allow(page) {
  const signIn = await visit(page);
  const form = { token: hidden(signIn), email: 'ann@example.com', password };
  const signedIn = await visit(new URL('/api/oauth/sign-in', page), form);
  const question = await visit(new URL(signedIn.location, page));
  const answer = await visit(new URL('/api/oauth/authorize/decide', page), {
    token: hidden(question),
    decision: 'approve'
  });
  return new URL(answer.location).searchParams;
}

function check(condition, what) {
  if (!condition) {
    console.error(`typescript ${generation}: FAILED: ${what}`);
    process.exit(1);
  }
}

const provider = new Provider();
const open = () => new StreamableHTTPClientTransport(new URL(address), { authProvider: provider });
const first = open();
try {
  await new Client({ name: 'host', version: '1' }).connect(first);
  check(false, 'it was let in without a login');
} catch (error) {
  check(error instanceof UnauthorizedError, `it was not asked to log in: ${error}`);
}
check(provider.client?.client_id, 'it did not register');
const answer = await allow(provider.page);
await first.finishAuth(generation === 'sdk' ? answer.get('code') : answer);
check(provider.given?.scope === 'mcp:connect', 'it got another scope');

const client = new Client({ name: 'host', version: '1' });
await client.connect(open());
const { tools } = await client.listTools();
check(tools.length === 1 && tools[0].name === 'helper', 'it does not see the agent');
const result = await client.callTool({ name: 'helper', arguments: { message: 'hi' } });
check(result.content[0].text === 'Hello there', 'the agent did not answer');
await client.close();

// With an access token that is no longer good it renews itself, and asks nobody.
provider.page = undefined;
provider.given = { ...provider.given, access_token: 'mantyx_at_expired' };
const later = new Client({ name: 'host', version: '1' });
await later.connect(open());
check((await later.listTools()).tools.length === 1 && provider.page === undefined, 'it did not renew its token');
await later.close();
console.log(`typescript ${generation}: registered, allowed, connected, called an agent, renewed its token`);
process.exit(0);
