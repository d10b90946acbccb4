//! Templates of addresses: text with `{topic}`, `{ordering_key}`, `{idempotency_key}`, `{header.NAME}`; `{{` is a brace.
