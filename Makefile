# Entry points for people and CI. Each target works on a fresh Debian 12 machine with Rust.
# NO_INSTALL=1 installs nothing and says what is missing.

BROKER ?= rabbitmq
MODE ?= rabbitmq-classic
MINUTES ?= 10

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build target/release/outbox-relay
	tests/services/install.sh build
	cargo build --release --locked --bin outbox-relay

.PHONY: test
test: ## Format, lints, licences, and all tests against services of their own
	@tests/run.sh

.PHONY: test-slow
test-slow: ## The tests that take minutes or hours
	@tests/run.sh --slow

.PHONY: demo
demo: ## Real webhooks through a relay that is killed (BROKER=rabbitmq or kafka)
	@BROKER=$(BROKER) tests/demo.sh

.PHONY: campaign
campaign: ## Faults from a seeded schedule, judged (MODE=rabbitmq-classic, rabbitmq-quorum or kafka, MINUTES or FAULTS, SEED, RELAYS, SCHEDULE, OTHER_VERSION)
	@MODE=$(MODE) MINUTES=$(MINUTES) FAULTS=$(FAULTS) SEED=$(SEED) RELAYS=$(RELAYS) SCHEDULE=$(SCHEDULE) MUTANT=$(MUTANT) OTHER_VERSION=$(OTHER_VERSION) tests/campaign.sh

.PHONY: fuzz
fuzz: ## Random rows, configurations and addresses against the rules (SECONDS_EACH=60)
	@tests/fuzz.sh

.PHONY: bench
bench: ## Drains beside bare publishers, into benches/README.md (ROWS=1000000)
	tests/services/install.sh build postgres rabbitmq kafka
	benches/run.sh

.PHONY: fmt
fmt: ## Format the code
	cargo fmt --all

.PHONY: lint
lint: ## Format check and clippy
	cargo fmt --all -- --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --all-targets --features outbox-relay/otel -- -D warnings

.PHONY: deny
deny: ## Check licences, bans and sources of all packages, offline
	cargo fetch --locked
	$$(tests/services/tools.sh) --offline check bans licenses sources

.PHONY: chart
chart: ## Check Helm chart, alerts, dashboard and systemd unit
	tests/services/install.sh chart
	tests/chart/run.sh

.PHONY: installed
installed: ## Build and run the image and the Debian package, install the chart (as root, minutes)
	tests/services/install.sh build postgres rabbitmq installed
	tests/services/with.sh postgres rabbitmq -- tests/installed/run.sh

.PHONY: services
services: ## Start PostgreSQL, RabbitMQ and Kafka and show how to use them
	@tests/services/up.sh
	@tests/services/env.sh

.PHONY: clean-services
clean-services: ## Stop all services started from here and remove their data
	tests/services/clean.sh
