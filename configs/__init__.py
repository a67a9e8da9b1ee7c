"""One typed schema and the recipes. Importing this imports no torch."""
