// A payment service for the example, as real ones behave: a charge under a known Idempotency-Key is answered with the
// first charge and not made again; the same key with another request is refused. It keeps its charges in memory.

import { createServer } from 'node:http'
import process from 'node:process'

const charges = new Map()

const server = createServer(async (request, response) => {
  const answer = (status, content) => {
    response.writeHead(status, { 'content-type': 'application/json' })
    response.end(JSON.stringify(content))
  }
  if (request.method === 'GET') return answer(200, [...charges.values()])
  let body = ''
  for await (const part of request) body += part
  const key = request.headers['idempotency-key']
  if (!key) return answer(400, { error: 'Idempotency-Key is missing' })
  const known = charges.get(key)
  if (known === undefined) charges.set(key, { id: `ch_${charges.size + 1}`, key, body, calls: 1 })
  else if (known.body === body) known.calls += 1
  else return answer(422, { error: 'this Idempotency-Key came with another request' })
  answer(200, { id: charges.get(key).id })
})

process.on('SIGTERM', () => process.exit(0))
server.listen(Number(process.env.PORT ?? 0), '127.0.0.1', () => console.log(`listening on ${server.address().port}`))
