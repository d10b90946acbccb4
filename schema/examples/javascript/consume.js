// Consumers of RabbitMQ and Kafka: `work(messageId, body)` does the work of one message in a transaction, and the message
// is acknowledged after it. One message after the other, since all share one database connection, and so one
// transaction at a time. What can never be handled goes to the queue's dead-letter exchange, or to TOPIC.dead.
//
// AMQP_URL and KAFKA_BROKERS say where things are.

import process from 'node:process'

// What can never succeed, however often it is tried: it is set aside, so that others go on. OX002 is another body
// under a known id; classes 22 and 23 are bad data.
function isHopeless(error) {
  return error instanceof SyntaxError || /^(OX002|22|23)/.test(error.code ?? '')
}

export async function consumeRabbitmq(queue, work) {
  const { connect } = await import('amqplib')
  const broker = await connect(process.env.AMQP_URL)
  const channel = await broker.createChannel()
  await channel.prefetch(10)
  let last = Promise.resolve()
  const handle = async (message) => {
    try {
      await work(message.properties.messageId, message.content)
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

export async function consumeKafka(topic, work) {
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
          await work(messageId, message.value)
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
