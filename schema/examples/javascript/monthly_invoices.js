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
import pg from 'pg'
import { boundary } from './boundary.js'
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

// What can never succeed, however often it is tried: it is set aside, so that others go on. OX002 is another body
// under a known id; classes 22 and 23 are bad data.
function isHopeless(error) {
  return error instanceof SyntaxError || /^(OX002|22|23)/.test(error.code ?? '')
}

// One message after the other: all share one database connection, and so one transaction at a time.
async function mailRabbitmq(client, queue) {
  const { connect } = await import('amqplib')
  const broker = await connect(process.env.AMQP_URL)
  const channel = await broker.createChannel()
  await channel.prefetch(10)
  let last = Promise.resolve()
  const handle = async (message) => {
    try {
      await mail(client, message.properties.messageId, message.content)
    } catch (error) {
      if (!isHopeless(error)) throw error
      console.log('set aside', message.properties.messageId, error.code ?? error.name)
      channel.nack(message, false, false) // To the queue's dead-letter exchange.
      return
    }
    channel.ack(message)
  }
  await new Promise((_, reject) => {
    broker.on('error', reject)
    channel.consume(queue, (message) => {
      if (message === null) return reject(new Error('the queue is gone'))
      last = last.then(() => handle(message)).catch(reject)
    }).then(() => console.log('ready'), reject)
  })
}

async function mailKafka(client, topic) {
  const { Kafka, logLevel } = await import('kafkajs')
  const kafka = new Kafka({ brokers: process.env.KAFKA_BROKERS.split(','), logLevel: logLevel.ERROR })
  const deadLetters = kafka.producer()
  await deadLetters.connect()
  const consumer = kafka.consumer({ groupId: process.env.GROUP ?? 'mailer', sessionTimeout: 6000, heartbeatInterval: 1000 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await new Promise((_, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        const messageId = message.headers?.id?.toString()
        try {
          await mail(client, messageId, message.value)
        } catch (error) {
          if (!isHopeless(error)) {
            reject(error)
            throw error
          }
          console.log('set aside', messageId, error.code ?? error.name)
          // The broker must have it before its offset is committed; acks of all replicas are kafkajs' default.
          const { key, value, headers } = message
          await deadLetters.send({ topic: `${topic}.dead`, messages: [{ key, value, headers }] })
        }
        await consumer.commitOffsets([{ topic, partition, offset: (BigInt(message.offset) + 1n).toString() }])
      },
    }).then(() => console.log('ready'), reject)
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
    throw new Error('usage: monthly_invoices.js issue MONTH CUSTOMER... | mail-rabbitmq QUEUE | mail-kafka TOPIC')
  }
  await client.end()
}

try {
  await main(process.argv.slice(2))
} catch (error) {
  console.error(error.message)
  process.exit(1)
}
