// Calls outside of `Sandbox`: one of each kind, to see whether there is a host for them.

import assert from 'node:assert/strict'
import { e2b, group, REQUEST_TIMEOUT } from '../suite.mjs'

const check = group('others')

check('a template is found by its name', ['Template.exists'], async () => {
  assert.equal(await e2b.Template.exists('base'), true)
  assert.equal(await e2b.Template.exists('no-such-template'), false)
})

check('a template is built', ['Template.build'], async (t) => {
  const template = e2b.Template().fromTemplate('base').runCmd('touch /built')

  await e2b.Template.build(template, 'built-by-a-check', { requestTimeoutMs: REQUEST_TIMEOUT })
  const sandbox = await t.create({}, 'built-by-a-check')

  assert.ok(await sandbox.files.exists('/built'))
})

check('a volume is made', ['Volume.create'], async () => {
  const volume = await e2b.Volume.create('made-by-a-check')

  await volume.writeFile('/note', 'kept')

  assert.equal(await volume.readFile('/note'), 'kept')
})

check('a secret is made', ['Secret.create'], async () => {
  const secret = await e2b.Secret.create('MADE_BY_A_CHECK', 'value')

  assert.equal(secret.name, 'MADE_BY_A_CHECK')
})

check('a sandbox starts tool servers', ['Sandbox.create(mcp)'], async (t) => {
  const sandbox = await t.create({ mcp: { time: {} } })

  assert.ok(await sandbox.getMcpToken())
})
