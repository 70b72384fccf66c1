// Git in a sandbox, which the SDK does with commands: one repository through all of its calls.

import assert from 'node:assert/strict'
import { group } from '../suite.mjs'

const check = group('repositories')
const author = { authorName: 'A. Writer', authorEmail: 'writer@example.com' }

const committing = ['init', 'configureUser', 'add', 'commit', 'status', 'branches', 'getConfig', 'setConfig']
check('a change is committed', committing.map((call) => `git.${call}`), async (t) => {
  const { git, files } = await t.sandbox()
  await git.init('repository', { initialBranch: 'main' })
  await git.configureUser('A. Writer', 'writer@example.com')
  await files.write('repository/a.txt', 'a')

  const before = await git.status('repository')
  await git.add('repository')
  await git.commit('repository', 'first')
  const after = await git.status('repository')
  await git.setConfig('core.pager', 'cat', { scope: 'local', path: 'repository' })

  assert.deepEqual(before.fileStatus.map((file) => file.name), ['a.txt'])
  assert.deepEqual(after.fileStatus, [])
  assert.equal((await git.branches('repository')).currentBranch, 'main')
  assert.equal(await git.getConfig('core.pager', { scope: 'local', path: 'repository' }), 'cat')
})

const branching = ['createBranch', 'checkoutBranch', 'deleteBranch', 'reset', 'restore']
check('branches come and go', branching.map((call) => `git.${call}`), async (t) => {
  const sandbox = await t.sandbox()
  const git = await repository(sandbox, 'branched')

  await git.createBranch('branched', 'topic')
  await sandbox.files.write('branched/a.txt', 'changed')
  await git.restore('branched', { paths: ['a.txt'] })
  await sandbox.files.write('branched/a.txt', 'changed again')
  await git.reset('branched', { mode: 'hard' })
  await git.checkoutBranch('branched', 'main')
  await git.deleteBranch('branched', 'topic')

  assert.equal(await sandbox.files.read('branched/a.txt'), 'a')
  assert.deepEqual((await git.branches('branched')).branches, ['main'])
})

const moving = ['remoteAdd', 'remoteGet', 'push', 'clone', 'pull']
check('commits go to another repository and come from it', moving.map((call) => `git.${call}`), async (t) => {
  const sandbox = await t.sandbox()
  const git = await repository(sandbox, 'pushed')
  const branch = { remote: 'origin', branch: 'main' }
  await git.init('shared.git', { bare: true, initialBranch: 'main' })

  await git.remoteAdd('pushed', 'origin', '/home/user/shared.git')
  await git.push('pushed', branch)
  await git.clone('/home/user/shared.git', { path: 'cloned' })
  await git.commit('pushed', 'second', { allowEmpty: true, ...author })
  await git.push('pushed', branch)
  await git.pull('cloned', branch)

  assert.equal(await git.remoteGet('pushed', 'origin'), '/home/user/shared.git')
  assert.equal(await t.sh(sandbox, 'git -C cloned log --format=%s'), 'second\nfirst')
})

check('credentials are kept for a host', ['git.dangerouslyAuthenticate'], async (t) => {
  const sandbox = await t.create()

  await sandbox.git.dangerouslyAuthenticate({ username: 'someone', password: 'a-password', host: 'git.example.com' })

  assert.match(await t.sh(sandbox, 'cat ~/.git-credentials'), /git\.example\.com/)
})

// A new repository with one commit, of the file a.txt.
async function repository({ git, files }, path) {
  await git.init(path, { initialBranch: 'main' })
  await files.write(`${path}/a.txt`, 'a')
  await git.add(path)
  await git.commit(path, 'first', author)
  return git
}
