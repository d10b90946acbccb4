// A charge in three steps, of which the middle one is a call to another service:
//
//     node charge.js PURCHASE
//
// prepare: fix what will be charged · charge: call the payment service with a key made from the work ·
// receipt: note it and enqueue the receipt. Each step has a claim and a result of its own, so that a run after a crash
// goes on at the first unfinished step. DATABASE_URL, PAYMENT_URL.

import process from 'node:process'
import pg from 'pg'
import { boundary } from './boundary.js'
import { inTransaction } from './transaction.js'

const CONSUMER = 'charge'

const value = async (client, sql, parameters) => (await client.query(sql, parameters)).rows[0].value
const result = (client, key, step) =>
  value(client, 'SELECT inbox.step_result($1, $2, $3) AS value', [CONSUMER, key, step])
const claim = (client, key, step) =>
  value(client, 'SELECT inbox.claim_step($1, $2, $3) AS value', [CONSUMER, key, step])
const finish = (client, key, step, content) =>
  value(client, 'SELECT inbox.finish_step($1, $2, $3, $4) AS value', [CONSUMER, key, step, JSON.stringify(content)])

// The amount is fixed here: a price that changes later must not make the repeated call another request.
async function prepare(client, key, purchase) {
  await inTransaction(client, async () => {
    if (!(await claim(client, key, 'prepare'))) return
    await boundary('claimed')
    const { rows } = await client.query('SELECT total FROM purchase WHERE id = $1', [purchase])
    if (rows.length === 0) throw new Error(`no purchase ${purchase}`)
    await finish(client, key, 'prepare', { amount: rows[0].total })
    await boundary('preparing')
  })
  await boundary('prepared')
  return result(client, key, 'prepare')
}

// No transaction is open during the call. Killed after it, the next run calls again under the same key.
async function charge(client, key, { amount }) {
  const known = await result(client, key, 'charge')
  if (known !== null) return known
  await boundary('calling')
  const response = await fetch(`${process.env.PAYMENT_URL}/charges`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': key },
    body: JSON.stringify({ amount }),
    signal: AbortSignal.timeout(30_000),
  })
  if (!response.ok) throw new Error(`the payment service answered ${response.status}`)
  await boundary('called')
  await finish(client, key, 'charge', await response.json())
  await boundary('charged')
  return result(client, key, 'charge')
}

async function receipt(client, key, purchase, { id }) {
  await inTransaction(client, async () => {
    if (!(await claim(client, key, 'receipt'))) return
    await client.query("UPDATE purchase SET state = 'paid' WHERE id = $1 AND state = 'created'", [purchase])
    await boundary('noted')
    await client.query(
      'SELECT outbox.enqueue(idempotency_key => $1, topic => $2, payload => $3::text, ordering_key => $4)',
      [
        `receipt:${purchase}`,
        process.env.RECEIPT_TOPIC ?? 'purchase.receipt',
        JSON.stringify({ purchase, charge: id }),
        purchase,
      ],
    )
    await boundary('enqueued')
  })
  await boundary('committed')
}

async function main(purchase) {
  if (!purchase) throw new Error('usage: charge.js PURCHASE')
  process.on('SIGTERM', () => process.exit(0))
  const client = new pg.Client({ connectionString: process.env.DATABASE_URL })
  await client.connect()
  const key = `charge:${purchase}`
  const made = await charge(client, key, await prepare(client, key, purchase))
  await receipt(client, key, purchase, made)
  console.log(`${purchase} is paid by ${made.id}`)
  await client.end()
}

try {
  await main(process.argv[2])
} catch (error) {
  console.error(error.message)
  process.exit(1)
}
