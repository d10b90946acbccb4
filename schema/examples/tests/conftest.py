"""Fixtures."""

import sys

import pytest

from brokers import Kafka, Rabbit
from kit import Stage

sys.dont_write_bytecode = True


@pytest.fixture
def stage():
    made = Stage()
    yield made
    made.close()


@pytest.fixture(params=[Rabbit, Kafka], ids=["rabbitmq", "kafka"])
def broker(request):
    made = request.param()
    yield made
    made.close()


@pytest.fixture(params=[Rabbit, lambda: Kafka(partitions=2)], ids=["rabbitmq", "kafka"])
def shared_broker(request):
    """One that has work for two consumers at once."""
    made = request.param()
    yield made
    made.close()


@pytest.fixture
def rabbit():
    made = Rabbit()
    yield made
    made.close()


@pytest.fixture
def kafka():
    made = Kafka()
    yield made
    made.close()


@pytest.fixture
def kafka_of_two():
    """A topic with two partitions."""
    made = Kafka(partitions=2)
    yield made
    made.close()
