// What a sandbox may reach, and who may reach it.

import assert from 'node:assert/strict'
import { e2b, group, raises } from '../suite.mjs'
import { fetchPort } from '../web.mjs'

const check = group('network')
// Refused at once, not after a time: that is what a policy does.
const TRY = "timeout 60 bash -c 'exec 3<>/dev/tcp/198.51.100.7/22'; echo $?"

check('a sandbox without internet reaches nothing', ['Sandbox.create(allowInternetAccess)'], async (t) => {
  const sandbox = await t.create({ allowInternetAccess: false })

  assert.equal(await t.sh(sandbox, TRY), '1')
  assert.equal((await sandbox.getInfo()).allowInternetAccess, false)
})

check('a policy is shown as it was given', ['Sandbox.create(network)'], async (t) => {
  const sandbox = await t.create({ network: { allowOut: ['192.0.2.0/24', '*.example.com'], denyOut: [e2b.ALL_TRAFFIC] } })

  const { network } = await sandbox.getInfo()

  assert.deepEqual([...network.allowOut].sort(), ['*.example.com', '192.0.2.0/24'])
  assert.deepEqual(network.denyOut, [e2b.ALL_TRAFFIC])
  assert.equal(await t.sh(sandbox, TRY), '1')
})

check('a name that is allowed needs a denied rest', ['Sandbox.create(network)'], async (t) => {
  await raises(e2b.SandboxError, () => t.create({ network: { allowOut: ['example.com'] } }))
})

check('a new policy replaces the old one', ['Sandbox.updateNetwork'], async (t) => {
  const sandbox = await t.create()

  await sandbox.updateNetwork({ denyOut: ['198.51.100.0/24'] })
  const denied = await sandbox.getInfo()
  const attempt = await t.sh(sandbox, TRY)
  await sandbox.updateNetwork({ allowOut: ['192.0.2.1'] })
  const replaced = await sandbox.getInfo()

  assert.deepEqual(denied.network.denyOut, ['198.51.100.0/24'])
  assert.equal(attempt, '1')
  assert.deepEqual([replaced.network.allowOut, replaced.network.denyOut ?? []], [['192.0.2.1'], []])
})

check('a sandbox that is not public asks for its token', ['Sandbox.create(network)'], async (t) => {
  const sandbox = await t.create({ network: { allowPublicTraffic: false } })
  const server = 'exec python3 -m http.server 8000 --bind 127.0.0.1 --directory /etc/skel'
  await sandbox.commands.run(server, { background: true, timeoutMs: 0 })

  const refused = await fetchPort(t, sandbox, 8000, '/.profile')
  const page = await t.until('the page', async () => {
    const answer = await fetchPort(t, sandbox, 8000, '/.profile', { 'e2b-traffic-access-token': sandbox.trafficAccessToken })
    return answer.status !== 502 && answer
  })

  assert.equal(refused.status, 403, refused.body)
  assert.match(page.body, /~\/\.profile/)
})
