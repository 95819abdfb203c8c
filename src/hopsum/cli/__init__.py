"""The `hopsum` command: options, commands, reports and pictures."""
