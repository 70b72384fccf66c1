// Checks of an SDK's public calls: what registers and runs them, and what they work with.

import { createRequire } from 'node:module'

const require = createRequire(process.env.SDK_FOLDER + '/')
export const e2b = require('e2b')
export const sdk = require

// Of requests and commands, in milliseconds: guests may run in software emulation.
export const REQUEST_TIMEOUT = 240_000
export const COMMAND_TIMEOUT = 240_000
// Lives longer than a run.
export const SANDBOX_TIMEOUT = 3_600_000
// What a check waits for, it waits for this long.
const WAIT = 120_000

export const checks = []

// Registers a group's check of these calls, named as `coverage.mjs` names them.
export function group(name) {
  return (title, calls, work) => checks.push({ title, group: name, calls, work })
}

export function report(what) {
  process.stdout.write(JSON.stringify(what) + '\n')
}

// The error of this kind that a call must end with.
export async function raises(kind, call) {
  let result
  try {
    result = await call()
  } catch (error) {
    if (error instanceof kind) return error
    throw error
  }
  throw new Error(`no ${kind.name} was thrown; the result was ${JSON.stringify(result)}`)
}

// What a check works with: sandboxes of its own, which are killed when it ends: a host holds a dozen.
export class Context {
  #created = []
  #kept = []
  #shared

  constructor(transport) {
    this.transport = transport
  }

  // One for all checks that leave it as it was, but for files of their own.
  async sandbox() {
    this.#shared ??= this.keep(await this.create({ envs: { FRUIT: 'mango' } }))
    return this.#shared
  }

  async create(options = {}, template = 'base', Sandbox = e2b.Sandbox) {
    return this.adopt(await Sandbox.create(template, { timeoutMs: SANDBOX_TIMEOUT, requestTimeoutMs: REQUEST_TIMEOUT, ...options }))
  }

  adopt(sandbox) {
    this.#created.push(sandbox)
    return sandbox
  }

  // Has it killed at the end of the run instead of the check's.
  keep(sandbox) {
    this.#created = this.#created.filter((one) => one !== sandbox)
    this.#kept.push(sandbox)
    return sandbox
  }

  // What a command prints, without the last line's end.
  async sh(sandbox, command, options = {}) {
    const result = await sandbox.commands.run(command, { timeoutMs: COMMAND_TIMEOUT, ...options })
    return result.stdout.trimEnd()
  }

  // Asks until the answer is true, and returns it.
  async until(what, ask) {
    const deadline = Date.now() + WAIT
    for (;;) {
      const answer = await ask()
      if (answer) return answer
      if (Date.now() > deadline) throw new Error(`${what} did not come within ${WAIT / 1000} s; last: ${JSON.stringify(answer)}`)
      await new Promise((resolve) => setTimeout(resolve, 200))
    }
  }

  async endCheck() {
    await killAll(this.#created.splice(0))
  }

  async end() {
    await killAll(this.#kept.splice(0))
  }
}

async function killAll(sandboxes) {
  for (const sandbox of sandboxes) {
    // A check that failed may have left it in any state.
    await sandbox.kill().catch((error) => report({ event: 'note', text: `${sandbox.sandboxId} was not killed: ${error}` }))
  }
}

// Runs the checks of these groups, of those with a call in `absent`, which this version does not have, none.
export async function run(context, groups, text, absent) {
  for (const { title, group, calls, work } of checks) {
    if (!groups.includes(group) || !title.includes(text)) continue
    const check = title.replaceAll(/[ ,]+/g, '_')
    const without = calls.filter((call) => absent.has(call))
    if (without.length) {
      report({ event: 'check', check, calls: without, result: 'absent' })
      continue
    }
    const began = Date.now()
    const told = { event: 'check', check, calls, result: 'passed', detail: '' }
    try {
      await work(context)
    } catch (error) {
      told.result = 'failed'
      told.detail = `${error?.name}: ${error?.message}`.slice(0, 2000)
      report({ event: 'note', text: String(error?.stack) })
    }
    report({ ...told, seconds: (Date.now() - began) / 1000 })
    await context.endCheck()
  }
  await context.end()
}
