//! The adapter against a real broker. `TEST_AMQP_URL` names it; every test makes names of its own and can run
//! beside any other. Tests that freeze or starve the broker are ignored by default: they need a node that nobody
//! else uses, named by `TEST_SERVICES_DIR` (see `node.rs`), and `--test-threads=1`. Those of `silent.rs` suspend
//! queues of their own through the same folder's `rabbitmqctl`, and run beside others.

mod kit;
mod node;
mod proxy;

mod addresses;
mod alarms;
mod delivery;
mod limits;
mod outages;
mod silent;
