// A provider of OpenID Connect, on a port of its own:
//
//     node main.mjs FOLDER REDIRECT_URI        FOLDER has node_modules; the first line that it prints is the issuer
//
// PUT /-/people    who there is, by name: {"ada": {"email": "ada@example.com", "email_verified": true}}; any password is theirs
// PUT /-/keys      signs with other keys from now on
// PUT /-/claims    {"in_id_token": true}: tells of people in ID tokens, and not only beside them

import { createServer } from 'node:http';
import { pathToFileURL } from 'node:url';

const [folder, redirectUri] = process.argv.slice(2);
// What it says about being no provider for others is known.
console.info = console.warn = () => {};
const of = (name) => import(pathToFileURL(`${folder}/node_modules/${name}`));
const { default: Provider } = await of('oidc-provider/lib/index.js');
const { generateKeyPair, exportJWK } = await of('jose/dist/webapi/index.js');

const people = {};
let handler;
let keys = 0;
let inIdToken = false;
let jwk;

async function changeKeys() {
  keys += 1;
  const { privateKey } = await generateKeyPair('RS256', { extractable: true });
  jwk = { ...(await exportJWK(privateKey)), kid: `key-${keys}`, use: 'sig', alg: 'RS256' };
}

function serve(issuer) {
  const client = (id, more) => ({ client_id: id, redirect_uris: [redirectUri], grant_types: ['authorization_code'], response_types: ['code'], ...more });
  const provider = new Provider(issuer, {
    clients: [
      client('sandpiper', { client_secret: 'a secret: 100% of it' }),
      client('public', { token_endpoint_auth_method: 'none' }),
    ],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'] },
    conformIdTokenClaims: !inIdToken,
    cookies: { keys: ['of a test'] },
    jwks: { keys: [jwk] },
    pkce: { required: () => true },
    findAccount: (_, id) => people[id] && { accountId: id, claims: () => ({ sub: id, ...people[id] }) },
  });
  handler = provider.callback();
}

const server = createServer(async (request, response) => {
  if (!request.url.startsWith('/-/')) return handler(request, response);
  let body = '';
  for await (const piece of request) body += piece;
  if (request.url === '/-/people') Object.assign(people, JSON.parse(body));
  if (request.url === '/-/keys') await changeKeys();
  if (request.url === '/-/claims') inIdToken = JSON.parse(body).in_id_token;
  serve(issuer);
  response.end();
});
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;
await changeKeys();
serve(issuer);
console.log(issuer);
// It ends with who started it.
process.stdin.resume().on('end', () => process.exit());
