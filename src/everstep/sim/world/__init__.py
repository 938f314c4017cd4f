"""A simulated cloud and its machines, in virtual time. It shares no belief with the brain's forecasts."""
