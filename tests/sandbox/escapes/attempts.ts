// Ways out of the sandbox that somebody thought of. Each returns what it got hold of; add yours at the end.
// `tool` answers with its argument, `bad` raises; SECRET_FILE, PORT and the environment variable SECRET are the host's.
declare const tool: any, bad: any, report: any, SECRET_FILE: string, PORT: number;

const made: any = (path: string) => import(path).then((all: any) => all.default);
const functionOf = (value: any) => value.constructor.constructor('return globalThis.Deno ?? globalThis.process')();

const attempts: Record<string, () => unknown> = {
  'a file by a dynamic import': () => made('file://' + SECRET_FILE),
  'a file by its path': () => made(SECRET_FILE),
  'a file as text': () => import('file://' + SECRET_FILE, { with: { type: 'text' } } as any),
  'a file as JSON': () => import('file://' + SECRET_FILE, { with: { type: 'json' } }),
  'a file behind a data URL': () => made(`data:text/javascript,import x from "file://${SECRET_FILE}" with {type:"text"};export default x`),
  'a file in capitals': () => made('FILE://' + SECRET_FILE),
  'a file after a blank': () => made(' file://' + SECRET_FILE),
  'a file with a ligature': () => made('\ufb01le://' + SECRET_FILE),
  'a file with a full-width colon': () => made('file\uff1a//' + SECRET_FILE),
  'a file behind a zero-width space': () => made('file\u200b://' + SECRET_FILE),
  'a file by climbing': () => made('./../../../../../..' + SECRET_FILE),
  'a file by encoded climbing': () => made('./%2e%2e/%2e%2e/%2e%2e' + SECRET_FILE),
  'a file by backslashes': () => made('.\\..\\..\\' + SECRET_FILE),
  'a file by a specifier that changes': () => { let n = 0; return made({ toString: () => (n++ ? 'file://' + SECRET_FILE : 'lib') } as any) },
  'a file by __proto__': () => made('__proto__'),
  'a file by constructor': () => made('constructor'),
  'a module of node': () => made('node:fs'),
  'a module of npm': () => made('npm:left-pad'),
  'the network by import': () => made(`http://127.0.0.1:${PORT}/x.js`),
  'the network by fetch': () => (globalThis as any).fetch(`http://127.0.0.1:${PORT}/`),
  'a worker': () => new (globalThis as any).Worker('data:text/javascript,1'),
  'a timer': () => (globalThis as any).setTimeout(() => 1),
  'eval': () => eval('1 + 1'),
  'eval from afar': () => (0, eval)('1 + 1'),
  'Function': () => new Function('return 1')(),
  'Reflect.construct': () => Reflect.construct(Function, ['return 1'])(),
  'an async function’s constructor': () => (async () => {}).constructor('return 1')(),
  'a generator’s constructor': () => (function* () {}).constructor('yield 1')().next(),
  'the constructor of a tool': () => functionOf(tool),
  'the constructor of its promise': () => functionOf(tool(1)),
  'the constructor of its answer': async () => functionOf(await tool({ a: 1 })),
  'the constructor of its error': async () => functionOf(await bad().catch((e: any) => e)),
  'the constructor of a refusal': async () => functionOf(await tool(() => 1).catch((e: any) => e)),
  'the constructor of a failed import': async () => functionOf(await import('gone' as any).catch((e: any) => e)),
  'the constructor of the global object': () => functionOf(globalThis),
  'the constructor of a full stack': () => { let found: any; const f = (): void => { try { f() } catch { try { console.log(1) } catch (e) { found = e } } }; f(); return functionOf(found) },
  'what a full stack leaves of an import': async () => {
    const begun: any[] = [], f = (path: string): void => { try { f(path) } catch {} if (begun.length < 600) { try { begun.push(import(path)) } catch (e) { begun.push(Promise.reject(e)) } } };
    for (const path of ['gone', 'lib', './broken.js', './then.js']) { begun.length = 0; f(path); for (const one of [...begun]) {
      const e: any = await one.catch((e: any) => e);
      if (e instanceof Error || typeof e !== 'object' || Object.prototype.toString.call(e) === '[object Module]') continue;
      // An error of the runtime's own: nothing may lead on from it.
      const seen = new Set<any>(), look = (value: any): unknown => {
        if (value === null || !/object|function/.test(typeof value) || seen.has(value)) return;
        seen.add(value);
        if (seen.size > 5) return 'a way on: ' + Reflect.ownKeys(value).map(String);
        for (const key of Reflect.ownKeys(value)) { const d: any = Reflect.getOwnPropertyDescriptor(value, key); const on = look(d.value) ?? look(d.get) ?? look(d.set); if (on) return on }
        return look(Object.getPrototypeOf(value));
      };
      const on = look(e); if (on || /boot|file:|ext:|node:/.test(e.stack)) return on ?? e.stack;
    } }
  },
  'call sites': () => { (Error as any).prepareStackTrace = (_: any, sites: any) => sites; return functionOf((new Error().stack as any)[0]) },
  'a captured stack': () => { const o: any = {}; (Error as any).captureStackTrace(o); return /boot|file:|ext:|node:/.test(o.stack) ? o.stack : undefined },
  'import.meta': () => Object.keys(import.meta).length ? JSON.stringify(import.meta) : undefined,
  'a namespace with a then': () => import('./then.js' as any).then((value: any) => functionOf(value)),
  'a thenable answer': () => tool({ then: 1 }).then((answer: any) => functionOf(answer.then.constructor)),
  'a caller': () => (function f(): any { return (f as any).caller ?? (arguments as any).callee.caller })(),
  'Deno’s own symbols': () => [Symbol.for('Deno.internal'), Symbol.for('Deno.customInspect')].map((s) => (globalThis as any)[s]).find(Boolean),
  'a proxy as an argument': () => tool(new Proxy({}, { ownKeys: () => ['a'], get: (...all) => functionOf(all[2]), getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true, value: 1 }) })),
  'a getter as an argument': () => tool({ get a() { return functionOf(this) } }),
  'a function of the host’s by its tag': async () => { const [f] = await tool([{ $f: 0 }]); return typeof f === 'function' ? f : undefined },
  'what deno shows of an error': async () => {
    const iterator = Array.prototype[Symbol.iterator], shown: any[] = [];
    const thrown = { [Symbol.for('Deno.customInspect')]: (...all: any[]) => shown.push(all), [Symbol.for('nodejs.util.inspect.custom')]: (...all: any[]) => shown.push(all), get stack() { shown.push('stack'); return '' } };
    Array.prototype[Symbol.iterator] = () => { throw thrown };
    const answer = await tool({ a: [1] }).catch(() => null);
    Array.prototype[Symbol.iterator] = iterator;
    Promise.reject(thrown);
    await tool(1);
    return shown.some((one) => one !== 'stack') || !answer ? functionOf(shown[0][1]) : undefined;
  },
  'WebAssembly': () => (globalThis as any).WebAssembly.compile(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0])),
  'shared memory': () => new (globalThis as any).SharedArrayBuffer(8),
  'decompression': () => new (globalThis as any).DecompressionStream('gzip'),
};

export default async () => {
  const got: Record<string, string> = {};
  for (const [name, attempt] of Object.entries(attempts)) {
    try { const value = await attempt(); if (value !== undefined && value !== null) got[name] = String(value).slice(0, 200) } catch {}
  }
  return got;
};
