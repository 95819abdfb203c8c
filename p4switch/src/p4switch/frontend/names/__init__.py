"""Names, their meanings and their scopes."""
