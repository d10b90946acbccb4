// Monthly invoices: a job that makes each invoice once, and a consumer that mails each once.
//
//     node monthly_invoices.js issue MONTH CUSTOMER...     the job; run it as often as you like
//     node monthly_invoices.js mail-rabbitmq QUEUE         mails what arrives, until SIGTERM
//     node monthly_invoices.js mail-kafka TOPIC            what cannot be mailed goes to TOPIC.dead
//
// DATABASE_URL, AMQP_URL and KAFKA_BROKERS say where things are. Keys come from the work, so a second run is told
// that it was done: ../../IDEMPOTENCY.md says why this is safe to run twice.

import { createHash } from 'node:crypto'
import process from 'node:process'
import { boundary } from './boundary.js'
import { program } from './program.js'
import { inTransaction } from './transaction.js'

// Makes the invoice and enqueues its e-mail, both or neither. False: that was done before.
async function issue(client, month, customer) {
  const key = `invoice:${month}:${customer}`
  const made = await inTransaction(client, async () => {
    const claim = await client.query("SELECT inbox.claim('send-invoice', $1, NULL) AS claimed", [key])
    if (!claim.rows[0].claimed) return false
    await boundary('claimed')
    const invoice = await client.query(
      `INSERT INTO invoice (month, customer, total) SELECT $1, id, amount FROM customer WHERE id = $2 RETURNING total`,
      [month, customer],
    )
    if (invoice.rowCount === 0) throw new Error(`no customer ${customer}`)
    await boundary('invoiced')
    await client.query(
      'SELECT outbox.enqueue(idempotency_key => $1, topic => $2, payload => $3::text, ordering_key => $4)',
      [
        key,
        process.env.EMAIL_TOPIC ?? 'invoice.email',
        JSON.stringify({ month, customer, total: invoice.rows[0].total }),
        customer,
      ],
    )
    await boundary('enqueued')
    return true
  })
  await boundary('committed')
  return made
}

// The work of one message, in one transaction with its claim. The caller acknowledges after it.
async function mail(client, messageId, body) {
  const hash = createHash('sha256').update(body).digest()
  const mailed = await inTransaction(client, async () => {
    const claim = await client.query("SELECT inbox.claim('mailer', $1, $2) AS claimed", [messageId, hash])
    if (!claim.rows[0].claimed) return false
    await boundary('claimed')
    const { month, customer, total } = JSON.parse(body.toString('utf8'))
    await client.query('INSERT INTO sent_email (month, customer, total) VALUES ($1, $2, $3)', [month, customer, total])
    await boundary('mailed')
    return true
  })
  await boundary('committed')
  console.log(mailed ? 'mailed' : 'done before', messageId)
}

await program({ issue, mail })
