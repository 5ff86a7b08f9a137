// What a deno process runs before it is handed somebody's code. Trusted; the code is not.
//
// There are two realms in this process. This one has Deno's API, without a permission. The code has the other: a
// context of its own, with the language's built-ins and nothing else. Deno reads any file through a static import
// without asking for permission, so the code is never part of Deno's own module graph: it lives in `vm` modules, which
// link against what they were given.
//
// No object of this realm may reach the code: from one, its prototypes lead to everything else here. So
//  * `send` is the only function of this realm that the other one has, it has no prototype, and it takes strings;
//  * what it might throw (a full stack) is caught in the other realm and thrown anew there;
//  * values cross as JSON text, and the other realm makes its own objects and errors from it;
//  * nobody here awaits a promise of the other realm, looks at an object of it, or lets deno show what it threw;
//  * an error that V8 makes here, where nobody can catch it, has nothing behind it.
// Should an object get through, the intrinsics here are frozen and strings cannot become code.
import module from 'node:module';
import vm from 'node:vm';

const { stdin, stdout } = Deno;
const strip = module.stripTypeScriptTypes;
const encoder = new TextEncoder();
const decoder = new TextDecoder();

let token = '';
let settled = false;

const write = (text) => {
  let bytes = encoder.encode(text + '\n');
  while (bytes.length) bytes = bytes.subarray(stdout.writeSync(bytes));
};

const send = Object.freeze(
  Object.setPrototypeOf((kind, payload) => {
    if (settled || typeof kind !== 'string' || typeof payload !== 'string') return;
    // The other realm encodes JSON, which has no line breaks; were its encoder fooled, they would be frames.
    if (kind.length !== 1 || payload.includes('\n') || payload.includes('\r')) return;
    if (kind === 'D' || kind === 'E') settled = true;
    write(token + kind + payload);
  }, null),
);

const context = vm.createContext(Object.create(null), { codeGeneration: { strings: false, wasm: false } });

// Runs in the code's realm, before the code: it keeps the built-ins as they are now, whatever is done to them later.
const realm = vm.runInContext(
  `((send) => {
  'use strict';
  const { parse, stringify } = JSON;
  const { apply, ownKeys, getPrototypeOf, getOwnPropertyDescriptor } = Reflect;
  const { defineProperty, freeze } = Object;
  const { isArray } = Array;
  const { isView } = ArrayBuffer;
  const { isFinite, isInteger, isSafeInteger } = Number;
  const { fromBase64 } = Uint8Array;
  const { toBase64 } = Uint8Array.prototype;
  const { then } = Promise.prototype;
  const { get: nameOfView } = getOwnPropertyDescriptor(getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag);
  const { toString: digits } = BigInt.prototype;
  const { has, add, delete: remove } = Set.prototype;
  const { get, set, has: known, delete: forget } = Map.prototype;
  const { exec } = RegExp.prototype;
  const [P, S, M, B, X] = [Promise, Set, Map, BigInt, String];
  const [E, T, R, Y] = [Error, TypeError, RangeError, SyntaxError];
  const objectPrototype = Object.prototype, arrayPrototype = Array.prototype;
  const MAX_DEPTH = 200, MAX_PARTS = 200_000, MOST = 10n ** 4000n;
  const { isWellFormed, indexOf, slice, startsWith } = String.prototype;

  // A promise of the code's is awaited by trusted code too: what that calls must stay what it is.
  freeze(P.prototype);
  freeze(P);
  for (const name of ['WebAssembly', 'queueMicrotask', 'SharedArrayBuffer', 'Atomics', 'console']) delete globalThis[name];

  // Whatever trusted code throws belongs to its realm: here it becomes an error of this one.
  const say = (kind, payload) => {
    let whole = false;
    try { send(kind, payload); whole = true; } catch {}
    if (!whole) throw new R('Maximum call stack size exceeded');
  };
  const own = (target, key, value) =>
    defineProperty(target, key, { __proto__: null, value, writable: true, enumerable: true, configurable: true });
  const plainKey = /^[A-Za-z_$][\\w$]*$/;
  const dotted = (path, key) => (apply(exec, plainKey, [key]) ? path + '.' + key : path + '[' + stringify(key) + ']');
  const refused = (at, depth, what) => {
    let path = at.path;
    for (let i = 0; i < depth; i++) path = typeof at[i] === 'number' ? path + '[' + at[i] + ']' : dotted(path, at[i]);
    return new T(path + ': ' + what + ' cannot leave the sandbox');
  };

  // at has the keys on the way to the value: only what is refused needs its path. room counts for a whole frame.
  const encoded = (value, at, depth, seen, room) => {
    if (--room.left < 0) throw refused(at, 0, 'a value of more than 200,000 parts');
    switch (typeof value) {
      case 'undefined': return 'null';
      case 'boolean': return value ? 'true' : 'false';
      case 'string': return stringify(value);
      case 'number':
        if (!isFinite(value)) throw refused(at, depth, 'the number ' + value);
        // Written as JavaScript does it would be read as another integer.
        if (isInteger(value) && !isSafeInteger(value) && value < 1e21 && value > -1e21)
          return '{"$i":"' + apply(digits, B(value), []) + '"}';
        return value === 0 ? '0' : '' + value;
      case 'bigint': {
        if (value >= MOST || value <= -MOST) throw refused(at, depth, 'an integer of more than 4,000 digits');
        return '{"$i":"' + apply(digits, value, []) + '"}';
      }
      case 'function': throw refused(at, depth, 'a function');
      case 'symbol': throw refused(at, depth, 'a symbol');
    }
    if (value === null) return 'null';
    if (depth > MAX_DEPTH) throw refused(at, depth, 'a value nested more than ' + MAX_DEPTH + ' deep');
    if (apply(has, seen, [value])) throw refused(at, depth, 'a value that contains itself');
    if (isView(value)) {
      if (apply(nameOfView, value, []) !== 'Uint8Array') throw refused(at, depth, 'a view that is not a Uint8Array');
      let text;
      try { text = apply(toBase64, value, []); } catch { throw refused(at, depth, 'bytes that were given away'); }
      return '{"$b":"' + text + '"}';
    }
    apply(add, seen, [value]);
    let text = '', list;
    try { list = isArray(value); } catch { throw refused(at, depth, 'a proxy that was revoked'); }
    if (list) {
      const length = value.length;
      for (let i = 0; i < length; i++) {
        at[depth] = i;
        text += (i ? ',' : '') + encoded(value[i], at, depth + 1, seen, room);
      }
      text = '[' + text + ']';
    } else {
      const prototype = getPrototypeOf(value);
      if (prototype !== null && prototype !== objectPrototype) {
        let name = 'another class';
        try { name = prototype.constructor.name || name; } catch {}
        throw refused(at, depth, 'an instance of ' + X(name));
      }
      let tagged = false, first = true;
      const keys = ownKeys(value);
      for (let i = 0; i < keys.length; i++) {
        const key = keys[i];
        if (typeof key === 'symbol') throw refused(at, depth, 'a key that is a symbol');
        const property = getOwnPropertyDescriptor(value, key);
        if (!property || !property.enumerable) continue;
        if (key[0] === '$') tagged = true;
        at[depth] = key;
        if (!apply(isWellFormed, key, [])) throw refused(at, depth + 1, 'a key with half a character');
        text += (first ? '' : ',') + stringify(key) + ':' + encoded(value[key], at, depth + 1, seen, room);
        first = false;
      }
      text = tagged ? '{"$o":{' + text + '}}' : '{' + text + '}';
    }
    apply(remove, seen, [value]);
    return text;
  };
  const encode = (value, path, room = { __proto__: null, left: MAX_PARTS }) => {
    const at = { __proto__: null, path };
    try { return encoded(value, at, 0, new S(), room); }
    catch (error) {
      if (error !== null && typeof error === 'object' && getPrototypeOf(error) === R.prototype) throw refused(at, 0, 'a value nested too deeply');
      throw error;
    }
  };

  // Stacks are text of the code's own frames, and nobody is handed the call sites behind them.
  const labels = new S();
  const stack = (error, sites) => {
    let text = 'Error';
    try { text = X(error); } catch {}
    for (let i = 0; i < sites.length; i++) {
      if (apply(has, labels, [sites[i].getFileName()])) text += '\\n    at ' + sites[i].toString();
    }
    return text;
  };
  defineProperty(E, 'prepareStackTrace', { __proto__: null, value: stack, writable: false, configurable: false });

  const frames = (error) => {
    let text = '';
    try { text = apply(slice, error.stack, [apply(indexOf, error.stack, ['\\n    at '])]); } catch {}
    return apply(startsWith, text, ['\\n    at ']) ? text : '';
  };

  let calls = 0;
  const waiting = new M();
  const bridged = (id) => (...args) =>
    new P((resolve, reject) => {
      let text = '';
      const room = { __proto__: null, left: MAX_PARTS };
      for (let i = 0; i < args.length; i++) text += (i ? ',' : '') + encode(args[i], 'arguments[' + i + ']', room);
      const call = ++calls;
      apply(set, waiting, [call, { __proto__: null, resolve, reject, site: new E() }]);
      say('C', '[' + call + ',' + id + ',[' + text + ']]');
    });

  const decoded = (value) => {
    if (value === null || typeof value !== 'object') return value;
    if (isArray(value)) {
      for (let i = 0; i < value.length; i++) own(value, i, decoded(value[i]));
      return value;
    }
    // Loops by index: the code may have changed how arrays are iterated.
    let keys = ownKeys(value);
    if (keys.length === 1) {
      const key = keys[0];
      if (key === '$b') return fromBase64(value.$b);
      if (key === '$i') return B(value.$i);
      if (key === '$f') return bridged(value.$f);
      if (key === '$o') keys = ownKeys((value = value.$o));
    }
    for (let i = 0; i < keys.length; i++) own(value, keys[i], decoded(value[keys[i]]));
    return value;
  };
  const decode = (text) => decoded(parse(text));

  const described = (status, error) => {
    let name = 'Error', message = '', stack = '';
    try {
      if (error !== null && typeof error === 'object' && 'message' in error) {
        name = X(error.name);
        message = X(error.message);
        stack = typeof error.stack === 'string' ? error.stack : '';
      } else message = X(error);
    } catch { message = 'An error that cannot be shown'; }
    return stringify({ __proto__: null, status, name, message, stack });
  };
  const fail = (status, error) => say('E', described(status, error));
  const succeed = (value) => {
    let text;
    try { text = encode(value, 'result'); } catch (error) { return fail('error', error); }
    let left = '';
    for (let call = 1; call <= calls; call++) if (apply(known, waiting, [call])) left += (left && ',') + call;
    if (left) say('O', '[' + left + ']');
    say('D', text);
  };
  const short = (value) => {
    let text = 'something that cannot be shown';
    try {
      // Not as a text of its own: that of a list has all of its parts, however often they occur.
      if (isArray(value)) text = 'a list of ' + value.length;
      else text = typeof value === 'function' ? 'function ' + value.name : X(value);
    } catch {}
    return text.length > 200 ? apply(slice, text, [0, 200]) + '…' : text;
  };
  const logged = (level, args) => {
    let text = '';
    const room = { __proto__: null, left: MAX_PARTS };
    for (let i = 0; i < args.length; i++) {
      let one;
      try { one = encode(args[i], 'log', room); } catch { one = stringify(short(args[i])); }
      text += (i ? ',' : '') + one;
    }
    say('L', '["' + level + '",[' + text + ']]');
  };
  const installConsole = () => {
    const made = {};
    for (const level of ['log', 'info', 'warn', 'error', 'debug']) made[level] = (...args) => logged(level, args);
    defineProperty(globalThis, 'console', { value: made, writable: true, configurable: true, enumerable: false });
  };
  const report = (value) => { say('P', encode(value, 'report')); };

  // What the trusted side calls, always with text or with something that came from this realm.
  return {
    __proto__: null,
    prepare: (files, values, reports, ownConsole) => {
      for (const file of parse(files)) apply(add, labels, [file]);
      const handed = { __proto__: null, ...decode(values) };
      if (reports) handed.report = report;
      if (!ownConsole) installConsole();
      own(globalThis, '$handed', handed);
    },
    prepared: () => { delete globalThis.$handed; },
    value: decode,
    error: (syntax, message) => (syntax ? new Y(message) : new T(message)),
    fail,
    unhandled: (error) => { if (globalThis.console) logged('error', ['Unhandled rejection', short(error)]); },
    // The entry's evaluation, then the export: called if it is a function, awaited either way.
    run: (evaluation, namespace, name, args) => {
      const failed = (error) => fail('error', error);
      apply(then, evaluation, [() => {
        try {
          const selected = namespace[name];
          const given = decode(args);
          if (typeof selected !== 'function' && given.length)
            throw new T('The export ' + stringify(name) + ' is not a function and takes no arguments');
          const value = typeof selected === 'function' ? apply(selected, undefined, given) : selected;
          apply(then, new P((resolve) => resolve(value)), [succeed, failed]);
        } catch (error) { failed(error); }
      }, failed]);
    },
    answer: (call, ok, first, second) => {
      const promise = apply(get, waiting, [call]);
      if (!promise) return;
      apply(forget, waiting, [call]);
      if (ok) return promise.resolve(decode(first));
      const error = new E(second);
      own(error, 'name', first);
      own(error, 'stack', first + ': ' + second + frames(promise.site));
      promise.reject(error);
    },
  };
})`,
  context,
)(send);

// Not an error of this realm, which nobody could assign to once its prototypes are frozen.
class Unlinked {
  constructor(specifier, message, place) {
    Object.assign(this, { specifier, message, name: place ? 'SyntaxError' : 'LinkError', place: place ?? {} });
  }
}

let request = { modules: {}, imports: {} };
const linked = new Map();

// The parser that erases types says where it stopped; V8's, here, does not.
function placed(source, label, error) {
  let message = String(error?.message ?? error);
  let position;
  try {
    strip(source, { mode: 'transform' });
  } catch (found) {
    const match = /^(?:SyntaxError: )?([^\n]*)[^]*?:(\d+):(\d+)\s*$/.exec(String(found.message));
    if (match) {
      position = { line: Number(match[2]), column: Number(match[3]) };
      if (error.code) message = match[1];
    }
  }
  return new Unlinked(label, message, { filename: label, ...position });
}

// Erasing types in place keeps every position. An enum needs code of its own: then lines move, and are not told.
function erased(source, label) {
  try {
    return [source === '' ? '' : strip(source), true];
  } catch (error) {
    try {
      return [strip(source, { mode: 'transform' }), false];
    } catch {
      throw placed(source, label, error);
    }
  }
}

const moved = [];

function compiled(path) {
  const known = linked.get(path);
  if (known) return known;
  const { label, source } = request.modules[path];
  let text = source;
  if (request.language === 'typescript') {
    let kept;
    [text, kept] = erased(source, label);
    if (!kept) moved.push(label);
  }
  let made;
  try {
    made = new vm.SourceTextModule(text, {
      context,
      identifier: label,
      initializeImportMeta: () => {},
      importModuleDynamically: (specifier) => dynamic(specifier, path),
    });
  } catch (error) {
    throw placed(source, label, error);
  }
  for (const { specifier, phase } of made.moduleRequests) {
    // Deno crashes over them.
    if (phase === 'source')
      throw new Unlinked(specifier, `Cannot import ${JSON.stringify(specifier)}: \`import source\` is not supported`);
  }
  made.path = path;
  linked.set(path, made);
  return made;
}

function synthetic(specifier) {
  const key = 'import:' + specifier;
  const known = linked.get(key);
  if (known) return known;
  const exported = request.imports[specifier];
  const made = new vm.SyntheticModule(
    Object.keys(exported),
    function () {
      for (const name of Object.keys(exported)) this.setExport(name, realm.value(exported[name]));
    },
    { context, identifier: specifier },
  );
  linked.set(key, made);
  return made;
}

function resolved(specifier, from) {
  const unknown = (why) => new Unlinked(specifier, `Cannot import ${JSON.stringify(specifier)}: ${why}`);
  if (/^\.{1,2}\//.test(specifier)) {
    const parts = from.split('/').slice(0, -1);
    for (const part of specifier.split('/')) {
      if (part === '..') {
        if (!parts.length) throw unknown('it leaves the module graph');
        parts.pop();
      } else if (part !== '.') parts.push(part);
    }
    const path = parts.join('/');
    if (!Object.hasOwn(request.modules, path)) throw unknown('there is no such module');
    return compiled(path);
  }
  if (Object.hasOwn(request.imports, specifier)) return synthetic(specifier);
  throw unknown(/^[A-Za-z][\w+.-]*:/.test(specifier) ? 'URLs cannot be imported' : 'there is no such import');
}

const link = (specifier, from) => resolved(specifier, from.path);

function lacking(error, fallback) {
  // V8 names the module that lacks an export in its message only.
  const match = /requested module '([^]*)' does not provide/.exec(String(error?.message));
  return new Unlinked(match ? match[1] : fallback, String(error?.message ?? error));
}

let linking = Promise.resolve();

async function dynamic(specifier, path) {
  let found;
  try {
    found = resolved(specifier, path);
    // One after the other: of two imports of one module at the same time neither may find it half linked.
    const last = linking.then(() => (found.status === 'unlinked' ? found.link(link) : undefined));
    linking = last.catch(() => {});
    await last;
  } catch (error) {
    throw realm.error(error.name === 'SyntaxError', `${error.message}`);
  }
  await found.evaluate(); // what this throws is the code's own
  return found;
}

function refuse(error) {
  const { message, name, specifier, place } = error;
  send('E', JSON.stringify({ status: 'link_error', name, message, specifier, ...place }));
}

async function start(line) {
  request = JSON.parse(line);
  token = request.token;
  const { entry, names, globals, reports, own_console, fn, args } = request;
  const files = JSON.stringify(Object.values(request.modules).map((one) => one.label));
  realm.prepare(files, globals, reports, own_console);
  const visible = reports ? [...names, 'report'] : names;
  if (visible.length) vm.runInContext(`'use strict'; const {${visible.join(',')}} = $handed`, context);
  realm.prepared();
  const label = request.modules[entry].label;
  let module;
  try {
    module = compiled(entry);
    try {
      await module.link(link);
      if (module.status === 'linked' && module.instantiate) module.instantiate();
    } catch (error) {
      throw error instanceof Unlinked ? error : lacking(error, label);
    }
    if (!(fn in module.namespace))
      throw new Unlinked(label, `The module does not export ${JSON.stringify(fn)}`);
  } catch (error) {
    return refuse(error instanceof Unlinked ? error : new Unlinked(label, String(error?.message)));
  }
  if (moved.length) write(token + 'M' + JSON.stringify(moved));
  guarded(realm.run, module.evaluate(), module.namespace, fn, args);
}

// What the other realm throws at us is dropped: deno would look at it to show it.
const guarded = (call, ...args) => {
  try {
    call(...args);
  } catch {}
};
addEventListener('unhandledrejection', (event) => {
  event.preventDefault();
  guarded(realm.unhandled, event.reason);
});
addEventListener('error', (event) => {
  event.preventDefault();
  guarded(realm.fail, 'error', event.error);
});

// The first compilation, link and evaluation cost milliseconds: they are paid before anybody waits.
{
  request = { language: 'typescript', imports: { warm: { x: '1' } }, modules: { 'warm.ts': {
    label: 'warm', source: 'import { x } from "warm"; const y: number = x; export default y' } } };
  const warm = compiled('warm.ts');
  await warm.link(link);
  await warm.evaluate();
  linked.clear();
}

// All that JavaScript itself has here, the prototypes without a name included: no code, ours included, can be made to
// run what somebody put there.
const frozen = new Set();
const freezeAll = (value) => {
  if (value === null || (typeof value !== 'object' && typeof value !== 'function') || frozen.has(value)) return;
  frozen.add(value);
  Object.freeze(value);
  freezeAll(Object.getPrototypeOf(value));
  for (const key of Reflect.ownKeys(value)) {
    const property = Reflect.getOwnPropertyDescriptor(value, key);
    freezeAll(property.value);
    freezeAll(property.get);
    freezeAll(property.set);
  }
};
const hidden = [
  [][Symbol.iterator](), new Map().entries(), new Set().values(), ''[Symbol.iterator](), 'a'.matchAll(/a/g),
  function* () {}, async function () {}, async function* () {}, (function* () {})(), (async function* () {})(),
  [].values().map((one) => one), Iterator.from({ next() {} }), new Uint8Array(), Promise.resolve(),
];
// The prototypes of segments have no name either, and the first segmenter takes some 20 ms: nobody here makes one.
delete Intl.Segmenter;

// A stack that is full when V8 or deno is entered makes an error of this realm that nobody can catch: `import()` hands
// it to the code. So errors of this realm lead nowhere: no constructor, no functions of ours behind it, and no frames.
Error.stackTraceLimit = 0;
const { get: stackOf, set: setStack } = Reflect.getOwnPropertyDescriptor(new RangeError(), 'stack');
const errors = Reflect.ownKeys(globalThis).filter((name) => typeof name === 'string' && /Error$/.test(name) &&
  typeof globalThis[name] === 'function' && (name === 'Error' || globalThis[name].prototype instanceof Error));
const cut = [stackOf, setStack, Error.prototype.toString];
for (const name of errors) cut.push(globalThis[name].prototype);
for (const one of cut) {
  if (!one) continue;
  delete one.constructor;
  Object.setPrototypeOf(one, null);
  Object.freeze(one);
}

for (const name of Object.getOwnPropertyNames(globalThis)) {
  const value = Object.getOwnPropertyDescriptor(globalThis, name).value;
  if (typeof value === 'function' && value.prototype && /^[A-Z]/.test(name)) {
    Object.freeze(value.prototype);
    Object.freeze(value);
  }
}
for (const name of ['Object', 'Function', 'Array', 'String', 'Number', 'Boolean', 'Symbol', 'BigInt', 'RegExp', 'Date',
  'Promise', 'Proxy', 'Reflect', 'JSON', 'Math', 'Map', 'Set', 'WeakMap', 'WeakSet', 'WeakRef', 'ArrayBuffer',
  'DataView', 'Uint8Array', 'Iterator', 'Intl', 'FinalizationRegistry', ...errors]) freezeAll(globalThis[name]);
for (const one of hidden) freezeAll(Object.getPrototypeOf(one));
for (const name of ['Deno', 'process', 'Buffer', 'Worker', 'fetch', 'WebSocket', 'EventSource', 'navigator', 'global',
  'localStorage', 'sessionStorage', 'caches', 'WebAssembly']) delete globalThis[name];

write('ready');

const chunk = new Uint8Array(65536);
let pending = '';
for (;;) {
  const count = await stdin.read(chunk);
  if (count === null) break;
  pending += decoder.decode(chunk.subarray(0, count), { stream: true });
  let end;
  while ((end = pending.indexOf('\n')) >= 0) {
    const line = pending.slice(0, end);
    pending = pending.slice(end + 1);
    if (!token) await start(line);
    else if (line.startsWith(token)) guarded(realm.answer, ...JSON.parse(line.slice(token.length)));
  }
}
