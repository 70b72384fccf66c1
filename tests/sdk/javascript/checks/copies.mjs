// Snapshots, and forks: sandboxes that begin where another one was.

import assert from 'node:assert/strict'
import { e2b, group, raises, REQUEST_TIMEOUT, SANDBOX_TIMEOUT } from '../suite.mjs'

const check = group('copies')
const snapshots = ['Sandbox.createSnapshot', 'Sandbox.listSnapshots', 'Sandbox.deleteSnapshot']

check('a sandbox begins at a snapshot', snapshots, async (t) => {
  const sandbox = await t.create()
  await sandbox.files.write('state', 'before')

  const snapshot = await sandbox.createSnapshot({ requestTimeoutMs: REQUEST_TIMEOUT })
  await sandbox.files.write('state', 'after')
  const listed = await sandbox.listSnapshots().nextItems()
  const copy = await t.create({}, snapshot.snapshotId)
  const deleted = await e2b.Sandbox.deleteSnapshot(snapshot.snapshotId)
  const again = await e2b.Sandbox.deleteSnapshot(snapshot.snapshotId)

  assert.deepEqual(listed.map((info) => info.snapshotId), [snapshot.snapshotId])
  assert.equal(await copy.files.read('state'), 'before')
  assert.equal(await sandbox.files.read('state'), 'after')
  assert.deepEqual([deleted, again], [true, false])
})

check('no snapshot is taken of what is not there', ['Sandbox.createSnapshot'], async () => {
  await raises(e2b.NotFoundError, () => e2b.Sandbox.createSnapshot('i0nosuchsandbox0'))
})

check('forks go on from one moment', ['Sandbox.fork'], async (t) => {
  const sandbox = await t.create()
  const handle = await sandbox.commands.run('sleep 604', { background: true, timeoutMs: 0 })
  await sandbox.files.write('state', 'shared')

  const forks = await sandbox.fork({ count: 2, timeoutMs: SANDBOX_TIMEOUT, requestTimeoutMs: REQUEST_TIMEOUT })
  for (const fork of forks) {
    assert.ok(fork instanceof e2b.Sandbox, String(fork))
    t.adopt(fork)
  }
  await forks[0].files.write('state', 'of the first')

  assert.equal(new Set([sandbox, ...forks].map((one) => one.sandboxId)).size, 3)
  assert.equal(await forks[1].files.read('state'), 'shared')
  assert.equal(await sandbox.files.read('state'), 'shared')
  assert.ok((await forks[1].commands.list()).some((process) => process.pid === handle.pid))
})
