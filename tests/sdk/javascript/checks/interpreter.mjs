// The code interpreter's SDK. Its server is part of E2B's own templates and not of the base template: what it says to its port
// is checked against `guest/interpreter.py`, put there by the check.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { group, sdk } from '../suite.mjs'

const check = group('interpreter')
const server = new URL('../../guest/interpreter.py', import.meta.url)
let shared

check('its sandbox is a sandbox', ['Interpreter.create', 'Interpreter.commands', 'Interpreter.files'], async (t) => {
  const sandbox = await create(t)

  await sandbox.files.write('note', 'kept')

  assert.equal(await t.sh(sandbox, 'cat note'), 'kept')
})

check('the template runs code', ['Interpreter.runCode'], async (t) => {
  const sandbox = await create(t)

  assert.equal((await sandbox.runCode('6 * 7')).text, '42')
})

check('code runs and its output streams', ['Interpreter.runCode(transport)'], async (t) => {
  const sandbox = await interpreter(t)
  let out = ''

  const execution = await sandbox.runCode("print('some text'); 6 * 7", { onStdout: (message) => void (out += message.line) })

  assert.equal(execution.text, '42')
  assert.equal(out, 'some text\n')
})

check('an error of the code is no error of the call', ['Interpreter.runCode(transport)'], async (t) => {
  const sandbox = await interpreter(t)

  const execution = await sandbox.runCode('1 / 0')

  assert.equal(execution.error.name, 'ZeroDivisionError')
})

const calls = ['createCodeContext', 'listCodeContexts', 'restartCodeContext', 'removeCodeContext']
check('contexts keep their variables apart', calls.map((call) => `Interpreter.${call}(transport)`), async (t) => {
  const sandbox = await interpreter(t)
  const ids = async () => (await sandbox.listCodeContexts()).map((one) => one.id)

  const context = await sandbox.createCodeContext({ cwd: '/tmp' })
  await sandbox.runCode('number = 5', { context })
  const kept = await sandbox.runCode('number', { context })
  await sandbox.restartCodeContext(context)
  const gone = await sandbox.runCode('number', { context })
  const listed = await ids()
  await sandbox.removeCodeContext(context)

  assert.equal(kept.text, '5')
  assert.equal(gone.error.name, 'NameError')
  assert.ok(listed.includes(context.id))
  assert.ok(!(await ids()).includes(context.id))
})

const create = (t) => t.create({}, 'base', sdk('@e2b/code-interpreter').Sandbox)

// A sandbox in which the server answers.
async function interpreter(t) {
  if (!shared) {
    const sandbox = await create(t)
    await sandbox.files.write('interpreter.py', readFileSync(server, 'utf8'))
    await sandbox.commands.run('exec python3 interpreter.py', { background: true, timeoutMs: 0 })
    await t.until('the interpreter', async () => {
      try {
        return (await sandbox.runCode('1')).text === '1'
      } catch (error) {
        // Its port is not open yet.
        if (!/not open|502/.test(error.message)) throw error
      }
    })
    shared = t.keep(sandbox)
  }
  return shared
}
