"""Decisions about the flow of groups through a run: pure state machines, no clock of their own, no I/O."""
