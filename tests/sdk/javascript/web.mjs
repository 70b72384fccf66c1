// A port of a sandbox, the way that a browser or another program reaches it.

import http from 'node:http'
import https from 'node:https'
import { REQUEST_TIMEOUT } from './suite.mjs'

// Status and body of GET: by the port's own host name, or by headers where all sandboxes share one address.
export function fetchPort(t, sandbox, port, path, headers = {}) {
  if (t.transport === 'hosts') return request(`https://${sandbox.getHost(port)}${path}`, { headers })
  const routed = { ...headers, 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': String(port) }
  return request(process.env.E2B_SANDBOX_URL + path, { headers: routed })
}

export function request(url, { method = 'GET', headers = {}, body } = {}) {
  return new Promise((resolve, reject) => {
    const client = url.startsWith('https:') ? https : http
    const sent = client.request(url, { method, headers, timeout: REQUEST_TIMEOUT }, (answer) => {
      const chunks = []
      answer.on('data', (chunk) => chunks.push(chunk))
      answer.on('error', reject)
      answer.on('end', () => resolve({ status: answer.statusCode, body: Buffer.concat(chunks).toString() }))
    })
    sent.on('timeout', () => sent.destroy(new Error(`no answer from ${url}`)))
    sent.on('error', reject)
    sent.end(body)
  })
}
