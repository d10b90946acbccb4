// An application with tables of its own: a job that claims its key in done_jobs and writes a row into a plain outbox
// table, and a consumer that claims the message's id there too. Neither knows of a relay.
//
//     node plain_table.js issue MONTH CUSTOMER...     the job; run it as often as you like
//     node plain_table.js mail-rabbitmq QUEUE         mails what arrives, until SIGTERM
//     node plain_table.js mail-kafka TOPIC            what cannot be mailed goes to TOPIC.dead
//
// DATABASE_URL, AMQP_URL and KAFKA_BROKERS say where things are. The relay takes the rows over as ../plain_table.toml
// says.

import { boundary } from './boundary.js'
import { program } from './program.js'
import { inTransaction } from './transaction.js'

// True once for each key, if the transaction commits. Another one with the same key waits for this one's end.
async function claim(client, key) {
  const done = await client.query('INSERT INTO done_jobs (key) VALUES ($1) ON CONFLICT (key) DO NOTHING', [key])
  return done.rowCount === 1
}

// Makes the invoice and writes the row of its e-mail, both or neither. False: that was done before.
async function issue(client, month, customer) {
  const ref = `${month}:${customer}`
  const made = await inTransaction(client, async () => {
    if (!(await claim(client, `invoice:${ref}`))) return false
    await boundary('claimed')
    const invoice = await client.query(
      'INSERT INTO invoice (month, customer, total) SELECT $1, id, amount FROM customer WHERE id = $2',
      [month, customer],
    )
    if (invoice.rowCount === 0) throw new Error(`no customer ${customer}`)
    await boundary('invoiced')
    await client.query("INSERT INTO outbox (kind, ref) VALUES ('invoice-email', $1)", [ref])
    await boundary('written')
    return true
  })
  await boundary('committed')
  return made
}

// The work of one message, in one transaction with its claim. The caller acknowledges after it.
async function mail(client, messageId, body) {
  const { ref } = JSON.parse(body.toString('utf8'))
  const [month, customer] = [ref.slice(0, ref.indexOf(':')), ref.slice(ref.indexOf(':') + 1)]
  const mailed = await inTransaction(client, async () => {
    if (!(await claim(client, `mail:${messageId}`))) return false
    await boundary('mail-claimed')
    await client.query(
      `INSERT INTO sent_email (month, customer, total)
       SELECT month, customer, total FROM invoice WHERE month = $1 AND customer = $2`,
      [month, customer],
    )
    await boundary('mailed')
    return true
  })
  await boundary('mail-committed')
  console.log(mailed ? 'mailed' : 'done before', messageId)
}

await program({ issue, mail })
