// Everything that can be reached from what the code is handed, by properties and prototypes: all of it is the realm's own.
declare const tool: any, bad: any, report: any;

const seen = new Set<unknown>(), foreign: string[] = [];
const visit = (value: any, path: string) => {
  if (value === null || (typeof value !== 'object' && typeof value !== 'function') || seen.has(value)) return;
  seen.add(value);
  let top = value;
  for (let next; (next = Object.getPrototypeOf(top)) !== null; top = next) visit(next, path + '.__proto__');
  if (Object.hasOwn(top, 'hasOwnProperty') && top !== Object.prototype) foreign.push(path);
  if (typeof value === 'function' && value !== Function.prototype && !(value instanceof Function)) foreign.push(path);
  for (const key of Reflect.ownKeys(value)) {
    const property = Object.getOwnPropertyDescriptor(value, key)!, inside = path + '.' + String(key);
    for (const one of [property.value, property.get, property.set]) visit(one, inside);
    if (property.get) { try { visit(value[key], inside) } catch (error) { visit(error, inside + '!') } }
  }
};
const caught = (promise: Promise<unknown>) => promise.catch((error) => error);

export default async () => {
  visit(globalThis, 'globalThis');
  visit(tool, 'tool');
  visit(report, 'report');
  const call = tool({});
  visit(call, 'a call');
  visit(await call, 'an answer');
  visit(await caught(bad()), 'an error');
  visit(await caught(tool(() => 1)), 'a refusal');
  visit(await import('lib' as any), 'an import');
  for (const gone of ['gone', './broken.js', './throws.js', './lacks.js', 'https://x.example', '../up'])
    visit(await caught(import(gone)), gone);
  visit(await caught(import(Symbol() as any)), 'a symbol');
  visit(import.meta, 'import.meta');
  try { eval('1') } catch (error) { visit(error, 'eval') }
  let full; const f = (): void => { try { f() } catch { try { console.log(1); report(1) } catch (error) { full = error } } };
  f();
  visit(full, 'a full stack');
  visit((function () { return arguments })(), 'arguments');
  return { foreign, seen: seen.size };
};
