// Templates: each is built, which takes a while.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { e2b, group, REQUEST_TIMEOUT } from '../suite.mjs'

const check = group('templates')
const SLOW = { requestTimeoutMs: REQUEST_TIMEOUT }
// Of what a build and a sandbox of it may have: guests may run in software emulation.
const SIZE = { cpuCount: 1, memoryMB: 256, ...SLOW }

check('a template is found by its name', ['Template.exists'], async () => {
  assert.equal(await e2b.Template.exists('base'), true)
  assert.equal(await e2b.Template.exists('no-such-template'), false)
})

check('a template is built and tagged', ['Template.build', 'Template.assignTags', 'Template.getTags'], async (t) => {
  const name = `of-a-check-${randomUUID()}`
  const folder = await mkdtemp(join(tmpdir(), 'sandpiper-sdk-'))
  await writeFile(join(folder, 'greeting'), 'hello\n')
  const template = e2b.Template({ fileContextPath: folder }).fromTemplate('small').copy('greeting', '/srv/')
    .setEnvs({ FRUIT: 'mango' }).runCmd('cat /srv/greeting > made; echo $FRUIT >> made')
  const said = []

  await e2b.Template.build(template, `${name}:v1`, { ...SIZE, onBuildLogs: (entry) => said.push(entry.message) })
  await rm(folder, { recursive: true })

  assert.ok(said.some((line) => line.includes('cat /srv/greeting')), said.join('\n'))
  assert.equal(await e2b.Template.exists(name, SLOW), true)
  const sandbox = await t.create({}, `${name}:v1`)
  assert.equal(await t.sh(sandbox, 'pwd; id -un; cat made; echo $FRUIT'), '/home/user\nuser\nhello\nmango\nmango')
  await e2b.Template.assignTags(`${name}:v1`, ['stable'], SLOW)
  assert.deepEqual((await e2b.Template.getTags(name, SLOW)).map((tag) => tag.tag).sort(), ['stable', 'v1'])
})
