// Commands: their output, their input, and their lives.

import assert from 'node:assert/strict'
import { COMMAND_TIMEOUT, e2b, group, raises } from '../suite.mjs'

const check = group('commands')
const background = { background: true, timeoutMs: COMMAND_TIMEOUT }

check('run returns output and status', ['commands.run'], async (t) => {
  const sandbox = await t.sandbox()

  const result = await sandbox.commands.run('echo out; echo err >&2')

  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
})

check('run throws for a status other than zero', ['commands.run'], async (t) => {
  const sandbox = await t.sandbox()

  const error = await raises(e2b.CommandExitError, () => sandbox.commands.run('echo why >&2; exit 3'))

  assert.deepEqual([error.exitCode, error.stderr], [3, 'why\n'])
})

check('run takes environment, folder and user', ['commands.run'], async (t) => {
  const sandbox = await t.sandbox()

  const mine = await t.sh(sandbox, 'id -un; pwd; echo $FRUIT $PLANT')
  const other = await t.sh(sandbox, 'id -un; pwd; echo $FRUIT $PLANT', { user: 'root', cwd: '/tmp', envs: { PLANT: 'fern' } })

  assert.equal(mine, 'user\n/home/user\nmango')
  assert.equal(other, 'root\n/tmp\nmango fern')
})

check('run gives output as it comes', ['commands.run'], async (t) => {
  const sandbox = await t.sandbox()
  let out = ''
  let err = ''

  await sandbox.commands.run('for n in 1 2 3; do echo o$n; echo e$n >&2; done', {
    onStdout: (text) => void (out += text),
    onStderr: (text) => void (err += text),
  })

  assert.deepEqual([out, err], ['o1\no2\no3\n', 'e1\ne2\ne3\n'])
})

check('run returns long output whole', ['commands.run'], async (t) => {
  const sandbox = await t.sandbox()

  const output = await t.sh(sandbox, "seq -f 'line %.0f' 1 60000")

  assert.ok(output === Array.from({ length: 60000 }, (_, n) => `line ${n + 1}`).join('\n'))
})

check('run ends at its timeout', ['commands.run'], async (t) => {
  const sandbox = await t.sandbox()

  await raises(e2b.TimeoutError, () => sandbox.commands.run('sleep 600', { timeoutMs: 2000 }))
})

check('a background command is waited for', ['commands.run', 'CommandHandle.wait'], async (t) => {
  const sandbox = await t.sandbox()

  const handle = await sandbox.commands.run('echo begun; sleep 0.2; echo done', background)
  const result = await handle.wait()

  assert.ok(handle.pid > 0)
  assert.equal(result.stdout, 'begun\ndone\n')
})

check('a listed command is killed once', ['commands.list', 'commands.kill'], async (t) => {
  const sandbox = await t.sandbox()
  const handle = await sandbox.commands.run('sleep 601', background)

  const listed = (await sandbox.commands.list()).find((process) => process.pid === handle.pid)
  const first = await sandbox.commands.kill(handle.pid)
  await raises(e2b.CommandExitError, () => handle.wait())
  const second = await sandbox.commands.kill(handle.pid)

  assert.ok(listed.args.includes('sleep 601'), JSON.stringify(listed))
  assert.deepEqual([first, second], [true, false])
})

check('a handle kills its command', ['CommandHandle.kill'], async (t) => {
  const sandbox = await t.sandbox()
  const handle = await sandbox.commands.run('sleep 602', background)

  const killed = await handle.kill()

  await raises(e2b.CommandExitError, () => handle.wait())
  assert.equal(killed, true)
})

check('a command outlives its connection', ['commands.connect', 'CommandHandle.disconnect', 'commands.sendStdin'], async (t) => {
  const sandbox = await t.sandbox()
  const first = await sandbox.commands.run('read line; echo got $line', { ...background, stdin: true })

  await first.disconnect()
  const second = await sandbox.commands.connect(first.pid, { timeoutMs: COMMAND_TIMEOUT })
  await sandbox.commands.sendStdin(first.pid, 'hello\n')
  const result = await second.wait()

  assert.equal(result.stdout, 'got hello\n')
})

check('closing its input ends a reader', ['commands.closeStdin'], async (t) => {
  const sandbox = await t.sandbox()
  const handle = await sandbox.commands.run('cat', { ...background, stdin: true })

  await sandbox.commands.sendStdin(handle.pid, 'one\n')
  await sandbox.commands.closeStdin(handle.pid)
  const result = await handle.wait()

  assert.equal(result.stdout, 'one\n')
})

check('a handle feeds its command', ['CommandHandle.sendStdin', 'CommandHandle.closeStdin'], async (t) => {
  const sandbox = await t.sandbox()
  const handle = await sandbox.commands.run('cat', { ...background, stdin: true })

  await handle.sendStdin('two\n')
  await handle.closeStdin()
  const result = await handle.wait()

  assert.equal(result.stdout, 'two\n')
})
