"""The two brokers as the tests see them: a place of the test's own, where the relay's messages arrive."""

import os

import pika
import pytest
from confluent_kafka import Consumer, TopicPartition
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
        return ["mail-rabbitmq", self.queue], {"AMQP_URL": self.url}

    def arrived(self):
        return self.channel.queue_declare(self.queue, passive=True).method.message_count

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
    """A topic with one partition."""

    name = "kafka"

    def __init__(self):
        self.brokers = os.environ.get("TEST_KAFKA_BROKERS")
        if not self.brokers:
            assert os.environ.get("CI") != "true", "TEST_KAFKA_BROKERS is not set"
            pytest.skip("TEST_KAFKA_BROKERS is not set")
        self.topic, self.group = unique("invoice.email"), unique("mailer")
        self.admin = AdminClient({"bootstrap.servers": self.brokers})
        for future in self.admin.create_topics([NewTopic(self.topic, 1, 1)]).values():
            future.result(60)
        # Another broker's metadata may be a moment behind the one that made it.
        wait_until("the topic", lambda: self.topic in self.admin.list_topics(timeout=10).topics)

    def relay_environment(self):
        return {"KAFKA_BROKERS": self.brokers}

    def consumer(self):
        return ["mail-kafka", self.topic], {"KAFKA_BROKERS": self.brokers, "GROUP": self.group}

    def arrived(self):
        reader = Consumer({"bootstrap.servers": self.brokers, "group.id": self.group + ".reader"})
        _, end = reader.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=30)
        reader.close()
        return end

    def close(self):
        for future in self.admin.delete_topics([self.topic]).values():
            future.result(60)
