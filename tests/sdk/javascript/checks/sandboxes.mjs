// The life of a sandbox: created, found, kept, paused, resumed, killed.

import assert from 'node:assert/strict'
import { e2b, group, raises, REQUEST_TIMEOUT, SANDBOX_TIMEOUT } from '../suite.mjs'
import { fetchPort, request } from '../web.mjs'

const check = group('sandboxes')
const { Sandbox } = e2b
const patient = { requestTimeoutMs: REQUEST_TIMEOUT }

check('a new sandbox is as it was asked for', ['Sandbox.create', 'Sandbox.getInfo', 'Sandbox.getFullInfo'], async (t) => {
  const sandbox = await t.create({ metadata: { who: 'checks & balances' }, envs: { FRUIT: 'quince' } })

  const info = await sandbox.getInfo()
  const byId = await Sandbox.getInfo(sandbox.sandboxId)
  const full = await Sandbox.getFullInfo(sandbox.sandboxId)

  assert.match(sandbox.sandboxId, /^[a-z0-9]+$/)
  assert.deepEqual([info.sandboxId, info.state], [sandbox.sandboxId, 'running'])
  assert.deepEqual(info.metadata, { who: 'checks & balances' })
  assert.ok(info.cpuCount >= 1 && info.memoryMB >= 128 && info.startedAt < info.endAt, JSON.stringify(info))
  assert.deepEqual(byId.startedAt, info.startedAt)
  assert.equal(full.sandboxId, sandbox.sandboxId)
  assert.equal(await t.sh(sandbox, 'echo $FRUIT'), 'quince')
})

check('creating from nothing is refused', ['Sandbox.create'], async () => {
  const error = await raises(e2b.SandboxError, () => Sandbox.create('no-such-template', patient))

  assert.match(error.message, /no-such-template/)
})

check('a wrong key is refused', ['Sandbox.create'], async () => {
  await raises(e2b.AuthenticationError, () => Sandbox.create('base', { apiKey: `e2b_${'0'.repeat(40)}` }))
})

check('sandboxes are found by their metadata', ['Sandbox.list'], async (t) => {
  const wanted = { 'a b': 'c&d=%e' }
  const mine = await t.create({ metadata: wanted })
  await t.sandbox()

  const found = await Sandbox.list({ query: { metadata: wanted } }).nextItems()
  const pages = Sandbox.list({ limit: 1 })
  const first = await pages.nextItems()
  const hasMore = pages.hasNext
  const second = await pages.nextItems()

  assert.ok(found.some((info) => info.sandboxId === mine.sandboxId))
  for (const info of found) assert.deepEqual(info.metadata, wanted)
  assert.deepEqual([first.length, hasMore, second.length], [1, true, 1])
  assert.notEqual(first[0].sandboxId, second[0].sandboxId)
})

check('a killed sandbox runs no more', ['Sandbox.isRunning', 'Sandbox.kill'], async (t) => {
  const sandbox = await t.create()

  const before = await sandbox.isRunning()
  const killed = await Sandbox.kill(sandbox.sandboxId)
  const again = await Sandbox.kill(sandbox.sandboxId)
  // Says nothing in old versions.
  await sandbox.kill()

  assert.deepEqual([before, killed, again], [true, true, false])
  assert.equal(await sandbox.isRunning(), false)
  await raises(e2b.NotFoundError, () => sandbox.getInfo())
})

check('a timeout is moved', ['Sandbox.setTimeout'], async (t) => {
  const sandbox = await t.create()
  const before = await sandbox.getInfo()

  await sandbox.setTimeout(2 * SANDBOX_TIMEOUT)
  const later = await sandbox.getInfo()
  await Sandbox.setTimeout(sandbox.sandboxId, 600_000)
  const sooner = await sandbox.getInfo()

  assert.ok(later.endAt > before.endAt && before.endAt > sooner.endAt)
})

check('a running sandbox is connected to', ['Sandbox.connect'], async (t) => {
  const sandbox = await t.sandbox()
  await sandbox.files.write('for-the-next', 'seen')

  const other = await Sandbox.connect(sandbox.sandboxId, patient)

  assert.equal(other.sandboxId, sandbox.sandboxId)
  assert.equal(await other.files.read('for-the-next'), 'seen')
  await raises(e2b.NotFoundError, () => Sandbox.connect('i0nosuchsandbox0'))
})

check('a paused sandbox goes on where it was', ['Sandbox.pause', 'Sandbox.connect'], async (t) => {
  const sandbox = await t.create()
  const handle = await sandbox.commands.run('sleep 603', { background: true, timeoutMs: 0 })

  const paused = await sandbox.pause(patient)
  const again = await sandbox.pause(patient)
  const { state } = await sandbox.getInfo()
  const running = await sandbox.isRunning()
  const resumed = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: SANDBOX_TIMEOUT, ...patient })
  const processes = (await resumed.commands.list()).map((process) => process.pid)

  assert.deepEqual([paused, again, state, running], [true, false, 'paused', false])
  assert.ok(processes.includes(handle.pid), String(processes))
})

check('the former name of pause works', ['Sandbox.betaPause'], async (t) => {
  const sandbox = await t.create()

  await sandbox.betaPause(patient)

  assert.equal((await sandbox.getInfo()).state, 'paused')
})

check('the former name of create works', ['Sandbox.betaCreate'], async (t) => {
  const sandbox = t.adopt(await Sandbox.betaCreate('base', { timeoutMs: SANDBOX_TIMEOUT, autoPause: true, ...patient }))

  assert.equal(await t.sh(sandbox, 'echo here'), 'here')
})

const waking = ['Sandbox.create(lifecycle)', 'Sandbox.setTimeout']
check('a sandbox pauses at its timeout and wakes for a request', waking, async (t) => {
  const sandbox = await t.create({ lifecycle: { onTimeout: 'pause', autoResume: true } })

  // Now. One of a second would leave it a second when it wakes.
  await sandbox.setTimeout(0)

  await t.until('the pause', async () => (await sandbox.getInfo()).state === 'paused')
  assert.equal(await t.sh(sandbox, 'echo awake'), 'awake')
})

check('what it uses is measured', ['Sandbox.getMetrics'], async (t) => {
  const sandbox = await t.sandbox()

  const metrics = await t.until('a measurement', async () => {
    const taken = await sandbox.getMetrics()
    return taken.length && taken
  })

  const last = metrics.at(-1)
  assert.ok(last.cpuCount >= 1 && last.memUsed > 0 && last.memUsed < last.memTotal, JSON.stringify(last))
  assert.ok(last.diskUsed > 0 && last.diskUsed < last.diskTotal, JSON.stringify(last))
})

check('a port is reached from outside', ['Sandbox.getHost'], async (t) => {
  const sandbox = await t.create()
  await sandbox.files.write('site/index.html', 'inside')
  const server = 'exec python3 -m http.server 8000 --bind 127.0.0.1 --directory site'
  await sandbox.commands.run(server, { background: true, timeoutMs: 0 })

  // 502 until the server listens.
  const page = await t.until('the page', async () => {
    const answer = await fetchPort(t, sandbox, 8000, '/')
    return answer.status !== 502 && answer
  })

  assert.ok(sandbox.getHost(8000).startsWith(`8000-${sandbox.sandboxId}.`), sandbox.getHost(8000))
  assert.deepEqual(page, { status: 200, body: 'inside' })
})

check('files go through links', ['Sandbox.uploadUrl', 'Sandbox.downloadUrl'], async (t) => {
  const sandbox = await t.sandbox()
  const body = '--b\r\nContent-Disposition: form-data; name="file"; filename="linked.txt"\r\n\r\nby link\r\n--b--\r\n'
  const headers = { 'Content-Type': 'multipart/form-data; boundary=b', 'Content-Length': body.length }

  const up = await request(await sandbox.uploadUrl('linked.txt'), { method: 'POST', headers, body })
  const down = await request(await sandbox.downloadUrl('linked.txt', { useSignatureExpiration: 600_000 }))

  assert.equal(up.status, 200, up.body)
  assert.deepEqual(down, { status: 200, body: 'by link' })
})

check('the token of a tool server is read', ['Sandbox.getMcpToken'], async (t) => {
  const sandbox = await t.create()
  await sandbox.files.write('/etc/mcp-gateway/.token', 'of the gateway', { user: 'root' })

  assert.equal(await sandbox.getMcpToken(), 'of the gateway')
})
