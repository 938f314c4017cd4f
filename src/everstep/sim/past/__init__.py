"""What a recorded journal saw of the market, and what another policy would have made of it."""
