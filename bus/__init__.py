"""The bus: messages, subjects, streams and their guarantees. Knows NATS, never torch."""
