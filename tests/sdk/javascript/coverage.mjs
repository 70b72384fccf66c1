// The public calls of the installed SDK, read from its type declarations: what no check names is reported as unchecked.

import { readFileSync } from 'node:fs'

// The names that a user has for the classes behind a sandbox.
const PARTS = {
  Sandbox: ['Sandbox', 'SandboxApi'],
  commands: ['Commands'],
  files: ['Filesystem'],
  pty: ['Pty'],
  git: ['Git'],
  CommandHandle: ['CommandHandle'],
  WatchHandle: ['WatchHandle'],
}
// The types of calls' options, of which checks name some.
const OPTIONS = { 'Sandbox.create': 'SandboxOpts', 'files.read': 'FilesystemReadOpts', 'files.write': 'FilesystemWriteOpts' }
// Calls without a part in the exchange with a host.
const LOCAL = ['Sandbox.getMcpUrl']
const NO_CALLS = ['constructor', 'get', 'set', 'private', 'protected']

export function publicCalls() {
  const declarations = readFileSync(`${process.env.SDK_FOLDER}/node_modules/e2b/dist/index.d.ts`, 'utf8')
  const found = new Set()
  for (const [part, classes] of Object.entries(PARTS)) {
    for (const name of classes) {
      const body = new RegExp(`^declare class ${name} [^]*?^}`, 'm').exec(declarations)?.[0] ?? ''
      for (const [, call] of body.matchAll(/^ {2,4}(?:static )?(\w+)(?:<.*>)?\(/gm)) {
        if (!NO_CALLS.includes(call)) found.add(`${part}.${call}`)
      }
    }
  }
  return found
}

// Calls without a check.
export function unchecked(calls, checks) {
  const checked = new Set(checks.flatMap((check) => check.calls.map((call) => call.replace(/\(.*/, ''))))
  return [...calls].filter((call) => !checked.has(call) && !LOCAL.includes(call)).sort()
}

// Calls that checks name and this version does not have. Options of a call, as in `files.write(gzip)`, stand in its options' types.
export function absent(calls, checks, e2b) {
  const declarations = readFileSync(`${process.env.SDK_FOLDER}/node_modules/e2b/dist/index.d.ts`, 'utf8')
  const has = (call) => {
    const [, part, method, option] = /^(\w+)\.(\w+)(?:\((\w+)\))?$/.exec(call)
    if (part === 'Interpreter') return true
    const known = part in PARTS ? calls.has(`${part}.${method}`) : typeof e2b[part]?.[method] === 'function'
    const type = () => new RegExp(`^interface ${OPTIONS[`${part}.${method}`]} [^]*?^}`, 'm').exec(declarations)[0]
    return known && (!option || new RegExp(`^\\s+${option}\\?:`, 'm').test(type()))
  }
  return new Set(checks.flatMap((check) => check.calls).filter((call) => !has(call)))
}
