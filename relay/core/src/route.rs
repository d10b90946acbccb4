//! Routes: which broker, destination and routing key a row's topic leads to.
