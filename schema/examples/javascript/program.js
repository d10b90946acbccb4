// The command line of a program with a job and a consumer of what it made:
//
//     node NAME.js issue MONTH CUSTOMER...     the job; run it as often as you like
//     node NAME.js mail-rabbitmq QUEUE         mails what arrives, until SIGTERM
//     node NAME.js mail-kafka TOPIC            what cannot be mailed goes to TOPIC.dead
//
// DATABASE_URL says where the application's tables are.

import process from 'node:process'
import pg from 'pg'
import { consumeKafka, consumeRabbitmq } from './consume.js'

async function main({ issue, mail }, [command, ...rest]) {
  // A stop at any instant: the transaction rolls back as the connection ends, and nothing was acknowledged.
  process.on('SIGTERM', () => process.exit(0))
  const client = new pg.Client({ connectionString: process.env.DATABASE_URL })
  await client.connect()
  const work = (messageId, body) => mail(client, messageId, body)
  if (command === 'issue' && rest.length > 0) {
    const [month, ...customers] = rest
    let made = 0
    for (const customer of customers) made += (await issue(client, month, customer)) ? 1 : 0
    console.log(`${made} of ${customers.length} invoices made`)
  } else if (command === 'mail-rabbitmq' && rest.length === 1) {
    await consumeRabbitmq(rest[0], work)
  } else if (command === 'mail-kafka' && rest.length === 1) {
    await consumeKafka(rest[0], work)
  } else {
    throw new Error('usage: issue MONTH CUSTOMER... | mail-rabbitmq QUEUE | mail-kafka TOPIC')
  }
  await client.end()
}

// `issue(client, month, customer)` is the job, `mail(client, messageId, body)` the work of one message.
export async function program(parts) {
  try {
    await main(parts, process.argv.slice(2))
  } catch (error) {
    console.error(error.message)
    process.exit(1)
  }
}
