"""Whether a task can tell right from wrong: audits of references before anybody trains on them."""
