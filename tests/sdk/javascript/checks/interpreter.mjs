// The code interpreter's SDK, on the example that is made for it: docs/examples/code-interpreter, under the name that the SDK asks
// for where its user names no template.

import assert from 'node:assert/strict'
import { group, sdk } from '../suite.mjs'

const check = group('interpreter')
let shared

check('its sandbox is a sandbox', ['Interpreter.create', 'Interpreter.commands', 'Interpreter.files'], async (t) => {
  const sandbox = await interpreter(t)

  await sandbox.files.write('note', 'kept')

  assert.equal(await t.sh(sandbox, 'cat note'), 'kept')
})

check('code runs and its output streams', ['Interpreter.runCode'], async (t) => {
  const sandbox = await interpreter(t)
  let out = ''

  const execution = await sandbox.runCode("print('some text'); 6 * 7", { onStdout: (message) => void (out += message.line) })

  assert.equal(execution.text, '42')
  assert.equal(out, 'some text\n')
})

check('an error of the code is no error of the call', ['Interpreter.runCode'], async (t) => {
  const sandbox = await interpreter(t)

  const execution = await sandbox.runCode('1 / 0')

  assert.equal(execution.error.name, 'ZeroDivisionError')
})

check('a chart is a picture and data', ['Interpreter.runCode'], async (t) => {
  const sandbox = await interpreter(t)

  const execution = await sandbox.runCode("import matplotlib.pyplot as plt; plt.bar(['a', 'b'], [3, 4], label='sold'); plt.show()")

  const [result] = execution.results.filter((one) => one.png)
  assert.equal(Buffer.from(result.png, 'base64').subarray(1, 4).toString(), 'PNG')
  assert.equal(result.chart.type, 'bar')
  assert.deepEqual(result.chart.elements.map(({ label, group, value }) => [label, group, value]), [['a', 'sold', 3], ['b', 'sold', 4]])
})

const calls = ['createCodeContext', 'listCodeContexts', 'restartCodeContext', 'removeCodeContext']
check('contexts keep their variables apart', calls.map((call) => `Interpreter.${call}`), async (t) => {
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

async function interpreter(t) {
  shared ??= t.keep(await t.create({}, 'code-interpreter-v1', sdk('@e2b/code-interpreter').Sandbox))
  return shared
}
