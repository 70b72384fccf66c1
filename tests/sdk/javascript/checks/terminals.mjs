// Pseudo-terminals.

import assert from 'node:assert/strict'
import { COMMAND_TIMEOUT, e2b, group, raises } from '../suite.mjs'

const check = group('terminals')

check('a terminal runs a shell', ['pty.create', 'pty.sendInput'], async (t) => {
  const terminal = await open(t, { envs: { TREE: 'oak' }, cwd: '/tmp' })

  await terminal.type('echo $TREE in $(pwd), $(tput cols) by $(tput lines); exit\n')

  assert.match(await terminal.rest(), /oak in \/tmp, 80 by 24/)
})

check('a terminal is resized', ['pty.resize'], async (t) => {
  const terminal = await open(t)

  await terminal.pty.resize(terminal.handle.pid, { cols: 100, rows: 30 })
  await terminal.type('stty size; exit\n')

  assert.match(await terminal.rest(), /30 100/)
})

check('a terminal is connected to', ['pty.connect'], async (t) => {
  const first = await open(t)

  const second = await open(t, {}, first.handle.pid)
  await second.type('echo $((40 + 2)); exit\n')

  assert.match(await second.rest(), /42/)
})

check('a terminal is killed once', ['pty.kill'], async (t) => {
  const terminal = await open(t)

  const killed = await terminal.pty.kill(terminal.handle.pid)
  await raises(e2b.CommandExitError, () => terminal.handle.wait())
  const again = await terminal.pty.kill(terminal.handle.pid)

  assert.deepEqual([killed, again], [true, false])
})

// A new terminal, or one more connection to that of process `pid`.
async function open(t, options = {}, pid) {
  const { pty } = await t.sandbox()
  const output = []
  const all = { cols: 80, rows: 24, timeoutMs: COMMAND_TIMEOUT, onData: (data) => void output.push(Buffer.from(data)), ...options }
  const handle = pid === undefined ? await pty.create(all) : await pty.connect(pid, all)
  return {
    pty,
    handle,
    type: (keys) => pty.sendInput(handle.pid, new TextEncoder().encode(keys)),
    // All that it showed, once its shell has ended.
    rest: async () => {
      await handle.wait()
      return Buffer.concat(output).toString()
    },
  }
}
