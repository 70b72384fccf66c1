// Files and folders, and what changes in them.

import assert from 'node:assert/strict'
import { e2b, group, raises } from '../suite.mjs'

const check = group('files')

check('a file holds what was written', ['files.write', 'files.read'], async (t) => {
  const { files } = await t.sandbox()
  const binary = Uint8Array.from({ length: 1_280_000 }, (_, n) => n % 251)

  const written = await files.write('text.txt', 'grüße\n')
  await files.write('/home/user/new/folder/binary', binary.buffer)
  await files.write('from-a-blob', new Blob(['from a blob']))

  assert.deepEqual([written.path, written.name], ['/home/user/text.txt', 'text.txt'])
  assert.equal(await files.read('text.txt'), 'grüße\n')
  assert.ok(Buffer.from(await files.read('/home/user/new/folder/binary', { format: 'bytes' })).equals(Buffer.from(binary)))
  const blob = await files.read('/home/user/new/folder/binary', { format: 'blob' })
  assert.equal(blob.size, binary.length)
  const chunks = []
  for await (const chunk of await files.read('/home/user/new/folder/binary', { format: 'stream' })) chunks.push(chunk)
  assert.ok(Buffer.concat(chunks).equals(Buffer.from(binary)))
  assert.equal(await files.read('from-a-blob'), 'from a blob')
})

check('reading what is missing throws', ['files.read'], async (t) => {
  const { files } = await t.sandbox()

  const error = await raises(e2b.NotFoundError, () => files.read('missing.txt'))

  assert.match(error.message, /missing\.txt/)
})

check('files are written and read as a user', ['files.write', 'files.read'], async (t) => {
  const sandbox = await t.sandbox()

  await sandbox.files.write('secret', 'of root', { user: 'root' })

  assert.equal(await t.sh(sandbox, 'stat -c %U /root/secret', { user: 'root' }), 'root')
  assert.equal(await sandbox.files.read('secret', { user: 'root' }), 'of root')
})

check('a file keeps what is noted of it', ['files.write(metadata)'], async (t) => {
  const { files } = await t.sandbox()

  await files.write('noted', 'x', { metadata: { origin: 'a-check' } })

  assert.deepEqual((await files.getInfo('noted')).metadata, { origin: 'a-check' })
})

check('files go compressed', ['files.write(gzip)', 'files.read(gzip)'], async (t) => {
  const { files } = await t.sandbox()
  const text = 'again and again\n'.repeat(10000)

  await files.write('compressed', text, { gzip: true })

  assert.equal((await files.getInfo('compressed')).size, text.length)
  assert.ok((await files.read('compressed', { gzip: true })) === text)
})

check('a file goes as it is or as a form', ['files.write(useOctetStream)'], async (t) => {
  const { files } = await t.sandbox()

  await files.write('as-it-is', 'one', { useOctetStream: true })
  await files.write('as-a-form', 'two', { useOctetStream: false })

  assert.deepEqual([await files.read('as-it-is'), await files.read('as-a-form')], ['one', 'two'])
})

for (const call of ['write', 'writeFiles']) {
  check(`several files are written at once with ${call}`, [`files.${call}`], async (t) => {
    const { files } = await t.sandbox()

    const written = await files[call]([0, 1, 2].map((n) => ({ path: `several/${n}`, data: `file ${n}` })))

    assert.deepEqual(written.map((info) => info.path), [0, 1, 2].map((n) => `/home/user/several/${n}`))
    assert.equal(await files.read('several/2'), 'file 2')
  })
}

check('folders are listed to a depth', ['files.list'], async (t) => {
  const { files } = await t.sandbox()
  await files.write('tree/branch/leaf', 'green')

  const shallow = await files.list('tree')
  const deep = await files.list('tree', { depth: 2 })

  assert.deepEqual(shallow.map((entry) => [entry.name, entry.type]), [['branch', e2b.FileType.DIR]])
  assert.deepEqual(deep.map((entry) => entry.path), ['/home/user/tree/branch', '/home/user/tree/branch/leaf'])
  await raises(e2b.NotFoundError, () => files.list('no-such-folder'))
})

check('what is removed exists no more', ['files.exists', 'files.remove'], async (t) => {
  const { files } = await t.sandbox()
  await files.write('going/away', 'x')

  const before = await files.exists('going')
  await files.remove('going')

  assert.deepEqual([before, await files.exists('going')], [true, false])
})

check('an entry is described', ['files.getInfo'], async (t) => {
  const sandbox = await t.sandbox()
  await sandbox.files.write('described', '12345')
  await t.sh(sandbox, 'chmod 640 described; ln -sf described link')

  const info = await sandbox.files.getInfo('described')
  const link = await sandbox.files.getInfo('link')

  assert.deepEqual([info.name, info.type, info.path, Number(info.size)], ['described', e2b.FileType.FILE, '/home/user/described', 5])
  assert.deepEqual([info.mode, info.permissions, info.owner, info.group], [0o640, '-rw-r-----', 'user', 'user'])
  assert.equal(link.symlinkTarget, '/home/user/described')
})

check('a folder is made once', ['files.makeDir'], async (t) => {
  const { files } = await t.sandbox()

  const first = await files.makeDir('made/inside')
  const second = await files.makeDir('made/inside')

  assert.deepEqual([first, second], [true, false])
})

check('a file is renamed', ['files.rename'], async (t) => {
  const { files } = await t.sandbox()
  await files.write('old-name', 'kept')

  const renamed = await files.rename('old-name', 'new-name')

  assert.equal(renamed.path, '/home/user/new-name')
  assert.equal(await files.read('new-name'), 'kept')
  assert.equal(await files.exists('old-name'), false)
})

check('changes in a folder are seen', ['files.watchDir', 'WatchHandle.stop'], async (t) => {
  const { files } = await t.sandbox()
  await files.makeDir('watched')
  const events = []
  const handle = await files.watchDir('watched', (event) => void events.push(`${event.type} ${event.name}`), { timeoutMs: 0 })

  await files.write('watched/one', '1')
  await t.until("the file's creation", () => events.includes('create one'))
  await files.remove('watched/one')
  await t.until("the file's removal", () => events.includes('remove one'))
  await handle.stop()
})

check('changes below a folder are seen when asked for', ['files.watchDir'], async (t) => {
  const { files } = await t.sandbox()
  await files.makeDir('above/below')
  const events = []
  const options = { recursive: true, timeoutMs: 0 }
  const handle = await files.watchDir('above', (event) => void events.push(`${event.type} ${event.name}`), options)

  await files.write('above/below/two', '2')
  await t.until("the file's creation", () => events.includes('create below/two'))
  await handle.stop()
})

check('what is no folder cannot be watched', ['files.watchDir'], async (t) => {
  const { files } = await t.sandbox()
  await files.write('no-folder', 'x')

  await raises(e2b.InvalidArgumentError, () => files.watchDir('no-folder', () => {}))
  await raises(e2b.NotFoundError, () => files.watchDir('not-here', () => {}))
})
