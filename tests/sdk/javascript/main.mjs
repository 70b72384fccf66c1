// Runs the checks of the SDK in SDK_FOLDER against the host that the environment names (E2B_API_KEY, and E2B_API_URL with
// E2B_SANDBOX_URL, or E2B_DOMAIN), and prints a line of JSON for each.
//
//   main.mjs async TRANSPORT GROUP,... [TEXT]      TRANSPORT: headers or hosts; TEXT: in a check's name

import * as coverage from './coverage.mjs'
import { checks, Context, e2b, report, run } from './suite.mjs'

for (const name of ['sandboxes', 'commands', 'files', 'terminals', 'repositories', 'network', 'copies', 'interpreter', 'others', 'templates']) {
  await import(`./checks/${name}.mjs`)
}

const [, , , transport, groups, text = ''] = process.argv
const calls = coverage.publicCalls()
for (const call of coverage.unchecked(calls, checks)) report({ event: 'unchecked', calls: [call] })
await run(new Context(transport), groups.split(','), text.replaceAll('_', ' '), coverage.absent(calls, checks, e2b))
report({ event: 'end' })
// Connections that the SDK keeps open hold nothing up.
process.exit(0)
