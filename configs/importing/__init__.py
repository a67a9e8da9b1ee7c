"""Launch scripts of slime, TritonForge and verl as recipes of ours: read, never run (docs/switching.md)."""
