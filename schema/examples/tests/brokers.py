"""The two brokers as the tests see them: a place of the test's own, where the relay's messages arrive."""

import os

import pika
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kit import unique, wait_until


class Rabbit:
    """An exchange, a queue bound to it, and a dead-letter queue behind that."""

    name = "rabbitmq"

    def __init__(self):
        self.url = os.environ["TEST_AMQP_URL"]
        self.exchange, self.queue, self.dead = unique("examples"), unique("mail"), unique("dead")
        self.topic = "invoice.email"
        self.connection = pika.BlockingConnection(pika.URLParameters(self.url))
        self.channel = self.connection.channel()
        self.channel.exchange_declare(self.exchange, "topic", durable=True)
        self.channel.queue_declare(self.dead, durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.dead}
        self.channel.queue_declare(self.queue, durable=True, arguments=arguments)
        self.channel.queue_bind(self.queue, self.exchange, "#")

    def relay_environment(self):
        return {"AMQP_URL": self.url, "OUTBOX__RABBITMQ__EXCHANGE": self.exchange}

    def consumer(self):
        """Subcommand, its argument, and the environment."""
        return ["mail-rabbitmq", self.queue], {"AMQP_URL": self.url, "DEAD_LETTERS": self.dead}

    def arrived(self):
        return self.channel.queue_declare(self.queue, passive=True).method.message_count

    def messages(self):
        """Takes what is there: ids and bodies."""
        found = []
        while (got := self.channel.basic_get(self.queue, auto_ack=True))[0] is not None:
            found.append((got[1].message_id, got[2]))
        return found

    def publish(self, message_id, body):
        properties = pika.BasicProperties(message_id=message_id)
        self.channel.basic_publish(self.exchange, self.topic, body, properties)

    def set_aside(self):
        return self.channel.queue_declare(self.dead, passive=True).method.message_count

    def close(self):
        if self.connection.is_open:
            self.channel.queue_delete(self.queue)
            self.channel.queue_delete(self.dead)
            self.channel.exchange_delete(self.exchange)
            self.connection.close()


class Kafka:
    """A topic, and another one for its dead letters."""

    name = "kafka"

    def __init__(self, partitions=1):
        self.brokers = os.environ.get("TEST_KAFKA_BROKERS")
        if not self.brokers:
            assert os.environ.get("CI") != "true", "TEST_KAFKA_BROKERS is not set"
            pytest.skip("TEST_KAFKA_BROKERS is not set")
        self.topic, self.group = unique("invoice.email"), unique("mailer")
        self.dead = f"{self.topic}.dead"
        self.partitions = partitions
        self.admin = AdminClient({"bootstrap.servers": self.brokers})
        topics = [NewTopic(self.topic, partitions, 1), NewTopic(self.dead, 1, 1)]
        for future in self.admin.create_topics(topics).values():
            future.result(60)
        # What clients are told may be a moment behind.
        wait_until("the topics", lambda: {self.topic, self.dead} <= self.admin.list_topics(timeout=10).topics.keys())

    def relay_environment(self):
        return {"KAFKA_BROKERS": self.brokers}

    def consumer(self):
        return ["mail-kafka", self.topic], {"KAFKA_BROKERS": self.brokers, "GROUP": self.group}

    def arrived(self):
        reader = Consumer({"bootstrap.servers": self.brokers, "group.id": self.group + ".reader"})
        ends = [
            reader.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=30)[1]
            for partition in range(self.partitions)
        ]
        reader.close()
        return sum(ends)

    def messages(self):
        """Reads what is there: ids and bodies."""
        found = self.read(self.topic, self.arrived())
        return [(headers["id"], body) for headers, body in found]

    def publish(self, message_id, body, partition=-1):
        """To any partition, or to this one."""
        producer = Producer({"bootstrap.servers": self.brokers})
        headers = [] if message_id is None else [("id", message_id)]
        producer.produce(self.topic, body, headers=headers, partition=partition)
        assert producer.flush(60) == 0

    def dead_letters(self, count):
        """The first so many, each with its headers and its body."""
        return self.read(self.dead, count)

    def read(self, topic, count):
        """The first so many of the topic's first partition."""
        reader = Consumer({"bootstrap.servers": self.brokers, "group.id": self.group + ".reader"})
        reader.assign([TopicPartition(topic, 0, 0)])
        records = reader.consume(count, 60)
        reader.close()
        return [({name: value.decode() for name, value in one.headers() or []}, one.value()) for one in records]

    def close(self):
        for future in self.admin.delete_topics([self.topic, self.dead]).values():
            future.result(60)
