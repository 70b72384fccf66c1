// Calls outside of `Sandbox`: one of each kind, to see whether there is a host for them.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { e2b, group, raises, REQUEST_TIMEOUT } from '../suite.mjs'

const check = group('others')

const SLOW = { requestTimeoutMs: REQUEST_TIMEOUT }

// A volume with a name of its own: other runs are under way on the same host.
function made() {
  return e2b.Volume.create(`of-a-check-${randomUUID()}`, SLOW)
}

check('a volume is made, found and destroyed', ['Volume.create', 'Volume.connect', 'Volume.list', 'Volume.getInfo', 'Volume.destroy'], async () => {
  const volume = await made()

  assert.equal((await e2b.Volume.getInfo(volume.volumeId, SLOW)).name, volume.name)
  assert.ok((await e2b.Volume.list(SLOW)).some((listed) => listed.volumeId === volume.volumeId))
  assert.ok((await e2b.Volume.connect(volume.volumeId, SLOW)).token)

  assert.equal(await e2b.Volume.destroy(volume.volumeId, SLOW), true)
  assert.equal(await e2b.Volume.destroy(volume.volumeId, SLOW), false)
  // Of newer versions volumes have errors of their own.
  await raises(e2b.VolumeNotFoundError ?? e2b.NotFoundError, () => e2b.Volume.connect(volume.volumeId, SLOW))
})

check('files of a volume are written and read', ['Volume.create'], async () => {
  const volume = await made()

  await volume.writeFile('/note', 'kept', SLOW)
  assert.equal(await volume.readFile('/note', SLOW), 'kept')
  await volume.makeDir('/a/b', { force: true, ...SLOW })
  assert.deepEqual((await volume.list('/a', SLOW)).map((entry) => entry.path), ['/a/b'])
  await volume.remove('/note', SLOW)
  assert.equal(await volume.exists('/note', SLOW), false)
  await e2b.Volume.destroy(volume.volumeId, SLOW)
})

check('what a sandbox writes into a volume outlives it', ['Sandbox.create(volumeMounts)'], async (t) => {
  const volume = await made()
  const sandbox = await t.create({ volumeMounts: { '/data': volume } })

  await sandbox.commands.run('echo kept > /data/note && sync')
  await sandbox.kill(SLOW)

  assert.equal(await volume.readFile('/note', SLOW), 'kept\n')
  await e2b.Volume.destroy(volume.volumeId, SLOW)
})

check('a secret is made', ['Secret.create'], async () => {
  const secret = await e2b.Secret.create('MADE_BY_A_CHECK', 'value')

  assert.equal(secret.name, 'MADE_BY_A_CHECK')
})

check('a sandbox starts tool servers', ['Sandbox.create(mcp)'], async (t) => {
  const sandbox = await t.create({ mcp: { time: {} } })

  assert.ok(await sandbox.getMcpToken())
})
