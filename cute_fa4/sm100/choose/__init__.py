"""Which kernel a call gets: rules, costs of pairs, and the configuration they lead to."""
