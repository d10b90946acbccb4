// An application with tables of its own: a job that claims its key in done_jobs and writes a row into a plain outbox
// table, and a consumer that claims the message's id there too. Neither knows of a relay.
//
//     node plain_table.js issue MONTH CUSTOMER...     the job; run it as often as you like
//     node plain_table.js mail-rabbitmq QUEUE         mails what arrives, until SIGTERM
//     node plain_table.js mail-kafka TOPIC
//
// DATABASE_URL, AMQP_URL and KAFKA_BROKERS say where things are. The relay takes the rows over as ../plain_table.toml
// says. What a consumer does with a message that can never be handled is shown in monthly_invoices.js.

import process from 'node:process'
import pg from 'pg'
import { boundary } from './boundary.js'
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

// One message after the other: all share one database connection, and so one transaction at a time.
async function mailRabbitmq(client, queue) {
  const { connect } = await import('amqplib')
  const broker = await connect(process.env.AMQP_URL)
  const channel = await broker.createChannel()
  await channel.prefetch(10)
  let last = Promise.resolve()
  const handle = async (message) => {
    await mail(client, message.properties.messageId, message.content)
    channel.ack(message)
  }
  await new Promise((_, reject) => {
    broker.on('error', reject)
    channel.consume(queue, (message) => {
      if (message === null) return reject(new Error('the queue is gone'))
      last = last.then(() => handle(message)).catch(reject)
    }).catch(reject)
  })
}

async function mailKafka(client, topic) {
  const { Kafka, logLevel } = await import('kafkajs')
  const kafka = new Kafka({ brokers: process.env.KAFKA_BROKERS.split(','), logLevel: logLevel.ERROR })
  const consumer = kafka.consumer({ groupId: process.env.GROUP ?? 'mailer', sessionTimeout: 6000, heartbeatInterval: 1000 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await new Promise((_, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        await mail(client, message.headers.id.toString(), message.value)
        await consumer.commitOffsets([{ topic, partition, offset: (BigInt(message.offset) + 1n).toString() }])
      },
    }).catch(reject)
  })
}

async function main([command, ...rest]) {
  // A stop at any instant: the transaction rolls back as the connection ends, and nothing was acknowledged.
  process.on('SIGTERM', () => process.exit(0))
  const client = new pg.Client({ connectionString: process.env.DATABASE_URL })
  await client.connect()
  if (command === 'issue' && rest.length > 0) {
    const [month, ...customers] = rest
    let made = 0
    for (const customer of customers) made += (await issue(client, month, customer)) ? 1 : 0
    console.log(`${made} of ${customers.length} invoices made`)
  } else if (command === 'mail-rabbitmq' && rest.length === 1) {
    await mailRabbitmq(client, rest[0])
  } else if (command === 'mail-kafka' && rest.length === 1) {
    await mailKafka(client, rest[0])
  } else {
    throw new Error('usage: plain_table.js issue MONTH CUSTOMER... | mail-rabbitmq QUEUE | mail-kafka TOPIC')
  }
  await client.end()
}

try {
  await main(process.argv.slice(2))
} catch (error) {
  console.error(error.message)
  process.exit(1)
}
